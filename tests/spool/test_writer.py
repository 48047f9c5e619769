"""A file in the spool: handed over when it is closed, thrown away in every other case."""

from __future__ import annotations

import errno
import gc
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobId
from wherry.spool.spool_file import SpoolWriter


class Desk:
    """Stands for the uploader: remembers what was accepted and what was thrown away."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "staged"
        self.accepted: list[bytes] = []
        self.discarded = 0
        self.refusals: list[OSError] = []

    def accept(self, file: BinaryIO) -> UploadHandle:
        if self.refusals:
            raise self.refusals[0]
        self.accepted.append(self.path.read_bytes())
        return UploadHandle("s3://bucket/name", [JobId(1)], None, lambda ids, timeout_s: True)  # type: ignore[arg-type]

    def discard(self) -> None:
        self.discarded += 1

    def writer(self) -> SpoolWriter:
        return SpoolWriter(open(self.path, "w+b"), "name", self.accept, self.discard)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_closing_hands_the_whole_file_over_once(desk: Desk) -> None:
    with desk.writer() as writer:
        writer.write(b"a" * 100)
        assert [] == desk.accepted
    writer.close()
    assert ([b"a" * 100], 0) == (desk.accepted, desk.discarded)
    assert writer.handle is not None
    assert writer.closed


def test_an_empty_file_is_handed_over(desk: Desk) -> None:
    desk.writer().close()
    assert [b""] == desk.accepted


def test_an_exception_throws_the_file_away(desk: Desk) -> None:
    with pytest.raises(ZeroDivisionError), desk.writer() as writer:
        writer.write(b"half")
        raise ZeroDivisionError
    assert ([], 1) == (desk.accepted, desk.discarded)
    assert writer.handle is None
    writer.close()
    writer.abort()
    assert ([], 1) == (desk.accepted, desk.discarded)


def test_a_file_that_is_lost_is_warned_of_and_thrown_away(desk: Desk) -> None:
    writer = desk.writer()
    writer.write(b"half")
    with pytest.warns(ResourceWarning, match="name was never closed: it is not uploaded"):
        del writer
        gc.collect()
    assert ([], 1) == (desk.accepted, desk.discarded)


def test_a_closed_file_is_lost_without_a_word(desk: Desk) -> None:
    writer = desk.writer()
    writer.close()
    del writer
    gc.collect()
    assert 0 == desk.discarded


def test_a_refusal_is_raised_and_the_file_thrown_away(desk: Desk) -> None:
    desk.refusals = [OSError(errno.ENOSPC, "no room")]
    writer = desk.writer()
    with pytest.raises(OSError, match="no room"):
        writer.close()
    assert writer.closed
    assert 1 == desk.discarded


def test_an_error_in_writing_is_explained_and_the_file_thrown_away(desk: Desk) -> None:
    def explain(error: OSError) -> OSError:
        return OSError(error.errno, "no room: free some")

    full = open("/dev/full", "w+b", buffering=1024)  # noqa: SIM115  the writer closes it
    writer = SpoolWriter(full, "name", desk.accept, desk.discard, explain)
    with pytest.raises(OSError, match="no room: free some"):
        writer.write(bytes(5000))
    with pytest.raises(OSError, match="no room: free some"):  # whoever has caught the first one has half a file
        writer.close()
    assert writer.closed
    assert ([], 1) == (desk.accepted, desk.discarded)


def test_the_file_can_be_written_as_savers_write(desk: Desk) -> None:
    with desk.writer() as writer:
        assert writer.readable() and writer.writable() and writer.seekable()
        assert 5 == writer.write(memoryview(b"hello"))
        assert 0 == writer.seek(0)
        assert b"hello" == writer.read()
        writer.seek(-2, os.SEEK_END)
        assert 3 == writer.tell()
        assert b"lo" == writer.read(2)
        writer.truncate(4)
        writer.flush()
        assert 4 == os.fstat(writer.fileno()).st_size
    assert [b"hell"] == desk.accepted


@pytest.mark.parametrize(
    "use",
    [lambda w: w.write(b"x"), lambda w: w.read(), lambda w: w.seek(0), lambda w: w.tell(), lambda w: w.fileno()],
    ids=["write", "read", "seek", "tell", "fileno"],
)
def test_a_closed_file_takes_nothing_more(desk: Desk, use: Callable[[SpoolWriter], object]) -> None:
    writer = desk.writer()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        use(writer)


def test_text_can_be_written_through_it(desk: Desk) -> None:
    with io.TextIOWrapper(desk.writer(), encoding="utf-8") as text:
        text.write("zeile\n")
    assert [b"zeile\n"] == desk.accepted


def test_an_array_or_zip_library_can_write_to_it(desk: Desk) -> None:
    import zipfile

    with desk.writer() as writer, zipfile.ZipFile(writer, "w") as archive:
        archive.writestr("inner", b"data")
    assert zipfile.is_zipfile(io.BytesIO(desk.accepted[0]))


def test_bytes_written_to_the_descriptor_are_handed_over(desk: Desk) -> None:
    with desk.writer() as writer:
        os.write(writer.fileno(), b"direct")
    assert [b"direct"] == desk.accepted
