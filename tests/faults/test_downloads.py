"""Downloads from real servers that are really killed, and objects that others have put there."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import botocore.session
import pytest
from botocore.config import Config as SDKConfig

from programs import Program
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server, Server, fast_folder
from support import wait_until
from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.digests import describe
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError
from wherry.store import ObjectMeta, ObjectStore, Part, PutOptions
from wherry.testing.faulty import Fault, FaultyStore
from wherry.transfer.download import download
from wherry.transfer.resume import clean_stale_downloads
from wherry.uri import StoreURI

DATA = random.Random(2).randbytes(4 * 2**20)
RANGES = TransferConfig(range_size_bytes=2**18, ranges_in_flight=3)  # 16 of them
N_RANGES = 16

#: Downloads a key to a file until the nth get begins; then it says so and waits to be killed.
DOWNLOAD = """
import json, os, sys, threading
from pathlib import Path
from wherry.backends.s3.store import S3Store
from wherry.config import RetryConfig, TransferConfig
from wherry.transfer.download import download
from wherry.testing.faulty import Fault, FaultyStore
from wherry.uri import StoreURI

bucket, options, transfer = json.loads(os.environ["SETTINGS"])
forever = threading.Event()

def wait():
    os.write(1, b"here\\n")  # at once: several threads come here
    forever.wait()

store = FaultyStore(S3Store(StoreURI("s3", bucket), options), [Fault("get", nth=int(sys.argv[3]), times=1000, act=wait)])
download(store, sys.argv[1], Path(sys.argv[2]), uri=f"s3://{bucket}/{sys.argv[1]}", transfer=TransferConfig(**transfer),
         retry=RetryConfig())
"""

#: Downloads a name with the public API, one small range after the other.
GET = """
import json, os
from wherry import Config, Uploader
from wherry.config import TransferConfig

uri, options, name, destination = json.loads(os.environ["SETTINGS"])
transfer = TransferConfig(range_size_bytes=2**12, ranges_in_flight=1)
uploader = Uploader(uri, storage_options=options, spool=destination + ".spool", config=Config(transfer=transfer))
uploader.get(name, destination)
"""


@pytest.fixture
def store(seaweedfs_server: S3Server) -> Iterator[S3Store]:
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        yield store


@pytest.fixture
def key() -> str:
    return f"downloads/{uuid.uuid4().hex}"


@contextmanager
def script(text: str, settings: Sequence[object], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; what must be secret is in its environment."""
    with Program(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SETTINGS": json.dumps(settings)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def put(store: ObjectStore, key: str, folder: Path, data: bytes = DATA) -> None:
    source = folder / f"source-{uuid.uuid4().hex}"
    source.write_bytes(data)
    store.put_file(key, source, PutOptions(crc32c=crc32c(data)))
    source.unlink()


def fetch(store: ObjectStore, key: str, destination: Path, bucket: str, transfer: TransferConfig = RANGES) -> ObjectMeta:
    retry = RetryConfig(first_wait_s=0.001, longest_wait_s=0.01)
    return download(store, key, destination, uri=f"s3://{bucket}/{key}", transfer=transfer, retry=retry)


def interrupt(server: S3Server, key: str, destination: Path, nth: int, how: signal.Signals) -> None:
    """End a real download, in a process of its own, when its nth range is about to be fetched."""
    settings = [server.bucket, server.options, asdict(RANGES)]
    with script(DOWNLOAD, settings, key, str(destination), str(nth)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        wait_until(lambda: n_recorded(destination.parent) >= nth - RANGES.ranges_in_flight, what="the ranges before")
        process.send_signal(how)
        process.wait(timeout=60)


def n_recorded(folder: Path) -> int:
    """How many ranges the records in a folder hold."""
    return sum(path.read_bytes().count(b"\n") - 1 for path in folder.glob(".*.record"))


@pytest.mark.parametrize("nth", [4, 9, N_RANGES])
def test_a_killed_download_goes_on_and_fetches_less_than_what_was_in_flight_again(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path, nth: int
) -> None:
    put(store, key, tmp_path)
    interrupt(seaweedfs_server, key, tmp_path / "file", nth, signal.SIGKILL)
    assert not (tmp_path / "file").exists()
    counted = FaultyStore(store)
    meta = fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket)
    assert N_RANGES - (nth - 1) <= counted.calls["get"] <= N_RANGES - (nth - RANGES.ranges_in_flight)
    assert (tmp_path / "file").read_bytes() == DATA
    assert meta.crc32c == crc32c(DATA)
    assert os.listdir(tmp_path) == ["file"]


def test_a_download_killed_again_and_again_arrives(seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path) -> None:
    put(store, key, tmp_path)
    for _ in range(4):
        interrupt(seaweedfs_server, key, tmp_path / "file", 4, signal.SIGKILL)
    counted = FaultyStore(store)
    fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket)
    assert counted.calls["get"] <= N_RANGES - 4
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]


