"""No step of the wall clock delays, fails or expires anything, and a deadline counts the time in which somebody worked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from support import SETTINGS, end_agent, new_job, run_script, store_id, wait_until
from wherry.clock import Clock
from wherry.config import AgentConfig, Config, RetryConfig
from wherry.spool.journal.jobs import Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.uploader import Uploader

DAY_S = 86_400.0


@dataclass
class Hands:
    """Clocks that are set by hand, and how the processes of one spool see them."""

    monotonic_s: float = 1000.0
    wall_s: float = 1_700_000_000.0
    boot: str = "first"

    def journal(self, path: Path) -> Journal:
        """The spool's journal as another process opens it."""
        return Journal(path, clock=Clock(lambda: self.monotonic_s, lambda: self.wall_s, self.boot))

    def passes(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def leased(journal: Journal) -> Job:
    job = journal.work.lease("w", 60.0)
    assert job is not None
    return job


def waiting(journal: Journal, wait_s: float = 100.0) -> JobId:
    """A job that has failed once and waits for its next try."""
    journal.uploads.submit("me", store_id(journal), [new_job("a")])
    job = leased(journal)
    journal.work.requeue(job.id, "w", wait_s=wait_s, error="reset")
    return job.id


def left_s(journal: Journal, job_id: JobId) -> float:
    job = journal.queries.job(job_id)
    assert job is not None
    return journal.work.time_left_s(job)[0]


@pytest.mark.parametrize("step_s", [-DAY_S, 2 * DAY_S, -20 * 365 * DAY_S])
def test_no_step_of_the_clock_moves_the_next_try_of_a_job(hands: Hands, path: Path, step_s: float) -> None:
    journal = hands.journal(path)
    job_id = waiting(journal)
    hands.wall_s += step_s
    hands.passes(99.0)
    assert journal.work.lease("w", 60.0) is None
    hands.passes(2.0)
    assert job_id == leased(hands.journal(path)).id


@pytest.mark.parametrize("step_s", [-DAY_S, 2 * DAY_S])
def test_no_step_of_the_clock_expires_the_lease_of_a_living_worker(hands: Hands, path: Path, step_s: float) -> None:
    journal = hands.journal(path)
    journal.uploads.submit("me", store_id(journal), [new_job("a")])
    leased(journal)
    hands.wall_s += step_s
    hands.passes(59.0)
    assert set() == journal.work.expired()
    hands.passes(2.0)
    assert {"w"} == journal.work.expired()


@pytest.mark.parametrize("step_s", [-DAY_S, 2 * DAY_S])
def test_no_step_of_the_clock_brings_a_deadline_nearer(hands: Hands, path: Path, step_s: float) -> None:
    journal = hands.journal(path)
    job_id = waiting(journal)
    journal.work.count_time()
    hands.wall_s += step_s
    hands.passes(20.0)
    journal.work.count_time()
    assert 40.0 == left_s(journal, job_id)


def test_a_deadline_counts_the_time_in_which_somebody_worked(hands: Hands, path: Path) -> None:
    job_id = waiting(hands.journal(path))
    first, second = hands.journal(path), hands.journal(path)  # the agent and a caller, at the same time
    for journal in (first, second):
        journal.work.count_time()
    for _ in range(4):
        hands.passes(5.0)
        first.work.count_time()
        second.work.count_time()
    hands.passes(DAY_S)  # nobody is there
    third = hands.journal(path)
    third.work.count_time()
    hands.passes(10.0)
    third.work.count_time()
    assert 60.0 - 20.0 - 10.0 == left_s(third, job_id)


def test_a_process_that_was_stopped_for_a_day_has_not_worked_for_a_day(hands: Hands, path: Path) -> None:
    journal = hands.journal(path)
    journal.uploads.submit(
        "me", journal.uploads.store_id("s3", "bucket", {}, (), {"retry": {"job_deadline_s": DAY_S}}), [new_job("a")]
    )
    journal.work.count_time()
    hands.passes(2 * DAY_S)
    journal.work.count_time()
    assert DAY_S - 600.0 == left_s(journal, JobId(1))


def test_the_newest_registration_of_a_store_decides_the_deadline_of_its_jobs(hands: Hands, path: Path) -> None:
    journal = hands.journal(path)
    job_id = waiting(journal)
    assert 60.0 == left_s(journal, job_id)
    before = store_id(journal)
    assert before == journal.uploads.store_id("s3", "bucket", {}, (), {**SETTINGS, "retry": {"job_deadline_s": 7200.0}})
    assert 7200.0 == left_s(journal, job_id)


def test_a_retry_keeps_the_deadline_that_was_configured_and_counts_it_from_now(hands: Hands, path: Path) -> None:
    journal = hands.journal(path)
    journal.uploads.submit("me", store_id(journal), [new_job("a")])
    job = leased(journal)
    journal.work.count_time()
    hands.passes(50.0)
    journal.work.count_time()
    journal.work.fail(job.id, "w", "no")
    assert (1, []) == journal.uploads.retry(None)
    assert 60.0 == left_s(journal, job.id)


@pytest.mark.parametrize(("off_s", "wait_s"), [(600.0, 0.0), (-DAY_S, 100.0)])
def test_over_a_reboot_a_wait_goes_on_by_the_wall_clock_and_is_never_longer(
    hands: Hands, path: Path, off_s: float, wait_s: float
) -> None:
    journal = hands.journal(path)
    waiting(journal)
    journal.close()
    hands.boot, hands.monotonic_s = "second", 3.0
    hands.wall_s += off_s
    again = hands.journal(path)
    assert (wait_s == 0.0) == (again.work.ready()[0] == 1)
    hands.passes(wait_s + 0.001)
    assert 1 == again.work.ready()[0]


def test_over_a_reboot_a_deadline_comes_no_nearer(hands: Hands, path: Path) -> None:
    journal = hands.journal(path)
    job_id = waiting(journal)
    journal.work.count_time()
    hands.passes(20.0)
    journal.work.count_time()
    hands.boot, hands.monotonic_s = "second", 3.0
    hands.wall_s += 3 * DAY_S
    again = hands.journal(path)
    again.work.count_time()
    hands.passes(1.0)
    again.work.count_time()
    assert 39.0 == left_s(again, job_id)


def test_what_was_finished_is_remembered_for_a_week_whatever_the_clock_says(hands: Hands, path: Path) -> None:
    journal = hands.journal(path)
    journal.uploads.submit("me", store_id(journal), [new_job("a")])
    journal.work.ack(leased(journal).id, "w", None)
    hands.wall_s += 30 * DAY_S
    assert 0 == journal.work.prune()
    hands.passes(8 * DAY_S)
    assert 1 == journal.work.prune()


AGENT = """
import sys, time
from pathlib import Path
from wherry.agent.launch import run_agent
from wherry.clock import Clock
from wherry.spool.spool import Spool

step = Path(sys.argv[2])
sys.exit(run_agent(Spool(Path(sys.argv[1])), {}, stay=False, clock=Clock(wall_s=lambda: time.time() + float(step.read_text()))))
"""


def test_an_agent_goes_on_trying_when_its_clock_steps(tmp_path: Path) -> None:
    """A real agent and its workers, whose wall clock is ours and a file's text. Nobody listens at the store's address."""
    step = tmp_path / "step"
    step.write_text("0")
    retry = RetryConfig(job_deadline_s=3600.0, call_deadline_s=0.05, first_wait_s=0.05, longest_wait_s=0.02)
    options = {"endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "a" * 16, "aws_secret_access_key": "b" * 16}
    agent = Thread(target=run_script, args=(AGENT, tmp_path / "spool", step), kwargs={"timeout_s": 120.0})
    (tmp_path / "a").write_bytes(b"a")
    config = Config(retry=retry, agent=AgentConfig(n_workers=1))
    agent.start()
    wait_until(lambda: (tmp_path / "spool" / "bell").exists(), what="the agent to listen")
    uploader = Uploader("s3://bucket/run", storage_options=options, spool=tmp_path / "spool", config=config)
    handle = uploader.put(tmp_path / "a", "a")

    def attempts() -> int:
        job = uploader.journal.queries.job(handle.ids[0])
        assert job is not None
        assert job.state in (JobState.QUEUED, JobState.LEASED), job.error
        return job.attempts

    for offset_s in (2 * DAY_S, -DAY_S, 0.0):
        (tmp_path / "next").write_text(str(offset_s))
        (tmp_path / "next").replace(step)  # the agent reads it at any time: never an empty file
        before = attempts()
        wait_until(lambda before=before: attempts() >= before + 3, what="more attempts")  # type: ignore[misc]
    with end_agent(tmp_path / "spool"), pytest.raises(TimeoutError):
        uploader.close(timeout_s=0.1)
    agent.join()
