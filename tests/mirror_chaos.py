"""A folder that is written to, and mirrored, by processes that are killed at any instant; and a store that fails at random.

Children are forked from one small process that has imported all there is, so that one costs milliseconds. What the writer writes
follows from the seed alone: so each byte that is found in the bucket can be told to be right without knowing when it was sent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gate import wait_until
from mirror_oracle import MirrorOracle, files_in
from wherry.backends.local.store import LocalStore
from wherry.config import RetryConfig
from wherry.errors import TransientError
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.format.layout import FOLDER, manifest_name
from wherry.store import ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI, parse_uri

_T = TypeVar("_T")
_STREAM_BYTES = 150_000
#: A file grows to this at most: a seed takes a second, and not a disk.
_MOST_BYTES = 120_000
_SEED = "CHAOS_SEED"
ENTRY_POINT = "[wherry.backends]\nchaos = mirror_chaos:ChaosStore\n"


class ChaosStore(WrappedStore):
    """``chaos://any/absolute/path``: a local folder, of which one call in twelve fails, half of these after they were made."""

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        super().__init__(LocalStore(StoreURI("file", "", uri.prefix), options))
        self._rng = random.Random(f"{os.environ.get(_SEED)} {os.getpid()}")

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        dice = self._rng.random() * (10 if operation == "list" else 1)  # each entry of a listing is a call
        if dice < 0.04:
            raise TransientError("reset", operation=operation, uri=key)
        result = call()
        if dice < 0.08:
            raise TransientError("the answer was lost", operation=operation, uri=key)
        return result


# -- what is written


@lru_cache(maxsize=64)
def stream(seed: int, name: str, generation: int) -> bytes:
    """All that is ever written to one generation of a file: lines, most of them short, some longer than a segment."""
    rng = random.Random(f"{seed} {name} {generation}")
    made = bytearray()
    while len(made) < _STREAM_BYTES:
        width = 6000 if rng.random() < 0.003 else rng.randrange(1, 120)
        made += rng.randbytes(width).hex().encode()[:width] + b"\n"
    return bytes(made)


def image(seed: int, number: int) -> bytes:
    """The bytes of an image."""
    rng = random.Random(f"{seed} image {number}")
    return rng.randbytes(rng.randrange(10_000))


def config_text(seed: int, version: int) -> str:
    """A version of the small file that is replaced."""
    return json.dumps({"version": version, "fill": "x" * random.Random(f"{seed} {version}").randrange(300)})


def write(folder: Path, seed: int) -> None:
    """Write until killed: grow, rotate by a rename, truncate, replace, add."""
    rng = random.Random(f"{seed} writer")
    (folder / "m").mkdir(exist_ok=True)
    rotations = truncations = images = versions = 0
    while True:
        dice = rng.random()
        if dice < 0.75:
            name = rng.choice(("a.log", "m/metrics.jsonl", "t.csv"))
            generation = {"a.log": 0, "m/metrics.jsonl": rotations, "t.csv": truncations}[name]
            with open(folder / name, "ab", buffering=0) as file:
                at = file.tell()
                if at < _MOST_BYTES:
                    file.write(stream(seed, name, generation)[at : at + rng.randrange(1, 2500)])
        elif dice < 0.80 and (folder / "m/metrics.jsonl").exists() and rotations < 12:
            (folder / "m/metrics.jsonl").rename(folder / f"m/metrics-{rotations}.jsonl")
            rotations += 1
        elif dice < 0.82 and (folder / "t.csv").exists() and truncations < 12:
            truncations += 1
            os.truncate(folder / "t.csv", 0)
        elif dice < 0.88:
            (folder / "conf.json.tmp").write_text(config_text(seed, versions))
            (folder / "conf.json.tmp").rename(folder / "conf.json")
            versions += 1
        elif dice < 0.92 and images < 40:
            (folder / "image.png.tmp").write_bytes(image(seed, images))
            (folder / "image.png.tmp").rename(folder / f"image-{images}.png")
            images += 1
        time.sleep(rng.random() * 0.002)  # a program that does other things besides


# -- the processes


def mirror(
    folder: Path,
    uri: str,
    spool: Path,
    seed: int,
    *,
    options: Mapping[str, object],
    close_after_s: float | None,
    compression: str | None,
) -> None:
    """Mirror until killed; or close after a while, and say in the file ``closed`` beside the spool how that went."""
    config = MirrorConfig(
        segment_bytes=4000,
        max_lag_s=0.02,
        settle_s=0.01,
        grace_s=0.05,
        compression=compression,  # type: ignore[arg-type]
        max_requests_per_hour=10_000_000,
        retry=RetryConfig(call_deadline_s=0.01, first_wait_s=0.001, longest_wait_s=0.002),
        give_up_s=20.0,
    )
    one = Mirror(folder, uri, storage_options=options, spool=spool, writer="w", config=config)
    if close_after_s is None:
        while True:
            time.sleep(3600)
    time.sleep(close_after_s)
    report = one.close()
    (spool.parent / "closed").write_text(str(report) if not report.is_complete else "")


def _nursery() -> None:
    """Fork a child for each line of stdin, and print its process id."""
    import wherry.backends.s3.store  # noqa: F401  once, and not in each child

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ[_SEED] = f"{order['seed']}"
            folder = Path(order["folder"])
            try:
                if order["what"] == "write":
                    write(folder, order["seed"])
                else:
                    given = {name: order[name] for name in ("options", "close_after_s", "compression")}
                    mirror(folder, order["uri"], Path(order["spool"]), order["seed"], **given)
            finally:
                sys.stderr.flush()
                os._exit(0)
        print(pid, flush=True)


