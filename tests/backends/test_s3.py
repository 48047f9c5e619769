"""What S3Store does beyond the contract's laws: on real servers, plain and behind TLS, and on answers that those never give."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import ClassVar

import pytest

from servers import tls
from servers.features import ask_for_pages_of
from servers.real import S3Server
from wherry.backends.s3.client import OPERATIONS as KNOWN, connect
from wherry.backends.s3.options import S3Options
from wherry.backends.s3.probe import AMAZON
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConfigError,
    CredentialsExpiredError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI, parse_uri

MIB = 2**20
#: Of methods of botocore's client.
CALLS = re.compile(r"client(?:\(\))?\.((?:abort|complete|create|delete|get|head|list|put|upload)_\w+)\(")


def store_of(server: S3Server, bucket: str | None = None, **options: object) -> S3Store:
    return S3Store(StoreURI("s3", bucket or server.bucket), {**server.options, **options})


@pytest.fixture(params=[False, True], ids=["direct", "sdk"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    """Whether botocore makes every request."""
    return bool(request.param)


@pytest.fixture(params=["seaweedfs_server", "seaweedfs_tls", "juicefs_server"])
def server(request: pytest.FixtureRequest, sdk_only: bool) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return replace(found, sdk_only=sdk_only)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"test-s3/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


def call(store: S3Store, operation: str, key: str, file: Path) -> object:
    part = Part(1, 0, 10, crc32c(b"0123456789"))
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put_file(key, file),
        "get": lambda: store.get_file(key, file),
        "get range": lambda: store.get_file(key, file, start=1, end=2),
        "head": lambda: store.head(key),
        "list": lambda: list(store.list(key)),
        "delete": lambda: store.delete(key),
        "begin": lambda: store.begin(key, 10),
        "put_part": lambda: store.put_part(key, "none", file, part),
        "list_parts": lambda: store.list_parts(key, "none"),
    }
    return calls[operation]()


OPERATIONS = ("put", "get", "get range", "head", "list", "delete", "begin", "put_part", "list_parts")


class TestRefusals:
    @pytest.mark.pairwise
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_wrong_secret_is_denied_in_the_servers_words(self, server: S3Server, file: Path, operation: str) -> None:
        with store_of(server, aws_secret_access_key="not-the-secret") as store, pytest.raises(AccessDeniedError) as caught:
            call(store, operation, "missing", file)
        assert "SignatureDoesNotMatch" in str(caught.value)
        assert "not-the-secret" not in str(caught.value)
        assert "check the access key" in caught.value.hint

    @pytest.mark.pairwise
    @pytest.mark.parametrize("operation", ["put", "head", "list"])
    def test_unknown_key_id_is_denied_in_the_servers_words(self, server: S3Server, file: Path, operation: str) -> None:
        with store_of(server, aws_access_key_id="NOBODYSKEYATALL") as store, pytest.raises(AccessDeniedError) as caught:
            call(store, operation, "missing", file)
        assert "InvalidAccessKeyId" in str(caught.value)

    @pytest.mark.pairwise
    @pytest.mark.parametrize("operation", ["put", "get", "head", "list", "delete", "begin"])
    def test_missing_bucket_is_told_from_a_missing_object(self, server: S3Server, file: Path, operation: str) -> None:
        with store_of(server, "no-such-bucket") as store, pytest.raises(BucketNotFoundError) as caught:
            call(store, operation, "key", file)
        assert "s3://no-such-bucket/key" in str(caught.value)
        with store_of(server) as store, pytest.raises(NotFoundError) as missing:
            store.head("missing")
        assert not isinstance(missing.value, BucketNotFoundError)

    def test_anonymous_call_is_denied(self, server: S3Server, file: Path) -> None:
        options = {"endpoint_url": server.url, "anonymous": True, "verify": server.options.get("verify", True)}
        with S3Store(StoreURI("s3", server.bucket), options) as store, pytest.raises(AccessDeniedError):
            store.put_file("key", file)

    def test_no_credentials_say_where_to_put_them(self, server: S3Server) -> None:
        options = {"endpoint_url": server.url, "verify": server.options.get("verify", True)}
        with S3Store(StoreURI("s3", server.bucket), options) as store, pytest.raises(AccessDeniedError) as caught:
            store.head("key")
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_closed_port_is_transient(self, file: Path, operation: str) -> None:
        with closing(socket()) as held:  # bound and not listening: nobody else can have this port
            held.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{held.getsockname()[1]}"
            options = {"endpoint_url": url, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
            with S3Store(StoreURI("s3", "bucket"), options) as store, pytest.raises(TransientError, match="endpoint"):
                call(store, operation, "key", file)

    def test_missing_file_to_send_is_no_missing_object(self, server: S3Server, tmp_path: Path) -> None:
        with store_of(server) as store, pytest.raises(PermanentError) as caught:
            store.put_file("key", tmp_path / "missing")
        assert not isinstance(caught.value, NotFoundError)


class TestOptions:
    def test_clients_know_the_operations_that_are_called(self) -> None:
        """The model is cut down to `OPERATIONS`; what somebody calls without adding it there is found here."""
        folder = Path(inspect.getfile(connect)).parent
        called = {name for file in folder.glob("*.py") for name in CALLS.findall(file.read_text())}
        options = S3Options(endpoint_url="http://127.0.0.1:9", aws_access_key_id="key", aws_secret_access_key="secret")
        client = connect(options, "bucket").client
        known = client.meta.method_to_api_mapping
        assert KNOWN == set(known.values())
        assert "list_parts" in called
        assert set() == called - known.keys()
        client.close()

    def test_clients_do_not_lengthen_the_list_of_folders_that_they_share(self) -> None:
        """A boto3 session adds its own folder to the loader of models that it finds."""
        options = S3Options(endpoint_url="http://127.0.0.1:9", aws_access_key_id="key", aws_secret_access_key="secret")
        lengths = []
        for _ in range(3):
            connection = connect(options, "bucket")
            lengths.append(len(connection.client._loader.search_paths))  # type: ignore[attr-defined]
            connection.close()
        assert lengths[:1] * 3 == lengths

    def test_unknown_option_names_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match=r" endpoint for s3.*endpoint_url.*profile, .*region"):
            S3Store(parse_uri("s3://bucket"), {"endpoint": "http://127.0.0.1"})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("addressing_style", "dns"),
            ("anonymous", "yes"),
            ("connect_timeout_s", 0),
            ("read_timeout_s", "60"),
            ("max_connections", 1.5),
            ("max_connections", True),
            ("region", 1),
            ("verify", "/no/such/file"),
            ("endpoint_url", "127.0.0.1:8333"),
            ("endpoint_url", "https://user:secret@host"),
            ("aws_secret_access_key", "secret"),
            ("aws_access_key_id", b"secret"),
        ],
    )
    def test_wrong_option_is_named_and_no_secret_is(self, name: str, value: object) -> None:
        with pytest.raises(ConfigError, match=name) as caught:
            S3Store(parse_uri("s3://bucket"), {name: value})
        assert "secret" not in str(caught.value).replace("aws_secret_access_key", "")

    def test_secrets_are_in_no_repr(self) -> None:
        keys = {"aws_access_key_id": "hidden1", "aws_secret_access_key": "hidden2", "aws_session_token": "hidden3"}
        with S3Store(parse_uri("s3://bucket"), keys) as store:
            assert "hidden" not in repr(store) + repr(vars(store))

    def test_unknown_profile_is_a_wrong_setting(self) -> None:
        with pytest.raises(ConfigError, match="nobody"):
            S3Store(parse_uri("s3://bucket"), {"profile": "nobody"})

    @pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"])
    def test_environment_alone_is_enough(
        self, juicefs_server: S3Server, monkeypatch: pytest.MonkeyPatch, prefix: str, file: Path, variable: str
    ) -> None:
        monkeypatch.setenv(variable, juicefs_server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", juicefs_server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", juicefs_server.secret_key)
        with S3Store(StoreURI("s3", juicefs_server.bucket), {}) as store:
            store.put_file(prefix, file)
            assert store.head(prefix).size_bytes == 10


class TestTLS:
    def test_certificate_of_another_authority_is_refused(self, seaweedfs_tls: S3Server, tmp_path: Path, file: Path) -> None:
        other = tls.make_certificates(tmp_path)
        for verify in (str(other.authority), True):
            with store_of(seaweedfs_tls, verify=verify) as store, pytest.raises(PermanentError) as caught:
                store.put_file("key", file)
            assert "certificate" in caught.value.message
            assert "'verify'" in caught.value.hint

    def test_plain_http_to_a_tls_port_is_an_error_not_a_hang(self, seaweedfs_tls: S3Server) -> None:
        url = seaweedfs_tls.url.replace("https", "http")
        with store_of(seaweedfs_tls, endpoint_url=url, read_timeout_s=30) as store, pytest.raises(StoreError):
            store.head("key")


class TestParts:
    def test_parts_are_exact_and_outlive_the_store(self, server: S3Server, prefix: str, tmp_path: Path) -> None:
        data = random.Random(1).randbytes(11 * MIB + 5)
        path = tmp_path / "large"
        path.write_bytes(data)
        cuts = [0, 5 * MIB, 11 * MIB, len(data)]
        parts = [Part(n, a, b, crc32c(data[a:b])) for n, (a, b) in enumerate(itertools.pairwise(cuts), 1)]
        metadata = {"wherry-token": "one"}
        with store_of(server) as store:
            upload_id = store.begin(prefix, len(data), PutOptions(crc32c=crc32c(data), metadata=metadata))
            sent = [store.put_part(prefix, upload_id, path, part) for part in (parts[2], parts[0])]
        with store_of(server) as store:  # as after a crash
            held = store.list_parts(prefix, upload_id)
            assert [(1, 5 * MIB), (3, 5)] == [(part.number, part.size_bytes) for part in held]
            assert {part.etag for part in sent} == {part.etag for part in held}
            sent.append(store.put_part(prefix, upload_id, path, parts[1]))
            meta = store.complete(prefix, upload_id, sent, PutOptions(crc32c=crc32c(data), metadata=metadata))
            found = store.head(prefix)
            assert (len(data), "one", meta.etag) == (found.size_bytes, found.token, found.etag)
            assert meta.crc32c == (crc32c(data) if store.capabilities.checks_crc32c else None)
            with pytest.raises(NotFoundError):
                store.list_parts(prefix, upload_id)

    def test_server_that_ignores_checksums_is_found_out(self, juicefs_server: S3Server, prefix: str, file: Path) -> None:
        """Also by a store that was told better of it: a server may be updated."""
        for attempt in ("put", "parts"):
            with store_of(juicefs_server) as store:
                store.assume(AMAZON.as_dict())
                assert store.capabilities.checks_crc32c
                if attempt == "put":
                    meta = store.put_file(prefix, file, PutOptions(crc32c=crc32c(b"0123456789")))
                else:
                    upload_id = store.begin(prefix, 10, PutOptions(crc32c=crc32c(b"0123456789")))
                    part = store.put_part(prefix, upload_id, file, Part(1, 0, 10, crc32c(b"0123456789")))
                    meta = store.complete(prefix, upload_id, [part], PutOptions(crc32c=crc32c(b"0123456789")))
                assert meta.crc32c is None
                assert not store.capabilities.checks_crc32c

    def test_server_that_keeps_checksums_is_believed(self, seaweedfs_tls: S3Server, prefix: str, file: Path) -> None:
        with store_of(seaweedfs_tls) as store:
            assert (
                store.put_file(prefix, file, PutOptions(crc32c=crc32c(b"0123456789"))).crc32c is None
            )  # not as long as nothing is known
            store.probe(prefix)
            assert crc32c(b"0123456789") == store.put_file(prefix, file, PutOptions(crc32c=crc32c(b"0123456789"))).crc32c
            assert store.capabilities.checks_crc32c

    def test_wrong_checksum_of_the_whole_is_an_integrity_error(self, seaweedfs_server: S3Server, prefix: str, file: Path) -> None:
        with store_of(seaweedfs_server) as store:
            upload_id = store.begin(prefix, 10, PutOptions(crc32c=1))
            part = store.put_part(prefix, upload_id, file, Part(1, 0, 10, crc32c(b"0123456789")))
            with pytest.raises(IntegrityError):
                store.complete(prefix, upload_id, [part], PutOptions(crc32c=1))
            store.abort(prefix, upload_id)


class TestLaxServer:
    def test_without_conditional_writes_the_name_is_looked_up_first(
        self, juicefs_server: S3Server, prefix: str, file: Path
    ) -> None:
        with store_of(juicefs_server, conditional_writes=False) as store:
            store.put_file(prefix, file, PutOptions(if_absent=True))
            with pytest.raises(AlreadyExistsError):
                store.put_file(prefix, file, PutOptions(if_absent=True))
            upload_id = store.begin(prefix, 10)
            part = store.put_part(prefix, upload_id, file, Part(1, 0, 10, 0))
            with pytest.raises(AlreadyExistsError):
                store.complete(prefix, upload_id, [part], PutOptions(if_absent=True))
            store.abort(prefix, upload_id)
            assert not store.capabilities.conditional_put


class TestList:
    #: More than a page of 100, in three folders whose order is not that of their names.
    NAMES = sorted(f"pages/{run}{n:04d}" for run in ("run-", "run/", "run.") for n in range(35))
    filled: ClassVar[set[str]] = set()

    def test_pages_join_without_gaps_in_the_order_of_keys(self, server: S3Server, file: Path) -> None:
        with store_of(server) as store:
            ask_for_pages_of(store, 100)
            if server.access_key not in self.filled:  # the names are put once for both ways, and with and without TLS
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(lambda key: store.put_file(key, file), self.NAMES))
                self.filled.add(server.access_key)
            assert self.NAMES == [meta.key for meta in store.list("pages/")]


@dataclass(frozen=True)
class Answer:
    """One answer of a scripted server. `missing_bytes`: announced and never sent."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    missing_bytes: int = 0


