"""Names that S3 knows and others do not: buckets with dots, endpoints with a path, keys that only look alike, foreign objects."""

from __future__ import annotations

import base64
import hashlib
import os
import unicodedata
import uuid
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import botocore.session
import pytest
from botocore.config import Config

from lax_s3 import lax_server, store_at
from servers import tls
from servers.real import S3Server
from wherry.backends.s3.client import connect
from wherry.backends.s3.digests import crc32c_of, digest_of, encode_crc32c
from wherry.backends.s3.options import S3Options
from wherry.backends.s3.sample import sample_of
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import ConfigError, NotFoundError, PermanentError, StoreError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI, parse_uri

DATA = b"0123456789" * 100
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def key() -> str:
    return f"names/{uuid.uuid4().hex}"


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    """Whether botocore makes every request."""
    return bool(request.param)


@pytest.fixture(params=["seaweedfs_server", "juicefs_server"])
def server(request: pytest.FixtureRequest, sdk_only: bool) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return replace(found, sdk_only=sdk_only)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TestBuckets:
    @pytest.mark.parametrize("name", ["seaweedfs_server", "seaweedfs_tls"])
    def test_one_with_dots_works_in_the_path_also_behind_tls(
        self, request: pytest.FixtureRequest, seaweedfs_server: S3Server, name: str, file: Path
    ) -> None:
        server: S3Server = request.getfixturevalue(name)
        seaweedfs_server.make_bucket("my.models.v1")
        with S3Store(StoreURI("s3", "my.models.v1"), server.options) as store:
            store.put_file("a", file, PutOptions(if_absent=True))
            assert ["a"] == [meta.key for meta in store.list()]
            store.delete("a")

    @pytest.mark.parametrize(
        ("bucket", "address"),
        [("a.b.c", "s3.eu-central-1.amazonaws.com/a.b.c/key"), ("abc", "abc.s3.eu-central-1.amazonaws.com/key")],
    )
    def test_one_with_dots_is_never_a_host_of_amazons(self, bucket: str, address: str) -> None:
        """No certificate is for ``a.b.c.s3.amazonaws.com``."""
        asked: list[str] = []

        def stop(request: Any, **_: object) -> None:
            asked.append(request.url)
            raise InterruptedError

        keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "region": "eu-central-1"}
        with S3Store(StoreURI("s3", bucket), keys) as store:
            direct = store._objects._direct(store._connected())
            assert direct is not None
            assert address == f"{direct.host}{direct.path}key"
        with S3Store(StoreURI("s3", bucket), {**keys, "sdk_only": True}) as store:
            store._client.meta.events.register("before-send.s3", stop)
            with pytest.raises(InterruptedError):
                store.head("key")
        assert [f"https://{address}"] == asked

    def test_a_certificate_for_another_host_says_what_to_do(self, tmp_path: Path, file: Path) -> None:
        """As for a bucket before the server's name, with addressing_style="virtual". 127.1 is another name of 127.0.0.1."""
        certificates = tls.make_certificates(tmp_path)  # for 127.0.0.1 and localhost
        with lax_server(certificates=certificates) as server:
            options = {"endpoint_url": f"https://127.1:{server.server_port}", "verify": str(certificates.authority)}
            keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
            with S3Store(StoreURI("s3", "bucket"), {**options, **keys}) as store, pytest.raises(PermanentError) as caught:
                store.put_file("a", file)
            assert "addressing_style='path'" in caught.value.hint

    @pytest.mark.parametrize("name", ["Two Words", "a/b", "x" * 300, "ü"])
    def test_one_that_cannot_be_is_refused_before_anything_is_sent(self, name: str, file: Path) -> None:
        options = {"endpoint_url": "http://127.0.0.1:1"}
        with S3Store(StoreURI("s3", name), options) as store, pytest.raises(PermanentError, match="Invalid bucket name"):
            store.put_file("a", file)


class TestEndpoints:
    def test_one_with_a_path_keeps_it_before_the_bucket(self, file: Path) -> None:
        with lax_server() as server:
            options = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
            url = f"http://127.0.0.1:{server.server_port}/gateway/s3"
            for shown in (url, f"{url}/"):
                with S3Store(StoreURI("s3", "bucket"), {"endpoint_url": shown, **options}) as store:
                    store.put_file("a/b", file)
                    assert url == store.endpoint
            assert ["PUT /gateway/s3/bucket/a/b HTTP/1.1"] * 2 == [head.partition("\n")[0] for head in server.heads]

    def test_unknown_options_name_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match=r" endpoint for s3.*checksums.*endpoint_url.*profile, .*region"):
            S3Store(StoreURI("s3", "bucket"), {"endpoint": "http://127.0.0.1"})