class Nursery:
    """Starts writers and mirrors, in processes of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, what: str, **order: object) -> int:
        """The new process's id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **order}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @staticmethod
    def kill(pid: int) -> None:
        """SIGKILL, and wait until it is gone."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        Nursery.wait(pid)

    @staticmethod
    def wait(pid: int, timeout_s: float = 30.0) -> None:
        """Wait until it is gone."""
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s, what=f"the end of process {pid}")


@contextmanager
def nursery(folder: Path, module: str, entry_points: str) -> Iterator[Nursery]:
    """A nursery that runs `module` of the tests, and finds its stores by these entry points."""
    package = folder / "chaos-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos\nVersion: 1\n")
    (package / "entry_points.txt").write_text(entry_points)
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(
        [sys.executable, "-m", module], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


# -- what must hold


@dataclass(frozen=True)
class Place:
    """Where the mirrors send to, and how the test looks at it, past all faults."""

    uri: str
    options: Mapping[str, object]
    store: ObjectStore
    prefix: str
    #: A mirror is killed after so long at most.
    longest_life_s: float

    def names(self) -> list[str]:
        """Of all objects; a listing shows no temporary names of killed puts."""
        return [meta.key.removeprefix(f"{self.prefix}/") for meta in self.store.list(f"{self.prefix}/")]

    def get(self, name: str) -> bytes:
        """An object's bytes."""
        with tempfile.NamedTemporaryFile() as file:
            self.store.get_file(f"{self.prefix}/{name}", Path(file.name))
            return file.read()


def local_place(folder: Path) -> Place:
    """A folder, of which a call in twelve fails."""
    folder.mkdir(parents=True)
    uri = parse_uri(folder)
    return Place(f"chaos://any{folder}", {}, LocalStore(uri, {}), uri.prefix, 0.23)


def check(folder: Path, place: Place, seed: int) -> dict[str, int]:
    """All that is in the bucket is a prefix of what was written; how much of each file."""
    store, prefix = place.store, place.prefix
    found: dict[str, int] = {}
    for files in (MirrorOracle(store, prefix, believes_manifests=False).files(), files_in(store, prefix)):
        for path, data in files.items():
            assert _is_right(folder, path, data, seed), f"{path}: {len(data)} bytes, {data[:80]!r}"
            found[path] = len(data)
    return found


def _is_right(folder: Path, path: str, data: bytes, seed: int) -> bool:
    if path == "a.log":
        return (folder / path).read_bytes().startswith(data)
    if path == "t.csv":
        return any(stream(seed, path, generation).startswith(data) for generation in range(13))
    if path == "m/metrics.jsonl":
        return any(stream(seed, path, generation).startswith(data) for generation in range(13))
    if path.startswith("m/"):
        number = int(path.removeprefix("m/metrics-").removesuffix(".jsonl"))
        return stream(seed, "m/metrics.jsonl", number).startswith(data) and (folder / path).read_bytes().startswith(data)
    if path == "conf.json":
        return data.decode() == config_text(seed, json.loads(data)["version"])
    return data == image(seed, int(path.removeprefix("image-").removesuffix(".png")))


def play(folder: Path, home: Nursery, seed: int, place: Place) -> None:
    """One seed: kill and look, again and again; then close, and compare."""
    run, spool = folder / "run", folder / "spool"
    run.mkdir(parents=True)
    rng = random.Random(f"{seed} killer")
    common = {"folder": f"{run}", "seed": seed}
    compression = rng.choice((None, None, "gzip", "zstd"))
    mirrored = {**common, "uri": place.uri, "options": place.options, "spool": f"{spool}", "compression": compression}
    writer = home.start("write", **common)
    before: dict[str, int] = {}
    try:
        for _ in range(rng.randrange(3, 7)):
            close_after_s = rng.choice((None, None, rng.random() * 0.1))
            pid = home.start("mirror", **mirrored, close_after_s=close_after_s)
            time.sleep(0.03 + rng.random() * (place.longest_life_s - 0.03))  # the kill comes at no particular moment
            home.kill(pid)
            now = check(run, place, seed)
            assert now.get("a.log", 0) >= before.get("a.log", 0), "what was there is there no more"
            before = now
            if rng.random() < 0.2:
                for state_db in spool.rglob("mirrors/*/*.db*"):
                    state_db.unlink()
    finally:
        home.kill(writer)
    # Through a proxy of faults this takes 20 s on a machine that does nothing else: after each fault one sender goes on alone.
    home.wait(home.start("mirror", **mirrored, close_after_s=0.0), timeout_s=120.0)
    assert not (said := (folder / "closed").read_text()), said
    plain = {name: place.get(name) for name in place.names() if not name.startswith(f"{FOLDER}/")}
    local = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    wanted = {name: data for name, data in local.items() if not name.endswith(".tmp")}
    for name in plain.keys() - wanted.keys():  # it was renamed after it had been sealed: what was sent of what is gone stays
        assert name == "m/metrics.jsonl"
        assert _is_right(run, name, plain.pop(name), seed)
    wrong = {name: (len(wanted.get(name, b"")), len(plain.get(name, b""))) for name in wanted.keys() | plain.keys()}
    wrong = {name: sizes for name, sizes in wrong.items() if wanted.get(name) != plain.get(name)}
    assert not wrong, f"local and stored sizes differ: {wrong}"
    # What was sent of a file that is gone stays; with its ledger lost, one that was renamed is gone.
    left = MirrorOracle(place.store, place.prefix, believes_manifests=False).in_segments() & local.keys()
    assert not left, f"left after the seal: {left} {place.get(manifest_name('w')).decode()}"


if __name__ == "__main__":
    _nursery()
