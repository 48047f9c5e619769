"""How a job ends: done, tried again, or failed for good with its file kept; and never at another job's expense."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import IMPATIENT, SETTINGS, file_of, new_job, store_id, wait_until
from wherry.agent.agent import Agent
from wherry.agent.in_process import Caller
from wherry.agent.open_stores import OpenStore, Stores
from wherry.agent.perform import Performer
from wherry.agent.wakeup import Listener
from wherry.agent.worker import Worker
from wherry.backends.memory import MemoryStore
from wherry.clock import Clock
from wherry.config import AgentConfig, RetryConfig, TransferConfig
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    JournalError,
    NotFoundError,
    PermanentError,
    TransientError,
)
from wherry.spool.journal.jobs import Job, JobId, JobKind, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.journal.work import Ack
from wherry.spool.presence import register
from wherry.spool.spool import Spool
from wherry.store import ObjectStore
from wherry.testing import Fault, FaultyStore
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

PARTS = TransferConfig(multipart_threshold_bytes=2000, part_size_bytes=1000)


class GivenStores(Stores):
    """Opens one store, whatever is asked for."""

    def __init__(self, store: ObjectStore, retry: RetryConfig = IMPATIENT) -> None:
        super().__init__()
        self.given = OpenStore(store, retry, PARTS)

    def open(self, record: StoreRecord) -> OpenStore:
        return self.given


@dataclass
class Bench:
    """A spool, its journal, and a performer at a store that fails by plan."""

    spool: Spool
    journal: Journal
    store: FaultyStore
    performer: Performer
    #: By how much the journal's clock is ahead.
    skipped_s: list[float]

    def accept(self, name: str, size_bytes: int = 10, **options: object) -> JobId:
        """Stage a file and submit its job."""
        object_id = f"1-me-{uuid.uuid4().hex}"
        file_of(self.spool.path(object_id), size_bytes, seed=hash(name))
        job = new_job(name, object_id=object_id, size_bytes=size_bytes, **options)  # type: ignore[arg-type]
        ids, _ = self.journal.uploads.submit("me", store_id(self.journal), [job])
        return ids[0]

    def job(self, job_id: JobId) -> Job:
        found = self.journal.queries.job(job_id)
        assert found is not None
        return found

    def perform(self, *, now: float | None = None) -> Job | None:
        """Lease a job, carry it out, and return it as it is then; None if there is none."""
        leased = self.journal.work.lease("w", 60.0, now=now)
        if leased is None:
            return None
        self.performer.perform(leased)
        return self.job(leased.id)

    def staged(self) -> set[str]:
        return {path.name for path in self.spool.objects.iterdir()}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    spool = Spool(tmp_path / "spool")
    skipped_s = [0.0]
    journal = Journal(spool.journal_path, clock=Clock(monotonic_s=lambda: time.monotonic() + skipped_s[0]))
    store = FaultyStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
    with ThreadPoolExecutor(4) as pool:
        sender = Sender(journal, pool, worker="w")
        yield Bench(spool, journal, store, Performer(spool, journal, GivenStores(store), "w", sender), skipped_s)
    journal.close()


def states(bench: Bench, *ids: JobId) -> list[JobState]:
    return [bench.job(job_id).state for job_id in ids]


# -- how a job ends


def test_a_job_that_is_done_frees_its_file_and_keeps_its_receipt(bench: Bench) -> None:
    job_id = bench.accept("a")
    bench.perform()
    job = bench.job(job_id)
    meta = bench.store.head("a")
    assert (JobState.DONE, meta.etag, meta.crc32c) == (job.state, job.end.etag, job.crc32c)
    assert set() == bench.staged()


def test_a_permanently_failing_file_does_not_keep_the_others_from_arriving(bench: Bench) -> None:
    bench.store.plan = [Fault("put", AccessDeniedError("key denied by policy"), key="bad", times=99)]
    ids = [bench.accept(name) for name in ("a", "bad", "b", "bad2", "c")]
    while bench.perform() is not None:
        pass
    done, failed = JobState.DONE, JobState.FAILED
    assert [done, failed, done, failed, done] == states(bench, *ids)
    assert ["a", "b", "c"] == [meta.key for meta in bench.store.list()]
    assert {bench.job(ids[1]).object_id, bench.job(ids[3]).object_id} == bench.staged()
    assert "key denied by policy" in (bench.job(ids[1]).error or "")


def test_a_transient_failure_is_tried_again_later_and_not_reported(bench: Bench) -> None:
    bench.store.plan = [Fault("put", TransientError("connection reset"))]
    job_id = bench.accept("a")
    bench.perform()
    job = bench.job(job_id)
    assert (JobState.QUEUED, 1) == (job.state, job.attempts)
    assert "connection reset" in (job.error or "")
    assert bench.perform(now=time.time() + 1) is not None
    assert (JobState.DONE, 2, None) == (bench.job(job_id).state, bench.job(job_id).attempts, bench.job(job_id).error)
    assert [] == bench.journal.uploads.failures("me")


def test_a_job_past_its_deadline_fails_with_its_last_error(bench: Bench) -> None:
    bench.store.plan = [Fault("put", TransientError("connection reset"), times=99)]
    job_id = bench.accept("a")
    no_time = {**SETTINGS, "retry": {**SETTINGS["retry"], "job_deadline_s": 0.0}}
    bench.journal.uploads.store_id("s3", "bucket", {}, (), no_time)  # the newest settings count
    bench.perform()
    job = bench.job(job_id)
    assert JobState.FAILED is job.state
    assert (job.error or "").startswith("given up after 0 s: ")
    assert (job.error or "").endswith("connection reset")
    assert {job.object_id} == bench.staged()


def test_a_job_is_tried_until_its_deadline_however_long_its_wait_would_be(bench: Bench) -> None:
    bench.store.plan = [Fault("put", TransientError("connection reset"), times=99)]
    settings = {**SETTINGS, "retry": {**SETTINGS["retry"], "job_deadline_s": 60.0}}
    job_id = bench.accept("a")
    bench.journal.uploads.store_id("s3", "bucket", {}, (), settings)
    patient = RetryConfig(job_deadline_s=60.0, call_deadline_s=0.0, first_wait_s=1e6, longest_wait_s=1e6)
    bench.performer.stores = GivenStores(bench.store, patient)
    bench.perform()
    job = bench.job(job_id)
    assert JobState.QUEUED is job.state, job.error
    assert 0 < job.schedule.due_s - bench.journal.work.now_s() <= 60.0


def test_a_name_that_is_taken_fails_and_the_object_is_kept(bench: Bench, tmp_path: Path) -> None:
    theirs = file_of(tmp_path / "theirs", 10, seed=99)
    bench.store.put_file("a", theirs)
    before = bench.store.head("a")
    job_id = bench.accept("a", overwrite=False)
    bench.perform()
    assert JobState.FAILED is bench.job(job_id).state
    assert before == bench.store.head("a")


def test_a_staged_file_that_is_gone_fails_its_own_job_only(bench: Bench) -> None:
    lost, good = bench.accept("lost"), bench.accept("good")
    bench.spool.path(bench.job(lost).object_id).unlink()
    bench.perform()
    bench.perform()
    assert [JobState.FAILED, JobState.DONE] == states(bench, lost, good)
    assert "is gone from the spool" in (bench.job(lost).error or "")


def test_an_unforeseen_error_fails_its_job_by_name_and_the_worker_goes_on(bench: Bench) -> None:
    bench.store.plan = [Fault("put", ZeroDivisionError("in a vendor's library"), key="odd")]
    odd, good = bench.accept("odd"), bench.accept("good")
    bench.perform()
    bench.perform()
    assert [JobState.FAILED, JobState.DONE] == states(bench, odd, good)
    assert "ZeroDivisionError: in a vendor's library" == bench.job(odd).error


@pytest.mark.parametrize(
    "error", [AccessDeniedError("key hunter2hunter2 refused"), ValueError("hunter2hunter2"), TransientError("hunter2hunter2")]
)
def test_no_secret_gets_into_the_journal_or_the_log(bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    bench.performer.stores.learn(1, {"key": "hunter2hunter2"})
    bench.store.plan = [Fault("put", error)]
    job_id = bench.accept("a")
    with caplog.at_level(logging.DEBUG):
        bench.perform()
    assert "***" in (bench.job(job_id).error or "")
    assert "hunter2hunter2" not in (bench.job(job_id).error or "")
    formatter = logging.Formatter()
    assert [] == [text for text in map(formatter.format, caplog.records) if "hunter2hunter2" in text]


def test_a_lease_that_was_taken_away_is_not_acknowledged(bench: Bench) -> None:
    def take_away() -> None:
        bench.journal.work.release()
        assert bench.journal.work.lease("other", 60.0) is not None

    bench.store.plan = [Fault("put", act=take_away)]
    job_id = bench.accept("a")
    bench.perform()
    assert JobState.LEASED is bench.job(job_id).state
    assert {bench.job(job_id).object_id} == bench.staged()


def test_clients_are_rung_when_a_job_ends_and_dead_bells_removed(bench: Bench) -> None:
    bell = Listener(bench.spool.clients / "1-me.bell")
    (bench.spool.clients / "2-dead.bell").touch()
    bench.accept("a")
    bench.perform()
    assert bell.wait(0.0)
    assert ["1-me.bell"] == [path.name for path in bench.spool.clients.iterdir()]
    bell.close()


def test_what_no_session_has_put_beside_the_bells_stops_no_worker(bench: Bench) -> None:
    (bench.spool.clients / f"{'x' * 150}.bell").touch()
    (bench.spool.clients / "0-folder.bell").mkdir()
    bell = Listener(bench.spool.clients / "1-me.bell")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(bench.spool.clients / "0-other.bell"))
        job_id = bench.accept("a")
        bench.perform()
    assert JobState.DONE is bench.job(job_id).state
    assert bell.wait(0.0)
    bell.close()


@pytest.mark.parametrize(("n_wrong", "state", "attempts"), [(2, JobState.DONE, 2), (99, JobState.FAILED, 3)])
def test_an_object_that_is_not_there_after_its_put_is_put_again(
    bench: Bench, n_wrong: int, state: JobState, attempts: int
) -> None:
    """Three times in all: a store that does not keep what it takes would be sent the file for a day."""
    bench.store.plan = [
        Fault("put", AlreadyExistsError("taken"), times=n_wrong // 2),
        Fault("head", NotFoundError("no such object"), times=n_wrong),
    ]
    job_id = bench.accept("a", overwrite=False)
    while bench.job(job_id).state is JobState.QUEUED:
        bench.perform(now=time.time() + 60 * bench.job(job_id).attempts)
    assert (state, attempts) == (bench.job(job_id).state, bench.job(job_id).attempts)


# -- requirements


def test_a_job_waits_until_what_it_requires_is_there(bench: Bench, tmp_path: Path) -> None:
    marker = bench.accept("marker", requires=("data",))
    bench.perform()
    job = bench.job(marker)
    assert (JobState.QUEUED, 0) == (job.state, job.attempts)
    assert "data, which is not there yet" in (job.error or "")
    bench.store.put_file("data", file_of(tmp_path / "data", 10))
    bench.perform(now=time.time() + 60)
    assert JobState.DONE is bench.job(marker).state


def test_a_job_whose_requirement_failed_fails_and_says_so(bench: Bench) -> None:
    bench.store.plan = [Fault("put", PermanentError("no"), key="data")]
    data, marker = bench.accept("data"), bench.accept("marker", requires=("data",))
    bench.perform()
    bench.perform()
    assert [JobState.FAILED, JobState.FAILED] == states(bench, data, marker)
    assert "data, which it requires, was not uploaded" == bench.job(marker).error
    assert [] == list(bench.store.list())


def test_a_job_does_not_start_while_other_bytes_have_the_name_that_it_requires(bench: Bench, tmp_path: Path) -> None:
    data, marker = bench.accept("data"), bench.accept("marker", requires=("data",))
    bench.perform()
    bench.store.put_file("data", file_of(tmp_path / "other", 10, seed=99))
    bench.perform()
    assert [JobState.DONE, JobState.QUEUED] == states(bench, data, marker)
    assert "another checksum" in (bench.job(marker).error or "")


def test_a_newer_version_of_what_a_job_requires_will_do(bench: Bench) -> None:
    """Its bytes are all there: waiting for the older ones would last for ever."""
    bench.accept("data")
    marker = bench.accept("marker", requires=("data",))
    bench.accept("data", size_bytes=11)
    assert bench.perform() is not None
    leased = bench.journal.work.lease("w", 60.0)
    assert leased is not None
    assert marker == leased.id
    bench.perform()
    bench.performer.perform(leased)
    assert JobState.DONE is bench.job(marker).state


def test_a_missing_bucket_is_no_missing_requirement(bench: Bench) -> None:
    bench.store.plan = [Fault("head", BucketNotFoundError("no such bucket"))]
    marker = bench.accept("marker", requires=("data",))
    bench.perform()
    assert JobState.FAILED is bench.job(marker).state
    assert "no such bucket" in (bench.job(marker).error or "")


# -- checks


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (None, JobState.DONE, None),
        (AccessDeniedError("SignatureDoesNotMatch"), JobState.FAILED, "SignatureDoesNotMatch"),
        (BucketNotFoundError("NoSuchBucket"), JobState.FAILED, "NoSuchBucket"),
    ],
)
def test_a_check_finds_out_whether_the_store_lets_us_in(
    bench: Bench, error: Exception | None, state: JobState, words: str | None
) -> None:
    bench.store.plan = [Fault("head", error)]
    check = new_job("check", kind=JobKind.CHECK)
    (job_id,), _ = bench.journal.uploads.submit("me", store_id(bench.journal), [check])
    bench.perform()
    assert state is bench.job(job_id).state
    assert words is None or words in (bench.job(job_id).error or "")
    assert {"head"} == set(bench.store.calls)


# -- cleaning


def test_the_parts_of_a_job_that_was_given_up_are_removed_from_the_store(bench: Bench) -> None:
    bench.store.plan = [Fault("put_part", TransientError("reset"), nth=2, times=99)]
    old = bench.accept("a", size_bytes=5000)
    bench.perform()
    memory = bench.store.inner
    assert isinstance(memory, MemoryStore)
    assert 1 == len(memory._root.uploads)
    bench.accept("a")
    assert JobState.SUPERSEDED is bench.job(old).state
    bench.performer.clean()
    assert {} == memory._root.uploads
    assert [] == bench.journal.queries.abandoned_uploads()


def test_parts_that_cannot_be_removed_now_are_removed_another_time(bench: Bench) -> None:
    bench.store.plan = [Fault("put_part", TransientError("reset"), nth=2, times=99), Fault("abort", TransientError("reset"))]
    bench.accept("a", size_bytes=5000)
    bench.perform()
    bench.accept("a")
    bench.performer.clean()
    assert 1 == len(bench.journal.queries.abandoned_uploads())
    bench.performer.clean()
    assert [] == bench.journal.queries.abandoned_uploads()


# -- in the caller


@pytest.fixture
def retry() -> RetryConfig:
    return IMPATIENT


@pytest.fixture
def in_caller(bench: Bench, retry: RetryConfig) -> Iterator[Caller]:
    registration = register(bench.spool, "1-me")
    caller = Caller(bench.spool, bench.journal, GivenStores(bench.store, retry), "1-me")
    yield caller
    caller.close()
    os.close(registration)


@pytest.mark.parametrize(
    "retry", [RetryConfig(call_deadline_s=0.05, first_wait_s=300.0, longest_wait_s=300.0)], ids=["five minutes"]
)
def test_a_caller_does_one_job_after_the_other_and_says_how_long_to_wait(bench: Bench, in_caller: Caller) -> None:
    bench.store.plan = [Fault("put", TransientError("reset"), key="b")]
    a, b, c = (bench.accept(name) for name in ("a", "b", "c"))
    assert [0.0] * 3 == [in_caller.work() for _ in range(3)]
    assert [JobState.DONE, JobState.QUEUED, JobState.DONE] == states(bench, a, b, c)
    assert 1.0 == in_caller.work()
    bench.skipped_s[0] = 299.5
    while bench.journal.queries.unfinished():
        assert in_caller.work() <= 0.5
    assert 1.0 == in_caller.work()


def test_an_interrupted_caller_gives_its_job_back(bench: Bench, in_caller: Caller) -> None:
    bench.store.plan = [Fault("put", act=_press_ctrl_c)]
    job_id = bench.accept("a")
    with pytest.raises(KeyboardInterrupt):
        in_caller.work()
    assert (JobState.QUEUED, 0) == (bench.job(job_id).state, bench.job(job_id).attempts)
    assert 0.0 == in_caller.work()
    assert JobState.DONE is bench.job(job_id).state


def _press_ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("holder", ["caller:2-dead", "123-1"])
def test_a_caller_takes_over_from_the_dead(bench: Bench, in_caller: Caller, holder: str) -> None:
    job_id = bench.accept("a")
    assert bench.journal.work.lease(holder, 86_400.0) is not None
    assert [0.0, 0.0] == [in_caller.work(), in_caller.work()]
    assert JobState.DONE is bench.job(job_id).state


def test_a_caller_takes_nothing_from_the_living(bench: Bench, in_caller: Caller) -> None:
    other = register(bench.spool, "2-alive")
    ids = [bench.accept("a"), bench.accept("b")]
    assert bench.journal.work.lease("caller:2-alive", 86_400.0) is not None
    assert bench.journal.work.lease("123-1", 60.0) is not None
    with bench.spool.locked("agent.lock"):
        assert 1.0 == in_caller.work()
    assert [JobState.LEASED] * 2 == states(bench, *ids)
    assert 0.0 == in_caller.work()  # the agent's lock is free now
    assert [JobState.LEASED, JobState.QUEUED] == states(bench, *ids)
    os.close(other)


# -- the loop of a worker process


@dataclass
class Running:
    """A worker's loop in a thread, and the agent's end of its line."""

    worker: Worker
    thread: threading.Thread
    agent: socket.socket

    def notify(self) -> None:
        self.agent.send(b"{}")


@pytest.fixture
def running(bench: Bench) -> Iterator[Running]:
    agent, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(bench.spool, bench.journal, channel, "w", AgentConfig(jobs_in_flight=2))
    worker._performer.stores = worker._stores = GivenStores(bench.store)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield Running(worker, thread, agent)
    agent.close()
    thread.join()
    channel.close()
    worker._crew.shutdown()
    worker._pieces.shutdown()
    worker._finished_read.close()
    worker._finished_write.close()


def test_a_worker_works_when_it_is_rung_and_leaves_with_its_agent(bench: Bench, running: Running) -> None:
    ids = [bench.accept(str(i)) for i in range(5)]
    running.notify()
    wait_until(lambda: [JobState.DONE] * 5 == states(bench, *ids))
    assert running.thread.is_alive()
    running.agent.shutdown(socket.SHUT_RDWR)
    running.thread.join(60.0)
    assert not running.thread.is_alive()


def test_a_job_that_waits_for_its_next_attempt_is_not_held_up_by_a_long_one(bench: Bench, running: Running) -> None:
    finish = threading.Event()
    bench.store.plan = [
        Fault("put", act=lambda: finish.wait(60.0), key="long"),  # type: ignore[arg-type]
        Fault("put", TransientError("reset"), key="short"),
    ]
    long, short = bench.accept("long"), bench.accept("short")
    running.notify()
    try:
        wait_until(lambda: bench.job(short).state is JobState.DONE, timeout_s=60.0, what="the second attempt")
        assert JobState.LEASED is bench.job(long).state
    finally:
        finish.set()


def test_a_worker_ignores_a_store_that_its_journal_does_not_know(bench: Bench, running: Running) -> None:
    running.agent.send(b'{"warm": [12345]}')
    job_id = bench.accept("a")
    running.notify()
    wait_until(lambda: bench.job(job_id).state is JobState.DONE)


def test_of_a_batch_in_which_one_job_fails_the_others_are_done(bench: Bench, running: Running) -> None:
    bench.store.plan = [Fault("put", AccessDeniedError("denied by policy"), key="bad", times=99)]
    ids = [bench.accept(name) for name in ("a", "bad", *map(str, range(30)))]
    running.notify()
    wait_until(lambda: [JobState.DONE, JobState.FAILED, *[JobState.DONE] * 30] == states(bench, *ids))
    wait_until(lambda: {bench.job(ids[1]).object_id} == bench.staged())


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_worker_killed_between_uploads_and_their_acknowledgement_costs_nothing_but_time(bench: Bench, overwrite: bool) -> None:
    lost: list[Ack] = []
    killed = Performer(bench.spool, bench.journal, bench.performer.stores, "killed", bench.performer.sender, ack=lost.append)
    ids = [bench.accept(str(i), overwrite=overwrite) for i in range(3)]
    for leased in bench.journal.work.lease_many("killed", 60.0, 2, 1):
        killed.perform(leased.job, is_plain=leased.is_plain)
    sent = {str(i): bench.store.head(str(i)) for i in range(3)}
    assert ids == [one.job_id for one in lost]
    assert [JobState.LEASED] * 3 == states(bench, *ids)
    bench.journal.work.release("killed")
    while bench.perform() is not None:
        pass
    assert [JobState.DONE] * 3 == states(bench, *ids)
    assert {name: meta.crc32c for name, meta in sent.items()} == {name: bench.store.head(name).crc32c for name in sent}
    assert {name: meta.token for name, meta in sent.items()} == {name: bench.store.head(name).token for name in sent}
    assert set() == bench.staged()


@dataclass
class Suspect:
    """A job with which two workers died, and whose upload lasts until `finish`."""

    id: JobId
    finish: threading.Event


@pytest.fixture
def suspect(bench: Bench) -> Suspect:
    finish = threading.Event()
    bench.store.plan = [Fault("put", act=lambda: finish.wait(60.0), key="suspect")]  # type: ignore[arg-type]
    job_id = bench.accept("suspect")
    for _ in range(2):
        assert bench.journal.work.lease("dead", 60.0) is not None
        bench.journal.work.release("dead")
    return Suspect(job_id, finish)


# `suspect` stands before `running`: a worker looks for work as it starts, and must not lease the job before the dead ones do.
def test_a_suspect_is_worked_on_alone(bench: Bench, suspect: Suspect, running: Running) -> None:
    running.notify()
    wait_until(lambda: bench.job(suspect.id).state is JobState.LEASED)
    innocent = bench.accept("innocent")
    running.notify()
    assert JobState.QUEUED is bench.job(innocent).state
    suspect.finish.set()
    wait_until(lambda: [JobState.DONE] * 2 == states(bench, suspect.id, innocent))


def test_a_worker_without_work_cleans_up_and_leaves(bench: Bench) -> None:
    agent, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(bench.spool, bench.journal, channel, "w", AgentConfig(worker_idle_s=0.0))
    worker._performer.stores = worker._stores = GivenStores(bench.store)
    job_id = bench.accept("a")
    worker.run()
    assert JobState.DONE is bench.job(job_id).state
    for each in (agent, channel, worker._finished_read, worker._finished_write):
        each.close()
    worker._crew.shutdown()
    worker._pieces.shutdown()


def test_an_agent_on_a_full_disk_waits_between_its_writes_though_a_worker_has_died(tmp_path: Path) -> None:
    agent = Agent(Spool(tmp_path / "spool"), AgentConfig(), stay=True, environ={}, clock=None)
    written_s: list[float] = []

    def write() -> int:
        written_s.append(time.monotonic())
        if len(written_s) < 4:
            raise JournalError("database or disk is full")
        return 7

    agent._signal_write.send(b"\x11")  # as for SIGCHLD
    assert 7 == agent._insist(write)
    assert written_s[-1] - written_s[0] > 2.9
    agent._end()
