"""A mirror without threads: a folder, a store, and a clock that tests turn."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mirror_oracle
from wherry.backends.memory import MemoryStore
from wherry.clock import Clock as SystemClock
from wherry.config import RetryConfig
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.budget import Budget, CountedStore
from wherry.mirror.format.layout import FOLDER, manifest_name
from wherry.mirror.format.manifest import Manifest, read_manifest
from wherry.mirror.writer.engine import Engine
from wherry.mirror.writer.segment_sender import InlineExecutor, SegmentSender
from wherry.mirror.writer.state_db import StateDb
from wherry.store import ObjectStore
from wherry.store.wrappers import RetryStore, WrappedStore
from wherry.testing import FaultyStore
from wherry.uri import StoreURI

#: The wall clock's zero: a day in 2026.
_EPOCH_S = 1_780_000_000.0
#: A call is made once; the engine's own patience is what is tested.
ONCE = RetryConfig(call_deadline_s=0.0, longest_wait_s=4.0)


class Clock:
    """Both clocks of a mirror, which go on when they are told to. `jump_s` is what the wall clock is wrong by."""

    def __init__(self) -> None:
        self.s = 0.0
        self.jump_s = 0.0

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.s

    def wall(self) -> float:
        """Seconds since the epoch, jumps included."""
        return _EPOCH_S + self.s + self.jump_s


class OneByOne(WrappedStore):
    """Deletes one object after another, in the order in which they are given, as a store does that cannot do better."""

    delete_many = ObjectStore.delete_many


class Rig:
    """One mirror after another of `folder`, as turns of an engine that sends in the calling thread."""

    def __init__(
        self,
        tmp: Path,
        config: MirrorConfig | None = None,
        *,
        store: ObjectStore | None = None,
        writer: str = "rank0",
        uri: StoreURI | None = None,
        clock: Clock | None = None,
        name: str = "run",
    ) -> None:
        self.folder = tmp / name
        self.folder.mkdir(exist_ok=True)
        self.spool = tmp / f"{name}-{writer}-place"
        self.spool.mkdir(exist_ok=True)
        self.uri = uri or StoreURI("memory", f"{tmp}", "runs/a")
        self.bare = store if store is not None else MemoryStore(self.uri, {})
        #: The same without faults, for the test's own looks.
        self.seen = self.bare.inner if isinstance(self.bare, FaultyStore) else self.bare
        self.writer = writer
        self.clock = clock or Clock()
        self.config = config or MirrorConfig(retry=ONCE)
        self.sent_before = self.requests_before = 0
        self.start()

    def start(self) -> None:
        """Begin as a new process does."""
        self.state_db = StateDb(self.spool / "ledger.db")
        self.budget = Budget(self.config.max_requests_per_hour, self.clock.monotonic)
        bare = OneByOne(self.bare) if isinstance(self.bare, FaultyStore) else self.bare  # so each delete may fail by itself
        store = RetryStore(CountedStore(bare, self.budget), ONCE)
        scratch = self.spool / "scratch"
        scratch.mkdir(exist_ok=True)
        sender = SegmentSender(
            self.folder, self.uri, self.writer, store, scratch, compression=self.config.compression, retry=ONCE
        )
        self.engine = Engine(
            sender, self.state_db, self.config, self.budget, InlineExecutor(),
            clock=SystemClock(self.clock.monotonic, self.clock.wall), rng=random.Random(7),
        )  # fmt: skip

    def restart(self, *, lose_state_db: bool = False) -> None:
        """As after a kill: nothing is left but the folder, the store and, if it is not lost, the ledger."""
        self.sent_before += self.engine.sender.sent_bytes
        self.requests_before += self.budget.spent
        self.state_db.close()
        if lose_state_db:
            for path in self.spool.glob("ledger.db*"):
                path.unlink()
        self.start()

    @property
    def sent_bytes(self) -> int:
        """Of all processes so far."""
        return self.sent_before + self.engine.sender.sent_bytes

    @property
    def n_requests(self) -> int:
        """Of all processes so far."""
        return self.requests_before + self.budget.spent

    # -- what the program does

    def write(self, path: str, data: bytes | str, *, mode: str = "ab") -> Path:
        """Append to a file of the folder; ``wb`` truncates it first."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, mode) as file:
            file.write(data.encode() if isinstance(data, str) else data)
        return target

    # -- what the mirror does

    def step(self, after_s: float = 0.0, *, force: bool = False, final: bool = False) -> None:
        """One turn, `after_s` later."""
        self.clock.s += after_s
        self.engine.step(force=force, final=final)

    def flush(self) -> None:
        """Turns until all that is complete is in the store."""
        for _ in range(40):
            self.step(1.0, force=True)
            if self.engine.is_flushed():
                return
        raise AssertionError(f"never flushed: {self.engine.report()}")

    def close(self) -> None:
        """Turns until it is finished."""
        for _ in range(200):
            self.step(1.0, final=True)
            if self.engine.is_finished:
                return
        raise AssertionError(f"never finished: {self.engine.report()}")

    # -- what is in the store

    def names(self) -> list[str]:
        """All names below the URI."""
        return [self.uri.name_for(meta.key) for meta in self.seen.list(f"{self.uri.prefix}/" if self.uri.prefix else "")]

    def segments(self, path: str = "") -> list[str]:
        """The segments' names behind the folder of all of them."""
        base = f"{FOLDER}/{self.writer}/segments/{path}"
        return [name[len(base) :].lstrip("/") for name in self.names() if name.startswith(base)]

    def plain(self) -> dict[str, bytes]:
        """The plain objects."""
        return {name: self.get(name) for name in self.names() if not name.startswith(f"{FOLDER}/")}

    def get(self, name: str) -> bytes:
        """An object's bytes."""
        with tempfile.NamedTemporaryFile() as file:
            self.seen.get_file(self.uri.key_for(name), Path(file.name))
            return file.read()

    def manifest(self) -> Manifest:
        """The writer's manifest."""
        found = read_manifest(self.seen, self.uri.key_for(manifest_name(self.writer)))
        assert found is not None
        return found

    def read(self, path: str) -> bytes:
        """The file, put together from its objects; nothing if there is none. The oracle and the product's reader agree on it."""
        return mirror_oracle.read(self.seen, self.uri.prefix, path)

    def read_all(self) -> dict[str, bytes]:
        """All files, put together."""
        return mirror_oracle.files_in(self.seen, self.uri.prefix)

    def local(self) -> dict[str, bytes]:
        """The folder's files."""
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files_below(self.folder)}


def log_in_a_child(run: Path, bucket: Path, spool: Path) -> None:
    """The body of a process that ends without closing its mirror."""
    mirror = Mirror(run, bucket, spool=spool, writer="w")
    (run / "a.log").write_text("last words")
    assert not mirror.is_closed


def files_below(folder: Path) -> Iterator[Path]:
    """Regular files, no links."""
    for base, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(base) / name
            if not path.is_symlink():
                yield path


def lines(n_bytes: int, seed: int = 0, width: int = 40) -> bytes:
    """Whole lines, `n_bytes` of them at least, that no other seed gives."""
    n_lines = -(-n_bytes // (width + 1))
    digits = random.Random(seed).randbytes(n_lines * width).hex()
    return "".join(f"{digits[at : at + width]}\n" for at in range(0, n_lines * width, width)).encode()
