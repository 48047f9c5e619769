"""A byte that changes on its way from a real server: the range that has it is fetched again, and nothing else."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from servers.proxy import Corrupt, FaultProxy, When, fault_proxy
from servers.worlds import QUICK, World, some_bytes
from wherry import Config, Uploader
from wherry.checksum import PIECE_BYTES, crc32c, format_crc32c, parse_range_sums
from wherry.config import AgentConfig, TransferConfig
from wherry.errors import AccessDeniedError, IntegrityError
from wherry.store import CRC32C_METADATA, RANGES_METADATA, TOKEN_METADATA, Part, PutOptions

RANGE = PIECE_BYTES
#: Of 5 ranges, the last of one byte.
DATA = some_bytes(4 * RANGE + 1)
N_RANGES = 5


@pytest.fixture
def key() -> str:
    return f"corrupted/{uuid.uuid4().hex}"


@contextmanager
def uploader_at(world: World, key: str, folder: Path, url: str, *, in_flight: int = 2) -> Iterator[tuple[Uploader, str]]:
    prefix, _, name = key.rpartition("/")
    transfer = TransferConfig(8 * RANGE, RANGE, 2, RANGE, in_flight)
    config = Config(transfer=transfer, retry=QUICK, agent=AgentConfig(run_in="caller"))
    uri = f"{world.scheme}://{world.server.bucket}/{prefix}"
    with Uploader(uri, storage_options=world.options(url, None), spool=folder / "spool", config=config) as uploader:
        yield uploader, name


def upload(world: World, key: str, folder: Path) -> None:
    (folder / "source").write_bytes(DATA)
    (folder / "small").write_bytes(b"what the server can do is tried after the first upload to it")
    with uploader_at(world, key, folder, world.server.url) as (uploader, name):
        uploader.put(folder / "small", f"{name}.small")
        uploader.flush()
        uploader.put(folder / "source", name)
        uploader.flush()


def corrupt(world: World, key: str, nth: int, times: int = 1) -> When:
    """A byte of the nth range that is fetched."""
    method, target = world.get(key)
    return When(method, target, Corrupt(7), nth, times)


def n_fetched(world: World, key: str, proxy: FaultProxy) -> tuple[int, int]:
    """How many ranges were fetched through the proxy, and how many bytes."""
    requests = proxy.requests(*world.get(key))
    return len(requests), sum(exchange.answer_bytes for exchange in requests)


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("store", ["S3", "GCS"])
def test_one_corrupted_byte_costs_exactly_one_more_range(
    store: str, nth: int, in_flight: int, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    world = worlds(store)
    upload(world, key, tmp_path)
    with fault_proxy("127.0.0.1", world.server.port, [corrupt(world, key, nth)]) as proxy:
        with uploader_at(world, key, tmp_path, proxy.url, in_flight=in_flight) as (uploader, name):
            assert crc32c(DATA) == uploader.get(name, tmp_path / "down" / "file").crc32c
        assert [] == proxy.unfired
        n_ranges, n_bytes = n_fetched(world, key, proxy)
    assert (N_RANGES + 1, len(DATA) + RANGE) == (n_ranges, n_bytes)
    assert DATA == (tmp_path / "down" / "file").read_bytes()
    assert ["file"] == os.listdir(tmp_path / "down")


@pytest.mark.parametrize("store", ["S3", "GCS"])
def test_a_range_that_is_corrupted_again_is_named_and_no_more_is_fetched(
    store: str, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    world = worlds(store)
    upload(world, key, tmp_path)
    named = re.escape(f"bytes {RANGE}-{2 * RANGE - 1} came wrong, twice")
    with (
        fault_proxy("127.0.0.1", world.server.port, [corrupt(world, key, 2, times=2)]) as proxy,
        uploader_at(world, key, tmp_path, proxy.url, in_flight=1) as (uploader, name),
    ):
        with pytest.raises(IntegrityError, match=named):
            uploader.get(name, tmp_path / "down" / "file")
        assert [] == os.listdir(tmp_path / "down")
        assert 3 == n_fetched(world, key, proxy)[0]
        uploader.get(name, tmp_path / "down" / "file")  # over a way without faults it comes after all
    assert DATA == (tmp_path / "down" / "file").read_bytes()


@pytest.mark.parametrize("store", ["S3", "GCS"])
def test_a_download_that_goes_on_over_a_bad_way_fetches_the_rest_and_one_more(
    store: str, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    world = worlds(store)
    upload(world, key, tmp_path)
    method, target = world.get(key)
    plan = [When(method, target, world.error("AccessDenied"), 3), corrupt(world, key, 4)]
    with fault_proxy("127.0.0.1", world.server.port, plan) as proxy:
        with uploader_at(world, key, tmp_path, proxy.url, in_flight=1) as (uploader, name):
            with pytest.raises(AccessDeniedError):
                uploader.get(name, tmp_path / "down" / "file")
            uploader.get(name, tmp_path / "down" / "file")
        assert [] == proxy.unfired
        assert 3 + (N_RANGES - 2) + 1 == n_fetched(world, key, proxy)[0]
    assert DATA == (tmp_path / "down" / "file").read_bytes()


@pytest.mark.parametrize("store", ["S3", "GCS"])
def test_servers_keep_the_longest_entry_that_there_is(
    store: str, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    """256 sums, in an object that goes whole and in one of parts."""
    world = worlds(store)
    entry = f"{2**34}:" + "A" * 1365 + "Q"
    assert parse_range_sums(entry, 256 * 2**34) is not None
    metadata = {TOKEN_METADATA: uuid.uuid4().hex, CRC32C_METADATA: format_crc32c(crc32c(DATA[:10])), RANGES_METADATA: entry}
    source = tmp_path / "source"
    source.write_bytes(DATA[:10])
    world.store.put_file(f"{key}/whole", source, PutOptions(metadata=metadata))
    upload_id = world.store.begin(f"{key}/parts", 10, PutOptions(metadata=metadata))
    part = world.store.put_part(f"{key}/parts", upload_id, source, Part(1, 0, 10, crc32c(DATA[:10])))
    world.store.complete(f"{key}/parts", upload_id, [part], PutOptions(metadata=metadata))
    assert metadata == dict(world.store.head(f"{key}/whole").metadata) == dict(world.store.head(f"{key}/parts").metadata)
