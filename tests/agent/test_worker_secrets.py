"""A store that was registered after the worker last looked: its secrets are not known here, so its job must wait for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import SETTINGS, new_job
from wherry.agent.open_stores import Stores
from wherry.agent.perform import Performer
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.transfer.upload import Sender


def test_job_of_a_store_registered_since_waits_for_its_secrets(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    journal = Journal(spool.folder / "journal.db")
    with ThreadPoolExecutor(1) as pool:
        performer = Performer(spool, journal, Stores(), "worker", Sender(journal, pool))
        usable = performer.usable_stores()  # as Worker.run() does, before its loop of leases
        options = {"endpoint_url": "http://127.0.0.1:1", "region": "x"}
        store = journal.uploads.store_id("s3", "bucket", options, ("aws_access_key_id", "aws_secret_access_key"), SETTINGS)
        staged = spool.path("object")
        staged.write_bytes(b"0123456789")
        (job_id,), _ = journal.uploads.submit("owner", store, [new_job("x", object_id="object")])
        job = journal.work.lease("worker", 60.0, with_stores=usable)
        if job is not None:
            performer.perform(job)
        found = journal.queries.jobs()[0]
        assert (job_id, JobState.QUEUED) == (found.id, found.state), found.error
    journal.close()
