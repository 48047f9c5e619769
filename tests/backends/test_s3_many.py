"""Many small objects put by one thread: only what the server is known to honour, and each as put_file() makes it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from servers.features import features_of
from servers.proxy import Answer, FaultProxy, When, fault_proxy, s3_error
from servers.real import S3Server
from wherry.backends.s3.delete import DELETED_AT_ONCE
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import IntegrityError, PermanentError
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, PutOptions
from wherry.uri import StoreURI

N = 30


@contextmanager
def behind(server: S3Server, plan: Sequence[When] = (), **options: object) -> Iterator[tuple[S3Store, FaultProxy]]:
    with fault_proxy("127.0.0.1", server.port, plan) as proxy:
        with S3Store(StoreURI("s3", server.bucket), {**server.options, "endpoint_url": proxy.url, **options}) as store:
            store.assume(features_of(server))
            yield store, proxy
        assert [] == proxy.unfired


@pytest.fixture
def puts(tmp_path: Path) -> list[tuple[str, Path, PutOptions]]:
    found = []
    for number in range(N):
        path, data = tmp_path / str(number), os.urandom(1000 + number)
        path.write_bytes(data)
        metadata = {TOKEN_METADATA: f"token{number}", CRC32C_METADATA: f"{crc32c(data):08x}"}
        found.append((f"{tmp_path.name}/{number}", path, PutOptions(crc32c=crc32c(data), metadata=metadata)))
    return found


def test_each_is_made_as_one_alone(seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]], tmp_path: Path) -> None:
    with behind(seaweedfs_server) as (store, proxy):
        made = dict(store.put_many(puts, 4))
        assert set(range(N)) == made.keys()
        assert N == len(proxy.log)
        for place, (key, path, put) in enumerate(puts):
            described = store.head(key)
            assert store.put_file(f"{key}-alone", path, put) == replace(made[place], key=f"{key}-alone")
            alone = replace(store.head(f"{key}-alone"), key=key, modified_s=described.modified_s)
            assert alone == described


def test_more_keys_than_one_request_takes_are_deleted_by_several(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    keys = [f"{tmp_path.name}/{number:04}" for number in range(DELETED_AT_ONCE + 1)]
    with behind(seaweedfs_server) as (store, proxy):
        for key in (keys[0], keys[-2], keys[-1], f"{keys[-1]}-not"):
            store.put_file(key, path)
        store.delete_many(keys)
        assert [f"{keys[-1]}-not"] == [meta.key for meta in store.list(f"{tmp_path.name}/")]
        assert ["POST", "DELETE"] == [one.method for one in proxy.log if one.method in ("POST", "DELETE")]


@pytest.mark.parametrize(
    "answer", [s3_error(503, "SlowDown"), s3_error(403, "AccessDenied"), s3_error(404, "NoSuchBucket"), Answer(301)], ids=str
)
def test_after_a_refusal_nothing_more_is_sent(
    seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]], answer: Answer
) -> None:
    with behind(seaweedfs_server, [When("PUT", "", answer, nth=10)]) as (store, proxy):
        made = dict(store.put_many(puts, 4))
        assert 9 <= len(made) < 10 + 4
        assert len(proxy.log) == len(made) + 1


def test_a_name_that_is_taken_keeps_no_other_back(seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]]) -> None:
    with behind(seaweedfs_server) as (store, proxy):
        assert store.capabilities.conditional_put
        for place in (3, 4, 20):
            store.put_file(*puts[place])
        conditional = [(key, path, replace(put, if_absent=True)) for key, path, put in puts]
        assert set(range(N)) - {3, 4, 20} == dict(store.put_many(conditional, 4)).keys()
        assert 3 + N == len(proxy.log)


def test_bytes_that_are_not_those_of_the_checksum_are_not_stored(
    seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]]
) -> None:
    puts[7][1].write_bytes(b"changed")
    with behind(seaweedfs_server) as (store, _):
        made = dict(store.put_many(puts, 4))
        if store.capabilities.checks_crc32c:
            assert 7 not in made
            with pytest.raises(IntegrityError):
                store.put_file(*puts[7])
        else:
            assert made[7].crc32c is None


def test_a_file_that_is_gone_is_told(seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]]) -> None:
    puts[7][1].unlink()
    with behind(seaweedfs_server) as (store, _), pytest.raises(PermanentError, match="cannot be read"):
        list(store.put_many(puts, 4))


def test_larger_files_than_fit_in_memory_are_left_to_others(
    seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]]
) -> None:
    data = bytes(2**20 + 1)
    puts[7][1].write_bytes(data)
    puts[7] = (puts[7][0], puts[7][1], PutOptions(crc32c=crc32c(data)))
    with behind(seaweedfs_server) as (store, _):
        assert 7 not in dict(store.put_many(puts, 4))


@pytest.mark.parametrize("options", [{"sdk_only": True}, {"max_connections": 1}], ids=str)
def test_where_it_gains_nothing_none_is_put(
    seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]], options: dict[str, object]
) -> None:
    with behind(seaweedfs_server, (), **options) as (store, proxy):
        assert 1 == store.capabilities.puts_at_once
        assert [] == list(store.put_many(puts, 4))
        assert [] == proxy.log


def test_to_a_server_that_nobody_has_tried_none_is_put(
    seaweedfs_server: S3Server, puts: list[tuple[str, Path, PutOptions]]
) -> None:
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        assert [] == list(store.put_many(puts, 4))
