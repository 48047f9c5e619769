"""A pull of a live run: what grows grows in place, what is new appears, nothing is fetched or written twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrors import Rig, files_below, lines
from wherry.config import RetryConfig
from wherry.errors import ConfigError, IntegrityError, SpoolError, TransientError
from wherry.mirror import MirrorConfig
from wherry.mirror.reader.pull_state import FOLDER
from wherry.mirror.reader.puller import Puller
from wherry.mirror.report import PullReport
from wherry.store import ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.testing import FaultyStore
from wherry.testing.faulty import Fault

QUICK = RetryConfig(call_deadline_s=1.0, first_wait_s=0.001, longest_wait_s=0.002)


class Copy:
    """A copy of what a rig has in its store, by one pull after another, each as a new process."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder

    def puller(self, *, store: ObjectStore | None = None, overwrite: bool = False) -> Puller:
        return Puller(
            store or self.rig.seen, self.rig.uri, self.folder, overwrite=overwrite, retry=QUICK, now=self.rig.clock.wall
        )

    def pull(self, *, store: ObjectStore | None = None, overwrite: bool = False) -> PullReport:
        with self.puller(store=store, overwrite=overwrite) as puller:
            report = puller.step()
            puller.raise_first()
        return report

    def files(self) -> dict[str, bytes]:
        found = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files_below(self.folder)}
        return {path: data for path, data in found.items() if not path.startswith(FOLDER)}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=4096, grace_s=1000.0))
    yield rig
    rig.state_db.close()


@pytest.fixture
def copy(rig: Rig, tmp_path: Path) -> Copy:
    return Copy(rig, tmp_path / "copy")


def test_a_live_run_is_pulled_and_then_the_sealed_one(rig: Rig, copy: Copy) -> None:
    rig.write("logs/train.log", lines(20_000))
    rig.write("events.out.tfevents.1", os.urandom(5000))
    rig.write("config.json", "{}")
    rig.write("media/a.png", os.urandom(3000))
    rig.flush()
    copy.pull()
    assert rig.read_all() == copy.files()
    assert lines(20_000) == copy.files()["logs/train.log"]
    rig.write("logs/train.log", lines(9000, 1) + b"the last line has no end")
    rig.close()
    assert "sealed" == copy.pull().state
    assert rig.local() == copy.files()


def test_a_growing_file_keeps_its_inode_until_it_is_sealed_and_after(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(100))
    rig.flush()
    copy.pull()
    inode = (copy.folder / "a.log").stat().st_ino
    with open(copy.folder / "a.log", "rb") as follower:  # as tail -f and TensorBoard have it open
        seen = follower.read()
        for seed in range(5):
            rig.write("a.log", lines(6000, seed))
            rig.flush()
            copy.pull()
            seen += follower.read()
        rig.close()
        copy.pull()
        seen += follower.read()
    assert rig.local()["a.log"] == seen
    assert inode == (copy.folder / "a.log").stat().st_ino


def test_what_is_here_is_not_fetched_again(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(10_000))
    rig.write("c.json", "{}")
    rig.flush()
    assert len(rig.read("a.log")) + 2 == copy.pull().n_bytes
    assert 0 == copy.pull().n_bytes
    more = lines(500, 1)
    rig.write("a.log", more)
    rig.flush()
    assert len(more) == copy.pull().n_bytes
    rig.close()
    assert 0 == copy.pull().n_bytes


def test_a_file_that_was_truncated_at_its_source_is_truncated_in_place(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(10_000))
    rig.flush()
    copy.pull()
    inode = (copy.folder / "a.log").stat().st_ino
    rig.write("a.log", lines(300, 1), mode="wb")
    rig.flush()
    copy.pull()
    assert lines(300, 1) == copy.files()["a.log"]
    assert inode == (copy.folder / "a.log").stat().st_ino


def test_a_file_that_was_begun_anew_and_sealed_between_two_looks_is_made_equal_in_place(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(1000))
    rig.flush()
    copy.pull()
    inode = (copy.folder / "a.log").stat().st_ino
    rig.write("a.log", lines(5000, 1), mode="wb")
    rig.close()
    copy.pull()
    assert lines(5000, 1) == copy.files()["a.log"]
    assert inode == (copy.folder / "a.log").stat().st_ino


def test_a_rotated_file_is_here_under_both_names_as_in_the_folder(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(5000))
    rig.flush()
    copy.pull()
    os.rename(rig.folder / "a.log", rig.folder / "a.log.1")
    rig.write("a.log", lines(700, 1))
    rig.flush()
    copy.pull()
    assert lines(700, 1) == copy.files()["a.log"]
    rig.close()
    copy.pull()
    assert rig.local() == copy.files()


