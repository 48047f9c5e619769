"""A folder to which anything may happen, at any moment, and its mirror as turns of one thread; all of it follows from a seed.

Where `mirror_chaos` kills real processes, this one also changes the folder in the middle of calls of the store, and is cheap.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mirror_oracle import MirrorOracle, files_in
from mirrors import ONCE, Rig, files_below
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c as crc32c_of
from wherry.errors import IntegrityError, TransientError
from wherry.mirror import DEFAULT_RULES, MirrorConfig, MirrorFencedError, Rule
from wherry.store import ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

_T = TypeVar("_T")
_NAMES = ("a.log", "b.csv", "c.bin", "d.bin", "a.log.1", "a.log.2", "a.log.3", "e.json")
_PREFIX = "runs/a"


class Killed(BaseException):
    """The process is no more."""


class JoiningStore(MemoryStore):
    """In memory, and joins objects of 120 bytes and more."""

    capabilities = replace(MemoryStore.capabilities, min_joined_bytes=120)

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says."""
        found = [self._object("join", source)[1] for source in sources]
        assert all(len(data) >= 120 for data in found[:-1]), "S3 refuses these"
        data = b"".join(found)
        if (len(data), crc32c_of(data)) != (size_bytes, put.crc32c):
            raise IntegrityError("other bytes", operation="join", uri=key)
        return self._store("join", key, data, put)


class TroubledStore(WrappedStore):
    """Fails, before a call or after it, and kills, and lets the program do something meanwhile."""

    def __init__(self, inner: ObjectStore, trouble: Callable[[str, float], None]) -> None:
        super().__init__(inner)
        self._trouble = trouble

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        share = 0.2 if operation == "list" else 1.0  # each entry of a listing is a call
        self._trouble(f"before {operation} {key}", share)
        result = call()
        self._trouble(f"after {operation} {key}", share)
        return result

    def delete_many(self, keys: Sequence[str]) -> None:
        """In any order, and cut short anywhere: a store promises no more."""
        for key in sorted(keys, key=lambda key: crc32c_of(f"{key} {len(keys)}".encode())):
            self.delete(key)


