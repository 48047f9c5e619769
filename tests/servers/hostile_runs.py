"""Runs in which anybody may have put anything, for tests of the page: names with markup, damaged files, lies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hostile import manifest_with
from servers.real import S3Server
from wherry.store import PutOptions
from wherry.store.registry import open_store
from wherry.uri import parse_uri

#: Each sets `window.pwned` if it is taken for anything but text. The last one is right to left.
MARKUP = (
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1>",
    "\"'><script>window.pwned=1<",
    "{{ 7*7 }}{% raw %}${7*7}",
    "javascript:window.pwned=1",
    "</title></textarea><iframe src=javascript:window.pwned=1>",
    "\u202efdp.<b>",
)
LINE = '{"t": 1.0, "step": 1, "loss": 1.0}\n'

#: What a line or a file of metrics may be.
METRICS: Mapping[str, bytes] = {
    "empty": b"",
    "half a line": LINE.encode() * 3 + b'{"t": 2.0, "st',
    "zeros": LINE.encode() + b"\0" * 4096,
    "no text": b"\xff\xfe\n" * 100 + LINE.encode(),
    "deep": b"[" * 100_000 + b"\n" + LINE.encode(),
    "long number": LINE.encode() + b'{"step": ' + b"9" * 5000 + b', "loss": 1}\n',
    "other types": b'{"step": "x", "loss": "y", "t": []}\n[1, 2]\nnull\n"text"\n' + LINE.encode(),
    "no numbers": b"".join(
        json.dumps({"t": 1.0, "step": step, "loss": (float("nan"), float("inf"), -float("inf"))[step % 3]}).encode() + b"\n"
        for step in range(300)
    ),
    "far": b'{"loss": 1e999, "step": 1e999}\n{"loss": 1e308, "step": -5}\n{"loss": -1e308, "step": 9000000000000000000}\n',
    "names of JavaScript": b'{"t": 1, "step": 1, "__proto__": 1, "constructor": 2, "toString": 3, "": 4, "a/": 5, "/": 6}\n',
}
_DEEP = "[" * 100_000
#: What a manifest of a mirror may be; the object of a writer of its own.
MANIFESTS: Mapping[str, bytes] = {
    "no JSON": b"{",
    "deep": _DEEP.encode(),
    "no object": b"[]",
    "a newer format": b'{"format": 2}',
    "far numbers": manifest_with(size_bytes=2**70, generation=10**30),
    "negative": manifest_with(size_bytes=-1, generation=-1),
    "a path outside": manifest_with(path="../../../etc/passwd", name="../../../etc/passwd"),
    "markup": manifest_with(path=MARKUP[0], name=MARKUP[0], state=MARKUP[1]),
    "no numbers": b'{"format": 1, "interval_s": NaN, "heartbeat_s": Infinity, "lag_s": -1e999, "files": {}}',
}
#: What the other files of a run may be, by name.
FILES: Mapping[str, bytes] = {
    "hparams.json": _DEEP.encode(),
    "wherry-summary.json": b'{"format": "wherry-run-summary", "version": 1, "metrics": {"a": [1]}, "hparams": 7, "name": []}',
    "environment.json": b'{"t": "x", "git": [], "command": {"a": 1}, "packages": 7}',
    "media/index.jsonl": b'{"kind": "image", "key": 7, "step": "x", "path": []}\n'
    b'{"kind": "image", "key": "out", "step": 1, "path": "../../b/hparams.json"}\n'
    b'{"kind": "image", "key": "far", "step": 1, "path": "http://foreign.example/x.png", "size_bytes": 1}\n'
    b'{"kind": "image", "key": "gone", "step": 1, "path": "media/images/gone.png", "size_bytes": 10}\n'
    b'{"kind": "video", "key": "big", "step": 1, "path": "media/videos/big.mp4", "size_bytes": 1e300, "shape": ["x", -1]}\n'
    b'{"kind": "mask", "key": "m", "step": 1, "path": "media/masks/m/t/1.png", "mask": {}, "image": "../x"}\n',
    "histograms.jsonl": b'{"step": 1, "key": "h", "counts": [1, "x", NaN], "edges": [0]}\n{"key": [], "step": {}}\n',
    "text.jsonl": b'{"step": 1, "key": {"a": 1}, "text": [1]}\n',
    "tables/t.jsonl": _DEEP.encode(),
    "tables/u.jsonl": b'[1]\n{"a": {"b": []}, "c": NaN}\n',
    "checkpoints/manifests/000000001-0.json": b"{",
    "checkpoints/manifests/x.json": _DEEP.encode(),
    "checkpoints/attempts/000000009.json": b"[]",
    "logs-rank0.txt": b"\x1b[999999999m\x1b]8;;javascript:alert(1)\x07x\x1b]8;;\x07\x1b[2J\xff\xfe" * 100,
    "metrics.parquet": b"PAR1" + b"\xff" * 100 + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
}


def put_files(server: S3Server, prefix: str, files: Mapping[str, bytes], folder: Path) -> None:
    """Put objects of these bytes under their names below a prefix of the bucket. `folder` is for temporary files."""
    store = open_store(parse_uri(f"s3://{server.bucket}"), server.options)

    def put(one: tuple[int, tuple[str, bytes]]) -> None:
        number, (name, data) = one
        path = folder / f"object{number}"
        path.write_bytes(data)
        store.put_file(f"{prefix}/{name}", path, PutOptions())
        path.unlink()

    folder.mkdir(exist_ok=True)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, enumerate(files.items())))
    finally:
        store.close()


def delete_files(server: S3Server, prefix: str) -> None:
    """Delete all objects below a prefix of the bucket."""
    store = open_store(parse_uri(f"s3://{server.bucket}"), server.options)
    try:
        store.delete_many([meta.key for meta in store.list(f"{prefix}/")])
    finally:
        store.close()


def good_run(n_steps: int = 50, key: str = "loss") -> dict[str, bytes]:
    """The files of a run that has ended."""
    lines = "".join(json.dumps({"t": 1e9 + step, "step": step, key: 1 / (1 + step)}) + "\n" for step in range(n_steps))
    return {"metrics.jsonl": lines.encode(), "hparams.json": b'{"lr": 0.1}'}


def below(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with their names in a folder."""
    return {f"{name}/{path}": data for path, data in files.items()}


