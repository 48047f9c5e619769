"""Two writers of one new name, again and again: exactly one wins each time, and the other gets AlreadyExistsError.

Only stores that decide it are here. SeaweedFS 4.48 is, with its puts: of two completes at one moment both succeeded in 13 of 20
rounds. fake-gcs-server keeps the condition on puts only. What cannot decide says so in its Capabilities.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from servers.features import features_of
from servers.gcs_server import strict_gcs
from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.gcs.store import GCSStore
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AlreadyExistsError
from wherry.store import MultipartStore, ObjectMeta, ObjectStore, Part, PutOptions
from wherry.uri import StoreURI

CONTENTS = (b"one" * 1000, b"other" * 1000)

#: One attempt of a writer: it prepares what it can, waits for the other at the barrier, and makes the object.
Attempt = Callable[[ObjectStore, str, Path, Barrier], ObjectMeta]


def put(store: ObjectStore, key: str, source: Path, start: Barrier) -> ObjectMeta:
    start.wait(60)
    return store.put_file(key, source, PutOptions(if_absent=True))


def complete(store: ObjectStore, key: str, source: Path, start: Barrier) -> ObjectMeta:
    assert isinstance(store, MultipartStore)
    assert store.capabilities.conditional_complete
    data = source.read_bytes()
    upload_id = store.begin(key, len(data), PutOptions(if_absent=True, crc32c=crc32c(data)))
    part = store.put_part(key, upload_id, source, Part(1, 0, len(data), crc32c(data)))
    start.wait(60)
    try:
        return store.complete(key, upload_id, [part], PutOptions(if_absent=True, crc32c=crc32c(data)))
    except AlreadyExistsError:
        store.abort(key, upload_id)
        raise


@contextmanager
def opened(name: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ObjectStore, str]]:
    """The store of that name, and a key prefix of one's own."""
    prefix = f"two-writers/{uuid.uuid4().hex}"
    store: ObjectStore
    options: dict[str, Any]
    name, _, way = name.partition(", ")
    sdk_only = {"sdk_only": bool(way)}
    if name in ("local", "fsspec file"):
        kind = LocalStore if name == "local" else FsspecStore
        with kind(StoreURI("file", ""), {}) as store:
            yield store, str(folder / "bucket").lstrip("/")
    elif name in ("memory", "fsspec memory"):
        with (MemoryStore if name == "memory" else FsspecStore)(StoreURI("memory", uuid.uuid4().hex), {}) as store:
            yield store, prefix
    elif name.startswith("strict GCS"):
        with strict_gcs(folder) as gcs:
            options = {**gcs.options, **sdk_only, "upload": "session" if name.endswith("session") else "compose"}
            with GCSStore(StoreURI("gs", gcs.bucket), options) as store:
                yield store, prefix
    elif name == "fake-gcs-server":
        fake = request.getfixturevalue("fake_gcs_server")
        with GCSStore(StoreURI("gs", fake.bucket), {"endpoint_url": fake.url, "anonymous": True, **sdk_only}) as store:
            yield store, prefix
    else:
        s3 = request.getfixturevalue("seaweedfs_server")
        with S3Store(StoreURI("s3", s3.bucket), {**s3.options, **sdk_only}) as store:
            store.assume(features_of(s3))  # what an S3 server honours has to be found out first
            yield store, prefix


@pytest.mark.parametrize("n_rounds", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("local", put),
        ("local", complete),
        ("memory", put),
        ("memory", complete),
        ("fsspec file", put),
        ("fsspec memory", put),
        *(
            (name + way, attempt)
            for name, attempt in (
                ("strict GCS", put),
                ("strict GCS", complete),
                ("strict GCS session", complete),
                ("fake-gcs-server", put),
                ("SeaweedFS", put),
            )
            for way in ("", ", sdk_only")
        ),
    ],
    ids=lambda value: value.replace(", ", "-").replace(" ", "_") if isinstance(value, str) else value.__name__,
)
def test_of_two_writers_of_a_new_name_exactly_one_wins_each_time(
    name: str, attempt: Attempt, n_rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sources = [tmp_path / f"source-{n}" for n in range(2)]
    for source, data in zip(sources, CONTENTS, strict=True):
        source.write_bytes(data)
    start = Barrier(2)

    def write(store: ObjectStore, key: str, source: Path) -> bool:
        try:
            attempt(store, key, source, start)
        except AlreadyExistsError:
            return False
        return True

    with opened(name, tmp_path, request) as (store, prefix), ThreadPoolExecutor(2) as pool:
        assert store.capabilities.conditional_put
        winners = []
        for round_ in range(n_rounds):
            writers = [pool.submit(write, store, f"{prefix}/{round_}", source) for source in sources]
            won = [writer.result() for writer in writers]
            assert [False, True] == sorted(won), f"round {round_}"
            winners.append(len(CONTENTS[won.index(True)]))
        found = {meta.key.rpartition("/")[2]: meta.size_bytes for meta in store.list(f"{prefix}/")}
        assert {str(round_): size for round_, size in enumerate(winners)} == found
        if isinstance(store, MultipartStore):
            assert [] == list(store.list_uploads(f"{prefix}/"))
