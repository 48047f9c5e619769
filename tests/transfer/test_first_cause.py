"""When the end of an upload in parts is refused, that is what its job tells, whatever happens while it is cleaned up."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import SETTINGS, file_of, new_job
from wherry.backends.memory import MemoryStore
from wherry.config import TransferConfig
from wherry.errors import AccessDeniedError, NotFoundError, TransientError
from wherry.spool.journal.journal import Journal
from wherry.testing import Fault, FaultyStore
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

SMALL_PARTS = TransferConfig(multipart_threshold_bytes=2000, part_size_bytes=1000)
NO_ABORT = AccessDeniedError("no right to abort")


@pytest.mark.parametrize(
    ("first", "told"),
    [(AccessDeniedError("no right to write"), AccessDeniedError), (NotFoundError("no such upload"), TransientError)],
)
def test_an_abort_that_is_refused_does_not_hide_why(first: Exception, told: type[Exception], tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 3000)
    store = FaultyStore(
        MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}),
        [Fault("complete", error=first), Fault("abort", error=NO_ABORT, times=9)],
    )
    journal = Journal(tmp_path / "journal.db")
    journal.uploads.submit("me", journal.uploads.store_id("memory", "root", {}, (), SETTINGS), [new_job("key", size_bytes=3000)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    with ThreadPoolExecutor(4) as pool, pytest.raises(told, match=str(first)):
        Sender(journal, pool, worker="w").send(job, path, store, SMALL_PARTS)
    journal.work.fail(job.id, "w", "for good")
    assert [job.id] == [left.id for left in journal.queries.abandoned_uploads()], "to be aborted another time"
    journal.close()