def hostile_runs() -> dict[str, bytes]:
    """A run for each thing that may be wrong, and ``good``."""
    files = below("good", good_run())
    for number, data in enumerate(METRICS.values()):
        files |= below(f"metrics{number}", {"metrics.jsonl": data})
    for number, data in enumerate(MANIFESTS.values()):
        files |= below(f"manifest{number}", {**good_run(), "_mirror/rank0/manifest.json": data})
    for number, (name, data) in enumerate(FILES.items()):
        files |= below(f"file{number}", {"metrics.jsonl": LINE.encode(), name: data})
    return files


def mutated(files: Mapping[str, bytes], random: random.Random) -> dict[str, bytes]:
    """The files with a few bytes changed, left out, doubled or cut off in each."""
    return {name: _mutated(data, random) for name, data in files.items()}


def _mutated(data: bytes, random: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(random.randint(0, 4)):
        at = random.randrange(len(found) + 1)
        some = random.randrange(1, 40)
        kind = random.randrange(4)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del found[at : at + some]
        elif kind == 2:
            found[at:at] = found[at : at + some] * random.randrange(1, 50)
        elif kind == 3 and random.random() < 0.3:
            del found[at:]
    return bytes(found)


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def joined(parts: Iterable[Mapping[str, bytes]]) -> dict[str, bytes]:
    """All files of all parts."""
    return {name: data for part in parts for name, data in part.items()}
