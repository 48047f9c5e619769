"""Sealing from the store has no dead end: whatever kills left is sealed, and what cannot be does not keep the rest from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.mirror import MirrorConfig
from wherry.mirror.format.layout import segment_name
from wherry.mirror.reader.seal_remote import Sealed, Unsealed, seal
from wherry.store import ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

_T = TypeVar("_T")
OLD, NEW = lines(4900, 1), lines(2000, 2)
SMALL = MirrorConfig(segment_bytes=1000, retry=ONCE, grace_s=0.0)


class Killed(BaseException):
    """The process ends here: nothing catches it."""


class Fragile(WrappedStore):
    """Ends the process at the `nth` call of those named; each is counted from arm() on."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.left = 0
        self.names: tuple[str, ...] = ()

    def arm(self, nth: int, *names: str) -> None:
        self.left, self.names = nth, names

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if not self.names or operation in self.names:
            self.left -= 1
            if not self.left:
                raise Killed
        return call()


def killed(rig: Rig, nth: int, *names: str) -> bool:
    """Close, and be killed at a call; False if it came to its end before."""
    store = rig.bare
    assert isinstance(store, Fragile)
    store.arm(nth, *names)
    try:
        for _ in range(40):
            rig.step(1.0, final=True)
    except Killed:
        return True
    finally:
        store.arm(0, "none")
    return False


def sealed(rig: Rig) -> tuple[list[str], dict[str, str]]:
    """The names that were made, and why what could not be made was not."""
    found = list(seal(rig.bare, rig.uri, rig.writer, rig.spool / "scratch", even_if_open=True))
    made = [one.name for one in found if isinstance(one, Sealed)]
    return made, {one.path: one.reason for one in found if isinstance(one, Unsealed)}


@pytest.mark.parametrize("n_cleaned", range(6))
def test_a_kill_in_the_clean_up_then_a_rotation_then_a_kill_anywhere_is_sealed_from_the_store(
    tmp_path: Path, n_cleaned: int
) -> None:
    """Of the first generation a part of the segments is left, and the object that was made of them has another name by now."""
    nth, is_killed = 0, True
    while is_killed:
        nth += 1
        place = tmp_path / f"{nth}"
        place.mkdir()
        store = MemoryStore(StoreURI("memory", f"{place}"), {})
        rig = Rig(place, SMALL, store=Fragile(store), uri=StoreURI("memory", f"{place}", "run"))
        rig.write("train.log", OLD)
        rig.write("other.log", NEW)
        rig.flush()
        killed(rig, n_cleaned + 1, "delete")
        rig.restart()
        (rig.folder / "train.log").rename(rig.folder / "train.log.1")
        rig.write("train.log", NEW)
        is_killed = killed(rig, nth)
        rig.state_db.close()
        _, reasons = sealed(rig)
        plain = rig.plain()
        assert {} == reasons, f"killed at call {nth}"
        assert OLD in plain.values(), f"killed at call {nth}"
        assert plain["other.log"] == NEW
        assert plain["train.log"] in (OLD, NEW) or NEW.startswith(plain["train.log"]), f"killed at call {nth}"
        assert [] == rig.segments(), f"killed at call {nth}"
    assert NEW == plain["train.log"]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, SMALL)


def test_one_file_that_cannot_be_sealed_is_named_and_the_others_are_sealed(rig: Rig) -> None:
    for name in ("a.log", "b.log", "c.log"):
        rig.write(name, OLD)
    rig.flush()
    rig.seen.delete(rig.uri.key_for(segment_name(rig.writer, "b.log", 1, 984)))
    before = rig.segments("b.log")
    made, reasons = sealed(rig)
    assert ["a.log", "c.log"] == made
    assert ["b.log"] == list(reasons)
    assert "join up to byte 984 only" in reasons["b.log"]
    assert {"a.log": OLD, "c.log": OLD} == rig.plain()
    assert before == rig.segments("b.log")
    assert [] == rig.segments("a.log")
    assert "incomplete" == rig.manifest().state  # so that nobody takes it for complete


def test_what_could_not_be_sealed_is_sealed_when_its_missing_segment_is_back(rig: Rig) -> None:
    rig.write("a.log", OLD)
    rig.flush()
    key = rig.uri.key_for(segment_name(rig.writer, "a.log", 1, 984))
    kept = rig.spool / "kept"
    kept.write_bytes(rig.get(rig.uri.name_for(key)))
    rig.seen.delete(key)
    assert ["a.log"] == list(sealed(rig)[1])
    rig.seen.put_file(key, kept)
    assert (["a.log"], {}) == sealed(rig)
    assert {"a.log": OLD} == rig.plain()
    assert "sealed" == rig.manifest().state


def test_an_object_of_another_file_is_no_beginning_of_what_is_left(rig: Rig) -> None:
    """The object's end lies beyond the segments that are left; they are of another file, so the two are no file together."""
    rig.write("a.log", OLD)
    rig.flush()
    rig.seen.delete(rig.uri.key_for(segment_name(rig.writer, "a.log", 1, 0)))
    rig.engine.sender.send_text("a.log", lines(9000, 5).decode())
    _, reasons = sealed(rig)
    assert "its segments go on with another file" in reasons["a.log"]
    assert {"a.log": lines(9000, 5)} == rig.plain()
    assert 4 == len(rig.segments("a.log"))


def test_the_object_that_an_unsealable_generation_began_with_is_kept_when_the_next_takes_its_name(rig: Rig) -> None:
    rig.write("a.log", OLD)
    rig.close()
    rig.restart()
    rig.write("a.log", lines(3000, 3))
    rig.flush()
    first = rig.segments("a.log")[0]
    rig.seen.delete(rig.uri.key_for(f"_mirror/{rig.writer}/segments/a.log/{first}"))
    rig.write("a.log", NEW, mode="wb")
    for _ in range(3):
        rig.step(0.5, force=True)
    _, reasons = sealed(rig)
    assert ["a.log"] == list(reasons)
    assert {"a.log": NEW, "a.log.generation-0001": OLD} == rig.plain()


@pytest.mark.parametrize("path", ["../up.log", "_mirror/other/manifest.json", "a//b.log", "a\nb.log", "/a.log"])
def test_a_name_that_no_file_has_is_not_sealed_and_the_others_are(rig: Rig, path: str) -> None:
    rig.write("good.log", OLD)
    rig.flush()
    hostile = rig.spool / "hostile"
    hostile.write_bytes(b"x\n")
    rig.seen.put_file(f"{rig.uri.prefix}/_mirror/{rig.writer}/segments/{path}/0001-{0:020d}", hostile)
    before = set(rig.names())
    made, reasons = sealed(rig)
    assert ["good.log"] == made
    assert [path] == list(reasons)
    assert {"good.log"} == {name for name in set(rig.names()) - before if not name.startswith("_mirror/rank0/epoch-")}
