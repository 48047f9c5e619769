"""Listings that start after a key: how many requests they take, and servers that ignore, refuse or misread the key."""

from __future__ import annotations

import itertools
import json
import random
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lax_s3 import Flaw, lax_server, store_at
from servers.features import ask_for_pages_of
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server
from servers.scripted_gcs import anonymous, open_gcs, scripted
from servers.way import WAY
from support import file_of
from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.client import Connection
from wherry.backends.s3.listing import start_in_any_order
from wherry.backends.s3.store import S3Store
from wherry.store import ObjectStore, order_of
from wherry.uri import StoreURI

#: Of both servers, which would give 1000 objects at once.
PAGE_SIZE = 100
#: More than two pages.
NAMES = [f"{n:06d}" for n in range(205)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    return path


class InOrder(S3Store):
    """Takes its server for one whose listings are in order, as Amazon's are."""

    def _connected(self) -> Connection:
        return replace(super()._connected(), lists_in_order=True)


def fill(store: ObjectStore, file: Path) -> str:
    """Put NAMES below a new prefix, which is returned."""
    prefix = f"after/{uuid.uuid4().hex}/"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put_file(prefix + name, file), NAMES))
    return prefix


def counted(store: ObjectStore, prefix: str, start_after: str) -> tuple[list[str], int]:
    """The names found, and the requests that it took."""
    before = store.n_requests or 0
    found = [meta.key.removeprefix(prefix) for meta in store.list(prefix, start_after=start_after)]
    return found, (store.n_requests or 0) - before


def check_requests(store: ObjectStore, prefix: str) -> None:
    """What a listing takes that starts in the last page, after it, and beside the prefix."""
    assert (NAMES, 3) == counted(store, prefix, "")
    assert ([], 1) == counted(store, prefix, prefix + NAMES[-1])
    assert ([], 1) == counted(store, prefix, f"{prefix}x")
    assert (NAMES[-9:], 1) == counted(store, prefix, prefix + NAMES[-10])
    assert (NAMES[-105:], 2) == counted(store, prefix, prefix + NAMES[-106])
    assert ([], 0) == counted(store, prefix, f"{prefix[:-1]}0")


@pytest.fixture(scope="module")
def s3_prefix(seaweedfs_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """NAMES on SeaweedFS, put once for both ways."""
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        prefix = fill(store, file_of(tmp_path_factory.mktemp("s3") / "file", 1))
        yield prefix
        store.delete_many([prefix + name for name in NAMES])


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GCSServer, str]]:
    """A strict GCS server, and its prefix with NAMES, put once for both ways."""
    folder = tmp_path_factory.mktemp("gcs")
    with strict_gcs(folder, page_size=PAGE_SIZE) as server, GCSStore(StoreURI("gs", server.bucket), server.options) as store:
        yield server, fill(store, file_of(folder / "file", 1))


@pytest.mark.usefixtures("way")
def test_listing_of_s3_after_the_last_key_takes_one_request(seaweedfs_server: S3Server, s3_prefix: str) -> None:
    where, prefix = (StoreURI("s3", seaweedfs_server.bucket), {**seaweedfs_server.options, **WAY}), s3_prefix
    with S3Store(*where) as store, InOrder(*where) as in_order:
        for one in (store, in_order):
            ask_for_pages_of(one, PAGE_SIZE)
        check_requests(store, prefix)
        check_requests(in_order, prefix)
        # A server that is not Amazon's is asked for one folder more at each character that sorts before the slash.
        assert (NAMES[-9:], 3) == counted(store, prefix, f"{prefix}{NAMES[-10]}-1.json")
        assert (NAMES[-9:], 1) == counted(in_order, prefix, f"{prefix}{NAMES[-10]}-1.json")
        # Amazon's pages are asked for when they are read.
        before = in_order.n_requests
        assert prefix + NAMES[1] == next(in_order.list(prefix, start_after=prefix + NAMES[0])).key
        assert before + 1 == in_order.n_requests


