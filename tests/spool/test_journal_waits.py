"""What an operator has to mend makes uploads wait: how often they are tried, what ends the wait, and what is said of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import new_job, store_id
from wherry.clock import Clock
from wherry.spool.journal.jobs import JobId, JobState, WaitsFor
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.overview import Reason
from wherry.spool.journal.work import TRY_AGAIN_S


@dataclass
class Hands:
    """A clock that is set by hand."""

    now_s: float = 1000.0


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def journal(tmp_path: Path, hands: Hands) -> Journal:
    return Journal(tmp_path / "journal.db", clock=Clock(lambda: hands.now_s, lambda: 1.7e9 + hands.now_s, "boot"))


def submit(journal: Journal, *names: str, owner: str = "me", requires: tuple[str, ...] = (), **options: bool) -> list[JobId]:
    new = [new_job(name, requires=requires, **options) for name in names]  # type: ignore[arg-type]
    return journal.uploads.submit(owner, store_id(journal), new)[0]


def put_off(journal: Journal, worker: str = "w") -> JobId | None:
    """Lease a job, and find that its store needs an operator."""
    job = journal.work.lease(worker, 60.0)
    if job is not None:
        journal.work.requeue(
            job.id,
            worker,
            wait_s=TRY_AGAIN_S,
            error="ExpiredToken: they are over",
            kind="CredentialsExpiredError",
            waits_for=WaitsFor.CREDENTIALS,
        )
    return None if job is None else job.id


def test_the_next_try_at_a_store_is_when_one_of_its_jobs_is_due(journal: Journal, hands: Hands) -> None:
    submit(journal, "a")
    put_off(journal)
    hands.now_s += 100.0
    (store,) = journal.overview.waiting_stores()
    assert 200.0 == store.next_try_in_s


def test_a_store_that_needs_an_operator_gets_one_request_at_a_time_and_at_least_one_in_five_minutes(
    journal: Journal, hands: Hands
) -> None:
    submit(journal, *(f"a{n}" for n in range(50)))
    started_s = hands.now_s
    tried_s: list[float] = []
    while hands.now_s < started_s + 2000.0:
        if put_off(journal) is not None:
            tried_s.append(hands.now_s - started_s)
        hands.now_s += 1.0
    assert [0.0, 2.0, 6.0, 14.0, 30.0, 62.0, 126.0, 254.0, 510.0, 810.0, 1110.0, 1410.0, 1710.0] == tried_s


def test_ready_says_when_the_next_try_at_such_a_store_is(journal: Journal, hands: Hands) -> None:
    submit(journal, "a", "b")
    put_off(journal)
    due, next_s = journal.work.ready()
    assert (0, journal.work.now_s() + 2.0) == (due, next_s)
    hands.now_s += 2.5
    assert 1 == journal.work.ready()[0]


def test_one_answer_of_another_kind_ends_the_wait_of_the_store(journal: Journal, hands: Hands) -> None:
    submit(journal, *"abcd")
    put_off(journal)
    hands.now_s += 3.0
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.work.ack(job.id, "w", None)
    assert 2 == journal.work.ready()[0]
    assert [] == journal.overview.waiting_stores()


@pytest.mark.parametrize("all_stores", [True, False])
def test_new_secrets_have_all_of_them_tried_at_once(journal: Journal, all_stores: bool) -> None:
    ids = submit(journal, *"abc")
    workers = [journal.work.lease(f"w{n}", 60.0) for n in range(3)]
    for n, job in enumerate(workers):
        assert job is not None
        journal.work.requeue(job.id, f"w{n}", wait_s=TRY_AGAIN_S, error="over", waits_for=WaitsFor.CREDENTIALS)
    assert 0 == journal.work.ready()[0]
    assert workers[0] is not None
    assert journal.work.resume(None if all_stores else [workers[0].store_id])
    assert 3 == journal.work.ready()[0]
    assert [Reason.TURN] * 3 == [journal.overview.waits(ids)[job_id].reason for job_id in ids]


def test_secrets_of_another_store_end_no_wait(journal: Journal) -> None:
    submit(journal, "a")
    put_off(journal)
    assert not journal.work.resume([store_id(journal, "other")])
    assert 0 == journal.work.ready()[0]


def test_a_file_that_cannot_be_written_does_not_hold_up_the_others_of_its_store(journal: Journal, hands: Hands) -> None:
    """A store may have a folder that is read-only, and others that are not."""
    bad = submit(journal, "bad")[0]
    good = submit(journal, *(f"good{n}" for n in range(20)))
    done: list[JobId] = []
    for _ in range(30):
        while (job := journal.work.lease("w", 60.0)) is not None:
            if job.id == bad:
                journal.work.requeue(
                    job.id,
                    "w",
                    wait_s=TRY_AGAIN_S,
                    error="Read-only file system",
                    kind="ReadOnlyError",
                    waits_for=WaitsFor.DESTINATION,
                )
            else:
                journal.work.ack(job.id, "w", None)
                done.append(job.id)
        hands.now_s += 1.0
    assert good == done
    waits = journal.overview.waits([bad])[bad]
    assert (Reason.DESTINATION, 270.0, 1) == (waits.reason, waits.next_try_in_s, waits.attempts)


def test_what_waits_is_said_with_its_reason_error_and_next_try(journal: Journal, hands: Hands) -> None:
    first, second = submit(journal, "a", "b")
    put_off(journal)
    hands.now_s += 0.5
    waits = journal.overview.waits([first, second])
    assert (Reason.CREDENTIALS, 299.5, 1, "CredentialsExpiredError") == (
        *(waits[first].reason, waits[first].next_try_in_s, waits[first].attempts, waits[first].error_kind),
    )
    assert (Reason.CREDENTIALS, 1.5, "ExpiredToken: they are over") == (
        *(waits[second].reason, waits[second].next_try_in_s, waits[second].error),
    )
    (store,) = journal.overview.waiting_stores()
    assert (store_id(journal), Reason.CREDENTIALS, 2, 20, 1.5) == (
        *(store.store_id, store.reason, store.n_jobs, store.size_bytes, store.next_try_in_s),
    )


def test_other_reasons_to_wait_are_told_apart(journal: Journal) -> None:
    older, newer, required = submit(journal, "a", "a", "b", overwrite=False)
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.work.requeue(job.id, "w", wait_s=50.0, error="reset", kind="TransientError")
    marker = submit(journal, "marker", requires=("b",))[0]
    locked_store = store_id(journal, "locked", secret_names=("key",))
    (locked,), _ = journal.uploads.submit("me", locked_store, [new_job("x", root="s3://locked")])
    waits = journal.overview.waits([older, newer, required, marker, locked])
    assert [Reason.RETRY, Reason.OLDER, Reason.TURN, Reason.REQUIRED, Reason.SECRETS] == [wait.reason for wait in waits.values()]
    assert (older, required) == (waits[newer].blocked_by, waits[marker].blocked_by)
    assert ("reset", 50.0) == (waits[older].error, waits[older].next_try_in_s)
    journal.work.note_locked([])
    assert Reason.TURN is journal.overview.waits([locked])[locked].reason


def test_a_wait_is_over_for_flush_when_nothing_else_is_under_way(journal: Journal, hands: Hands) -> None:
    ids = submit(journal, "a", "b")
    assert [] == journal.overview.held_up("me")
    first = journal.work.lease("w1", 60.0)
    second = journal.work.lease("w2", 60.0)
    assert first is not None
    assert second is not None
    journal.work.requeue(first.id, "w1", wait_s=TRY_AGAIN_S, error="RequestTimeTooSkewed", waits_for=WaitsFor.CLOCK)
    assert [] == journal.overview.held_up("me")  # the other is on its way
    journal.work.requeue(second.id, "w2", wait_s=TRY_AGAIN_S, error="RequestTimeTooSkewed", waits_for=WaitsFor.CLOCK)
    assert (
        ids
        == [failure.job_id for failure in journal.overview.held_up("me")]
        == [one.job_id for one in journal.overview.held_up()]
    )
    assert [] == journal.overview.held_up("you")
    hands.now_s += 3.0
    assert journal.work.lease("w", 60.0) is None or [] == journal.overview.held_up("me")  # one is being tried


def test_what_waits_for_an_upload_that_waits_is_not_under_way(journal: Journal) -> None:
    first = submit(journal, "shard")[0]
    job = journal.work.lease("w", 60.0)
    assert job is not None
    other = journal.uploads.submit("me", store_id(journal, "two"), [new_job("m", requires=("shard",), root="s3://bucket")])[0][0]
    journal.work.requeue(job.id, "w", wait_s=TRY_AGAIN_S, error="Read-only file system", waits_for=WaitsFor.DESTINATION)
    assert [first, other] == [failure.job_id for failure in journal.overview.held_up("me")]
    free = journal.uploads.submit("me", store_id(journal, "two"), [new_job("free", root="s3://two")])[0][0]
    assert [] == journal.overview.held_up("me")
    taken = journal.work.lease("w", 60.0)
    assert taken is not None
    assert free == taken.id


def test_a_job_that_must_wait_for_another_is_exactly_one_that_says_so(journal: Journal) -> None:
    """`blocked_by` is compared with the rule itself after any steps."""
    rng = random.Random(1)
    leased: dict[int, str] = {}
    for _ in range(700):
        step = rng.random()
        if step < 0.35:
            names = rng.sample("abc", rng.randint(0, 2))
            submit(journal, rng.choice("abc"), requires=tuple(names), overwrite=rng.random() < 0.3)
        elif step < 0.6:
            worker = f"w{rng.randrange(4)}"
            if (job := journal.work.lease(worker, 60.0)) is not None:
                leased[job.id] = worker
        elif leased and step < 0.92:
            job_id = rng.choice(list(leased))
            worker = leased.pop(job_id)
            how = rng.random()
            if how < 0.4:
                journal.work.ack(JobId(job_id), worker, None)
            elif how < 0.7:
                journal.work.fail(JobId(job_id), worker, "no")
            elif how < 0.85:
                journal.work.requeue(JobId(job_id), worker, wait_s=0.0, error="reset")
            else:
                journal.work.release(worker)
                leased = {one: who for one, who in leased.items() if who != worker}
        elif step < 0.97:
            journal.uploads.retry([job.id for job in journal.queries.jobs(states=[JobState.FAILED]) if rng.random() < 0.5])
        else:
            journal.uploads.cancel(f"s3://bucket/{rng.choice('abc')}", "")
        with journal._database.transaction(read_only=True) as db:
            wrong = db.execute(
                "SELECT j.id FROM jobs j WHERE j.state = 'queued' AND (j.blocked_by IS NOT NULL) !="
                " (EXISTS (SELECT 1 FROM jobs e WHERE e.uri = j.uri AND e.place = j.place AND e.id != j.id"
                "   AND e.state IN ('queued', 'leased') AND (e.id < j.id OR e.state = 'leased'))"
                " OR EXISTS (SELECT 1 FROM requirements r JOIN jobs e ON e.id = r.after_job"
                "   WHERE r.job_id = j.id AND e.state IN ('queued', 'leased')))"
            ).fetchall()
        assert [] == wrong
    counts = journal.queries.counts()
    jobs = journal.queries.jobs()
    assert len([job for job in jobs if job.state is JobState.QUEUED]) == counts.queued
    assert len([job for job in jobs if job.state is JobState.FAILED]) == counts.failed
    needed = {job.object_id: job.size_bytes for job in jobs if job.state.value in ("queued", "leased", "failed")}
    assert set(needed) == journal.queries.referenced_objects()
    assert sum(needed.values()) == journal.queries.spool_bytes()