def test_a_get_of_the_uploader_killed_at_any_moment_goes_on(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    put(store, key, tmp_path)
    uri = f"s3://{seaweedfs_server.bucket}"
    settings = [uri, seaweedfs_server.options, key, str(tmp_path / "file")]
    for n_ranges in (10, 40):
        with script(GET, settings) as process:
            wait_until(lambda: n_recorded(tmp_path) >= n_ranges, what="some ranges")  # noqa: B023  called in this round only
            process.kill()
            process.wait(timeout=60)
        assert not (tmp_path / "file").exists()
    held = n_recorded(tmp_path)
    transfer = TransferConfig(range_size_bytes=2**12, ranges_in_flight=1)
    counted = FaultyStore(store)
    fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket, transfer)
    assert counted.calls["get"] == len(DATA) // 2**12 - held
    assert (tmp_path / "file").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["file", "file.spool"]


def test_an_object_that_changed_since_the_kill_starts_over(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    put(store, key, tmp_path)
    interrupt(seaweedfs_server, key, tmp_path / "file", 10, signal.SIGKILL)
    put(store, key, tmp_path, DATA[::-1])
    counted = FaultyStore(store)
    fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket)
    assert counted.calls["get"] == N_RANGES
    assert (tmp_path / "file").read_bytes() == DATA[::-1]
    assert os.listdir(tmp_path) == ["file"]


def test_bytes_that_changed_on_disk_since_the_kill_are_fetched_again(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    put(store, key, tmp_path)
    interrupt(seaweedfs_server, key, tmp_path / "file", 10, signal.SIGKILL)
    (temporary,) = (path for path in tmp_path.iterdir() if path.suffix != ".record")
    with open(temporary, "r+b") as file:
        file.write(bytes(len(DATA)))  # as after a power cut: the record is there, the bytes are not
    counted = FaultyStore(store)
    fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket)
    assert counted.calls["get"] == N_RANGES
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_killed_download_leaves_a_pair_that_is_cleaned_away(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    put(store, key, tmp_path)
    interrupt(seaweedfs_server, key, tmp_path / "file", 4, signal.SIGKILL)
    assert len(os.listdir(tmp_path)) == 2
    assert clean_stale_downloads(tmp_path) == []
    assert len(clean_stale_downloads(tmp_path, older_than_s=-1.0)) == 1
    assert os.listdir(tmp_path) == []


def test_a_second_process_does_not_wait_for_the_first(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    put(store, key, tmp_path)
    settings = [seaweedfs_server.bucket, seaweedfs_server.options, asdict(RANGES)]
    with script(DOWNLOAD, settings, key, str(tmp_path / "file"), "9") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert clean_stale_downloads(tmp_path, older_than_s=-1.0) == []
        fetch(store, key, tmp_path / "file", seaweedfs_server.bucket)
        assert (tmp_path / "file").read_bytes() == DATA
    (tmp_path / "file").unlink()
    counted = FaultyStore(store)
    fetch(counted, key, tmp_path / "file", seaweedfs_server.bucket)
    assert counted.calls["get"] < N_RANGES
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]


# objects that others have put there


def foreign_put(server: S3Server, key: str, data: bytes, **options: Any) -> None:
    """Put as any other program would: without our checksum, without our metadata."""
    config = SDKConfig(request_checksum_calculation="when_required", s3={"addressing_style": "path"})
    client: Any = botocore.session.Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=config,
    )
    try:
        client.put_object(Bucket=server.bucket, Key=key, Body=data, **options)
    finally:
        client.close()


