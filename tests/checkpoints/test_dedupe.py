"""Checkpoints(dedupe=True) with agents, on a folder and on S3: what is sent, what comes back, and what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import wherry
from checkpoint_sets.restores import contents_of
from checkpoint_sets.sharing import commit_shared
from command_line import CommandLine
from servers.features import tell_spool
from servers.proxy import FaultProxy, fault_proxy
from servers.real import S3Server
from support import CALLER, wait_until
from wherry.agent.comparing import Comparing, OnItsWayError
from wherry.agent.set_jobs import SetPlan
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt
from wherry.checkpoints.restore import DamagedSetError
from wherry.checkpoints.survey import verify_bytes
from wherry.checkpoints.world import World
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, CredentialsExpiredError, TransientError
from wherry.spool.journal.jobs import Job, JobKind
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

BASE_BYTES = 3_000_000
ADAPTER_BYTES = 30_000
Open = Callable[..., AbstractContextManager[Checkpoints]]


def write_model(folder: Path, step: int, *, base: int = 0) -> Path:
    """What is frozen in one file, what is trained in another."""
    folder.mkdir(exist_ok=True)
    (folder / "base.bin").write_bytes(random.Random(base).randbytes(BASE_BYTES))
    (folder / "adapter.bin").write_bytes(random.Random(f"adapter {step}").randbytes(ADAPTER_BYTES))
    (folder / "config.json").write_text('{"rank": 8}')
    return folder


on_s3_too = pytest.mark.parametrize("opened", ["local", "S3"], indirect=True)
on_a_lax_server_too = pytest.mark.parametrize("opened", ["local", "S3", "lax S3"], indirect=True)


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the run, each time with the same spool unless another is given."""
    server: S3Server | None = None
    if (kind := getattr(request, "param", "local")) == "local":
        (tmp_path / "bucket").mkdir()
        uri, options = str(tmp_path / "bucket"), None
    else:
        server = request.getfixturevalue("seaweedfs_server" if kind == "S3" else "juicefs_server")
        uri, options = f"s3://{server.bucket}/{tmp_path.name}-{os.getpid()}", server.options

    @contextmanager
    def open_run(**settings: Any) -> Iterator[Checkpoints]:
        spool = settings.get("spool", tmp_path / "spool")
        if server is not None and not spool.exists():
            tell_spool(spool, server)
        with wherry.Checkpoints(
            uri, "run1", **{"spool": tmp_path / "spool", "storage_options": options, "dedupe": True, **settings}
        ) as run:
            yield run

    yield open_run


def owners(run: Checkpoints, which: int | str = "latest") -> Mapping[str, int]:
    """By which step each file of a set was sent."""
    manifest = run.find(which)
    return {one.name: (one.set or manifest.set).step for _, one in run.catalog.objects(manifest)}


@on_a_lax_server_too
def test_what_does_not_change_is_sent_once_and_each_set_comes_back(opened: Open, tmp_path: Path) -> None:
    wanted = {}
    with opened() as run:
        for step in (10, 20, 30):
            model = write_model(tmp_path / "model", step)
            wanted[step] = contents_of(model)
            manifest = run.save(step, model).result(60)
            assert manifest.size_bytes == BASE_BYTES + ADAPTER_BYTES + len('{"rank": 8}')
        assert {"base.bin": 10, "config.json": 10, "adapter.bin": 30} == owners(run)
        latest = run.latest()
        assert latest is not None and latest.step == 30
        for step in (10, 20, 30):
            assert wanted[step] == contents_of(run.restore(step, tmp_path / f"back {step}"))
            assert [] == verify_bytes(run.catalog.store, run.catalog.keys, run.find(step))
        objects = [one for _, one in run.catalog.objects(run.find(30))]
        assert all(one.sha256 == hashlib.sha256(wanted[30][one.name]).hexdigest() for one in objects)
    wait_until(lambda: not list((tmp_path / "spool" / "objects").iterdir()), what="the end of the last staged file")