def error(status: int, code: str, message: str = "as scripted", **headers: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


class Scripted:
    """A server that gives its answers in order, and says what it was asked."""

    def __init__(self, url: str, sdk_only: bool) -> None:
        self.url = url
        self.sdk_only = sdk_only
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def options(self) -> dict[str, object]:
        return {
            "endpoint_url": self.url,
            "aws_access_key_id": "KEY",
            "aws_secret_access_key": "SECRET",
            "sdk_only": self.sdk_only,
        }

    def store(self, *answers: Answer, **options: object) -> S3Store:
        """A store that takes this server for one that honours all."""
        self.answers.extend(answers)
        store = S3Store(StoreURI("s3", "bucket"), {**self.options, **options})
        store.assume(AMAZON.as_dict())
        return store


@pytest.fixture
def scripted(sdk_only: bool) -> Iterator[Scripted]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            size_bytes = int(self.headers.get("Content-Length", 0))
            if len(self.rfile.read(size_bytes)) < size_bytes:  # a body that is cut asks for nothing
                self.close_connection = True
                return
            script.asked.append((self.command, self.path))
            script.headers.append(dict(self.headers))
            given = script.answers.pop(0)
            self.send_response_only(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(given.body) + given.missing_bytes))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)
            self.close_connection = given.missing_bytes > 0

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        script = Scripted(f"http://127.0.0.1:{http.server_address[1]}", sdk_only)
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield script
        http.shutdown()
        thread.join()


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (error(403, "AccessDenied"), AccessDeniedError),
            (error(401, "Unauthorized"), AccessDeniedError),
            (error(404, "NoSuchKey"), NotFoundError),
            (error(404, "NoSuchUpload"), NotFoundError),
            (error(404, "NoSuchBucket"), BucketNotFoundError),
            (error(412, "PreconditionFailed"), AlreadyExistsError),
            (error(409, "ConditionalRequestConflict"), TransientError),
            (error(400, "RequestTimeout"), TransientError),
            (error(500, "InternalError"), TransientError),
            (error(502, "BadGateway"), TransientError),
            (Answer(504, b"<html>not S3 at all</html>"), TransientError),
            (error(503, "SlowDown"), ThrottledError),
            (error(503, "ServiceUnavailable"), ThrottledError),
            (error(429, "TooManyRequests"), ThrottledError),
            (error(400, "ThrottlingException"), ThrottledError),
            (error(400, "InvalidArgument"), PermanentError),
            (error(403, "ExpiredToken"), CredentialsExpiredError),
            (error(400, "ExpiredToken"), CredentialsExpiredError),
        ],
    )
    def test_answer_becomes_our_error_after_one_attempt(
        self, scripted: Scripted, file: Path, answer: Answer, expected: type[StoreError]
    ) -> None:
        # An unsigned body that is denied is tried once signed; one that is refused for no reason that we know, with its MD5.
        is_signed_then = expected is AccessDeniedError and answer.status == 403 and not scripted.sdk_only
        n_asked = 2 if is_signed_then or expected is PermanentError else 1
        with scripted.store(*[answer] * n_asked) as store, pytest.raises(StoreError) as caught:
            store.put_file("key", file, PutOptions(if_absent=True))
        assert expected is type(caught.value)
        assert caught.value.__cause__ is not None
        assert "put s3://bucket/key" in str(caught.value)
        assert n_asked == len(scripted.asked)

    @pytest.mark.parametrize(
        ("code", "status", "hint"),
        [
            ("RequestTimeTooSkewed", 403, "clock"),
            ("NotImplemented", 501, "conditional_writes=False"),
            ("AuthorizationHeaderMalformed", 400, "'region'"),
        ],
    )
    def test_permanent_error_says_the_next_step(self, scripted: Scripted, file: Path, code: str, status: int, hint: str) -> None:
        with scripted.store(error(status, code), error(status, code)) as store, pytest.raises(PermanentError) as caught:
            store.put_file("key", file)
        assert hint in caught.value.hint

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({}, None),
            ({"Retry-After": "7"}, 7.0),
            ({"Retry-After": "Wed, 21 Oct 2015 07:28:09 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 9.0),
            ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
            ({"Retry-After": "soon"}, None),
        ],
    )
    def test_retry_after_is_seconds_or_a_date_of_the_servers_clock(
        self, scripted: Scripted, headers: dict[str, str], expected: float | None
    ) -> None:
        slow = error(503, "SlowDown", **headers)
        with scripted.store(slow) as store, pytest.raises(ThrottledError) as caught:
            next(store.list())
        assert expected == caught.value.retry_after_s

    def test_refused_head_is_denied_in_the_words_of_a_get(self, scripted: Scripted) -> None:
        denied = error(403, "AccessDenied", "no, not you")
        with scripted.store(Answer(403), denied) as store, pytest.raises(AccessDeniedError, match="no, not you"):
            store.head("key")
        assert [("HEAD", "/bucket/key"), ("GET", "/bucket/key")] == scripted.asked

    def test_object_that_comes_between_head_and_get_is_described(self, scripted: Scripted) -> None:
        with scripted.store(Answer(404), Answer(200, b"xy", {"ETag": '"1"', "x-amz-meta-Wherry-Token": "t"})) as store:
            found = store.head("key")
        assert (2, "1", "t") == (found.size_bytes, found.etag, found.token)

    def test_error_in_a_200_answer_is_an_error(self, scripted: Scripted) -> None:
        with scripted.store(error(200, "InternalError")) as store, pytest.raises(TransientError, match="InternalError"):
            store.complete("key", "id", [])

    @pytest.mark.parametrize("end", [None, 10])
    def test_truncated_answer_is_transient(self, scripted: Scripted, file: Path, end: int | None) -> None:
        range_header = {} if end is None else {"Content-Range": "bytes 0-9/10"}
        answer = Answer(200 if end is None else 206, b"ABC", range_header, missing_bytes=7)
        with scripted.store(answer) as store, pytest.raises(TransientError):
            store.get_file("key", file, end=end)

    @pytest.mark.parametrize(("start", "end"), [(0, 4), (3, 7), (6, None), (9, 10)])
    def test_server_that_ignores_range_gives_the_right_bytes(
        self, scripted: Scripted, tmp_path: Path, start: int, end: int | None
    ) -> None:
        target = tmp_path / "target"
        target.write_bytes(b"..........")
        with scripted.store(Answer(200, b"0123456789")) as store:
            store.get_file("key", target, start=start, end=end)
        stop = 10 if end is None else end
        assert b"." * start + b"0123456789"[start:stop] + b"." * (10 - stop) == target.read_bytes()

    @pytest.mark.parametrize("answered", ["bytes 5-8/10", "bytes 0-3/3", "pages 1-2/3"])
    def test_answer_with_other_bytes_than_asked_for_is_an_error(self, scripted: Scripted, file: Path, answered: str) -> None:
        with scripted.store(Answer(206, b"ABCD", {"Content-Range": answered})) as store, pytest.raises(StoreError):
            store.get_file("key", file, start=0, end=4)
        assert file.read_bytes() == b"0123456789"

    def test_more_bytes_than_asked_for_are_an_error(self, scripted: Scripted, file: Path) -> None:
        answer = Answer(206, b"ABCDEFGH", {"Content-Range": "bytes 0-3/10"})
        with scripted.store(answer) as store, pytest.raises(IntegrityError):
            store.get_file("key", file, start=0, end=4)
        assert file.read_bytes()[4:] == b"456789"

    def test_bytes_that_changed_on_the_way_are_sent_again(self, scripted: Scripted, file: Path) -> None:
        with scripted.store(error(400, "BadDigest"), error(400, "BadDigest")) as store:
            with pytest.raises(TransientError):
                store.put_file("key", file, PutOptions(crc32c=crc32c(b"0123456789")))
            with pytest.raises(IntegrityError):
                store.put_file("key", file, PutOptions(crc32c=1))

    @pytest.mark.parametrize("size", [10, 3 * MIB])
    def test_file_that_is_cut_meanwhile_is_an_integrity_error(self, scripted: Scripted, tmp_path: Path, size: int) -> None:
        path = tmp_path / "cut"
        path.write_bytes(bytes(size))
        with scripted.store() as store, pytest.raises(IntegrityError, match="early"):
            store.put_part("key", "id", path, Part(1, 5, size + 1, 0))
        assert scripted.asked == []

    def test_small_body_is_sent_without_asking_first(self, scripted: Scripted, tmp_path: Path) -> None:
        """A large one asks (Expect: 100-continue), so that a refused one is not sent in vain."""
        path = tmp_path / "body"
        with scripted.store(*[Answer(200, headers={"ETag": '"e"'})] * 3) as store:
            for size in (0, MIB, MIB + 1):
                path.write_bytes(bytes(size))
                store.put_file("key", path)
        assert [False, False, True] == ["Expect" in sent for sent in scripted.headers]

    def test_silent_server_is_transient(self, file: Path) -> None:
        with socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            options = {"endpoint_url": f"http://127.0.0.1:{listening.getsockname()[1]}", "read_timeout_s": 0.2}
            keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
            with S3Store(StoreURI("s3", "bucket"), {**options, **keys}) as store, pytest.raises(TransientError):
                store.put_file("key", file)


