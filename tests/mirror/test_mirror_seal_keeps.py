"""Sealing without the folder loses no byte that has arrived, whatever the writer could not say any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirrors import ONCE, Rig, lines
from wherry.checksum import crc32c, format_crc32c
from wherry.errors import TransientError
from wherry.mirror import MirrorConfig
from wherry.mirror.format.layout import manifest_name
from wherry.mirror.format.manifest import FileEntry
from wherry.mirror.reader.seal_remote import Sealed, seal
from wherry.store import ObjectStore
from wherry.testing import FaultyStore
from wherry.testing.faulty import Fault

OLD, NEW, NEWEST = lines(1900, 1), lines(2000, 2), lines(1000, 3)
KEPT = "train.log.generation-0001"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=1000, retry=ONCE))
    rig.write("train.log", OLD)
    rig.flush()
    yield rig
    rig.state_db.close()


def rotate(rig: Rig, data: bytes) -> None:
    """What logrotate does, and what the program writes then; so soon that no manifest tells of it."""
    for number in (2, 1):
        if (path := rig.folder / f"train.log.{number}").exists():
            path.rename(rig.folder / f"train.log.{number + 1}")
    (rig.folder / "train.log").rename(rig.folder / "train.log.1")
    rig.write("train.log", data)
    for _ in range(3):
        rig.step(0.5, force=True)


def sealed(rig: Rig, store: ObjectStore | None = None) -> dict[str, Sealed]:
    found = seal(store or rig.seen, rig.uri, rig.writer, rig.spool / "scratch", even_if_open=True)
    return {one.name: one for one in found if isinstance(one, Sealed)}


def put(rig: Rig, name: str, data: bytes) -> None:
    path = rig.spool / "source"
    path.write_bytes(data)
    rig.engine.sender.send_whole(name, path)


def tell(rig: Rig, *entries: FileEntry) -> None:
    """Have the manifest say so of the files, besides what it says."""
    manifest = rig.manifest()
    told = {(one.path, one.generation): one for one in (*manifest.files, *entries)}
    rig.engine.sender.send_text(manifest_name(rig.writer), replace(manifest, files=tuple(told.values())).to_json())


def of_train_log(state: str, generation: int, name: str = "train.log", data: bytes = b"") -> FileEntry:
    return FileEntry("train.log", name, "append", state, generation, len(data), format_crc32c(crc32c(data)))


def test_a_log_that_was_rotated_after_the_last_manifest_is_kept_under_a_name_that_says_so(rig: Rig) -> None:
    rotate(rig, NEW)
    assert [1] == [one.generation for one in rig.manifest().files]
    found = sealed(rig)
    assert {KEPT: OLD, "train.log": NEW} == rig.plain()
    assert "an earlier train.log" in found[KEPT].note
    assert ("", len(NEW)) == (found["train.log"].note, found["train.log"].size_bytes)
    assert [] == rig.segments()


def test_without_any_manifest_every_generation_is_kept(rig: Rig) -> None:
    rotate(rig, NEW)
    rotate(rig, NEWEST)
    rig.seen.delete(rig.uri.key_for(manifest_name(rig.writer)))
    sealed(rig)
    assert {KEPT: OLD, "train.log.generation-0002": NEW, "train.log": NEWEST} == rig.plain()


def test_a_rotation_that_the_manifest_tells_of_and_one_that_it_does_not(rig: Rig) -> None:
    rotate(rig, NEW)
    rig.engine.write_manifest("open")
    rotate(rig, NEWEST)
    sealed(rig)
    assert {"train.log.1": OLD, "train.log.generation-0002": NEW, "train.log": NEWEST} == rig.plain()


def test_what_the_manifest_says_was_superseded_goes(rig: Rig) -> None:
    rig.write("train.log", NEW, mode="wb")
    rig.flush()
    tell(rig, of_train_log("superseded", 1), of_train_log("live", 2))
    sealed(rig)
    assert {"train.log": NEW} == rig.plain()
    assert [] == rig.segments()


def test_what_was_superseded_by_nothing_that_arrived_is_kept(rig: Rig) -> None:
    tell(rig, of_train_log("superseded", 1))
    sealed(rig)
    assert {"train.log": OLD} == rig.plain()


def test_what_the_manifest_says_was_sealed_elsewhere_goes(rig: Rig) -> None:
    rotate(rig, NEW)
    put(rig, "train.log.1", OLD)
    tell(rig, of_train_log("sealed", 1, "train.log.1", OLD))
    assert ["train.log"] == list(sealed(rig))
    assert {"train.log.1": OLD, "train.log": NEW} == rig.plain()
    assert [] == rig.segments()


def test_what_was_sealed_elsewhere_and_is_there_no_more_is_kept(rig: Rig) -> None:
    rotate(rig, NEW)
    put(rig, "train.log.1", NEWEST)  # the next rotation took the name
    tell(rig, of_train_log("sealed", 1, "train.log.1", OLD))
    sealed(rig)
    assert {"train.log.1": NEWEST, KEPT: OLD, "train.log": NEW} == rig.plain()


def test_the_name_of_a_kept_generation_collides_with_nothing(rig: Rig) -> None:
    rotate(rig, NEW)
    put(rig, KEPT, b"mine")
    sealed(rig)
    assert {KEPT: b"mine", f"{KEPT}-2": OLD, "train.log": NEW} == rig.plain()


def test_a_rotated_log_takes_no_other_files_name(rig: Rig) -> None:
    rotate(rig, NEW)
    rig.engine.write_manifest("open")
    put(rig, "train.log.1", b"that of the rotation before, which is train.log.2 by now")
    found = sealed(rig)
    assert {KEPT, "train.log.1", "train.log"} == rig.plain().keys()
    assert OLD == rig.plain()[KEPT]
    assert "renamed to train.log.1, which is another file here" in found[KEPT].note


def test_what_an_earlier_run_has_sealed_is_kept_where_another_log_takes_its_name(rig: Rig) -> None:
    rig.close()
    assert {"train.log": OLD} == rig.plain()
    rig.restart()
    rotate(rig, NEW)
    sealed(rig)
    assert {KEPT: OLD, "train.log": NEW} == rig.plain()


def test_what_went_on_behind_its_seal_before_it_was_rotated_is_kept_whole(rig: Rig) -> None:
    rig.close()
    rig.restart()
    rig.write("train.log", NEWEST)
    rig.flush()
    rotate(rig, NEW)
    sealed(rig)
    assert {KEPT: OLD + NEWEST, "train.log": NEW} == rig.plain()


def test_what_was_deleted_stays_segments_however_often_it_is_sealed(rig: Rig) -> None:
    rig.write("b.log", NEW)
    rig.flush()
    (rig.folder / "train.log").unlink()
    rig.step(1.0)
    rig.engine.write_manifest("open")
    before = rig.segments("train.log")
    for _ in range(2):
        sealed(rig)
        assert {"b.log": NEW} == rig.plain()
        assert before == rig.segments("train.log")


@pytest.mark.parametrize("verb", ["put", "delete"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_a_seal_that_is_interrupted_anywhere_is_made_again_without_a_trace(rig: Rig, verb: str, nth: int) -> None:
    rotate(rig, NEW)
    faulty = FaultyStore(rig.seen, [Fault(verb, TransientError("gone"), nth=nth, times=999)])
    for _ in range(2):
        try:
            sealed(rig, faulty)
        except TransientError:
            continue
    sealed(rig)
    assert {KEPT: OLD, "train.log": NEW} == rig.plain()
    assert [] == rig.segments()