def test_the_bytes_that_are_sent_are_those_that_changed(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    def sent_bytes(proxy: FaultProxy) -> int:
        return proxy.request_bytes("PUT", r"/data/[^/]*/[^_?]")

    with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}-{os.getpid()}"
        tell_spool(tmp_path / "spool", seaweedfs_server, proxy.url)
        with wherry.Checkpoints(uri, "run1", spool=tmp_path / "spool", storage_options=options, dedupe=True) as run:
            run.save(0, write_model(tmp_path / "model", 0)).result(60)
            first_bytes = sent_bytes(proxy)
            assert first_bytes >= BASE_BYTES + ADAPTER_BYTES
            for step in range(1, 4):
                run.save(step, write_model(tmp_path / "model", step)).result(60)
            assert sent_bytes(proxy) - first_bytes < 4 * ADAPTER_BYTES


@on_s3_too
def test_a_resumed_attempt_refers_to_the_set_that_it_resumed_from(opened: Open, tmp_path: Path) -> None:
    with opened(config=CALLER) as run:
        run.save(10, write_model(tmp_path / "model", 10))
    with opened(spool=tmp_path / "another") as run:
        run.restore("latest", tmp_path / "back")
        run.save(11, write_model(tmp_path / "back", 11)).result(60)
        assert {"base.bin": 10, "config.json": 10, "adapter.bin": 11} == owners(run)


@pytest.mark.parametrize(("opened", "n_sets"), [("local", 5), pytest.param("S3", 4, marks=pytest.mark.slow)], indirect=["opened"])
def test_a_run_that_is_pruned_at_each_save_sends_it_once_and_stays_whole(opened: Open, tmp_path: Path, n_sets: int) -> None:
    last = 10 * n_sets
    now = PruneDelays(grace_s=0.0)
    with opened(keep=wherry.Keep(last=2)) as run:
        for step in range(10, last + 1, 10):
            run.save(step, write_model(tmp_path / "model", step)).result(60)
            run.prune(delays=now)
        assert {"base.bin": 10, "config.json": 10, "adapter.bin": last} == owners(run)
        assert [last - 10, last] == [one.step for one in run.list()]
        assert [] == verify_bytes(run.catalog.store, run.catalog.keys, run.find(last))
        run.save(last + 10, write_model(tmp_path / "model", last + 10, base=1)).result(60)
        run.save(last + 20, write_model(tmp_path / "model", last + 20, base=1)).result(60)
        run.prune(delays=now)
        there = {
            key.split("/")[-2] for meta in run.catalog.store.list(run.catalog.keys.all_data) if "adapter" in (key := meta.key)
        }
        assert {str(one.set) for one in run.list()} == there
        assert 1 == sum(meta.key.endswith("base.bin") for meta in run.catalog.store.list(run.catalog.keys.all_data))


def test_the_newest_is_deleted_while_the_next_refers_to_it(opened: Open, tmp_path: Path) -> None:
    with opened(config=CALLER) as run:
        for step in (10, 20):
            run.save(step, write_model(tmp_path / "model", step, base=step)).result(60)
        run.delete(20)
        run.prune(delays=PruneDelays(grace_s=0.0))
        run.save(30, write_model(tmp_path / "model", 30, base=20)).result(60)
        assert {"base.bin": 30, "config.json": 10, "adapter.bin": 30} == owners(run)
        assert contents_of(tmp_path / "model") == contents_of(run.restore("latest", tmp_path / "back"))


def test_several_ranks_refer_to_what_each_has_saved(opened: Open, tmp_path: Path) -> None:
    with opened(attempt=1, world=World(0, 2, 0)) as first, opened(attempt=1, world=World(1, 2, 1)) as second:
        for step in (10, 20):
            parts = []
            for rank, run in enumerate((first, second)):
                folder = tmp_path / f"rank{rank}"
                folder.mkdir(exist_ok=True)
                (folder / f"frozen{rank}.bin").write_bytes(random.Random(rank).randbytes(100_000))
                (folder / f"trained{rank}.bin").write_bytes(random.Random(f"{rank} {step}").randbytes(100))
                parts.append(run.save(step, folder))
            manifest = parts[0].result(60)
            assert manifest == parts[1].result(60)
        assert (200_000, 200) == (manifest.shared_bytes, manifest.own.size_bytes)
    with opened(spool=tmp_path / "one") as run:
        model = run.restore("latest", tmp_path / "back")
        assert 4 == len(contents_of(model))
        run.save(30, model).result(60)
        shared = run.find(30)
        assert (200_200, [10, 20]) == (shared.shared_bytes, [one.set.step for one in shared.references])