def created(upload_id: str, **headers: str) -> Answer:
    body = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>".encode()
    return Answer(200, body, {name.replace("_", "-"): value for name, value in headers.items()})


class TestBegin:
    def test_server_that_refuses_checksums_gets_plain_parts(self, scripted: Scripted, file: Path) -> None:
        answers = (error(400, "InvalidRequest"), created("two"), Answer(200, headers={"ETag": '"e"'}))
        with scripted.store(*answers) as store:
            upload_id = store.begin("key", 10, PutOptions(crc32c=1))
            store.put_part("key", upload_id, file, Part(1, 0, 10, 1))
        assert upload_id == "two"
        assert "x-amz-checksum-algorithm" in scripted.headers[0]
        assert not [name for sent in scripted.headers[1:] for name in sent if "checksum" in name.lower()]

    def test_upload_with_a_checksum_of_checksums_is_given_up(self, scripted: Scripted) -> None:
        composite = created("one", x_amz_checksum_algorithm="CRC32C", x_amz_checksum_type="COMPOSITE")
        with scripted.store(composite, Answer(204), created("two")) as store:
            assert store.begin("key", 10, PutOptions(crc32c=1)) == "two"
        assert ("DELETE", "/bucket/key?uploadId=one") == scripted.asked[1]

    def test_no_checksum_is_sent_where_none_is_wanted(self, scripted: Scripted, file: Path) -> None:
        with scripted.store(created("one"), Answer(200, headers={"ETag": '"e"'}), checksums=False) as store:
            store.begin("key", 10, PutOptions(crc32c=1))
            store.put_file("key", file, PutOptions(crc32c=crc32c(b"0123456789")))
        assert not [name for sent in scripted.headers for name in sent if "checksum" in name.lower()]


class TestCredentials:
    def test_expired_ones_from_a_file_are_read_anew(
        self, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
    ) -> None:
        keys = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
        keys.write_text("[default]\naws_access_key_id=OLD\naws_secret_access_key=x\n")
        scripted.answers = [error(400, "ExpiredToken"), Answer(200, headers={"ETag": '"e"'})]
        with S3Store(StoreURI("s3", "bucket"), {"endpoint_url": scripted.url}) as store:
            with pytest.raises(TransientError, match="read anew"):
                store.put_file("key", file)
            keys.write_text("[default]\naws_access_key_id=NEW\naws_secret_access_key=x\n")
            store.put_file("key", file)
        assert ["OLD", "NEW"] == [sent["Authorization"].split("Credential=")[1][:3] for sent in scripted.headers]

    def test_expired_ones_from_the_options_are_final(self, scripted: Scripted, file: Path) -> None:
        with scripted.store(error(400, "ExpiredToken")) as store, pytest.raises(AccessDeniedError, match="supply new ones"):
            store.put_file("key", file)
