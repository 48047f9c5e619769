"""What people see while they wait: bytes, as they are copied and as they arrive."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from support import CALLER, file_of, new_job, store_id
from wherry.progress import ByteBar
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.spool.staging import stage
from wherry.store import StoredPart
from wherry.uploader import Uploader


def test_bytes_to_send_leave_out_the_parts_that_have_arrived(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.uploads.submit("me", store_id(journal), [new_job("large", size_bytes=100), new_job("small", size_bytes=7)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.parts.plan(job.id, "upload", 40, [None] * 3, 0)
    left = [journal.queries.counts().bytes_queued]
    for number, size_bytes in ((2, 40), (3, 20)):
        journal.parts.receive(job.id, "upload", StoredPart(number, size_bytes, "etag"))
        left.append(journal.queries.counts("me").bytes_queued)
    assert [107, 67, 47] == left
    journal.parts.drop(job.id)
    assert 107 == journal.queries.counts().bytes_queued, "the store has lost them"
    journal.close()


def test_a_copy_into_the_spool_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[int] = []
    source = file_of(tmp_path / "source", 80_000_000)
    staged = stage(Spool(tmp_path / "spool"), source, "1-a", advance=told.append)
    assert (staged.method == "reflink") or (80_000_000 == sum(told) and len(told) > 1)


def test_a_long_copy_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    primary, secondary = pty.openpty()
    with open(secondary, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ByteBar("copying into the spool", 3_000_000, after_s=0.0) as bar:
            bar.advance(1_500_000)
        terminal.flush()
        shown = os.read(primary, 65536).decode()
    os.close(primary)
    assert "copying into the spool:  50%" in shown
    assert "1.43M/2.86M" in shown


def test_a_long_copy_says_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ByteBar("copying into the spool", 3_000_000, after_s=0.0) as bar:
        bar.advance(1_500_000)
        bar.advance(1_500_000)
    assert "wherry: copying into the spool, 2.9 MiB\n" == capsys.readouterr().err


def test_a_short_copy_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Uploader(tmp_path / "store", spool=tmp_path / "spool", config=CALLER) as uploader:
        uploader.put(file_of(tmp_path / "source", 100), "a", progress_bar=True)
    assert "" == capsys.readouterr().err