def test_a_lost_object_of_an_older_set_makes_each_set_that_uses_it_incomplete(opened: Open, tmp_path: Path) -> None:
    with opened(config=CALLER) as run:
        run.save(5, write_model(tmp_path / "model", 5, base=5)).result(60)
        for step in (10, 20):
            run.save(step, write_model(tmp_path / "model", step)).result(60)
        key = run.catalog.keys.data(run.find(10).set) + "base.bin"
        run.catalog.store.delete(key)
        with pytest.raises(DamagedSetError, match=r"base\.bin"):
            run.restore(20, tmp_path / "back")
        assert run.find("latest").step == 5
        run.save(30, write_model(tmp_path / "model", 30)).result(60)
        assert 30 == owners(run)["base.bin"]
        assert run.find("latest").step == 30


def test_a_file_that_is_written_in_place_is_compared_as_well(opened: Open, tmp_path: Path) -> None:
    with opened() as run:
        for step in (10, 20):
            with run.save(step) as folder:
                write_model(folder, step)
            run.flush(60)
        assert {"base.bin": 10, "config.json": 10, "adapter.bin": 20} == owners(run)


def test_it_holds_in_another_process_and_without_an_agent(opened: Open, tmp_path: Path) -> None:
    with opened(config=wherry.Config(agent=wherry.AgentConfig(run_in="caller"))) as run:
        run.save(10, write_model(tmp_path / "model", 10)).result(60)
        run.save(20, write_model(tmp_path / "model", 20)).result(60)
        assert 10 == owners(run)["base.bin"]
    with wherry.Checkpoints(tmp_path, "run2", spool=tmp_path / "spool", dedupe=True) as run:
        run.save(10, write_model(tmp_path / "model", 10)).result(60)
        with pickle.loads(pickle.dumps(run)) as copied:  # noqa: S301  it was written a moment ago
            copied.save(20, write_model(tmp_path / "model", 20)).result(60)
        assert 10 == owners(run)["base.bin"]


def test_sets_that_are_saved_before_the_first_is_stored_wait_for_it_and_send_it_once(opened: Open, tmp_path: Path) -> None:
    with opened() as run:
        for step in range(10, 60, 10):
            run.save(step, write_model(tmp_path / "model", step))
        run.flush(120)
        assert {10} == {owners(run, step)["base.bin"] for step in range(10, 60, 10)}
        for one in run.list():
            assert [] == verify_bytes(run.catalog.store, run.catalog.keys, one)


def test_a_set_waits_for_an_older_one_that_has_not_decided_yet(tmp_path: Path) -> None:
    """It is summed, and looks for a set to refer to; or the worker that did so was killed."""
    keys, file = RunKeys("run1/checkpoints"), tmp_path / "base.bin"
    file.write_bytes(bytes(BASE_BYTES))
    journal = Journal(tmp_path / "journal.db")
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    store_id = journal.uploads.store_id("memory", "x", {}, (), {"retry": {}, "transfer": {}})
    jobs = []
    for step in (10, 20):
        name = SetName("000000001", step)
        plan = SetPlan(keys.base, name, 1, receipt=Receipt(name, 0, 1, "file")).to_bytes().decode()
        key = keys.data(name) + "base.bin"
        new = NewJob(JobKind.PUT, f"memory://x/{key}", key, f"object{step}", BASE_BYTES, False, "token", plan=plan)
        jobs.append(journal.queries.job(journal.uploads.submit("owner", store_id, [new])[0][0]))
    older, newer = jobs
    assert older is not None and newer is not None
    comparing = Comparing(journal, waits=True)
    with pytest.raises(OnItsWayError):  # the older one is not summed
        comparing.decided(newer, file, store)
    refused = FaultyStore(store, [Fault("get", TransientError("later"), times=9)])
    with pytest.raises(TransientError, match="later"):
        comparing.decided(older, file, refused)
    with pytest.raises(OnItsWayError):  # it is not decided
        comparing.decided(newer, file, store)
    assert not comparing.decided(older, file, store)[1]
    with pytest.raises(OnItsWayError):  # it is being sent
        comparing.decided(newer, file, store)
    commit_shared(store, keys, 10, {"base.bin": bytes(BASE_BYTES)})
    work = journal.work.lease("w", 60.0)
    assert work is not None and work.id == older.id
    journal.work.ack(older.id, "w", None)
    assert comparing.decided(newer, file, store)[1]
    journal.close()


