"""The laws of what a download leaves for the next call: found again, never trusted, never in the way, gone in the end."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from wherry.errors import AccessDeniedError, IntegrityError, NotFoundError, TransientError, WherryError
from wherry.store import TEMPORARY_MARK
from wherry.transfer.resume import (
    STALE_AFTER_S,
    Partial,
    Version,
    _is_ours,
    clean_stale_downloads,
    forget_partial,
    partial_beside,
    temporary_beside,
)

VERSION = Version("s3://bucket/model.pt", "etag-1", 1000, 300)
DAY_S = 86_400.0


def leave(folder: Path, version: Version = VERSION, numbers: tuple[int, ...] = (0, 2), name: str = "model.pt") -> Path:
    """What a download leaves that an error ended; returns its temporary file."""
    with suppress(KeyboardInterrupt), partial_beside(folder / name, version) as partial:
        for number in numbers:
            with open(partial.path, "r+b") as file:
                file.seek(number * version.range_size_bytes)
                file.write(b"x" * 100)
            partial.note(number, 0xABC + number)
        raise KeyboardInterrupt
    return partial.path


def found(folder: Path, version: Version = VERSION, name: str = "model.pt") -> Partial:
    """What the next call is given; it leaves what it found."""
    with suppress(KeyboardInterrupt), partial_beside(folder / name, version) as partial:
        raise KeyboardInterrupt
    return partial


def record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.record")


def make_old(folder: Path, age_s: float) -> None:
    for path in folder.iterdir():
        os.utime(path, (time.time() - age_s,) * 2)


def test_ranges_are_numbered_from_the_start_and_the_last_is_shorter() -> None:
    assert VERSION.n_ranges == 4
    assert [VERSION.range(number) for number in range(4)] == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    assert replace(VERSION, size_bytes=0).n_ranges == 0


def test_the_next_call_finds_the_bytes_and_the_record(tmp_path: Path) -> None:
    path = leave(tmp_path)
    again = found(tmp_path)
    assert again.path == path
    assert again.recorded == {0: 0xABC, 2: 0xABE}
    assert path.read_bytes()[600:700] == b"x" * 100
    assert path.stat().st_size == VERSION.size_bytes


def test_ranges_are_added_call_by_call_and_a_later_line_counts(tmp_path: Path) -> None:
    leave(tmp_path, numbers=(0,))
    path = leave(tmp_path, numbers=(1,))
    with open(record_of(path), "ab") as file:
        file.write(b"0 00000007\n")
    assert found(tmp_path).recorded == {0: 7, 1: 0xABD}


def test_the_record_is_for_people_too_and_both_names_carry_our_mark(tmp_path: Path) -> None:
    path = leave(tmp_path, numbers=(2,))
    assert sorted(os.listdir(tmp_path)) == [path.name, record_of(path).name]
    assert path.name.startswith(f".model.pt{TEMPORARY_MARK}")
    header, line, end = record_of(path).read_text().split("\n")
    assert json.loads(header) == {
        "format": 1, "uri": "s3://bucket/model.pt", "etag": "etag-1", "size_bytes": 1000, "range_size_bytes": 300
    }  # fmt: skip
    assert (line, end) == ("2 00000abe", "")


def test_an_earlier_call_decides_the_size_of_ranges(tmp_path: Path) -> None:
    leave(tmp_path)
    assert found(tmp_path, replace(VERSION, range_size_bytes=50)).version == VERSION


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_names_of_greatest_length_leave_room_and_stay_apart(tmp_path: Path, name: str) -> None:
    first = leave(tmp_path, name=name)
    second = leave(tmp_path, name=name[:-1] + "y")
    assert first != second
    assert found(tmp_path, name=name).path == first


def test_two_objects_for_one_destination_have_a_pair_each(tmp_path: Path) -> None:
    other = replace(VERSION, uri="s3://bucket/other.pt")
    leave(tmp_path)
    assert found(tmp_path, other).recorded == {}
    assert found(tmp_path).recorded == {0: 0xABC, 2: 0xABE}


@pytest.mark.parametrize("changed", [replace(VERSION, etag="etag-2"), replace(VERSION, size_bytes=999)])
def test_a_changed_object_starts_over_with_an_empty_file(tmp_path: Path, changed: Version) -> None:
    path = leave(tmp_path)
    before = os.stat(path).st_ino
    with open(path, "rb"), partial_beside(tmp_path / "model.pt", changed) as partial:
        assert (partial.path, partial.recorded) == (path, {})
        assert os.stat(path).st_ino != before  # a thread that still writes to the old file does no harm
        assert path.read_bytes() == bytes(changed.size_bytes)
    assert os.listdir(tmp_path) == []


def drop_file(path: Path) -> None:
    path.unlink()


def shorten_file(path: Path) -> None:
    os.truncate(path, 500)


def record(text: bytes) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        record_of(path).write_bytes(text)

    return rewrite


def header(**changes: object) -> bytes:
    known = {"format": 1, "uri": VERSION.uri, "etag": "etag-1", "size_bytes": 1000, "range_size_bytes": 300}
    return json.dumps({**known, **changes}).encode() + b"\n0 00000abc\n"


@pytest.mark.parametrize(
    "damage",
    [
        drop_file,
        shorten_file,
        record(b""),
        record(b"\n0 00000abc\n"),
        record(b"[]\n0 00000abc\n"),
        record(b"\0" * 300),
        record(header()[:40]),
        record(header(format=2)),
        record(header(range_size_bytes=0)),
        record(header(range_size_bytes="300")),
        record(header(more=1)),
    ],
)
def test_what_cannot_be_gone_on_with_is_begun_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = leave(tmp_path)
    damage(path)
    with partial_beside(tmp_path / "model.pt", VERSION) as partial:
        assert partial.recorded == {}
        assert path.read_bytes() == bytes(1000)
    assert os.listdir(tmp_path) == []


def test_torn_lines_and_ranges_that_do_not_exist_are_passed_over(tmp_path: Path) -> None:
    path = leave(tmp_path, numbers=(1,))
    with open(record_of(path), "ab") as file:
        file.write(b"4 00000001\n99 00000001\n-1 00000001\n2 xyz\n\0\0\0\n3 0000")
    assert found(tmp_path).recorded == {1: 0xABD}


# what stays and what goes


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (KeyboardInterrupt(), True),
        (TransientError("reset"), True),
        (AccessDeniedError("the session is over"), True),
        (OSError(errno.EIO, "the disk"), True),
        (NotFoundError("deleted meanwhile"), False),
        (IntegrityError("damaged"), False),
        (FileExistsError("the destination is taken"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (OSError(errno.EDQUOT, "full"), False),
    ],
)
def test_the_pair_stays_for_errors_that_another_call_may_get_over(tmp_path: Path, error: BaseException, stays: bool) -> None:
    with pytest.raises(type(error)), partial_beside(tmp_path / "model.pt", VERSION) as partial:
        partial.note(0, 1)
        raise error
    assert len(os.listdir(tmp_path)) == (2 if stays else 0)


def test_a_full_disk_that_a_store_tells_of_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WherryError), partial_beside(tmp_path / "model.pt", VERSION) as partial:
        partial.note(0, 1)
        raise WherryError("the file cannot be written") from OSError(errno.ENOSPC, "full")
    assert os.listdir(tmp_path) == []


def test_without_a_range_nothing_stays(tmp_path: Path) -> None:
    leave(tmp_path, numbers=())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("version", [replace(VERSION, etag=None), replace(VERSION, range_size_bytes=1000)])
def test_an_object_of_one_range_or_without_an_etag_leaves_nothing(tmp_path: Path, version: Version) -> None:
    path = leave(tmp_path, version, numbers=(0,))
    assert path.name.startswith(f".model.pt{TEMPORARY_MARK}")
    assert os.listdir(tmp_path) == []


def test_an_object_that_is_gone_takes_its_pair_along(tmp_path: Path) -> None:
    leave(tmp_path)
    leave(tmp_path, name="other")
    forget_partial(tmp_path / "model.pt", VERSION.uri)
    assert {name[:6] for name in os.listdir(tmp_path)} == {".other"}
    forget_partial(tmp_path / "no such folder" / "model.pt", VERSION.uri)


def test_a_pair_in_use_is_not_forgotten(tmp_path: Path) -> None:
    with partial_beside(tmp_path / "model.pt", VERSION) as partial:
        forget_partial(tmp_path / "model.pt", VERSION.uri)
        assert record_of(partial.path).exists()


def test_only_the_rest_of_a_file_needs_room(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    version = replace(VERSION, size_bytes=space.f_bavail * space.f_frsize * 2, range_size_bytes=2**40)
    with pytest.raises(OSError, match="no room") as caught, partial_beside(tmp_path / "model.pt", version):
        raise AssertionError("unreachable")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []


def test_what_was_fetched_stays_when_the_rest_finds_no_room(tmp_path: Path) -> None:
    path = leave(tmp_path)
    space = os.statvfs(tmp_path)
    size_bytes = space.f_bavail * space.f_frsize * 2
    os.truncate(path, size_bytes)
    record_of(path).write_bytes(header(size_bytes=size_bytes))
    version = replace(VERSION, size_bytes=size_bytes)
    with pytest.raises(OSError, match="no room"), partial_beside(tmp_path / "model.pt", version):
        raise AssertionError("unreachable")
    assert len(os.listdir(tmp_path)) == 2


# several at a time


def test_a_second_download_takes_a_file_of_its_own(tmp_path: Path) -> None:
    with partial_beside(tmp_path / "model.pt", VERSION) as first:
        first.note(0, 1)
        second = leave(tmp_path)
        assert second != first.path
        assert sorted(os.listdir(tmp_path)) == [first.path.name, record_of(first.path).name]
    assert os.listdir(tmp_path) == []


def test_a_forked_child_does_not_hold_the_pair(tmp_path: Path) -> None:
    """A data loader's worker, forked in mid-download, may live for hours."""
    wait, go = os.pipe()
    with suppress(KeyboardInterrupt), partial_beside(tmp_path / "model.pt", VERSION) as partial:
        partial.note(0, 1)
        if (pid := os.fork()) == 0:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        raise KeyboardInterrupt
    try:
        assert found(tmp_path).recorded == {0: 1}
    finally:
        os.close(go)
        os.close(wait)
        os.waitpid(pid, 0)


