"""What a server honours is found out by trial: on real servers, and on one that has every flaw that is asked of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from lax_s3 import Flaw, lax_server, store_at
from servers import tls
from servers.proxy import Answer, Do, DropAnswer, Reset, When, fault_proxy, s3_error
from servers.real import S3Server
from servers.worlds import OBJECT_LOCK
from support import wait_until
from wherry.backends.s3.probe import AMAZON, Findings
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, AlreadyExistsError, BucketNotFoundError, TransientError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

PREFIX = "run/.wherry-tmp-probe-1/"
DATA = b"0123456789"
#: By the server's address.
_raw_clients: dict[str, Any] = {}


def put_in_parts(store: S3Store, key: str, file: Path, *, if_absent: bool = False) -> int | None:
    """What the store says of the checksum."""
    upload_id = store.begin(key, len(DATA), PutOptions(crc32c=crc32c(DATA)))
    part = store.put_part(key, upload_id, file, Part(1, 0, len(DATA), crc32c(DATA)))
    return store.complete(key, upload_id, [part], PutOptions(if_absent=if_absent, crc32c=crc32c(DATA))).crc32c


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module", autouse=True)
def close_raw_clients() -> Iterator[None]:
    yield
    while _raw_clients:
        _raw_clients.popitem()[1].close()


def raw_client(server: S3Server) -> Any:
    """One for all tests: botocore reads its whole model of S3 for each session."""
    if server.url not in _raw_clients:
        _raw_clients[server.url] = make_raw_client(server)
    return _raw_clients[server.url]


def make_raw_client(server: S3Server) -> Any:
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


def left_in(server: S3Server, prefix: str = PREFIX) -> list[str]:
    """Everything below a prefix, whatever its name: objects and uploads in parts."""
    client = raw_client(server)
    objects = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix).get("Contents", [])
    uploads = client.list_multipart_uploads(Bucket=server.bucket, Prefix=prefix).get("Uploads", [])
    return [found["Key"] for found in [*objects, *uploads]]


class TestRealServers:
    """The facts of SeaweedFS 4.48 and JuiceFS 1.4.2, as a probe finds them.

    SeaweedFS decides one of three races of completes by chance: a probe finds that, or once in a while does not.
    """

    def test_the_strict_one_honours_all(self, seaweedfs_server: S3Server) -> None:
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            assert AMAZON.as_dict() == {**store.probe(PREFIX), "conditional_complete": True}
            assert [] == left_in(seaweedfs_server)
            assert store.capabilities.conditional_put
            assert store.capabilities.checks_crc32c

    @pytest.mark.usefixtures("short_races")
    def test_behind_tls_it_does_too(self, seaweedfs_tls: S3Server) -> None:
        with S3Store(StoreURI("s3", seaweedfs_tls.bucket), seaweedfs_tls.options) as store:
            assert AMAZON.as_dict() == {**store.probe(PREFIX), "conditional_complete": True}

    @pytest.mark.usefixtures("short_races")
    def test_the_lax_one_takes_parts_metadata_and_unsigned_bodies_and_ignores_the_rest(self, juicefs_server: S3Server) -> None:
        expected = Findings(
            takes_unsigned=True,
            metadata=True,
            checks_crc32c=False,
            conditional_put=False,
            multipart=True,
            joins_crc32c=False,
            conditional_complete=False,
            copies_parts=False,
        )
        with S3Store(StoreURI("s3", juicefs_server.bucket), juicefs_server.options) as store:
            assert expected.as_dict() == store.probe(PREFIX)
            assert [] == left_in(juicefs_server)
            assert not store.capabilities.conditional_put
            assert not store.capabilities.checks_crc32c
            assert store.capabilities.metadata

    @pytest.mark.parametrize("name", ["seaweedfs_server", "juicefs_server"])
    def test_one_that_asks_every_body_for_a_checksum_is_tried_all_the_same(
        self, name: str, request: pytest.FixtureRequest, short_races: None
    ) -> None:
        server: S3Server = request.getfixturevalue(name)
        with fault_proxy("127.0.0.1", server.port, [OBJECT_LOCK]) as proxy:
            with S3Store(StoreURI("s3", server.bucket), {**server.options, "endpoint_url": proxy.url}) as store:
                findings = store.probe(PREFIX)
            assert [0] == proxy.fired
        assert findings["metadata"]
        assert (name == "seaweedfs_server") == findings["checks_crc32c"] == findings["joins_crc32c"] == findings["copies_parts"]

    def test_a_probe_is_a_few_small_requests(self, seaweedfs_server: S3Server) -> None:
        with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                store.probe(PREFIX)
        assert len(proxy.log) <= 230
        assert proxy.request_bytes() < 20_000

    @pytest.mark.usefixtures("short_races")
    def test_versions_and_marks_of_deletions_are_removed(self, seaweedfs_server: S3Server) -> None:
        seaweedfs_server.make_bucket("versioned")
        client = raw_client(seaweedfs_server)
        client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
        with S3Store(StoreURI("s3", "versioned"), seaweedfs_server.options) as store:
            assert AMAZON.as_dict() == {**store.probe(PREFIX), "conditional_complete": True}
        found = client.list_object_versions(Bucket="versioned")
        assert [] == found.get("Versions", []) + found.get("DeleteMarkers", [])

    @pytest.mark.usefixtures("short_races")
    @pytest.mark.parametrize(
        ("action", "requests"),
        [
            (Reset(), (1, 5, 15)),
            (DropAnswer(), (4, 5, 9, 11, 12, 14, 15, 17, 18, 20, 21, 22, 23)),
            (s3_error(503, "SlowDown"), (2, 6, 13)),
        ],
        ids=["reset", "lost", "throttled"],
    )
    def test_trouble_at_any_request_leaves_nothing(
        self, seaweedfs_server: S3Server, action: Any, requests: tuple[int, ...]
    ) -> None:
        """Cleaning works again by then. Found out is all or nothing."""
        for nth in requests:
            with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("", "wherry-probe", action, nth=nth)]) as proxy:
                options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
                with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                    with pytest.raises(TransientError):
                        store.probe(PREFIX)
                    assert not store.capabilities.conditional_put
                assert [] == proxy.unfired
            assert [] == left_in(seaweedfs_server), nth

    @pytest.mark.usefixtures("short_races")
    def test_what_a_cut_cleaning_has_left_the_next_probe_removes(self, seaweedfs_server: S3Server) -> None:
        with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("DELETE", "wherry-probe-new$", Reset(), nth=2)]) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                with pytest.raises(TransientError):
                    store.probe(PREFIX)
                assert AMAZON.as_dict() == {**store.probe(PREFIX), "conditional_complete": True}
        assert [] == left_in(seaweedfs_server)

    @pytest.mark.usefixtures("short_races")
    def test_ctrl_c_leaves_nothing(self, seaweedfs_server: S3Server) -> None:
        def strike() -> None:
            """The request goes on when all has been cleaned up, but where Ctrl-C is noticed only with its answer."""
            n_deleted = len(proxy.requests("DELETE", "probe-parts$"))
            os.kill(os.getpid(), signal.SIGINT)
            with suppress(AssertionError):
                wait_until(lambda: len(proxy.requests("DELETE", "probe-parts$")) > n_deleted, 5.0)

        plan = [When("POST", "uploadId", Do(strike))]
        with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store, pytest.raises(KeyboardInterrupt):
                store.probe(PREFIX)
        assert [] == left_in(seaweedfs_server)

    def test_refused_credentials_and_missing_buckets_are_said(self, seaweedfs_server: S3Server) -> None:
        options = {**seaweedfs_server.options, "aws_secret_access_key": "wrong"}
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store, pytest.raises(AccessDeniedError):
            store.probe(PREFIX)
        with S3Store(StoreURI("s3", "no-such-bucket"), seaweedfs_server.options) as store, pytest.raises(BucketNotFoundError):
            store.probe(PREFIX)


LACKS: list[tuple[Flaw, set[str]]] = [
    ("ignores checksums", {"checks_crc32c", "joins_crc32c", "copies_parts"}),
    ("echoes checksums", {"checks_crc32c", "joins_crc32c", "copies_parts"}),
    ("refuses checksums", {"checks_crc32c", "joins_crc32c", "copies_parts"}),
    ("forgets checksums", {"checks_crc32c", "joins_crc32c", "copies_parts"}),
    ("ignores checksums of parts", {"joins_crc32c", "copies_parts"}),
    ("refuses joined checksums", {"joins_crc32c", "copies_parts"}),
    ("has composite checksums", {"joins_crc32c", "copies_parts"}),
    ("ignores conditions", {"conditional_put"}),
    ("refuses conditions", {"conditional_put"}),
    ("refuses too late", {"conditional_put"}),
    ("always refuses conditions", {"conditional_put"}),
    ("ignores conditions of completes", {"conditional_complete"}),
    ("refuses conditions of completes", {"conditional_complete"}),
    ("refuses copies of parts", {"copies_parts"}),
    ("takes copies for bodies", {"copies_parts"}),
    ("ignores checksums of the whole", {"copies_parts"}),
    ("insists on signed bodies", {"takes_unsigned"}),
    ("drops metadata", {"metadata"}),
    ("has no parts", {"multipart", "joins_crc32c", "conditional_complete", "copies_parts"}),
    ("keeps versions", set()),
    ("answers 404 to a deletion of nothing", set()),
    ("leaves the ETag out of the first answer to a complete", set()),
    ("takes the name too late in puts", {"conditional_put"}),
    ("takes the name too late in completes", {"conditional_complete"}),
]


@pytest.mark.usefixtures("short_races")
class TestFlaws:
    @pytest.mark.parametrize(("flaw", "missing"), LACKS, ids=[flaw for flaw, _ in LACKS])
    def test_each_flaw_is_found_and_no_other(self, flaw: Flaw, missing: set[str], file: Path) -> None:
        """Afterwards nothing of the trial is there, and uploads work, with and without `if_absent`."""
        with lax_server(flaw) as server, store_at(server.server_port) as store:
            assert missing == {name for name, honours in store.probe(PREFIX).items() if not honours}
            assert ({}, {}, set()) == (server.objects, server.uploads, server.versions)
            store.put_file("a", file, PutOptions(if_absent=True, crc32c=crc32c(DATA)))
            with pytest.raises(AlreadyExistsError):
                store.put_file("a", file, PutOptions(if_absent=True, crc32c=crc32c(DATA)))
            if store.capabilities.multipart:
                put_in_parts(store, "b", file, if_absent=True)
                with pytest.raises(AlreadyExistsError):
                    put_in_parts(store, "b", file, if_absent=True)
            assert {"a": DATA, "b": DATA}.items() >= {key: kept.body for key, kept in server.objects.items()}.items()

    def test_a_server_that_sends_checksums_back_unseen_proves_nothing(self, file: Path) -> None:
        """Not before it is tried, nor after."""
        with lax_server("echoes checksums") as server, store_at(server.server_port) as store:
            for is_known in (False, True):
                if is_known:
                    store.probe(PREFIX)
                assert not store.capabilities.checks_crc32c
                assert store.put_file("a", file, PutOptions(crc32c=crc32c(DATA))).crc32c is None
                assert put_in_parts(store, "b", file) is None

    def test_a_checksum_that_is_checked_is_proof(self, file: Path) -> None:
        with lax_server() as server, store_at(server.server_port) as store:
            store.probe(PREFIX)
            assert crc32c(DATA) == store.put_file("a", file, PutOptions(crc32c=crc32c(DATA))).crc32c

    def test_who_may_not_delete_leaves_nothing_because_nothing_is_tried(self) -> None:
        with lax_server("may not delete") as server, store_at(server.server_port) as store:
            with pytest.raises(AccessDeniedError):
                store.probe(PREFIX)
            assert server.objects == {}
            assert not [head for head in server.heads if head.startswith(("PUT", "POST"))]

    def test_bodies_are_signed_where_they_must_be_and_nowhere_else(self, file: Path) -> None:
        for flaws, expected in ((("insists on signed bodies",), hashlib.sha256(DATA).hexdigest()), ((), "UNSIGNED-PAYLOAD")):
            with lax_server(*flaws) as server, store_at(server.server_port) as store:
                store.probe(PREFIX)
                store.put_file("a", file)
                assert f"x-amz-content-sha256: {expected.lower()}" in server.heads[-1].lower()


class TestCare:
    """Before anything is known."""

    def test_if_absent_looks_first_and_sends_the_condition_too(self, file: Path) -> None:
        with lax_server() as server, store_at(server.server_port) as store:
            store.put_file("a", file, PutOptions(if_absent=True))
            assert ["HEAD", "GET", "PUT"] == [head.split()[0] for head in server.heads]  # GET: 404 of a HEAD says not of what
            assert "If-None-Match: *" in server.heads[-1]
            with pytest.raises(AlreadyExistsError):
                store.put_file("a", file, PutOptions(if_absent=True))
            assert "HEAD" == server.heads[-1].split()[0]
            upload_id = store.begin("b", len(DATA))
            part = store.put_part("b", upload_id, file, Part(1, 0, len(DATA), crc32c(DATA)))
            store.complete("b", upload_id, [part], PutOptions(if_absent=True))
            assert "HEAD" in server.heads[-3]
            assert "If-None-Match: *" in server.heads[-1]

    def test_a_server_that_ignores_the_condition_replaces_nothing(self, file: Path) -> None:
        with lax_server("ignores conditions") as server, store_at(server.server_port) as store:
            store.put_file("a", file)
            with pytest.raises(AlreadyExistsError):
                store.put_file("a", file, PutOptions(if_absent=True))

    def test_nothing_is_promised(self) -> None:
        with store_at(1) as store:
            can = store.capabilities
            assert (False, False, False) == (can.conditional_put, can.conditional_complete, can.checks_crc32c)
            assert can.multipart

    def test_after_it_is_known_one_request_is_enough(self, file: Path) -> None:
        with lax_server() as server, store_at(server.server_port) as store:
            store.assume(AMAZON.as_dict())
            store.put_file("a", file, PutOptions(if_absent=True))
            assert ["PUT"] == [head.split()[0] for head in server.heads]


@pytest.mark.usefixtures("short_races")
class TestFindings:
    def test_another_store_takes_them_over_from_json(self) -> None:
        with lax_server("ignores conditions") as server, store_at(server.server_port) as first:
            kept = json.dumps(first.probe(PREFIX))
            with store_at(server.server_port) as second:
                second.assume(json.loads(kept))
                assert first.capabilities == second.capabilities
                assert first.endpoint == second.endpoint

    def test_what_is_unknown_is_ignored_and_what_is_missing_not_relied_on(self) -> None:
        with store_at(1) as store:
            store.assume({"colour": True, "conditional_put": True})
            assert store.capabilities.conditional_put
            assert not store.capabilities.conditional_complete
        with store_at(1) as store:
            before = store.capabilities
            store.assume({})
            assert before == store.capabilities

    def test_an_option_denies_what_the_server_can(self) -> None:
        with store_at(1, conditional_writes=False, checksums=False) as store:
            store.assume(AMAZON.as_dict())
            can = store.capabilities
            assert (False, False, False) == (can.conditional_put, can.conditional_complete, can.checks_crc32c)

    @pytest.mark.parametrize(
        ("bucket", "options", "expected"),
        [
            ("b", {}, None),
            ("b", {"endpoint_url": "https://s3.eu-central-1.amazonaws.com"}, None),
            ("b", {"endpoint_url": "https://bucket.vpce-1a2b-3c4d.s3.us-east-1.vpce.amazonaws.com"}, None),
            ("b", {"endpoint_url": "https://s3.cn-north-1.amazonaws.com.cn"}, None),
            ("models--usw2-az1--x-s3", {"endpoint_url": "https://proxy:8080"}, None),
            ("b", {"endpoint_url": "https://amazonaws.com.evil.org"}, "https://amazonaws.com.evil.org"),
            ("b", {"endpoint_url": "https://notamazonaws.com"}, "https://notamazonaws.com"),
            ("b", {"endpoint_url": "http://127.0.0.1:9000/"}, "http://127.0.0.1:9000"),
            ("c", {"endpoint_url": "http://Minio:9000/A/"}, "http://minio:9000/A"),
        ],
    )
    def test_only_servers_that_are_not_amazons_have_a_name(
        self, bucket: str, options: dict[str, object], expected: str | None
    ) -> None:
        with S3Store(StoreURI("s3", bucket), options) as store:
            assert expected == store.endpoint
            assert (expected is None) == store.capabilities.conditional_put

    def test_the_name_is_also_that_of_the_environment_and_the_profile(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        config = tmp_path / "config"
        config.write_text("[profile lab]\nendpoint_url = http://lab:9000\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        with S3Store(StoreURI("s3", "b"), {"profile": "lab"}) as store:
            assert store.endpoint == "http://lab:9000"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other:9000")
        with S3Store(StoreURI("s3", "b"), {}) as store:
            assert store.endpoint == "http://other:9000"

    def test_amazon_is_not_tried(self) -> None:
        with S3Store(StoreURI("s3", "b"), {}) as store:
            assert {} == store.probe(PREFIX)
            store.assume({"conditional_put": False})
            assert store.capabilities.conditional_put


@pytest.mark.usefixtures("short_races")
class TestTheWire:
    """Checksums behind the body, in a framing of their own, have ended inside objects (boto/boto3#4435): never from here."""

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize("where", ["environment", "profile"])
    def test_no_request_is_framed_or_has_a_trailer(
        self, scheme: str, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
    ) -> None:
        if where == "environment":
            monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
            monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_supported")
        else:
            lines = ["[default]", "request_checksum_calculation = when_supported"]
            lines += ["response_checksum_validation = when_supported", "s3 =", "  payload_signing_enabled = true"]
            (tmp_path / "config").write_text("\n".join([*lines, "  preferred_transfer_client = crt", ""]))
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        certificates = tls.make_certificates(tmp_path) if scheme == "https" else None
        large = tmp_path / "large"
        large.write_bytes(bytes(3 * 2**20))
        with lax_server(certificates=certificates) as server:
            options = {} if certificates is None else {"verify": str(certificates.authority)}
            with store_at(server.server_port, scheme, **options) as store:
                for is_known in (False, True):
                    if is_known:
                        store.probe(PREFIX)
                    for path, crc in ((file, crc32c(DATA)), (large, crc32c(bytes(3 * 2**20))), (file, None)):
                        store.put_file("a", path, PutOptions(crc32c=crc, metadata={"wherry-token": "t"}))
                    put_in_parts(store, "b", file)
                    store.get_file("a", file)
                    list(store.list_uploads())
            heads = server.heads
            assert {"a", "b"} == set(server.objects)
            assert server.objects["a"].body == DATA
        assert len([head for head in heads if head.startswith("PUT")]) > 10
        for head in heads:
            assert not re.search("aws-chunked|trailer|transfer-encoding|x-amz-sdk-checksum|streaming-", head, re.IGNORECASE), head

    def test_a_body_is_the_objects_bytes_and_no_more(self, file: Path) -> None:
        with lax_server("ignores checksums") as server, store_at(server.server_port) as store:
            store.put_file("a", file, PutOptions(crc32c=crc32c(DATA)))
            put_in_parts(store, "b", file)
            assert {"a": DATA, "b": DATA} == {key: kept.body for key, kept in server.objects.items()}
            assert [] == [head for head in server.heads if head.startswith("PUT") and "Content-Length: 10\n" not in head]


def test_a_wrong_answer_of_somebody_else_is_no_finding() -> None:
    """A login page with status 200, in place of every answer."""
    page = Answer(200, b"<html>Log in</html>", (("Content-Type", "text/html"),))
    with lax_server() as server, fault_proxy("127.0.0.1", server.server_port, [When("", "", page, times=1000)]) as proxy:
        with store_at(proxy.port) as store, pytest.raises(TransientError):
            store.probe(PREFIX)
        assert server.heads == []