class Fuzz:
    """One seed in a folder of its own. `log` tells what was done."""

    def __init__(self, tmp: Path, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.log: list[str] = []
        self._is_running = False
        self._p_fail, self._p_kill = rng.choice((0, 0, 0.03, 0.1)), rng.choice((0, 0, 0.01, 0.04))
        self._p_act = rng.choice((0, 0, 0.02, 0.1))
        config = MirrorConfig(
            retry=ONCE,
            segment_bytes=rng.choice((100, 300, 1000)),
            max_lag_s=rng.choice((1, 5)),
            settle_s=rng.choice((0.5, 2)),
            grace_s=rng.choice((0, 3, 300)),
            compression=rng.choice((None, None, None, "gzip")),
            rules=rng.choice((DEFAULT_RULES, DEFAULT_RULES, (Rule("*.log*", "append"), *DEFAULT_RULES))),
            max_requests_per_hour=10**6,
        )
        uri = StoreURI("memory", f"{tmp}", _PREFIX)
        self._store = JoiningStore(uri, {})
        self._rig = Rig(tmp, config, store=TroubledStore(self._store, self._trouble), uri=uri)
        self._rig.seen = self._store
        self._folder, self._elsewhere, self._tmp = self._rig.folder, tmp / "elsewhere", tmp
        self._elsewhere.mkdir()
        #: What each file was, at some time, under each name that it had.
        self._was: dict[str, list[bytes]] = {}
        self._names: dict[int, set[str]] = {}
        self._n_written, self._mtime_ns = 0, 10**18

    # -- what the store and the process do

    def _trouble(self, where: str, share: float) -> None:
        if not self._is_running:
            return
        if self._rng.random() < self._p_act * share / 2:
            self._act(where)
        dice = self._rng.random() / share
        if dice < self._p_fail:
            self.log.append(f"  fails {where}")
            raise TransientError("reset", operation="any", uri=where)
        if dice < self._p_fail + self._p_kill:
            self.log.append(f"  killed {where}")
            raise Killed

    def _restart(self, *, lose_state_db: bool) -> None:
        self.log.append(f"restart, ledger {'lost' if lose_state_db else 'kept'}")
        self._rig.restart(lose_state_db=lose_state_db)

    def _close(self) -> None:
        self.log.append("close")
        for number in range(300):
            self._is_running = self._is_running and number < 100  # a listing of which each entry may fail comes to no end
            self._rig.step(1.0, final=True)
            if self._rig.engine.is_finished:
                return
        raise AssertionError(f"never finished: {self._rig.engine.report()}")

    def _run(self) -> None:
        what = self._rng.choice(("turn",) * 6 + ("force", "close", "restart", "lose"))
        is_lost = self._rng.random() < 0.2
        self._is_running = True
        try:
            if what == "turn":
                self._rig.step(self._rng.choice((0.1, 1, 3, 10, 400)))
            elif what == "force":
                self._rig.step(1.0, force=True)
            elif what == "close":
                self._close()
                self._restart(lose_state_db=is_lost)
            else:
                self._restart(lose_state_db=what == "lose")
        except Killed:
            self._restart(lose_state_db=is_lost)
        except MirrorFencedError:
            self._restart(lose_state_db=False)
        finally:
            self._is_running = False

    # -- what the program does

    def _lines(self) -> bytes:
        self._n_written += 1
        count = self._rng.randrange(1, self._rng.choice((4, 40)))
        made = [
            b"%d-%d-%s\n" % (self._n_written, n, self._rng.randbytes(self._rng.randrange(2, 15)).hex().encode())
            for n in range(count)
        ]
        return b"".join(made) + (b"tail" if self._rng.random() < 0.1 else b"")

    def _made(self, path: Path, data: bytes | None = None, *, mode: str = "wb") -> None:
        if data is not None:
            with open(path, mode) as file:
                file.write(data)
        self._mtime_ns += 10**9  # time goes on
        os.utime(path, ns=(self._mtime_ns, self._mtime_ns))

    def _act(self, where: str = "") -> None:
        kinds = ("append",) * 6 + (
            "rotate",
            "roll",
            "truncate",
            "copytruncate",
            "delete",
            "away",
            "back",
            "swap",
            "replace",
            "move",
        )
        kind, path = self._rng.choice((*kinds, "new", "shrink")), self._folder / self._rng.choice(_NAMES)
        other, log = self._folder / self._rng.choice(_NAMES), self._folder / "a.log"
        if kind == "append":
            self._made(self._folder / self._rng.choice(("a.log", "a.log", "b.csv")), self._lines(), mode="ab")
        elif kind in ("rotate", "roll") and log.exists():
            self._rotate(log, begin_anew=kind == "roll")
        elif kind == "truncate":
            self._made(path, b"")
        elif kind == "shrink" and path.exists():
            os.truncate(path, path.stat().st_size // 2)
            self._made(path)
        elif kind == "copytruncate" and log.exists():
            self._made(self._folder / "a.log.1", log.read_bytes())
            os.truncate(log, 0)
            self._made(log)
        elif kind == "delete":
            path.unlink(missing_ok=True)
        elif kind == "away" and path.exists():
            path.replace(self._rng.choice((self._elsewhere / path.name, path.with_name(f"{path.name}.tmp"))))
        elif kind == "back":
            self._move_back(path)
        elif kind == "swap" and other != path and path.exists() and other.exists():
            path.rename(self._tmp / "between")
            other.rename(path)
            (self._tmp / "between").rename(other)
        elif kind == "replace":
            self._made(self._tmp / "fresh", self._lines())
            (self._tmp / "fresh").replace(path)
        elif kind == "move" and other != path and path.exists():
            path.replace(other)
        elif kind == "new" and not path.exists():
            self._made(path, self._lines())
        self.log.append(f"  {kind} {path.name} ({other.name}) {where}")
        self._note_contents()

    def _rotate(self, log: Path, *, begin_anew: bool) -> None:
        for number in (2, 1):
            if (backup := self._folder / f"a.log.{number}").exists():
                backup.replace(self._folder / f"a.log.{number + 1}")
        log.replace(self._folder / "a.log.1")
        if begin_anew:
            self._made(log, b"")

    def _move_back(self, path: Path) -> None:
        for source in (self._elsewhere / path.name, path.with_name(f"{path.name}.tmp")):
            if source.exists():
                source.replace(path)
                return

    def _note_contents(self) -> None:
        for path in files_below(self._folder):
            data, names = path.read_bytes(), self._names.setdefault(path.stat().st_ino, set())
            names.add(path.relative_to(self._folder).as_posix())
            for name in names:
                if data not in (was := self._was.setdefault(name, [])):
                    was.append(data)

    # -- what must hold

    def _check_readers(self) -> None:
        """What is read of a file, with the manifest and without, is a beginning of what it was at some time."""
        without_manifest = MirrorOracle(self._store, _PREFIX, believes_manifests=False).files()
        for files in (without_manifest, files_in(self._store, _PREFIX)):
            for path, data in files.items():
                assert any(was.startswith(data) for was in self._was.get(path, ())), f"{path}: {len(data)} bytes, {data[:40]!r}"

    def play(self) -> None:
        """Anything, then a close without trouble: the bucket is the folder."""
        for _ in range(self._rng.randrange(20, 60)):
            if self._rng.random() < 0.6:
                self._act()
            else:
                self._run()
                self._check_readers()
        for _ in range(3):
            self._rig.step(3.0)
        self._close()
        self._check_readers()
        assert self._rig.engine.is_complete, self._rig.engine.report()
        local = {name: data for name, data in self._rig.local().items() if not name.endswith(".tmp")}
        stored = self._rig.plain()
        assert local == {name: stored.get(name) for name in local}
        left = MirrorOracle(self._store, _PREFIX, believes_manifests=False).in_segments() & local.keys()
        assert not left, f"left after the seal: {left}"


def play(tmp: Path, seed: int) -> None:
    """One seed; its folder is removed. What was done is in the notes of the error, if there is one."""
    place = tmp / str(seed)
    place.mkdir()
    fuzz = Fuzz(place, seed)
    try:
        fuzz.play()
    except BaseException:
        print("\n".join(fuzz.log))
        raise
    finally:
        shutil.rmtree(place)