@pytest.mark.usefixtures("way")
def test_listing_of_gcs_after_the_last_key_takes_one_request(gcs: tuple[GCSServer, str]) -> None:
    server, prefix = gcs
    with open_gcs(server) as store:
        check_requests(store, prefix)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("flaws", [(), ("refuses to start after a key",)])
def test_s3_server_that_ignores_or_refuses_the_key_is_listed_whole(flaws: tuple[Flaw, ...], file: Path) -> None:
    """And in any order, as this one does it."""
    with lax_server(*flaws) as server, store_at(server.server_port) as store:
        for name in ("b", "a/b", "c", "a-b", "a"):
            store.put_file(f"run/{name}", file)
        assert ["run/a/b", "run/b", "run/c"] == [meta.key for meta in store.list("run/", start_after="run/a-b")]
        assert any("start-after=run" in head for head in server.heads)


@pytest.mark.usefixtures("way")
def test_directory_bucket_is_not_asked_to_start_after_a_key(file: Path) -> None:
    """StartAfter is "not supported for directory buckets" ("ListObjectsV2", API Reference)."""
    with lax_server() as server, store_at(server.server_port) as store:
        store._listings.only_folders = True
        for name in ("b", "a"):
            store.put_file(f"run/{name}", file)
        assert ["run/b"] == [meta.key for meta in store.list("run/", start_after="run/a")]
        assert not any("start-after" in head for head in server.heads)


@pytest.mark.usefixtures("way")
def test_gcs_server_that_ignores_the_key_is_listed_whole() -> None:
    items = [{"name": f"run/{name}", "size": "1", "generation": "1"} for name in ("a", "b", "c")]
    page = json.dumps({"items": items}).encode()
    with scripted((200, {"Content-Type": "application/json"}, page)) as script, anonymous(script.url) as store:
        assert ["run/c"] == [meta.key for meta in store.list("run/", start_after="run/b")]
        assert re.search(r"startOffset=run(/|%2F)b", script.asked[0][1])


# Which keys a server lists after `start`, by its order.


def in_bytes(key: str, start: str) -> bool:
    return order_of(key) > order_of(start)


def in_names(key: str, start: str) -> bool:
    return key.split("/") > start.split("/")


def in_names_without_the_folder(key: str, start: str) -> bool:
    """SeaweedFS (4.48): a folder that has the name of the key is left out."""
    return in_names(key, start) and not key.startswith(f"{start}/")


def some_keys() -> Iterator[str]:
    for size in range(1, 5):
        yield from map("".join, itertools.product("-/0a", repeat=size))
    rng = random.Random(13)
    for _ in range(200):
        yield "".join(rng.choices("-/.0a\ue000\U0001f600", k=rng.randrange(5, 15)))


def near(key: str) -> Iterable[str]:
    """Keys that share its beginning."""
    for at in range(len(key) + 1):
        for tail in ("-", "/", "0", "1", "a", "~", "é", "\U0001f600"):
            for end in ("", "a", "/a", "-a"):
                yield key[:at] + tail + end


def is_path(key: str) -> bool:
    return "" not in key.split("/")


@pytest.mark.parametrize("lists", [in_bytes, in_names, in_names_without_the_folder])
def test_no_later_key_is_left_out_in_whatever_order_a_server_lists(lists: Callable[[str, str], bool]) -> None:
    for start_after in some_keys():
        later = [key for key in near(start_after) if is_path(key) and in_bytes(key, start_after)]
        for prefix in {start_after[:size] for size in (0, 1, 2, len(start_after))}:
            start, folders = start_in_any_order(prefix, start_after)
            assert start == "" or start.startswith(prefix)
            assert all(is_path(folder[:-1]) or not is_path(start_after) for folder in folders)
            for key in later:
                if key.startswith(prefix):
                    asked = not start or lists(key, start) or key.startswith(tuple(folders))
                    assert asked, (prefix, start_after, key)