def test_a_run_that_goes_on_after_its_seal_grows_in_place(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(5000))
    rig.close()
    copy.pull()
    inode = (copy.folder / "a.log").stat().st_ino
    rig.restart()
    rig.write("a.log", lines(3000, 1))
    rig.flush()
    report = copy.pull()
    assert "open" == report.state
    assert len(rig.local()["a.log"]) == len(copy.files()["a.log"])
    rig.write("a.log", lines(3000, 2))
    rig.close()
    copy.pull()
    assert rig.local() == copy.files()
    assert inode == (copy.folder / "a.log").stat().st_ino


def test_a_small_file_that_is_rewritten_is_replaced_at_once(rig: Rig, copy: Copy) -> None:
    rig.write("status.json", '{"step": 1}')
    rig.flush()
    copy.pull()
    with open(copy.folder / "status.json") as reader:
        rig.write("status.json", '{"step": 2, "more": true}', mode="wb")
        rig.flush()
        for _ in range(3):  # it has to look the same twice before it is sent
            rig.step(40.0, force=True)
        copy.pull()
        assert '{"step": 1}' == reader.read()  # nobody ever reads half of each
    assert b'{"step": 2, "more": true}' == copy.files()["status.json"]


def test_what_was_deleted_at_its_source_stays_here(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(1000))
    rig.write("b.log", lines(1000, 1))
    rig.flush()
    copy.pull()
    (rig.folder / "a.log").unlink()
    rig.flush()
    rig.close()
    copy.pull()
    assert {"a.log": lines(1000), "b.log": lines(1000, 1)} == copy.files()


def test_what_vanished_from_the_store_stays_here(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(1000))
    rig.write("b.log", lines(1000, 1))
    rig.close()
    copy.pull()
    rig.seen.delete(rig.uri.key_for("a.log"))
    copy.pull()
    assert {"a.log", "b.log"} == set(copy.files())


def test_several_writers_are_one_folder(tmp_path: Path, rig: Rig, copy: Copy) -> None:
    other = Rig(tmp_path, rig.config, store=rig.seen, writer="rank1", uri=rig.uri, clock=rig.clock, name="run1")
    rig.write("rank0.log", lines(9000))
    other.write("rank1.log", lines(9000, 1))
    rig.flush()
    other.flush()
    rig.close()
    assert "open" == copy.pull().state
    other.close()
    assert "sealed" == copy.pull().state
    assert {**rig.local(), **other.local()} == copy.files()
    other.state_db.close()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_segments_are_pulled(tmp_path: Path, compression: str) -> None:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=3000, compression=compression))  # type: ignore[arg-type]
    copy = Copy(rig, tmp_path / "copy")
    for seed in range(4):
        rig.write("a.log", lines(10_000, seed))
        rig.flush()
        copy.pull()
        assert rig.local() == copy.files()
    rig.write("a.log", "no end")
    rig.close()
    copy.pull()
    assert rig.local() == copy.files()
    rig.state_db.close()


# -- what somebody else has done to the copy


def test_a_file_that_is_the_beginning_of_what_the_store_has_is_gone_on_with(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(10_000))
    rig.flush()
    copy.folder.mkdir()
    (copy.folder / "a.log").write_bytes(lines(10_000)[:1234])
    copy.pull()
    assert rig.local() == copy.files()


@pytest.mark.parametrize(("name", "data"), [("a.log", b"mine\n"), ("a.log", lines(10_000) + b"mine\n"), ("c.json", b"mine")])
def test_another_file_of_the_name_is_kept_and_the_rest_is_pulled(rig: Rig, copy: Copy, name: str, data: bytes) -> None:
    rig.write("a.log", lines(10_000))
    rig.write("b.log", lines(100))
    rig.write("c.json", "{}")
    rig.flush()
    copy.folder.mkdir()
    (copy.folder / name).write_bytes(data)
    with pytest.raises(FileExistsError, match="not the beginning of what the store has: allow overwriting"):
        copy.pull()
    assert data == copy.files()[name]
    assert {**rig.local(), name: data} == copy.files()
    copy.pull(overwrite=True)
    assert rig.local() == copy.files()


