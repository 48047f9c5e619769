"""One large file, several worker processes, real kills: the parts are shared, and little is sent twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gate import is_dead
from servers.features import tell_spool
from servers.gcs_server import strict_gcs
from servers.proxy import Do, DropAnswer, FaultProxy, Throttle, When, fault_proxy
from servers.real import S3Server, fast_folder
from support import end_agent, file_of, wait_until
from wherry import Uploader
from wherry.config import MIB, AgentConfig, Config, TransferConfig
from wherry.spool.journal.jobs import JobState
from wherry.spool.presence import pid_of_agent

PART = 5 * MIB
SIZE = 16 * PART + 12345
#: One part in flight a worker, so that a killed worker has one.
CONFIG = Config(
    transfer=TransferConfig(multipart_threshold_bytes=PART, part_size_bytes=PART, parts_in_flight=2),
    agent=AgentConfig(n_workers=2),
)
#: Requests that carry a part, on either store; the mark of an upload to GCS has a condition.
PARTS = {"s3": ("PUT", "partNumber="), "gs": ("POST", "^/upload/.*uploadType=multipart$")}
SLOW = 40e6


@contextlib.contextmanager
def server_of(scheme: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, int, dict[str, object]]]:
    """(bucket, port, storage options) of a real server."""
    if scheme == "s3":
        server: S3Server = request.getfixturevalue("seaweedfs_server")
        yield server.bucket, server.port, dict(server.options)
        return
    with fast_folder() as folder, strict_gcs(folder) as gcs:
        yield gcs.bucket, gcs.port, dict(gcs.options)


def owners(spool: Path) -> set[str]:
    """Which workers are sending parts just now."""
    with contextlib.closing(sqlite3.connect(f"file:{spool}/journal.db?mode=ro", uri=True)) as db:
        return {row[0] for row in db.execute("SELECT DISTINCT lease_owner FROM parts WHERE lease_owner IS NOT NULL")}


def n_sent(spool: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{spool}/journal.db?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT COUNT(*) FROM parts WHERE etag IS NOT NULL").fetchone()[0])


def n_carried_out(proxy: FaultProxy, method: str, target: str) -> int:
    return sum(one.upstream_status == 200 for one in proxy.requests(method, target))


def a_worker(uploader: Uploader) -> psutil.Process:
    """One of the workers that are alive."""
    agent_pid = pid_of_agent(uploader.spool)
    assert agent_pid is not None
    return next(child for child in psutil.Process(agent_pid).children() if not is_dead(child))


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_large_file_is_sent_by_all_workers_and_a_killed_one_costs_less_than_a_part(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = file_of(tmp_path / "model.pt", SIZE)
    method, target = PARTS[scheme]
    both = threading.Event()  # a second worker may take longer to start than the first to send all parts
    hold = When(method, target, Do(lambda: both.wait(60)), times=10_000)
    plan = [hold, When(method, target, Throttle(SLOW), times=10_000)]
    with (
        server_of(scheme, request) as (bucket, port, options),
        fault_proxy("127.0.0.1", port, plan) as proxy,
        end_agent(tmp_path / "spool") as spool,
    ):
        prefix = f"shared-{random.Random().getrandbits(48):x}"
        options["endpoint_url"] = proxy.url
        if scheme == "s3":
            tell_spool(spool, request.getfixturevalue("seaweedfs_server"), proxy.url)
        with Uploader(f"{scheme}://{bucket}/{prefix}", storage_options=options, spool=spool, config=CONFIG) as uploader:
            handle = uploader.put(path, "model.pt")
            try:
                wait_until(lambda: len(owners(spool)) == 2, what="two workers to send parts of one file")
            finally:
                both.set()
            wait_until(lambda: n_sent(spool) >= 6, what="some parts to be there")
            killed = 0
            for _ in range(2):
                a_worker(uploader).kill()
                killed += 1
                before = n_sent(spool)
                wait_until(lambda before=before: n_sent(spool) >= before + 3 or handle.state.is_final, what="the others to go on")  # type: ignore[misc]
            assert handle.wait(60.0)
            assert JobState.DONE is handle.state
            assert_little_was_sent_twice(proxy, method, target, killed)
            uploader.get("model.pt", tmp_path / "back")
            assert path.read_bytes() == (tmp_path / "back").read_bytes()


def test_after_the_agent_was_killed_the_next_one_sends_the_rest_only(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    path = file_of(tmp_path / "model.pt", SIZE)
    both = threading.Event()
    hold = When("PUT", "partNumber=", Do(lambda: both.wait(60)), times=10_000)
    plan = [hold, When("PUT", "partNumber=", Throttle(SLOW), times=10_000)]
    with (
        fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy,
        end_agent(tmp_path / "spool") as spool,
    ):
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        tell_spool(spool, seaweedfs_server, proxy.url)
        prefix = f"shared-{random.Random().getrandbits(48):x}"
        with Uploader(
            f"s3://{seaweedfs_server.bucket}/{prefix}", storage_options=options, spool=spool, config=CONFIG
        ) as uploader:
            handle = uploader.put(path, "model.pt")
            try:
                wait_until(lambda: len(owners(spool)) == 2, what="two workers to send parts of one file")
            finally:
                both.set()
            wait_until(lambda: n_sent(spool) >= 6, what="some parts to be there")
            agent_pid = pid_of_agent(uploader.spool)
            assert agent_pid is not None
            os.kill(agent_pid, signal.SIGKILL)  # its two workers die with it
            assert handle.wait(60.0)
            assert JobState.DONE is handle.state
            assert_little_was_sent_twice(proxy, "PUT", "partNumber=", 2)
            uploader.get("model.pt", tmp_path / "back")
            assert path.read_bytes() == (tmp_path / "back").read_bytes()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_parts_whose_answers_were_lost_with_their_workers_are_not_sent_again(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = file_of(tmp_path / "model.pt", SIZE)
    method, target = PARTS[scheme]
    lost = target if scheme == "gs" else f"model.pt.*{target}"
    with (
        server_of(scheme, request) as (bucket, port, options),
        fault_proxy("127.0.0.1", port, [When(method, lost, DropAnswer("hang"), times=2)]) as proxy,
        end_agent(tmp_path / "spool") as spool,
    ):
        options["endpoint_url"] = proxy.url
        if scheme == "s3":
            tell_spool(spool, request.getfixturevalue("seaweedfs_server"), proxy.url)
        prefix = f"shared-{random.Random().getrandbits(48):x}"
        with Uploader(f"{scheme}://{bucket}/{prefix}", storage_options=options, spool=spool, config=CONFIG) as uploader:
            handle = uploader.put(path, "model.pt")
            wait_until(lambda: n_carried_out(proxy, method, lost) == 2, what="the store to hold two parts")
            assert 0 == n_sent(spool)
            agent_pid = pid_of_agent(uploader.spool)
            assert agent_pid is not None
            os.kill(agent_pid, signal.SIGKILL)
            assert handle.wait(60.0)
            assert JobState.DONE is handle.state
            assert_little_was_sent_twice(proxy, method, target, 0)
            uploader.get("model.pt", tmp_path / "back")
            assert path.read_bytes() == (tmp_path / "back").read_bytes()


def assert_little_was_sent_twice(proxy: FaultProxy, method: str, target: str, killed: int) -> None:
    """Less than a part for each killed worker; the envelopes of GCS' requests are small."""
    again = proxy.request_bytes(method, target) - SIZE
    assert 0 <= again < killed * PART + 100_000
