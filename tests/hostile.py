"""A mirrored prefix in which anybody may have put anything, for tests that read it."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from memory_copies import copy_of
from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.mirror import MirrorConfig
from wherry.mirror.format.manifest import FileEntry, Manifest
from wherry.mirror.reader.puller import Puller
from wherry.mirror.reader.reader import MirrorReader
from wherry.mirror.reader.seal_remote import Sealed, Unsealed, seal, writers
from wherry.mirror.reader.verify import Finding, verify
from wherry.mirror.report import PullReport
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

GOOD = {"good.log": lines(2500, 1), "deep/good.jsonl": lines(1500, 2), "config.json": b"{}"}
WRITER = "rank0"
#: Name, bytes, what a listing says that is not true.
Planted = tuple[str, bytes, dict[str, Any]]


class Lying(WrappedStore):
    """Lists objects as they are told in `lies`: by key, the fields of ObjectMeta that are not true."""

    def __init__(self, inner: ObjectStore, lies: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(inner)
        self.lies = lies

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's, with the lies."""
        for meta in self.inner.list(prefix, start_after=start_after):
            yield replace(meta, **self.lies.get(meta.key, {}))


@functools.cache
def _honest() -> MemoryStore:
    """The objects of one honest mirror, still open."""
    with tempfile.TemporaryDirectory() as folder:
        store = MemoryStore(StoreURI("memory", folder), {})
        uri = StoreURI("memory", folder, "run")
        rig = Rig(Path(folder), MirrorConfig(segment_bytes=1000, retry=ONCE), store=store, uri=uri, writer=WRITER)
        for path, data in GOOD.items():
            rig.write(path, data)
        rig.flush()
        for _ in range(5):
            rig.step(1.0)
        rig.state_db.close()
    return store


class Bucket:
    """A prefix with the files of one honest mirror, still open, and what is put beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = StoreURI("memory", f"{folder}", "run")
        self.inner = copy_of(_honest(), self.uri)
        self.lies: dict[str, dict[str, Any]] = {}
        self.store: ObjectStore = Lying(self.inner, self.lies)

    @functools.cached_property
    def rig(self) -> Rig:
        """The mirror's folder, with its files and a ledger that knows none of them."""
        rig = Rig(self.folder, MirrorConfig(segment_bytes=1000, retry=ONCE), store=self.inner, uri=self.uri, writer=WRITER)
        for path, data in GOOD.items():
            rig.write(path, data)
        rig.state_db.close()
        return rig

    def put(self, name: str, data: bytes, **lies: object) -> None:
        """An object below the prefix; `lies` are what a listing says of it."""
        source = self.folder / "source"
        source.write_bytes(data)
        self.inner.put_file(f"run/{name}", source)
        if lies:
            self.lies[f"run/{name}"] = lies

    def puller(self, copy: Path) -> Puller:
        return Puller(self.store, self.uri, copy, retry=ONCE)

    def pull(self, copy: Path) -> tuple[PullReport, dict[str, bytes]]:
        """One look, and what it brought of the good files."""
        with self.puller(copy) as puller:
            report = puller.step()
        return report, {path: (copy / path).read_bytes() for path in GOOD if (copy / path).exists()}

    def verify(self) -> dict[str, Finding]:
        """By path."""
        with MirrorReader(self.store, "run", scratch=self.folder) as reader:
            return {one.path: one for one in verify(reader)}

    def seal(self) -> tuple[list[str], dict[str, str]]:
        """What was sealed of the honest writer, and what was not, with the reason."""
        found = list(seal(self.store, self.uri, WRITER, self.folder, even_if_open=True))
        made = [one.name for one in found if isinstance(one, Sealed)]
        return made, {one.path: one.reason for one in found if isinstance(one, Unsealed)}

    def cat(self, path: str) -> bytes:
        """A file, put together."""
        with MirrorReader(self.store, "run", scratch=self.folder) as reader:
            return b"".join(reader.read(path))


def check_all_is_read(bucket: Bucket, *, sealable: bool = True) -> list[str]:
    """Everything that reads a prefix still brings the good files; returns the lines about what is wrong."""
    with MirrorReader(bucket.store, "run", scratch=bucket.folder) as reader:
        snapshot = reader.snapshot()
        writers(snapshot)
    report, copied = bucket.pull(bucket.folder / "copy")
    assert copied == GOOD, report.trouble
    assert dict.fromkeys(GOOD, "right") == {path: bucket.verify()[path].verdict for path in GOOD}
    for path, data in GOOD.items():
        assert data == bucket.cat(path)
    if sealable:
        made, _ = bucket.seal()
        assert {path for path in GOOD if path != "config.json"} <= set(made)
    return list(report.trouble)


def rebuilt(folder: Path, planted: Iterable[Planted]) -> Rig:
    """The mirror of a folder whose ledger was lost, after it has closed, with `planted` objects in its bucket."""
    bucket = Bucket(folder)
    for name, data, lies in planted:
        bucket.put(name, data, **lies)
    rig = bucket.rig
    rig.bare = rig.seen = bucket.store
    rig.restart(lose_state_db=True)
    rig.write("good.log", b"more\n")
    rig.close()
    rig.seen = bucket.inner
    return rig


def check_all_is_there(rig: Rig) -> None:
    assert rig.engine.is_complete, rig.engine.report()
    assert dict.fromkeys(GOOD, True) == {path: (rig.folder / path).read_bytes() == rig.get(path) for path in GOOD}


def manifest_with(**values: object) -> bytes:
    """Our writer's manifest with one entry, of which some values are as given."""
    entry = {**asdict(FileEntry("good.log", "good.log", "append", "live", 1, 1000, "00000000")), **values}
    return json.dumps({"format": 1, **asdict(Manifest(WRITER, 1, "open", 1e9, 60.0, 0.0, 0, 1)), "files": [entry]}).encode()