class TestKeys:
    def test_those_that_differ_by_unicode_form_only_are_two(self, server: S3Server, key: str, tmp_path: Path) -> None:
        """A store keeps what it is given. wherry's own names are all of one form, NFC (check_name)."""
        forms = [unicodedata.normalize(form, "é/Å") for form in ("NFC", "NFD")]
        with S3Store(StoreURI("s3", server.bucket), server.options) as store:
            for form in forms:
                (tmp_path / "source").write_bytes(form.encode())
                store.put_file(f"{key}/{form}", tmp_path / "source")
            assert sorted(f"{key}/{form}" for form in forms) == sorted(meta.key for meta in store.list(f"{key}/"))
            assert [len(form.encode()) for form in forms] == [store.head(f"{key}/{form}").size_bytes for form in forms]
            store.delete(f"{key}/{forms[0]}")
            assert [f"{key}/{forms[1]}"] == [meta.key for meta in store.list(f"{key}/")]

    @pytest.mark.parametrize("name", ["..", ".", "a/../b"])
    def test_dots_that_a_server_refuses_are_a_final_error(self, server: S3Server, key: str, file: Path, name: str) -> None:
        """Amazon takes them; wherry's own names never have them."""
        with S3Store(StoreURI("s3", server.bucket), server.options) as store, pytest.raises(PermanentError):
            store.put_file(f"{key}/{name}", file)

    def test_one_that_is_too_long_is_a_final_error(self, seaweedfs_server: S3Server, file: Path) -> None:
        store = S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options)
        with store, pytest.raises(PermanentError, match="shorten the name"):
            store.put_file("x" * 1025, file)

    def test_one_below_an_object_is_two_where_objects_are_no_files(
        self, seaweedfs_server: S3Server, juicefs_server: S3Server, key: str, file: Path
    ) -> None:
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            for name in (key, f"{key}/below"):
                store.put_file(name, file)
            assert [key, f"{key}/below"] == [meta.key for meta in store.list(key)]
        with S3Store(StoreURI("s3", juicefs_server.bucket), juicefs_server.options) as store:
            store.put_file(key, file)
            with pytest.raises(StoreError):
                store.put_file(f"{key}/below", file)
            assert [key] == [meta.key for meta in store.list(key)]

    def test_seaweedfs_takes_a_backslash_for_a_slash(self, seaweedfs_server: S3Server, key: str, file: Path) -> None:
        """Release 4.48; no other server that was tried does."""
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            store.put_file(f"{key}\\a", file)
            assert [f"{key}/a"] == [meta.key for meta in store.list(key)]


class TestFilesToSend:
    def test_a_fifo_and_a_device_are_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with store_at(1) as store:
            for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
                with pytest.raises(PermanentError, match="no regular file"):
                    store.put_file("a", path)


def crc64nvme(data: bytes) -> bytes:
    """The slow way (NVM Express Command Set Specification: the polynomial, reflected)."""
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return (crc ^ (2**64 - 1)).to_bytes(8, "big")


def client_of(server: S3Server) -> Any:
    return botocore.session.Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"}),
    )


