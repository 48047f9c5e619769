"""Nodes pass on to one another what they fetch: the bytes that the store sends, and what happens when the exchange fails."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import wherry
from checkpoint_sets.ranks import run_ranks
from checkpoint_sets.restores import SET_BYTES, SHARD_BYTES, contents_of, fetched_bytes, saved_set
from servers.proxy import Corrupt, Do, When, fault_proxy, s3_error
from servers.real import S3Server
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.restoring.exchange import Segment, cut

#: One line a call: the URI, options of each node as JSON, the folder, whether to exchange, and how many ranks a node has.
RESTORE = """
import json
uri, options, folder, ranks_of_a_node = arguments[0], json.loads(arguments[1]), Path(arguments[2]), int(arguments[3])
node = rank // ranks_of_a_node
(folder / f"pid-{rank}").write_text(str(os.getpid()))
config = wherry.Config(
    transfer=wherry.TransferConfig(range_size_bytes=2**16), retry=wherry.RetryConfig(call_deadline_s=2.0, first_wait_s=0.01)
)
for name, nodes in options.items():
    spool = folder / f"spool-{name}-{node}"
    run = wherry.Checkpoints(uri, "run1", spool=spool, storage_options=nodes[node % len(nodes)], config=config)
    run.restore("latest", folder / f"{name}-{rank}", exchange=name == "exchange")
    run.close()
print("restored")
"""


@pytest.fixture
def uri(seaweedfs_server: S3Server, tmp_path: Path) -> Iterator[str]:
    """Where a set of two large objects and a small one is."""
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}-{os.getpid()}"
    with wherry.Checkpoints(uri, "run1", spool=tmp_path / "first", storage_options=seaweedfs_server.options) as run:
        saved_set(run, tmp_path / "a")
    yield uri


def test_four_nodes_read_the_bucket_once(seaweedfs_server: S3Server, uri: str, tmp_path: Path) -> None:
    with (
        fault_proxy("127.0.0.1", seaweedfs_server.port) as exchanging,
        fault_proxy("127.0.0.1", seaweedfs_server.port) as alone,
    ):
        options = {
            name: [{**seaweedfs_server.options, "endpoint_url": proxy.url}]
            for name, proxy in (("exchange", exchanging), ("alone", alone))
        }
        said = run_ranks(8, tmp_path, RESTORE, uri, json.dumps(options), tmp_path, "2", timeout_s=300)
        assert ["restored"] * 8 == [one.strip() for one in said]
        assert SET_BYTES <= fetched_bytes(exchanging) <= 1.1 * SET_BYTES
        assert fetched_bytes(alone) == 4 * SET_BYTES
    for rank in range(8):
        assert contents_of(tmp_path / f"exchange-{rank}") == contents_of(tmp_path / "a")
        assert contents_of(tmp_path / f"alone-{rank}") == contents_of(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("trouble", ["cannot fetch", "fetches other bytes"])
def test_what_a_node_does_not_pass_on_is_fetched(seaweedfs_server: S3Server, uri: str, tmp_path: Path, trouble: str) -> None:
    if trouble == "cannot fetch":
        plan = [When("GET", "model.bin", s3_error(403, "AccessDenied"), times=2)]  # both parts that it is to pass on
    else:
        plan = [When("GET", "model.bin", Corrupt(1000))]
    with ExitStack() as stack:
        proxies = [stack.enter_context(fault_proxy("127.0.0.1", seaweedfs_server.port, one)) for one in ([], plan)]
        options = {"exchange": [{**seaweedfs_server.options, "endpoint_url": proxy.url} for proxy in proxies]}
        said = run_ranks(2, tmp_path, RESTORE, uri, json.dumps(options), tmp_path, "1", timeout_s=300)
        assert ["restored"] * 2 == [one.strip().splitlines()[-1] for one in said], said
        assert proxies[1].unfired == []
        # What it had of the other object came to the first node all the same.
        assert SHARD_BYTES / 2 < fetched_bytes(proxies[0]) < (1.0 if trouble == "cannot fetch" else 1.2) * SET_BYTES
    for rank in range(2):
        assert contents_of(tmp_path / f"exchange-{rank}") == contents_of(tmp_path / "a")


def test_a_node_that_dies_ends_the_restore_and_the_next_goes_on(seaweedfs_server: S3Server, uri: str, tmp_path: Path) -> None:
    def kill() -> None:
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)

    with (
        fault_proxy("127.0.0.1", seaweedfs_server.port) as first,
        fault_proxy("127.0.0.1", seaweedfs_server.port, [When("GET", "optimizer.bin", Do(kill))]) as second,
    ):
        options = {"exchange": [{**seaweedfs_server.options, "endpoint_url": proxy.url} for proxy in (first, second)]}
        said = run_ranks(2, tmp_path, RESTORE, uri, json.dumps(options), tmp_path, "1", timeout_s=300)
        assert "OtherRankFailedError" in said[0] and "restored" not in said[0].splitlines()
        # It has gone on alone meanwhile, from the bucket, and no further than that.
        assert fetched_bytes(first) <= SET_BYTES
        before = fetched_bytes(first) + fetched_bytes(second)
        again = run_ranks(2, tmp_path, RESTORE, uri, json.dumps(options), tmp_path, "1", timeout_s=300)
        assert ["restored"] * 2 == [one.strip().splitlines()[-1] for one in again], again
        assert fetched_bytes(first) + fetched_bytes(second) <= before + SET_BYTES
    for rank in range(2):
        assert contents_of(tmp_path / f"exchange-{rank}") == contents_of(tmp_path / "a")


def test_pieces_are_ranges_and_small_objects_together() -> None:
    sizes = [5, 0, 25, 4, 6, 1, 10]
    objects = [(f"key{n}", SetObject(f"name{n}", size_bytes, 0)) for n, size_bytes in enumerate(sizes)]
    pieces = cut(objects, 10)
    assert [(Segment(2, 0, 10),), (Segment(2, 10, 20),), (Segment(2, 20, 25),)] == pieces[:3]
    assert [[0, 1, 3], [4, 5], [6]] == [[one.number for one in piece] for piece in pieces[3:]]
    assert sum(sizes) == sum(one.end - one.start for piece in pieces for one in piece)