def test_a_set_that_was_committed_since_another_file_looked_is_found(tmp_path: Path) -> None:
    keys, journal = RunKeys("run1/checkpoints"), Journal(tmp_path / "journal.db")
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    store_id = journal.uploads.store_id("memory", "x", {}, (), {"retry": {}, "transfer": {}})

    def job_of(step: int, name: str, size_bytes: int) -> Job:
        of = SetName("000000001", step)
        plan = SetPlan(keys.base, of, 1, receipt=Receipt(of, 0, 1, "file")).to_bytes().decode()
        key = keys.data(of) + name
        new = NewJob(JobKind.PUT, f"memory://x/{key}", key, f"object{step}{name}", size_bytes, False, "token", plan=plan)
        job = journal.queries.job(journal.uploads.submit("owner", store_id, [new])[0][0])
        assert job is not None
        return job

    large, small = tmp_path / "base.bin", tmp_path / "small.bin"
    large.write_bytes(bytes(BASE_BYTES))
    small.write_bytes(b"x")
    older, quick, newer = job_of(10, "base.bin", BASE_BYTES), job_of(20, "small.bin", 1), job_of(20, "base.bin", BASE_BYTES)
    comparing = Comparing(journal, waits=True)
    assert not comparing.decided(older, large, store)[1]
    work = journal.work.lease("w", 60.0)
    assert work is not None and work.id == older.id
    journal.work.ack(older.id, "w", None)
    assert not comparing.decided(quick, small, store)[1]  # no set is committed yet
    commit_shared(store, keys, 10, {"base.bin": bytes(BASE_BYTES)})
    assert comparing.decided(newer, large, store)[1]
    journal.close()


def test_sets_of_which_another_rank_is_late_are_committed_when_it_comes(tmp_path: Path) -> None:
    bucket, model = tmp_path / "bucket", write_model(tmp_path / "model", 10)
    bucket.mkdir()
    with wherry.Checkpoints(bucket, "run1", attempt=1, world=World(0, 2, 0), spool=tmp_path / "spool", dedupe=True) as first:
        for step in (10, 20):
            first.save(step, model)
        late = wherry.Checkpoints(bucket, "run1", attempt=1, world=World(1, 2, 1), spool=tmp_path / "late", dedupe=True)
        (tmp_path / "late.txt").write_text("late")
        for step in (10, 20):
            late.save(step, tmp_path / "late.txt")
        assert late.save(30, tmp_path / "late.txt").name.step == 30
        first.save(30, model).result(120)
        late.close()
        first.flush(120)
        assert [10, 20, 30] == [one.step for one in first.list()]


