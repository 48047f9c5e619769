"""Two runs that overwrite one object below one URI are told so, once each."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from servers.real import S3Server
from support import caller, end_agent, file_of
from wherry.loggers import ObjectStoreLogger, State
from wherry.spool.journal.jobs import JobKind
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob


def store(folder: Path, run: str, rank: int = 0, spool: str = "spool") -> ObjectStoreLogger:
    return ObjectStoreLogger(
        folder / "bucket", spool=folder / spool, config=caller(), check=False, state=State(run, rank=rank, world_size=2)
    )


def overwrite(log: ObjectStoreLogger, folder: Path, name: str = "model.pt") -> None:
    log.upload_file(None, name, file_of(folder / "model.pt", 10), overwrite=True).wait(60.0)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [message for message in caplog.messages if "overwrites" in message or "as well" in message]
    caplog.clear()
    return found


def test_a_run_is_told_once_that_it_overwrites_what_another_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as one, store(tmp_path, "two", rank=0) as two:
        overwrite(one, tmp_path)
        assert [] == told(caplog)
        for _ in range(2):
            overwrite(two, tmp_path)
        (said,) = told(caplog)
        assert "run 'two' overwrites" in said
        assert "'one' has written" in said
        assert "put {run_name} into the name" in said
        for _ in range(2):
            overwrite(one, tmp_path)
        assert 1 == len(told(caplog))


def test_a_run_that_is_started_again_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with store(tmp_path, "one", rank=0) as log:
            overwrite(log, tmp_path)
    assert [] == told(caplog)


def test_two_living_processes_with_one_run_name_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as first, store(tmp_path, "one", rank=0) as second:
        overwrite(first, tmp_path, "{run_name}/a")
        overwrite(second, tmp_path, "{run_name}/b")
        (said,) = told(caplog)
        assert "another process uploads as run 'one', rank 0, as well" in said


def test_ranks_of_one_run_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as first, store(tmp_path, "one", rank=1) as second:
        for log in (first, second):
            overwrite(log, tmp_path)
            overwrite(log, tmp_path, "{run_name}/a")
    assert [] == told(caplog)


def test_a_run_name_that_nobody_gave_is_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with ObjectStoreLogger(tmp_path / "bucket", spool=tmp_path / "spool", config=caller(), check=False) as log:
            overwrite(log, tmp_path)
    assert [] == told(caplog)


def test_a_new_name_is_free_to_overwrite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as one, store(tmp_path, "two", rank=0) as two:
        overwrite(one, tmp_path, "a")
        overwrite(two, tmp_path, "b")
    assert [] == told(caplog)


def test_runs_with_spools_of_their_own_are_told_by_the_object(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", spool="a") as one, store(tmp_path, "two", spool="b") as two:
        overwrite(one, tmp_path)
        for _ in range(3):
            overwrite(two, tmp_path)
        (said,) = told(caplog)
        assert "run 'two' overwrites" in said
        assert "which another run has written: put {run_name} into the name" in said
        for _ in range(3):
            overwrite(one, tmp_path)
    assert ["run 'one' overwrites"] == [said[:20] for said in told(caplog)]


def test_a_file_that_is_written_in_the_spool_is_told_of_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for run in ("one", "two"):
        with store(tmp_path, run, spool=run) as log, log.open("model.pt") as file:
            file.write(b"weights")
    (said,) = told(caplog)
    assert "run 'two' overwrites" in said


def test_two_processes_of_one_run_on_two_machines_are_told_once_both_have_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store(tmp_path, "one", spool="a") as first, store(tmp_path, "one", spool="b") as second:
        overwrite(first, tmp_path)
        overwrite(second, tmp_path)
        assert [] == told(caplog)  # the first may have ended
        for _ in range(3):
            overwrite(first, tmp_path)
        for _ in range(3):
            overwrite(second, tmp_path)
    assert 2 * ["another process uploads as run 'one', rank 0, as well"] == [said.partition(", to ")[0] for said in told(caplog)]


@pytest.mark.parametrize("again", [State("one"), State("one", is_resumed=True), State("one", rank=1, world_size=2)])
def test_neither_an_earlier_attempt_nor_another_rank_is_told_of(
    again: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for spool, state in (("a", State("one")), ("b", again)):
        with ObjectStoreLogger(tmp_path / "bucket", spool=tmp_path / spool, config=caller(), check=False, state=state) as log:
            for _ in range(4):
                overwrite(log, tmp_path)
    assert [] == told(caplog)


def test_a_superseded_upload_leaves_its_look_to_the_newer_one(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        store_id = journal.uploads.store_id("file", "/b", {}, (), {})
        new = NewJob(JobKind.PUT, "file:///b/x", "x", "", 0, True, "t", looks_first=True)
        journal.uploads.submit("me", store_id, [new])
        ((newer,), _) = journal.uploads.submit("me", store_id, [replace(new, looks_first=False)])
        job = journal.queries.job(newer)
    assert job is not None
    assert (True, True) == (job.overwrite, job.schedule.looks_first)


def test_a_look_costs_one_request_and_is_made_at_powers_of_two(tmp_path: Path) -> None:
    with store(tmp_path, "one") as log:
        for _ in range(9):
            overwrite(log, tmp_path)
        jobs = log.uploader.journal.queries.jobs(checks=False)
    assert [1, 2, 4, 8] == [number for number, job in enumerate(jobs, 1) if job.schedule.looks_first]


def test_on_a_server_the_run_and_the_status_tell(
    seaweedfs_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"two-runs-{tmp_path.name}"
    spools = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as ends:
        for spool in spools:
            ends.enter_context(end_agent(spool))
            uri = f"s3://{seaweedfs_server.bucket}"
            with ObjectStoreLogger(
                uri, storage_options=seaweedfs_server.options, spool=spool, check=False, state=State(spool.name)
            ) as log:
                log.upload_file(None, name, file_of(tmp_path / "model.pt", 10), overwrite=True)
    (said,) = told(caplog)
    assert f"run 'two' overwrites {uri}/{name}, which another run has written" in said
    status = [sys.executable, "-m", "wherry.cli", "status", f"{uri}/{name}", "--spool", str(spools[1])]
    shown = subprocess.run(status, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "note      it has replaced what another run had written" in shown
    assert "it has replaced what another run had written" in (spools[1] / "agent.log").read_text()