class TestForeignObjects:
    """What others have put is checked by what is surely of the whole object, and by nothing else."""

    SUMS: ClassVar[tuple[tuple[dict[str, str], str], ...]] = (
        ({"ChecksumCRC32C": encode_crc32c(crc32c(DATA))}, f"md5:{MD5}"),
        ({"ChecksumCRC32": b64(zlib.crc32(DATA).to_bytes(4, "big"))}, f"crc32:{zlib.crc32(DATA):08x}"),
        ({"ChecksumSHA256": b64(hashlib.sha256(DATA).digest())}, f"sha256:{hashlib.sha256(DATA).hexdigest()}"),
        ({"ChecksumCRC64NVME": b64(crc64nvme(DATA))}, f"md5:{MD5}"),
        ({}, f"md5:{MD5}"),
    )

    def test_the_answer_to_a_put_says_what_came(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(DATA)
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            assert f"md5:{MD5}" == store.put_file(key, tmp_path / "data").digest
            given = PutOptions(crc32c=crc32c(DATA))
            assert f"md5:{MD5}" == store.put_file(key, tmp_path / "data", given).digest

    @pytest.mark.parametrize(("sums", "digest"), SUMS, ids=["CRC32C", "CRC32", "SHA256", "CRC64NVME", "none"])
    def test_one_of_one_piece(self, seaweedfs_server: S3Server, key: str, sums: dict[str, str], digest: str) -> None:
        client = client_of(seaweedfs_server)
        try:
            client.put_object(Bucket=seaweedfs_server.bucket, Key=key, Body=DATA, **sums)
        finally:
            client.close()
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            meta = store.head(key)
        assert digest == meta.digest
        assert (crc32c(DATA) if "ChecksumCRC32C" in sums else None) == meta.crc32c

    @pytest.mark.parametrize(
        ("algorithm", "kind", "sums"),
        [
            ("CRC32C", "COMPOSITE", {"ChecksumCRC32C": encode_crc32c(crc32c(DATA))}),
            ("SHA256", "COMPOSITE", {"ChecksumSHA256": b64(hashlib.sha256(DATA).digest())}),
            ("CRC64NVME", "FULL_OBJECT", {"ChecksumCRC64NVME": b64(crc64nvme(DATA))}),
            ("", "", {}),
        ],
    )
    def test_checksums_of_checksums_are_none_of_the_object(
        self, seaweedfs_server: S3Server, key: str, algorithm: str, kind: str, sums: dict[str, str]
    ) -> None:
        where = {"Bucket": seaweedfs_server.bucket, "Key": key}
        client = client_of(seaweedfs_server)
        try:
            asked = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind} if algorithm else {}
            upload = {**where, "UploadId": client.create_multipart_upload(**where, **asked)["UploadId"]}
            part = client.upload_part(**upload, PartNumber=1, Body=DATA, **sums)
            parts = [{"PartNumber": 1, "ETag": part["ETag"], **sums}]
            client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        finally:
            client.close()
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            meta = store.head(key)
        assert (None, None) == (meta.crc32c, meta.digest)
        assert meta.etag is not None
        assert meta.etag.endswith("-1")

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ({"ChecksumCRC32C": "AAAAAQ=="}, 1),
            ({"ChecksumCRC32C": "AAAAAQ==", "ETag": f'"{MD5}"'}, 1),
            ({"ChecksumCRC32C": "AAAAAQ==", "ChecksumType": "FULL_OBJECT", "ETag": f'"{MD5}-2"'}, 1),
            ({"ChecksumCRC32C": "AAAAAQ==", "ChecksumType": "COMPOSITE", "ETag": f'"{MD5}-2"'}, None),
            ({"ChecksumCRC32C": "AAAAAQ==-2", "ETag": f'"{MD5}-2"'}, None),
            ({"ChecksumCRC32C": "AAAAAQ==-2", "ChecksumType": "FULL_OBJECT"}, None),
            ({"ChecksumCRC32C": "AAAAAQ==", "ETag": f'"{MD5}-2"'}, None),  # it does not say of what: an older server
            ({"ChecksumCRC32C": "AAAA"}, None),
            ({"ChecksumCRC32C": "rubbish!"}, None),
            ({}, None),
        ],
    )
    def test_a_crc32c_is_of_the_whole_or_none(self, answer: dict[str, str], expected: int | None) -> None:
        assert expected == crc32c_of(answer)

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ({"ChecksumSHA1": b64(b"1" * 20)}, f"sha1:{'31' * 20}"),
            ({"ChecksumSHA256": b64(b"2" * 32), "ServerSideEncryption": "aws:kms"}, f"sha256:{'32' * 32}"),
            ({"ChecksumSHA256": f"{b64(b'2' * 32)}-4", "ETag": f'"{MD5}-4"'}, None),
            ({"ChecksumCRC64NVME": b64(b"12345678"), "ServerSideEncryption": "aws:kms"}, None),
            ({"SSECustomerAlgorithm": "AES256"}, None),
            ({"ServerSideEncryption": "AES256"}, f"md5:{MD5}"),
        ],
    )
    def test_a_digest_is_of_the_whole_or_none(self, answer: dict[str, str], expected: str | None) -> None:
        etag = answer.get("ETag", MD5).strip('"')
        assert expected == digest_of(answer, etag)


def test_a_directory_bucket_is_asked_for_folders_only(file: Path) -> None:
    """And gives what begins with the prefix all the same: in them "a/b" is found by "a/" alone."""
    with S3Store(StoreURI("s3", "models--usw2-az1--x-s3"), {}) as store:
        assert ["", "a/", "a/b/"] == [store._listings._askable(prefix) for prefix in ("a", "a/b", "a/b/")]
    with store_at(1) as store:
        assert store._listings._askable("a/b") == "a/b"


def test_a_missing_upload_is_no_missing_bucket(server: S3Server, key: str, file: Path) -> None:
    with S3Store(StoreURI("s3", server.bucket), server.options) as store:
        with pytest.raises(NotFoundError):
            store.put_part(key, "00000000-0000-0000-0000-000000000000", file, Part(1, 0, 10, crc32c(DATA[:10])))
        store.abort(key, "00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("mark", [":", "/"])
@pytest.mark.parametrize(
    ("arn", "host"),
    [
        ("arn:aws:s3:us-west-2:123456789012:accesspoint_mine", "mine-123456789012.s3-accesspoint.us-west-2.amazonaws.com"),
        (
            "arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint_mine",
            "mine-123456789012.s3-object-lambda.us-west-2.amazonaws.com",
        ),
        (
            "arn:aws:s3-outposts:us-west-2:123456789012:outpost_op-01234567890123456_accesspoint_mine",
            "mine-123456789012.op-01234567890123456.s3-outposts.us-west-2.amazonaws.com",
        ),
    ],
)
def test_an_access_point_may_be_written_with_slashes(mark: str, arn: str, host: str) -> None:
    uri = parse_uri(f"s3://{arn.replace('_', mark)}/run1/logs")
    assert "run1/logs" == uri.prefix
    assert uri == parse_uri(str(uri))
    options = S3Options(region="us-west-2", aws_access_key_id="key", aws_secret_access_key="secret")
    connection = connect(options, uri.root)
    assert f"https://{host}/" in sample_of(connection.client, uri.root, "put_object").url
    connection.close()