# traps in a folder for all


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize("what", ["file", "record"])
def test_a_link_with_our_name_is_not_written_through(tmp_path: Path, what: str, is_hard: bool) -> None:
    path = leave(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes((path if what == "file" else record_of(path)).read_bytes())
    before = victim.read_bytes()
    target = path if what == "file" else record_of(path)
    target.unlink()
    (os.link if is_hard else os.symlink)(victim, target)
    with partial_beside(tmp_path / "model.pt", VERSION) as partial:
        assert partial.recorded == {}
        partial.path.write_bytes(b"new")
        partial.note(0, 1)
    assert victim.read_bytes() == before


def test_another_users_files_are_not_ours(tmp_path: Path) -> None:
    other = Path("/etc/passwd")
    if os.geteuid() == 0:  # then that is ours, but one can be given away
        other = tmp_path / "other"
        other.touch()
        os.chown(other, 12345, 12345)
    assert not _is_ours(other.stat())
    assert _is_ours(leave(tmp_path).stat())


# cleaning


def test_stale_pairs_and_files_without_a_record_are_cleaned_away(tmp_path: Path) -> None:
    pair = leave(tmp_path)
    empty = leave(tmp_path, name="empty")
    record_of(empty).write_bytes(b"")
    single = tmp_path / f".small{TEMPORARY_MARK}0123456789abcdef"
    single.write_bytes(b"of a killed process")
    make_old(tmp_path, STALE_AFTER_S + 60)
    assert clean_stale_downloads(tmp_path) == sorted([pair, empty, single])
    assert os.listdir(tmp_path) == []


def test_the_younger_of_a_pair_counts(tmp_path: Path) -> None:
    path = leave(tmp_path)
    make_old(tmp_path, 100 * DAY_S)
    os.utime(path)
    assert clean_stale_downloads(tmp_path) == []
    assert clean_stale_downloads(tmp_path, 3600.0, now=time.time() + 7200) == [path]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    foreign = leave(tmp_path)
    record_of(foreign).write_text("somebody else's notes")
    for name in (
        f"model{TEMPORARY_MARK}0123456789abcdef",
        f".model{TEMPORARY_MARK}0123",
        f".model{TEMPORARY_MARK}{'0' * 32}",
        ".x",
    ):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / f".folder{TEMPORARY_MARK}0123456789abcdef").mkdir()
    (tmp_path / f".link{TEMPORARY_MARK}0123456789abcdef").symlink_to("nowhere")
    before = sorted(os.listdir(tmp_path))
    assert clean_stale_downloads(tmp_path, now=time.time() + 100 * DAY_S) == []
    assert sorted(os.listdir(tmp_path)) == before