@pytest.mark.parametrize("change", ["edited", "truncated", "extended", "removed"])
def test_a_copy_that_was_changed_here_is_made_equal_again(rig: Rig, copy: Copy, change: str) -> None:
    rig.write("a.log", lines(10_000))
    rig.flush()
    copy.pull()
    path = copy.folder / "a.log"
    if change == "edited":
        path.write_bytes(b"X" + path.read_bytes()[1:])
    elif change == "truncated":
        os.truncate(path, 77)
    elif change == "extended":
        path.write_bytes(path.read_bytes() + b"mine\n")
    else:
        path.unlink()
    rig.write("a.log", lines(100, 1))
    rig.flush()
    copy.pull()
    assert rig.local() == copy.files()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["a.log", "c.json"])
@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_what_is_no_file_here_is_neither_followed_nor_replaced_and_that_is_said(
    rig: Rig, copy: Copy, tmp_path: Path, what: str, name: str, overwrite: bool
) -> None:
    for path in ("a.log", "b.log", "c.json"):
        rig.write(path, lines(100))
    rig.flush()
    copy.folder.mkdir()
    (tmp_path / "elsewhere").write_bytes(b"")
    if what == "link":
        (copy.folder / name).symlink_to(tmp_path / "elsewhere")
    elif what == "folder":
        (copy.folder / name).mkdir()
    else:
        os.mkfifo(copy.folder / name)
    with copy.puller(overwrite=overwrite) as puller:
        (trouble,) = puller.step().trouble
        with pytest.raises(FileExistsError):
            puller.raise_first()
    rule = (
        "a symbolic link here, which is neither followed nor replaced" if what == "link" else "a file in the store, and none here"
    )
    assert f"{name}: is {rule}: move it away, or pull into another folder" == trouble
    assert b"" == (tmp_path / "elsewhere").read_bytes()
    (copy.folder / name).rmdir() if what == "folder" else (copy.folder / name).unlink()
    copy.pull()
    assert rig.local() == copy.files()


def put(rig: Rig, name: str, data: bytes = b"") -> None:
    path = rig.spool / "source"
    path.write_bytes(data)
    rig.seen.put_file(f"{rig.uri.prefix}/{name}", path)


def test_a_file_that_became_a_folder_is_said_with_a_remedy(rig: Rig, copy: Copy) -> None:
    rig.write("x.log", lines(100))
    rig.write("b.log", lines(100, 1))
    rig.flush()
    copy.pull()
    (rig.folder / "x.log").unlink()
    rig.write("x.log/a", "data")
    rig.flush()
    rig.write("b.log", lines(100, 2))
    rig.flush()
    for _ in range(2):
        with copy.puller() as puller:
            (trouble,) = puller.step().trouble
        assert "x.log/a: x.log is a folder in the store, and none here: move it away, or pull into another folder" == trouble
    assert lines(100) == copy.files()["x.log"]  # it is in the store as well
    assert rig.local()["b.log"] == copy.files()["b.log"]


def test_of_a_file_and_a_folder_with_one_name_the_folder_is_pulled(rig: Rig, copy: Copy) -> None:
    put(rig, "x.log", b"file")
    put(rig, "x.log/a", b"data")
    for _ in range(2):
        with copy.puller() as puller:
            (trouble,) = puller.step().trouble
            with pytest.raises(FileExistsError, match="fetch the file with wherry cat"):
                puller.raise_first()
        assert "x.log: is a file and a folder in the store, which no folder can hold: fetch the file with wherry cat" == trouble
        assert {"x.log/a": b"data"} == copy.files()


def test_objects_that_stand_for_folders_are_no_files(rig: Rig, copy: Copy, tmp_path: Path) -> None:
    rig.write("logs/a.log", lines(100))
    rig.flush()
    for name in ("", "logs/", "empty/", "_mirror/", f"_mirror/{rig.writer}/segments/"):
        put(rig, name)
    assert () == copy.pull().trouble
    assert rig.local() == copy.files()
    assert {"logs/a.log"} == rig.read_all().keys()
    rig.close()
    assert () == copy.pull().trouble
    assert rig.local() == copy.files()