def flip_a_byte(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


CHECKSUMS: list[dict[str, str]] = [
    {},
    {"ChecksumCRC32": b64(zlib.crc32(DATA).to_bytes(4, "big"))},
    {"ChecksumSHA1": b64(hashlib.sha1(DATA, usedforsecurity=False).digest())},
    {"ChecksumSHA256": b64(hashlib.sha256(DATA).digest())},
    {"ChecksumCRC32C": b64(crc32c(DATA).to_bytes(4, "big"))},
]


class SumsNothing(S3Store):
    """As a store that does not sum bytes on their way: what the file holds counts, and a test can damage it."""

    def get_file(self, *arguments: Any, **options: Any) -> None:
        super().get_file(*arguments, **options)


@pytest.mark.parametrize("server_name", ["seaweedfs_server", "juicefs_server"])
@pytest.mark.parametrize("checksum", CHECKSUMS, ids=lambda checksum: min(checksum, default="ETag"))
def test_a_foreign_object_is_checked_by_what_its_server_has(
    request: pytest.FixtureRequest, server_name: str, key: str, tmp_path: Path, checksum: dict[str, str]
) -> None:
    server: S3Server = request.getfixturevalue(server_name)
    foreign_put(server, key, DATA, **checksum)
    with SumsNothing(StoreURI("s3", server.bucket), server.options) as store:
        meta = store.head(key)
        kind = min(checksum, default="").removeprefix("Checksum").lower()
        if server_name == "juicefs_server" or not kind:  # the lax one keeps no checksums
            assert meta.digest == f"md5:{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"
        elif kind == "crc32c":
            assert meta.crc32c == crc32c(DATA)
        else:
            assert meta.digest == f"{kind}:{base64.b64decode(checksum[f'Checksum{kind.upper()}']).hex()}"

        def damage_the_second_range() -> None:
            flip_a_byte(next(path for path in tmp_path.iterdir() if path.suffix != ".record"), 2**18)

        counted = FaultyStore(store, [Fault("get", nth=2, after=True, act=damage_the_second_range)])
        fetch(counted, key, tmp_path / "file", server.bucket, TransferConfig(range_size_bytes=2**18, ranges_in_flight=1))
    assert (tmp_path / "file").read_bytes() == DATA
    assert counted.calls["get"] == N_RANGES + 2


def test_a_foreign_object_of_parts_is_not_checked_by_an_etag_that_is_no_md5(
    seaweedfs_server: S3Server, store: S3Store, key: str, tmp_path: Path
) -> None:
    options = {**seaweedfs_server.options, "checksums": False}
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as raw:
        source = tmp_path / "source"
        source.write_bytes(DATA)
        upload = raw.begin(key, len(DATA))
        part = raw.put_part(key, upload, source, Part(1, 0, len(DATA), crc32c(DATA)))
        raw.complete(key, upload, [part])
        source.unlink()
    meta = store.head(key)
    assert (meta.etag or "").endswith("-1")
    assert (meta.crc32c, meta.digest) == (None, None)
    fetch(store, key, tmp_path / "file", seaweedfs_server.bucket)
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_server_whose_etags_are_no_md5s_can_be_told_of(seaweedfs_server: S3Server, key: str) -> None:
    foreign_put(seaweedfs_server, key, b"data")
    options = {**seaweedfs_server.options, "checksums": False}
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
        assert store.head(key).digest is None


MD5 = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("says", "digest"),
    [
        ({}, f"md5:{MD5}"),
        ({"ETag": f'"{MD5.upper()}"'}, f"md5:{MD5}"),
        ({"ServerSideEncryption": "AES256"}, f"md5:{MD5}"),
        ({"ServerSideEncryption": "aws:kms"}, None),
        ({"ServerSideEncryption": "aws:kms:dsse"}, None),
        ({"SSECustomerAlgorithm": "AES256"}, None),
        ({"ETag": f'"{MD5}-3"'}, None),
        ({"ETag": '"short"'}, None),
        ({"ServerSideEncryption": "aws:kms", "ChecksumCRC32": "AAAAAQ=="}, "crc32:00000001"),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC32": "AAAAAQ==-3", "ChecksumType": "COMPOSITE"}, None),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC32": "AAAAAQ==", "ChecksumType": "COMPOSITE"}, None),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC32": "AAAAAQ==", "ChecksumType": "FULL_OBJECT"}, "crc32:00000001"),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC64NVME": "AAAAAAAAAAE=", "ChecksumType": "FULL_OBJECT"}, None),
    ],
)
def test_an_etag_is_taken_for_an_md5_only_where_it_is_one(says: dict[str, str], digest: str | None) -> None:
    assert describe("a", {"ContentLength": 1, "ETag": f'"{MD5}"', **says}).digest == digest


def test_directory_buckets_have_etags_that_are_no_md5s() -> None:
    with S3Store(StoreURI("s3", "models--usw2-az1--x-s3"), {}) as store:
        assert store._described("a", {"ContentLength": 1, "ETag": f'"{MD5}"'}).digest is None


def test_gcs_tells_a_crc32c_of_foreign_objects_and_often_an_md5(fake_gcs_server: Server, key: str, tmp_path: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(fake_gcs_server.url).port or 0, timeout=60)
    try:
        where = f"/upload/storage/v1/b/{fake_gcs_server.bucket}/o?uploadType=media&name={quote(key, safe='')}"
        connection.request("POST", where, DATA, {"content-type": "application/octet-stream"})
        assert connection.getresponse().read()
    finally:
        connection.close()
    options: dict[str, object] = {"endpoint_url": fake_gcs_server.url, "anonymous": True}
    with GCSStore(StoreURI("gs", fake_gcs_server.bucket), options) as store:
        meta = fetch(store, key, tmp_path / "file", fake_gcs_server.bucket)
    assert meta.crc32c == crc32c(DATA)
    assert meta.digest == f"md5:{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.fixture
def gcs_server() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


@pytest.mark.parametrize(("newer", "n_fetched"), [(DATA, N_RANGES - 10), (DATA[::-1], N_RANGES)], ids=["same", "replaced"])
def test_a_download_from_gcs_goes_on_but_not_with_another_generation(
    gcs_server: GCSServer, key: str, tmp_path: Path, newer: bytes, n_fetched: int
) -> None:
    with GCSStore(StoreURI("gs", gcs_server.bucket), gcs_server.options) as store:
        put(store, key, tmp_path)
        with pytest.raises(AccessDeniedError, match="over"):
            broken = FaultyStore(store, [Fault("get", AccessDeniedError("the session is over"), nth=11, times=99)])
            fetch(broken, key, tmp_path / "file", gcs_server.bucket)
        if newer != DATA:
            put(store, key, tmp_path, newer)
        counted = FaultyStore(store)
        fetch(counted, key, tmp_path / "file", gcs_server.bucket)
    assert counted.calls["get"] == n_fetched
    assert (tmp_path / "file").read_bytes() == newer
