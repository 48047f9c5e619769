"""The laws of the job table: order, leases, superseding, requirements, fencing, and what frees a staged file."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from journals import fail, lease, state, submit
from support import SETTINGS, new_job, run_script, store_id, submit_many
from wherry.spool.journal.jobs import LEGAL_STEPS, JobId, JobState
from wherry.spool.journal.journal import Journal, readable_jobs
from wherry.spool.journal.work import MAX_LEASES_LOST, SUSPECT_AFTER
from wherry.store.registry import endpoint_key


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


# -- order and leases


def test_jobs_are_leased_in_the_order_of_their_calls(journal: Journal) -> None:
    ids = submit(journal, *(new_job(name) for name in "cab"))
    assert ids == [lease(journal).id for _ in ids]
    assert journal.work.lease("w", 60.0) is None


def test_a_name_is_leased_once_at_a_time_older_first(journal: Journal) -> None:
    first, second = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False))
    assert first == lease(journal, "w1").id
    assert journal.work.lease("w2", 60.0) is None
    journal.work.ack(first, "w1", None)
    assert second == lease(journal, "w2").id


def test_other_names_go_on_while_one_is_leased(journal: Journal) -> None:
    _, _, other = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False), new_job("b"))
    lease(journal, "w1")
    assert other == lease(journal, "w2").id


def test_a_later_version_waits_while_an_earlier_one_backs_off(journal: Journal) -> None:
    first, second = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False))
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    assert journal.work.lease("w", 60.0) is None
    assert first == lease(journal, now=time.time() + 101).id
    journal.work.ack(first, "w", None)
    assert second == lease(journal).id


def test_ready_tells_what_is_due_and_when_the_next_will_be(journal: Journal) -> None:
    submit(journal, new_job("a"), new_job("b"))
    assert (2, None) == journal.work.ready()
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    due, next_s = journal.work.ready()
    assert 1 == due
    assert next_s is not None
    assert (2, None) == journal.work.ready(now=next_s)


def test_a_lease_counts_an_attempt_and_waiting_for_a_requirement_does_not(journal: Journal) -> None:
    submit(journal, new_job("a"))
    job = lease(journal)
    assert 1 == job.attempts
    journal.work.requeue(job.id, "w", wait_s=0.0, error="reset")
    job = lease(journal)
    assert 2 == job.attempts
    journal.work.requeue(job.id, "w", wait_s=0.0, error="waits", counts=False)
    assert 2 == lease(journal).attempts


def test_jobs_of_stores_that_a_worker_cannot_open_are_passed_over(journal: Journal) -> None:
    (closed,), _ = journal.uploads.submit("me", store_id(journal, "closed"), [new_job("a", root="s3://closed")])
    (opened,), _ = journal.uploads.submit("me", store_id(journal, "open"), [new_job("a", root="s3://open")])
    ours = [store_id(journal, "open")]
    found = journal.work.lease("w", 60.0, with_stores=ours)
    assert found is not None
    assert opened == found.id
    assert journal.work.lease("w", 60.0, with_stores=ours) is None
    assert closed == lease(journal).id


def test_a_lease_that_is_renewed_does_not_expire(journal: Journal) -> None:
    submit(journal, new_job("a"))
    now = time.time()
    lease(journal, now=now - 59)
    assert {"w"} == journal.work.expired(now=now + 2)
    journal.work.renew("w", 60.0)
    assert set() == journal.work.expired(now=now + 2)


# -- superseding


def test_a_queued_version_is_superseded_by_the_next_and_its_file_is_freed(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a", object_id="new")])
    assert ["old"] == freed
    found = journal.queries.job(old)
    assert found is not None
    assert (JobState.SUPERSEDED, new) == (found.state, found.end.superseded_by)
    assert new == lease(journal).id


def test_a_leased_version_is_not_superseded(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a"))
    lease(journal)
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a")])
    assert [] == freed
    assert JobState.LEASED is state(journal, old)
    journal.work.ack(old, "w", None)
    assert new == lease(journal).id


def test_a_version_that_is_being_retried_is_superseded(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, old)
    assert new == lease(journal).id


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
def test_only_overwriting_versions_supersede_and_are_superseded(journal: Journal, first: bool, second: bool) -> None:
    (old,) = submit(journal, new_job("a", overwrite=first))
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("a", overwrite=second)])
    assert [] == freed
    assert JobState.QUEUED is state(journal, old)


def test_the_same_name_is_superseded_through_another_record_of_the_same_place(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    other = journal.uploads.store_id("s3", "bucket", {"region": "elsewhere"}, (), SETTINGS)
    (new,), freed = journal.uploads.submit("me", other, [new_job("a")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, old)
    assert new == lease(journal).id


# -- one URI in two places


@pytest.fixture
def elsewhere(journal: Journal) -> int:
    """A store of the same URI at another server."""
    return journal.uploads.store_id("s3", "bucket", {"endpoint_url": PLACE.partition("=")[2]}, (), SETTINGS)


PLACE = "endpoint_url=http://127.0.0.1:9000"


def test_the_same_name_in_another_place_is_not_superseded(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    _, freed = journal.uploads.submit("me", elsewhere, [new_job("a")])
    assert [] == freed
    assert JobState.QUEUED is state(journal, here)


def test_the_same_name_in_two_places_is_sent_to_both_at_once(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    assert {here, there} == {lease(journal, "w1").id, lease(journal, "w2").id}


def test_jobs_of_one_place_keep_their_order_whatever_record_they_came_by(journal: Journal, elsewhere: int) -> None:
    same = journal.uploads.store_id("s3", "bucket", {"endpoint_url": "HTTP://127.0.0.1:9000/", "region": "x"}, (), SETTINGS)
    (first,), _ = journal.uploads.submit("me", elsewhere, [new_job("a", overwrite=False)])
    (second,), _ = journal.uploads.submit("me", same, [new_job("a", overwrite=False)])
    assert first == lease(journal, "w1").id
    assert journal.work.lease("w2", 60.0) is None
    journal.work.ack(first, "w1", None)
    assert second == lease(journal, "w2").id


def test_what_is_deleted_in_one_place_stays_queued_in_another(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a", object_id="there")])
    assert ["there"] == journal.uploads.cancel("s3://bucket/a", PLACE)
    assert [JobState.QUEUED, JobState.DISCARDED] == [state(journal, here), state(journal, there)]


def test_readers_of_one_place_see_nothing_of_another(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    assert journal.queries.newest_open("s3://bucket/a", PLACE) is None
    assert journal.queries.newest("s3://bucket/a", PLACE) is None
    assert [] == journal.queries.open_under("s3://bucket/", PLACE)
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    for place, expected in (("", here), (PLACE, there)):
        open_job, newest = journal.queries.newest_open("s3://bucket/a", place), journal.queries.newest("s3://bucket/a", place)
        assert open_job is not None
        assert newest is not None
        assert [expected] * 3 == [open_job.id, newest.id, *(job.id for job in journal.queries.open_under("s3://bucket/", place))]


def test_a_failed_upload_is_retried_also_if_another_place_has_a_newer_one(journal: Journal, elsewhere: int) -> None:
    (here,) = fail(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    journal.work.ack(lease(journal).id, "w", None)
    assert JobState.DONE is state(journal, there)
    assert (1, []) == journal.uploads.retry(None)
    assert JobState.QUEUED is state(journal, here)


def test_a_job_waits_for_what_it_requires_in_its_own_place_only(journal: Journal, elsewhere: int) -> None:
    (data,) = submit(journal, new_job("data"))
    (marker,), _ = journal.uploads.submit("me", elsewhere, [new_job("marker", requires=("data",))])
    assert [None] == [one.state for one in journal.work.requirements(marker)]
    assert {data, marker} == {lease(journal).id, lease(journal).id}


def test_a_store_record_says_where_it_is(journal: Journal, elsewhere: int) -> None:
    here = store_id(journal)
    assert {here: "", elsewhere: PLACE} == {number: record.endpoint_key for number, record in journal.queries.stores().items()}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, ""),
        ({"region": "x", "profile": "y", "verify": False, "endpoint_url": None}, ""),
        ({"endpoint_url": "HTTPS://Host:9000/Path/"}, "endpoint_url=https://host:9000/Path"),
        ({"port": 8021, "host": "Name"}, "host=name port=8021"),
        ({"account_name": "a", "account_host": "b"}, "account_host=b account_name=a"),
    ],
)
def test_a_place_is_made_of_what_says_which_server_it_is(options: dict[str, object], place: str) -> None:
    assert place == endpoint_key("az", options, {})


# -- superseding and requirements


def test_a_version_that_another_job_requires_is_not_superseded(journal: Journal) -> None:
    (data, _) = submit(journal, new_job("data"), new_job("marker", requires=("data",)))
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("data")])
    assert [] == freed
    assert JobState.QUEUED is state(journal, data)


def test_a_version_is_superseded_again_when_who_required_it_is_finished(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data", object_id="old"), new_job("marker", requires=("data",)))
    journal.uploads.cancel("s3://bucket/marker", "")
    assert JobState.DISCARDED is state(journal, marker)
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("data")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, data)


def test_two_versions_in_one_call_supersede_in_order(journal: Journal) -> None:
    old, new = submit(journal, new_job("a"), new_job("a"))
    assert (JobState.SUPERSEDED, JobState.QUEUED) == (state(journal, old), state(journal, new))


# -- requirements


def test_a_job_waits_for_the_jobs_that_it_requires(journal: Journal) -> None:
    data, more, marker = submit(journal, new_job("data"), new_job("more"), new_job("marker", requires=("data", "more")))
    assert [data, more] == [lease(journal).id, lease(journal).id]
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(data, "w", None)
    assert journal.work.lease("w", 60.0) is None
    journal.work.requeue(more, "w", wait_s=100.0, error="reset")
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(lease(journal, now=time.time() + 101).id, "w", None)
    assert marker == lease(journal).id


def test_requirements_carry_state_and_checksum_of_our_own_jobs(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data"), new_job("marker", requires=("data", "foreign")))
    lease(journal)
    journal.work.set_crc32c(data, 0xDEADBEEF)
    journal.work.ack(data, "w", None)
    found = {wanted.key: (wanted.state, wanted.crc32c) for wanted in journal.work.requirements(marker)}
    assert {"data": (JobState.DONE, 0xDEADBEEF), "foreign": (None, None)} == found


def test_a_job_whose_requirement_failed_is_leased_to_be_told_so(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data"), new_job("marker", requires=("data",)))
    journal.work.fail(lease(journal).id, "w", "no")
    assert marker == lease(journal).id
    assert [(data, JobState.FAILED)] == [(data, wanted.state) for wanted in journal.work.requirements(marker)]


def test_a_requirement_means_the_newest_earlier_job_of_that_name(journal: Journal) -> None:
    (old,) = submit(journal, new_job("data", overwrite=False))
    journal.work.ack(lease(journal).id, "w", None)
    new, marker, later = submit(journal, new_job("data"), new_job("marker", requires=("data",)), new_job("data", overwrite=False))
    assert new == lease(journal).id
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(new, "w", None)
    assert marker == lease(journal).id
    assert later == lease(journal).id
    assert JobState.DONE is state(journal, old)


# -- fencing and lost leases


def test_a_worker_whose_lease_was_taken_away_changes_nothing(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a", object_id="file"))
    lease(journal, "slow")
    journal.work.release("slow")
    lease(journal, "quick")
    assert [] == journal.work.ack(job_id, "slow", "etag")
    journal.work.fail(job_id, "slow", "no")
    journal.work.requeue(job_id, "slow", wait_s=0.0, error="reset")
    assert JobState.LEASED is state(journal, job_id)
    assert ["file"] == journal.work.ack(job_id, "quick", "etag")
    assert JobState.DONE is state(journal, job_id)


def test_an_acknowledged_job_stays_done(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    journal.work.ack(job_id, "w", "etag")
    journal.work.fail(job_id, "w", "too late")
    journal.work.requeue(job_id, "w", wait_s=0.0, error="too late")
    assert (0, []) == journal.work.release()
    assert JobState.DONE is state(journal, job_id)


def test_releasing_a_worker_queues_its_jobs_and_no_others(journal: Journal) -> None:
    first, second = submit(journal, new_job("a"), new_job("b"))
    lease(journal, "dead")
    lease(journal, "alive")
    assert (1, []) == journal.work.release("dead")
    assert (JobState.QUEUED, JobState.LEASED) == (state(journal, first), state(journal, second))


def test_a_job_on_which_workers_keep_dying_fails_and_keeps_its_file(journal: Journal) -> None:
    (deadly,) = submit(journal, new_job("deadly", object_id="file"))
    for _ in range(MAX_LEASES_LOST - 1):
        lease(journal)
        assert (1, []) == journal.work.release("w")
    lease(journal)
    queued, doomed = journal.work.release("w")
    assert (0, [deadly]) == (queued, [job.id for job in doomed])
    found = journal.queries.job(deadly)
    assert found is not None
    assert JobState.FAILED is found.state
    assert "died 5 times" in (found.error or "")
    assert {"file"} == journal.queries.referenced_objects()


def test_a_retried_job_may_lose_its_leases_again(journal: Journal) -> None:
    (deadly,) = submit(journal, new_job("deadly"))
    for _ in range(MAX_LEASES_LOST):
        lease(journal)
        journal.work.release("w")
    assert (1, []) == journal.uploads.retry([deadly])
    lease(journal)
    assert (1, []) == journal.work.release("w")


def test_the_death_of_the_agent_is_held_against_no_job(journal: Journal) -> None:
    submit(journal, new_job("a"))
    for _ in range(2 * MAX_LEASES_LOST):
        lease(journal)
        assert (1, []) == journal.work.release()


def test_a_job_on_which_workers_died_is_left_to_one_who_works_alone(journal: Journal) -> None:
    suspect, innocent = submit(journal, new_job("suspect"), new_job("innocent"))
    for _ in range(SUSPECT_AFTER):
        assert suspect == lease(journal).id
        journal.work.release("w")
    assert innocent == lease(journal, with_suspects=False).id
    assert journal.work.lease("w", 60.0, with_suspects=False) is None
    assert suspect == lease(journal).id


# -- stores


def test_one_store_has_one_record(journal: Journal) -> None:
    ids = {store_id(journal), store_id(journal), store_id(journal, "other"), store_id(journal, secret_names=("token",))}
    assert 3 == len(ids)
    assert ids == set(journal.queries.stores())


def test_the_id_of_a_store_is_the_same_in_every_journal(journal: Journal, tmp_path: Path) -> None:
    # Secrets are handed over by this id, and workers keep stores open by it, also when a damaged journal was replaced.
    other = Journal(tmp_path / "other.db")
    store_id(other, "first-in-this-one")
    assert store_id(journal) == store_id(other)
    other.close()


# -- processes and threads


def test_two_processes_submit_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=submit_many, args=(path, owner, 200)) for owner in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [0, 0] == [process.exitcode for process in processes]
    journal = Journal(path)
    jobs = journal.queries.jobs()
    journal.close()
    assert Counter({"one": 200, "two": 200}) == Counter(job.owner for job in jobs)
    for owner in ("one", "two"):
        assert [f"{owner}/{i}" for i in range(200)] == [job.key for job in jobs if job.owner == owner]


def test_threads_share_a_journal(journal: Journal) -> None:
    def work(owner: str) -> None:
        for i in range(25):
            submit(journal, new_job(f"{owner}/{i}"), owner=owner)
            if (job := journal.work.lease(owner, 60.0)) is not None:
                journal.work.ack(job.id, owner, None)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [JobState.DONE] * 100 == [job.state for job in journal.queries.jobs()]


def test_a_forked_child_opens_its_own_connection_and_the_parent_goes_on(tmp_path: Path) -> None:
    text = """
    import os, sys
    from pathlib import Path
    from support import new_job, store_id
    from wherry.spool.journal.journal import Journal

    journal = Journal(Path(sys.argv[1]))
    store = store_id(journal)
    journal.uploads.submit("parent", store, [new_job("before")])
    pid = os.fork()
    if pid == 0:
        for i in range(20):
            journal.uploads.submit("child", store, [new_job(f"child/{i}")])
        journal.close()
        sys.exit(0)  # with all exit handlers, which must not hurt the parent's connection
    for i in range(20):
        journal.uploads.submit("parent", store, [new_job(f"parent/{i}")])
    assert os.waitpid(pid, 0)[1] == 0
    journal.uploads.submit("parent", store, [new_job("after")])
    journal.check()
    owners = [job.owner for job in journal.queries.jobs()]
    print(owners.count("parent"), owners.count("child"))
    """
    assert "22 20\n" == run_script(text, tmp_path / "journal.db")


# -- the state machine


@pytest.mark.parametrize("n_turns", [700, pytest.param(4000, marks=pytest.mark.slow)])
def test_only_legal_steps_are_made_and_all_of_them_occur(journal: Journal, n_turns: int) -> None:
    """A long random life: whatever the methods are called with, the table keeps its laws."""
    watch = sqlite3.connect(journal.path, isolation_level=None)
    watch.execute("CREATE TABLE steps (was TEXT, now TEXT)")
    watch.execute(
        "CREATE TRIGGER note AFTER UPDATE OF state ON jobs WHEN old.state != new.state"
        " BEGIN INSERT INTO steps VALUES (old.state, new.state); END"
    )
    dice = random.Random(12)  # by which each step occurs early
    store = store_id(journal)
    staged: set[str] = set()
    freed: list[str] = []
    now = time.time()

    def some(*states: JobState) -> list[JobId]:
        ids = [job.id for job in journal.queries.jobs(states=states)]
        return dice.sample(ids, min(len(ids), dice.randint(0, 2)))

    for turn in range(n_turns):
        now += 1.0
        worker = dice.choice("xy")
        what = dice.choices(
            ["submit", "lease", "ack", "fail", "requeue", "release", "retry", "discard", "cancel"],
            [12, 20, 8, 4, 4, 5, 4, 1, 1],
        )[0]
        if what == "submit":
            requires = tuple(dice.sample("abc", dice.choice([0, 0, 1])))
            job = new_job(dice.choice("abc"), object_id=f"file-{turn}", overwrite=dice.random() < 0.7, requires=requires)
            staged.add(job.object_id)
            freed += journal.uploads.submit("me", store, [job])[1]
        elif what == "lease":
            if (leased := journal.work.lease(worker, 60.0, now=now)) is not None:
                older = [
                    job
                    for job in journal.queries.jobs()
                    if job.uri == leased.uri and job.id < leased.id and not job.state.is_final
                ]
                assert [] == older
        elif what == "ack":
            for job_id in some(JobState.LEASED):
                freed += journal.work.ack(job_id, worker, None)
        elif what == "fail":
            for job_id in some(JobState.LEASED):
                journal.work.fail(job_id, worker, "no")
        elif what == "requeue":
            for job_id in some(JobState.LEASED):
                journal.work.requeue(job_id, worker, wait_s=turn - 1000.0, error="reset")
        elif what == "release":
            journal.work.release(worker)
        elif what == "retry":
            freed += journal.uploads.retry(some(JobState.FAILED))[1]
        elif what == "discard":
            freed += journal.uploads.discard(some(JobState.FAILED))[1]
        else:
            freed += journal.uploads.cancel(f"s3://bucket/{dice.choice('abc')}", "")
        open_names = Counter(job.uri for job in journal.queries.jobs(states=[JobState.LEASED]))
        assert set(open_names.values()) <= {1}
    assert len(freed) == len(set(freed))
    assert staged - set(freed) == journal.queries.referenced_objects()

    made = {(JobState(was), JobState(step)) for was, step in watch.execute("SELECT DISTINCT was, now FROM steps")}
    watch.close()
    assert {(was, step) for was, steps in LEGAL_STEPS.items() for step in steps} == made


# -- what is left of a damaged one


def test_readable_jobs_of_a_sound_journal_are_the_unfinished_and_failed_ones(journal: Journal) -> None:
    submit(journal, new_job("done", object_id="d"))
    journal.work.ack(lease(journal).id, "w", None)
    submit(journal, new_job("failed", object_id="f", size_bytes=3), new_job("queued", object_id="q", size_bytes=4))
    journal.work.fail(lease(journal).id, "w", "no")
    journal.close()
    assert [("f", "s3://bucket/failed", 3), ("q", "s3://bucket/queued", 4)] == readable_jobs(journal.path)


def test_nothing_can_be_read_of_what_is_no_journal(tmp_path: Path) -> None:
    garbage = tmp_path / "journal.db"
    garbage.write_bytes(b"no database" * 1000)
    assert [] == readable_jobs(garbage)
    assert [] == readable_jobs(tmp_path / "missing.db")


def test_a_retried_older_job_waits_for_a_newer_one_that_is_being_sent(journal: Journal) -> None:
    store = store_id(journal)
    (old,), _ = journal.uploads.submit("me", store, [new_job("s3://bucket/a", overwrite=False)])
    assert journal.work.lease("x", 60.0) is not None
    journal.work.fail(old, "x", "no")
    (new,), _ = journal.uploads.submit("me", store, [new_job("s3://bucket/a", overwrite=False)])
    leased = journal.work.lease("x", 60.0)
    assert leased is not None
    assert new == leased.id
    assert (1, []) == journal.uploads.retry([old])
    assert journal.work.lease("y", 60.0) is None
    journal.work.ack(new, "x", None)
    retried = journal.work.lease("y", 60.0)
    assert retried is not None
    assert old == retried.id