KILLED = """
import os, signal, sys
from pathlib import Path
import wherry
run = wherry.Checkpoints(sys.argv[1], "run1", spool=sys.argv[2], dedupe=True)
for step in range(20, 25):
    Path(sys.argv[3], "adapter.bin").write_bytes(b"%d" % step * 1000)
    run.save(step, sys.argv[3])
pids = [int(one) for one in os.listdir("/proc") if one.isdigit() and one != str(os.getpid())]
for pid in pids:
    try:
        mine = sys.argv[2].encode() in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        mine = False
    if mine:
        os.kill(pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trainer_and_agent_killed_while_files_are_compared_lose_nothing(line: CommandLine, tmp_path: Path) -> None:
    bucket, spool, model = tmp_path / "bucket", line.spool, write_model(tmp_path / "model", 10)
    bucket.mkdir()
    with wherry.Checkpoints(bucket, "run1", spool=spool, dedupe=True) as run:
        run.save(10, model).result(60)
    done = subprocess.run([sys.executable, "-c", KILLED, bucket, spool, model], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with wherry.Checkpoints(bucket, "run1", spool=spool, dedupe=True) as run:
        run.save(30, model).result(60)
    line.run("drain")
    with wherry.Checkpoints(bucket, "run1", spool=spool) as run:
        assert [10, 20, 21, 22, 23, 24, 30] == [one.step for one in run.list()]
        for one in run.list():
            assert [] == verify_bytes(run.catalog.store, run.catalog.keys, one)
            assert [] == run.catalog.missing(one)
            assert one.step == 10 or one.shared_bytes >= BASE_BYTES


def test_what_cannot_be_compared_is_sent(tmp_path: Path) -> None:
    """A store that refuses to give the older set's receipt, or fails for a while."""
    keys, first, second = RunKeys("run1/checkpoints"), SetName("000000001", 10), SetName("000000001", 20)
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    file = tmp_path / "base.bin"
    file.write_bytes(data := b"frozen" * 1000)
    commit_shared(store, keys, 10, {"base.bin": data})
    plan = SetPlan(keys.base, second, 1, receipt=Receipt(second, 0, 1, "file")).to_bytes().decode()
    troubles = (None, AccessDeniedError("no"), TransientError("later"), CredentialsExpiredError("old"))
    for nth, (error, expected) in enumerate(zip(troubles, (True, False, None, None), strict=True)):
        journal = Journal(tmp_path / f"{nth}.db")
        store_id = journal.uploads.store_id("memory", "x", {}, (), {"retry": {}, "transfer": {}})
        key = keys.data(second) + "base.bin"
        new = NewJob(JobKind.PUT, f"memory://x/{key}", key, "object", len(data), False, "token", plan=plan)
        ids, _ = journal.uploads.submit("owner", store_id, [new])
        job = journal.queries.job(ids[0])
        assert job is not None
        faulty = FaultyStore(store, [] if error is None else [Fault("get", error, times=9, key=keys.ranks(first))])
        comparing = Comparing(journal, waits=True)
        if expected is None:
            with pytest.raises((TransientError, CredentialsExpiredError)):
                comparing.decided(job, file, faulty)
            asked = journal.comparisons.asked(job.id)
            assert asked is not None and asked[1] is not None and asked[2] is None, "it is summed, and decided the next time"
            faulty.plan = []
        summed, is_there = comparing.decided(job, file, faulty)
        assert (crc32c(data), expected is not False) == (summed.crc32c, is_there)
        file.write_bytes(b"changed")  # what was decided is not decided again
        assert is_there == comparing.decided(job, file, faulty)[1]
        file.write_bytes(data)
        journal.close()


def test_the_command_shows_what_is_shared(line: CommandLine, tmp_path: Path) -> None:
    with wherry.Checkpoints(tmp_path, "run1", spool=line.spool, dedupe=True, config=CALLER) as run:
        for step in (10, 20):
            run.save(step, write_model(tmp_path / "model", step)).result(60)
    listing = ("checkpoints", "list", tmp_path / "run1")
    table = line.run(*listing)[0].splitlines()
    assert ["MiB in older sets" in row for row in table] == [False, False, True], table
    rows = line.run(*listing, "--json")[0].splitlines()
    assert [0, BASE_BYTES + len('{"rank": 8}')] == [json.loads(row)["shared_bytes"] for row in rows]
    assert 2 == line.run("checkpoints", "verify", tmp_path / "run1", "--all")[0].count("right")


def test_without_dedupe_nothing_is_referred_to(opened: Open, tmp_path: Path) -> None:
    with opened(dedupe=False, config=CALLER) as run:
        for step in (10, 20):
            run.save(step, write_model(tmp_path / "model", 10)).result(60)
        assert {20} == set(owners(run).values())
        name = run.find(20).set
        assert isinstance(name, SetName)
        assert all(one.sha256 is None for _, one in run.catalog.objects(run.find(20)))