BAD_NAMES = ("../out", ".wherry-pull/state.json", "logs/", "a//b", "tab\there", "long" * 64)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_no_file_can_have_is_said_and_the_others_are_pulled(
    rig: Rig, copy: Copy, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.write("a.log", lines(100))
    rig.close()
    put(rig, name, b"evil")
    for _ in range(2):
        (trouble,) = copy.pull().trouble
        assert trouble.isprintable()
    assert rig.local() == copy.files()
    assert not (tmp_path / "out").exists()
    assert all(one.getMessage().isprintable() for one in caplog.records)
    assert any("is not pulled: " in one.getMessage() for one in caplog.records)


def test_a_folder_is_the_copy_of_one_uri(rig: Rig, copy: Copy, tmp_path: Path) -> None:
    rig.write("a.log", lines(100))
    rig.flush()
    copy.pull()
    other = Rig(
        tmp_path, rig.config, writer="rank9", name="other", store=rig.seen, uri=type(rig.uri)("memory", rig.uri.root, "b")
    )
    other.write("a.log", "other\n")
    other.flush()
    with pytest.raises(ConfigError, match=r"is a copy of memory://.*/runs/a, not of memory://.*/b: pull into another folder"):
        Copy(other, copy.folder).pull()
    assert rig.local() == copy.files()
    other.state_db.close()


def test_one_pull_at_a_time(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(100))
    rig.flush()
    with copy.puller() as first:
        first.step()
        with pytest.raises(SpoolError, match=f"process {os.getpid()} is pulling into .* already"):
            copy.pull()
    copy.pull()


# -- what goes wrong on the way


class Damaging(WrappedStore):
    """Changes a byte of what comes for keys that hold `key`, the first `times` times."""

    def __init__(self, inner: ObjectStore, key: str, times: int) -> None:
        super().__init__(inner)
        self.key = key
        self.times = times

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        crc = super().get_file(key, path, start=start, end=end, if_match=if_match)
        if self.key in key and self.times:
            self.times -= 1
            with open(path, "r+b") as file:
                file.seek(start)
                file.write(b"?")
        return crc


@pytest.mark.parametrize("sealed", [False, True])
def test_bytes_that_are_damaged_on_their_way_once_are_fetched_again(rig: Rig, copy: Copy, sealed: bool) -> None:
    rig.write("a.log", lines(30_000))
    rig.close() if sealed else rig.flush()
    copy.pull(store=Damaging(rig.seen, "a.log", 1))
    assert rig.local() == copy.files()


def test_a_damaged_segment_is_named_and_not_appended(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    copy.pull()
    rig.write("a.log", lines(3000, 1))
    rig.flush()
    last = rig.segments("a.log")[-1]
    with pytest.raises(IntegrityError, match=last):
        copy.pull(store=Damaging(rig.seen, last, 9))
    assert lines(3000) == copy.files()["a.log"]
    copy.pull()
    assert rig.local() == copy.files()


def test_a_damaged_object_never_gets_into_the_copy(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    copy.pull()
    rig.write("a.log", lines(3000, 1))
    rig.write("b.log", lines(3000))
    rig.close()
    with pytest.raises(IntegrityError, match=r"a\.log"):
        copy.pull(store=Damaging(rig.seen, ".log", 99))
    assert {"a.log": lines(3000), "b.log": b""} == copy.files()


def test_a_gap_is_said_and_the_rest_is_pulled(rig: Rig, copy: Copy) -> None:
    for seed in range(3):
        rig.write("a.log", lines(5000, seed))
        rig.flush()
    rig.write("b.log", lines(100))
    rig.flush()
    first = rig.segments("a.log")[0]
    rig.seen.delete(rig.uri.key_for(f"_mirror/rank0/segments/a.log/{first}"))
    with pytest.raises(IntegrityError, match="missing"):
        copy.pull()
    assert {"b.log": lines(100)} == copy.files()


@pytest.mark.parametrize("verb", ["list", "get", "head"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_transient_errors_are_tried_again(rig: Rig, copy: Copy, verb: str, number: int) -> None:
    rig.write("a.log", lines(30_000))
    rig.write("c.json", "{}")
    rig.flush()
    copy.pull(store=FaultyStore(rig.seen, [Fault(verb, TransientError("a reset"), number)]))
    assert rig.local() == copy.files()


def test_segments_that_a_seal_takes_away_while_they_are_fetched_are_read_from_the_plain_object(rig: Rig, copy: Copy) -> None:
    rig.write("a.log", lines(60_000))
    rig.flush()

    class Sealing(FaultyStore):
        n_gets = 0

        def get_file(
            self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
        ) -> int | None:
            self.n_gets += 1
            if self.n_gets == 3:
                rig.close()
            return super().get_file(key, path, start=start, end=end, if_match=if_match)

    with copy.puller(store=Sealing(rig.seen, [])) as puller:
        puller.step()
        assert puller.is_worth_retrying
        puller.step()
        puller.raise_first()
    assert rig.local() == copy.files()