def test_a_living_download_is_never_cleaned_away(tmp_path: Path) -> None:
    later = time.time() + 100 * DAY_S
    with partial_beside(tmp_path / "model.pt", VERSION), temporary_beside(tmp_path / "small", 10):
        assert clean_stale_downloads(tmp_path, now=later) == []
        assert len(os.listdir(tmp_path)) == 3


def test_a_destination_killed_at_its_end_keeps_its_bytes(tmp_path: Path) -> None:
    """Between the link to the destination and the end of the temporary name."""
    path = leave(tmp_path)
    os.link(path, tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    with partial_beside(tmp_path / "model.pt", VERSION) as partial:
        partial.path.write_bytes(b"new")
    assert (tmp_path / "model.pt").read_bytes() == before
    os.link(tmp_path / "model.pt", path)
    assert clean_stale_downloads(tmp_path, now=time.time() + 100 * DAY_S) == [path]
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_new_large_download_cleans_its_folder_but_not_its_own_pair(tmp_path: Path) -> None:
    leave(tmp_path, name="old")
    path = leave(tmp_path)
    make_old(tmp_path, STALE_AFTER_S + 60)
    assert found(tmp_path).recorded == {0: 0xABC, 2: 0xABE}
    assert sorted(os.listdir(tmp_path)) == [path.name, record_of(path).name]


def test_a_folder_that_cannot_be_listed_can_be_downloaded_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.chmod(tmp_path / "folder", stat.S_IWUSR | stat.S_IXUSR)
    try:
        with partial_beside(tmp_path / "folder" / "model.pt", VERSION) as partial:
            assert partial.recorded == {}
    finally:
        os.chmod(tmp_path / "folder", 0o700)
    assert os.listdir(tmp_path / "folder") == []


def test_a_record_whose_download_was_killed_after_its_rename_goes_with_the_next_download_or_agent(tmp_path: Path) -> None:
    """However young it is; that of a download under way stays, also in the moment before it has a file."""
    for name in ("a", "b"):
        os.replace(leave(tmp_path, name=name), tmp_path / name)  # and then the kill
    with partial_beside(tmp_path / "c", VERSION) as partial:  # it cleans the folder
        assert {"a", "b", partial.path.name, record_of(partial.path).name} == set(os.listdir(tmp_path))
        partial.path.unlink()
        assert clean_stale_downloads(tmp_path) == []
        assert record_of(partial.path).exists()
    assert {"a", "b"} == set(os.listdir(tmp_path))
