"""What GCSStore does beyond the contract's laws: on the strict server, and against servers that fail as scripted."""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import threading
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import Answer, CutAnswer, Extend, When, fault_proxy
from servers.real import Server, tls_terminator
from servers.tls import make_certificates
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ClockSkewedError,
    ConfigError,
    CredentialsExpiredError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, Part, PutOptions, StoredPart
from wherry.store.registry import backend_for, open_store
from wherry.uri import StoreURI


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


def open_gcs(server: GCSServer, bucket: str | None = None, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", bucket or server.bucket), {**server.options, **options})


@pytest.fixture
def store(server: GCSServer) -> Iterator[GCSStore]:
    with open_gcs(server) as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"some bytes")
    return path


def verbs(key: str, path: Path) -> dict[str, Callable[[GCSStore], object]]:
    """Each call of the contract, on an object or an upload that is not there."""
    return {
        "put": lambda store: store.put_file(key, path),
        "get": lambda store: store.get_file(key, path),
        "head": lambda store: store.head(key),
        "list": lambda store: list(store.list(key)),
        "delete": lambda store: store.delete(key),
        "begin": lambda store: store.begin(key, 1),
        "put_part": lambda store: store.put_part(key, "0" * 32, path, Part(1, 0, 10, crc32c(b"some bytes"))),
        "list_parts": lambda store: store.list_parts(key, "0" * 32),
        "complete": lambda store: store.complete(key, "0" * 32, [StoredPart(1, 1, "1")]),
        "abort": lambda store: store.abort(key, "0" * 32),
        "list_uploads": lambda store: list(store.list_uploads(key)),
    }


VERBS = tuple(verbs("", Path()))


# Servers that fail as scripted.


@dataclass
class Script:
    """A server that gives each request the next answer (the last one again and again), or none; and what it was asked."""

    answers: list[tuple[int, Mapping[str, str], bytes] | None]
    url: str = ""
    asked: list[tuple[str, str, str, bytes]] = field(default_factory=list)


@contextmanager
def scripted(*answers: tuple[int, Mapping[str, str], bytes] | None) -> Iterator[Script]:
    script, released = Script(list(answers)), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.asked.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            self.close_connection = True
            if answer is None:
                released.wait(60)
                return
            status, headers, text = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_request(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield script
        finally:
            released.set()
            server.shutdown()
            thread.join()


def refusal(status: int, reason: str = "invalid", message: str = "the server's own words", **headers: str) -> Any:
    item = {"message": message, "domain": "global", "reason": reason}
    body = json.dumps({"error": {"code": status, "message": message, "errors": [item]}}).encode()
    return status, {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}, body


def anonymous(url: str, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", "bucket"), {"endpoint_url": url, "anonymous": True, **options})


# Options.


def test_options_are_those_that_the_registry_knows() -> None:
    entry = backend_for("gs")
    with pytest.raises(ConfigError) as raised:
        GCSStore(StoreURI("gs", "bucket"), {"tokn": "secret-token", "retries": 3})
    assert entry.secret_options is not None
    known = ", ".join(sorted(entry.public_options | entry.secret_options))
    assert f"unknown storage option(s) retries, tokn for gs://: known are {known}" == str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "localhost:4443"},
        {"endpoint_url": ""},
        {"endpoint_url": "https://user:secret@host"},
        {"endpoint_url": "https://host/path?token=secret"},
        {"upload": "resumable"},
        {"upload": True},
        {"timeout_s": 0},
        {"timeout_s": True},
        {"max_connections": 0},
        {"max_connections": 1.5},
        {"verify": "/no/such/file.pem"},
        {"verify": 1},
        {"anonymous": "yes"},
        {"token": "secret-token", "anonymous": True},
        {"token": 5},
        {"credentials_json": "{secret"},
        {"credentials_json": '["secret"]'},
        {"credentials_json": {"type": "service_account", "private_key": "secret"}},
        {"credentials_json": {"type": "authorized_user", "refresh_token": "hunter2"}},
        {"credentials_json": {"type": "external_account", "url": "secret"}},
        {"credentials_file": "/no/such/key.json"},
    ],
)
def test_wrong_options_are_refused_without_showing_secrets(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        GCSStore(StoreURI("gs", "bucket"), options)
    name = "token" if len(options) > 1 else next(iter(options))
    assert name in str(raised.value)
    assert not any(secret in str(raised.value).replace("client_secret", "") for secret in ("secret", "hunter2"))
    assert raised.value.__cause__ is None or isinstance(raised.value.__cause__, OSError)


def test_emulator_host_is_honoured(fake_gcs_server: Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake_gcs_server.url)
    with open_store(StoreURI("gs", fake_gcs_server.bucket)) as store:
        store.put_file("emulated/object", source)
        assert ["emulated/object"] == [meta.key for meta in store.list("emulated/")]


def test_verify_wins_over_the_environment(
    server: GCSServer, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(make_certificates(tmp_path / "other").authority))
    with tls_terminator(server.port, tmp_path) as (url, authority):
        with open_gcs(server, endpoint_url=url, verify=str(authority)) as store:
            store.put_file("tls/object", source)
            assert store.head("tls/object").size_bytes == 10
        with open_gcs(server, endpoint_url=url) as store, pytest.raises(PermanentError, match=r"not trusted.*verify"):
            store.head("tls/object")


# Credentials.


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_token_is_access_denied(server: GCSServer, source: Path, verb: str) -> None:
    with open_gcs(server, token="wrong-token") as store:
        with pytest.raises(AccessDeniedError, match=r"401 Invalid Credentials.*GOOGLE_APPLICATION_CREDENTIALS") as raised:
            verbs("denied/object", source)[verb](store)
        assert (verb, "wrong-token" in str(raised.value)) == (raised.value.operation, False)
        assert "wrong-token" not in repr(store)
    assert set() == server.names("denied/")


@pytest.mark.parametrize("verb", VERBS)
def test_forbidden_is_access_denied_and_never_not_found(server: GCSServer, source: Path, verb: str) -> None:
    with open_gcs(server, token=server.forbidden_token) as store, pytest.raises(AccessDeniedError, match="403 nobody@example"):
        verbs("denied/object", source)[verb](store)


def test_anonymous_is_access_denied_with_the_servers_words(server: GCSServer) -> None:
    with anonymous(server.url) as store, pytest.raises(AccessDeniedError, match="401 Anonymous caller does not have"):
        store.head("object")


def test_no_credentials_is_access_denied_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with GCSStore(StoreURI("gs", "bucket"), {}) as store, pytest.raises(AccessDeniedError, match="gcloud auth") as raised:
        store.head("object")
    assert raised.value.operation == "head"


def key_file(token_url: str) -> dict[str, str]:
    """A service account's key file, with a new key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "test@example.com", "private_key_id": "1"}
    return {**account, "private_key": pem.decode(), "token_uri": f"{token_url}/token"}


def issued(token: str) -> Any:
    body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"}).encode()
    return 200, {"Content-Type": "application/json"}, body


@pytest.mark.parametrize("form", ["file", "text", "dict"])
def test_refused_token_is_renewed_and_the_body_sent_again(server: GCSServer, source: Path, tmp_path: Path, form: str) -> None:
    with scripted(issued("an-old-token"), issued(server.token)) as issuer:
        key = key_file(issuer.url)
        (tmp_path / "key.json").write_text(json.dumps(key))
        options: dict[str, object] = {
            "file": {"credentials_file": str(tmp_path / "key.json")},
            "text": {"credentials_json": json.dumps(key)},
            "dict": {"credentials_json": key},
        }[form]  # type: ignore[assignment]  # each value is such a dict
        with GCSStore(StoreURI("gs", server.bucket), {"endpoint_url": server.url, **options}) as store:
            stored = store.put_file(f"renewed/{form}", source, PutOptions(crc32c=crc32c(b"some bytes"), if_absent=True))
            assert (10, crc32c(b"some bytes")) == (stored.size_bytes, store.head(f"renewed/{form}").crc32c)
        assert len(issuer.asked) == 2


def test_refused_key_is_access_denied(server: GCSServer) -> None:
    body = json.dumps({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}).encode()
    with scripted((400, {"Content-Type": "application/json"}, body)) as issuer:
        options = {"endpoint_url": server.url, "credentials_json": key_file(issuer.url)}
        with (
            GCSStore(StoreURI("gs", server.bucket), options) as store,
            pytest.raises(AccessDeniedError, match="not renewed: invalid_grant"),
        ):
            store.head("object")


# The table of errors.


@pytest.mark.parametrize("verb", VERBS)
def test_missing_bucket_is_told_from_a_missing_object(server: GCSServer, store: GCSStore, source: Path, verb: str) -> None:
    with open_gcs(server, "no-such-bucket") as nowhere, pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        verbs("object", source)[verb](nowhere)
    if verb in ("get", "head", "list_parts", "complete"):
        with pytest.raises(NotFoundError) as raised:
            verbs("absent/object", source)[verb](store)
        assert not isinstance(raised.value, BucketNotFoundError)


def test_vague_404_is_looked_into_once(source: Path) -> None:
    """Google may say "No such object" of a missing bucket."""
    vague = refusal(404, "notFound", "No such object: bucket/object")
    not_there = refusal(404, "notFound", "Not Found")
    with scripted(vague, not_there) as script, anonymous(script.url) as store, pytest.raises(BucketNotFoundError):
        store.head("object")
    page = (200, {"Content-Type": "application/json"}, b'{"kind": "storage#objects"}')
    with scripted(vague, page, vague) as script, anonymous(script.url) as store:
        for _ in range(3):
            with pytest.raises(NotFoundError) as raised:
                store.head("object")
            assert not isinstance(raised.value, BucketNotFoundError)
        assert len(script.asked) == 4
    with scripted(vague, refusal(403, "forbidden")) as script, anonymous(script.url) as store:
        with pytest.raises(NotFoundError) as raised:
            store.head("object")
        assert not isinstance(raised.value, BucketNotFoundError)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(500, "backendError"), TransientError),
        (refusal(502), TransientError),
        (refusal(503, "backendError"), TransientError),
        (refusal(408), TransientError),
        (refusal(409, "conflict"), TransientError),
        (refusal(429, "rateLimitExceeded", Retry_After="7"), ThrottledError),
        (refusal(503, Retry_After="7"), ThrottledError),
        (refusal(403, "userRateLimitExceeded", Retry_After="7"), ThrottledError),
        (refusal(403, "forbidden"), AccessDeniedError),
        (refusal(401, "authError"), CredentialsExpiredError),
        (refusal(400), PermanentError),
        (refusal(413), PermanentError),
        ((502, {"Content-Type": "text/html"}, b"<html>the server's own words"), TransientError),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_statuses_become_our_errors_without_a_second_request(
    source: Path, answer: Any, kind: type[StoreError], verb: str
) -> None:
    with scripted(answer) as script, anonymous(script.url) as store:
        with pytest.raises(StoreError, match="the server's own words") as raised:
            verbs("folder/object", source)[verb](store)
        assert (kind, verb, "gs://bucket/folder/object") == (type(raised.value), raised.value.operation, raised.value.uri)
        assert raised.value.__cause__ is not None
        assert (None if kind is not ThrottledError else 7.0) == getattr(raised.value, "retry_after_s", None)
        assert 1 == len(script.asked)


def test_retry_after_may_be_a_date() -> None:
    for text, low, high in ((formatdate(time() + 100, usegmt=True), 90, 101), (formatdate(0, usegmt=True), 0, 0)):
        with scripted(refusal(429, Retry_After=text)) as script, anonymous(script.url) as store:
            with pytest.raises(ThrottledError) as raised:
                store.head("object")
            assert raised.value.retry_after_s is not None
            assert low <= raised.value.retry_after_s <= high
    with scripted(refusal(429, Retry_After="soon")) as script, anonymous(script.url) as store:
        with pytest.raises(ThrottledError) as raised:
            store.head("object")
        assert raised.value.retry_after_s is None


@pytest.mark.parametrize("verb", VERBS)
def test_closed_port_is_transient(source: Path, verb: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        with anonymous(f"http://127.0.0.1:{taken.getsockname()[1]}") as store, pytest.raises(TransientError):
            verbs("object", source)[verb](store)


@pytest.mark.parametrize("verb", VERBS)
def test_silent_server_is_cut_and_named(source: Path, verb: str) -> None:
    with scripted(None) as script, anonymous(script.url, timeout_s=0.2) as store:
        with pytest.raises(TransientError) as raised:
            verbs("folder/object", source)[verb](store)
        words = f"{verb} gs://bucket/folder/object: no byte for 0.2 s to or from {script.url}"
        assert (words, 1) == (str(raised.value), len(script.asked))


def test_stalled_send_is_cut_and_named(tmp_path: Path) -> None:
    """The server takes the connection, and reads nothing of what is more than the kernel keeps for it."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(64 * 2**20)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with anonymous(url, timeout_s=0.3) as store:
            part = Part(1, 0, 64 * 2**20, 0)
            for verb, call in (
                ("put", lambda: store.put_file("large", tmp_path / "large")),
                ("put_part", lambda: store.put_part("large", "0" * 32, tmp_path / "large", part)),
            ):
                with pytest.raises(TransientError) as raised:
                    call()
                assert f"{verb} gs://bucket/large: no byte for 0.3 s to or from {url}" == str(raised.value)


def test_stalled_read_is_cut_and_named(server: GCSServer, store: GCSStore, tmp_path: Path) -> None:
    path, target = tmp_path / "source", tmp_path / "target"
    path.write_bytes(bytes(3 * 2**20))
    target.touch()
    store.put_file("stalled/object", path)
    plan = [When("GET", "^/download/", CutAnswer(after_bytes=2**20, end="hang"))]
    with fault_proxy("127.0.0.1", server.port, plan) as proxy:
        with open_gcs(server, endpoint_url=proxy.url, timeout_s=0.3) as stalled, pytest.raises(TransientError) as raised:
            stalled.get_file("stalled/object", target)
        assert f"no byte for 0.3 s to or from {proxy.url}" in str(raised.value)


def test_clock_that_is_off_is_told_as_such(server: GCSServer) -> None:
    words = "Invalid JWT: Token must be short-lived and in a reasonable timeframe. Check your iat and exp values."
    body = json.dumps({"error": "invalid_grant", "error_description": words}).encode()
    with scripted((400, {"Content-Type": "application/json"}, body)) as issuer:
        options = {"endpoint_url": server.url, "credentials_json": key_file(issuer.url)}
        with (
            GCSStore(StoreURI("gs", server.bucket), options) as store,
            pytest.raises(ClockSkewedError, match="clock that is off"),
        ):
            store.head("object")


@pytest.mark.parametrize("headers", [{"Content-Length": "20"}, {"Content-Length": "20", "Content-Encoding": "gzip"}])
def test_truncated_answer_is_transient(tmp_path: Path, headers: dict[str, str]) -> None:
    target = tmp_path / "target"
    target.touch()
    with scripted((200, headers, b"half of it")) as script, anonymous(script.url) as store:
        with pytest.raises(TransientError):
            store.get_file("object", target)
        assert 1 == len(script.asked)


def test_short_range_is_transient(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    answer = (206, {"Content-Range": "bytes 2-4/10"}, b"234")
    with scripted(answer) as script, anonymous(script.url) as store, pytest.raises(TransientError, match="bytes 2-4/10"):
        store.get_file("object", target, start=2, end=8)


def test_ignored_range_is_never_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    whole = {"X-Goog-Generation": "1"}
    for answer in ((200, whole, b"0123456789"), (206, {"Content-Range": "bytes 0-5/10"}, b"012345")):
        with scripted(answer) as script, anonymous(script.url) as store, pytest.raises(PermanentError):
            store.get_file("object", target, start=2, end=8)
    assert target.read_bytes() == b"untouched"


def test_an_answer_that_is_not_the_stores_is_transient_and_never_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    answer: tuple[int, dict[str, str], bytes] = (200, {}, b"<html>Log in</html>")
    with scripted(answer) as script, anonymous(script.url) as store, pytest.raises(TransientError, match="not the store's own"):
        store.get_file("object", target, start=2, end=8)
    assert target.read_bytes() == b"untouched"


def test_what_comes_beyond_a_range_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    answer = (206, {"Content-Range": "bytes 2-3/10"}, b"23456789")
    with scripted(answer) as script, anonymous(script.url) as store, pytest.raises(TransientError, match="8 bytes came"):
        store.get_file("object", target, start=2, end=4)
    assert target.read_bytes() == b"un23uched"


def test_stored_gzip_comes_back_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    with scripted((200, {"Content-Encoding": "gzip"}, b"\x1f\x8bas stored")) as script, anonymous(script.url) as store:
        store.get_file("object", target)
    assert target.read_bytes() == b"\x1f\x8bas stored"


def test_what_comes_beyond_the_end_of_a_whole_object_is_not_written(server: GCSServer, store: GCSStore, tmp_path: Path) -> None:
    path, target = tmp_path / "source", tmp_path / "target"
    path.write_bytes(b"0123456789")
    target.touch()
    store.put_file("extended/object", path)
    for rewrite, kind in ((True, IntegrityError), (False, None)):
        plan = [When("GET", "^/download/", Extend(rewrite_length=rewrite))]
        with fault_proxy("127.0.0.1", server.port, plan) as proxy, open_gcs(server, endpoint_url=proxy.url) as extended:
            if kind is None:
                extended.get_file("extended/object", target, end=10)
            else:
                with pytest.raises(TransientError, match="18 bytes came"):
                    extended.get_file("extended/object", target, end=10)
        assert target.read_bytes() == b"0123456789"


# Bad input.


@pytest.mark.parametrize("name", [".", "..", "a\nb", "a\rb", "x" * 1025, "ü" * 513, ".well-known/acme-challenge/x", ""])
def test_keys_that_gcs_forbids_are_refused_by_it_for_good(store: GCSStore, source: Path, name: str) -> None:
    for if_absent in (False, True):
        with pytest.raises(PermanentError, match="400") as raised:
            store.put_file(name, source, PutOptions(if_absent=if_absent))
        assert raised.value.operation == "put"


def test_keys_that_differ_by_unicode_form_are_two_objects(store: GCSStore, source: Path) -> None:
    names = [f"unicode/{unicodedata.normalize(form, 'käse')}" for form in ("NFC", "NFD")]
    for name in names:
        store.put_file(name, source, PutOptions(if_absent=True))
    assert sorted(names, key=str.encode) == [meta.key for meta in store.list("unicode/")]


@pytest.mark.parametrize("bucket", ["a.bucket.with.dots", "under_scores-and-1", "example.com"])
@pytest.mark.parametrize("upload", ["compose", "session"])
def test_buckets_with_dots_work(server: GCSServer, tmp_path: Path, bucket: str, upload: str) -> None:
    server.make_bucket(bucket)
    with open_gcs(server, bucket, upload=upload) as store:
        key = f"{upload}/object"
        upload_id, sent = send(store, key, tmp_path / "source", b"0123", 4)
        store.complete(key, upload_id, sent)
        assert [key] == [meta.key for meta in store.list(upload)]
        (tmp_path / "target").touch()
        store.get_file(key, tmp_path / "target")
        store.delete(key)
    assert set() == server.names(bucket=bucket)


def test_endpoint_may_have_a_path(source: Path) -> None:
    with scripted(refusal(503)) as script, anonymous(f"{script.url}/a/path/") as store:
        for verb, call in verbs("object", source).items():
            with pytest.raises(TransientError):
                call(store)
            assert script.asked[-1][1].startswith("/a/path/"), verb


def test_only_regular_files_are_sent_and_filled(store: GCSStore, source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store.put_file("regular/object", source)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        calls: tuple[Callable[[], object], ...] = (
            functools.partial(store.put_file, "regular/object", path),
            functools.partial(store.put_part, "regular/object", "0" * 32, path, Part(1, 0, 1, 0)),
            functools.partial(store.get_file, "regular/object", path),
        )
        for call in calls:
            with pytest.raises(PermanentError, match=r"no regular file|cannot be opened") as raised:
                call()
            assert not isinstance(raised.value, NotFoundError)


def test_sparse_file_arrives(store: GCSStore, tmp_path: Path) -> None:
    path, target = tmp_path / "sparse", tmp_path / "target"
    target.touch()
    with open(path, "wb") as file:
        file.seek(5 * 2**20)
        file.write(b"data")
        file.truncate(9 * 2**20)
    store.put_file("sparse/object", path, PutOptions(crc32c=crc32c(path.read_bytes())))
    store.get_file("sparse/object", target)
    assert path.read_bytes() == target.read_bytes()
    store.delete("sparse/object")


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129])
def test_sizes_about_a_part_arrive(store: GCSStore, tmp_path: Path, size: int) -> None:
    data, key = os.urandom(size), f"sizes/{size}"
    upload_id, sent = send(store, key, tmp_path / "source", data, 64)
    assert -(-size // 64) == len(sent)
    made = store.complete(key, upload_id, sent)
    assert (size, crc32c(data)) == (made.size_bytes, made.crc32c)
    store.delete(key)


# Puts and gets.


def test_wrong_checksum_leaves_the_old_object(server: GCSServer, store: GCSStore, source: Path, tmp_path: Path) -> None:
    before = store.put_file("checked/object", source, PutOptions(crc32c=crc32c(b"some bytes")))
    with pytest.raises(IntegrityError, match="doesn't match calculated"):
        store.put_file("checked/object", source, PutOptions(crc32c=crc32c(b"some bytes") ^ 1))
    assert before == store.head("checked/object")


def test_lax_server_cannot_keep_a_wrong_object(fake_gcs_server: Server, source: Path) -> None:
    options: dict[str, object] = {"endpoint_url": fake_gcs_server.url, "anonymous": True}
    with GCSStore(StoreURI("gs", fake_gcs_server.bucket), options) as store:
        with pytest.raises(IntegrityError, match="the server holds 10 bytes with CRC32C"):
            store.put_file("lax/object", source, PutOptions(crc32c=1))
        with pytest.raises(NotFoundError):
            store.head("lax/object")


def test_of_two_threads_one_wins(store: GCSStore, source: Path) -> None:
    start = threading.Barrier(2)

    def put(key: str) -> bool:
        start.wait(30)
        try:
            store.put_file(key, source, PutOptions(if_absent=True))
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for round_ in range(20):
            assert [False, True] == sorted(pool.map(put, [f"race/{round_}"] * 2))


def test_etag_is_the_generation(store: GCSStore, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    first = store.put_file("etag/object", source)
    assert first.etag is not None
    assert first.etag.isdigit()
    assert [first] == list(store.list("etag/"))
    store.get_file("etag/object", target, if_match=first.etag)
    store.put_file("etag/object", source)
    for etag, end in ((first.etag, None), (first.etag, 5), (first.etag, 0), ('"an md5"', 5)):
        with pytest.raises(IntegrityError):
            store.get_file("etag/object", target, end=end, if_match=etag)


def test_shrunken_file_stores_nothing(server: GCSServer, store: GCSStore, source: Path) -> None:
    upload_id = store.begin("shrunken/object", 20)
    with pytest.raises(IntegrityError, match="ends at byte 10, 20 were to be sent"):
        store.put_part("shrunken/object", upload_id, source, Part(1, 0, 20, 0))
    assert store.list_parts("shrunken/object", upload_id) == []
    store.abort("shrunken/object", upload_id)
    assert set() == server.names("shrunken/")


def test_files_are_never_whole_in_memory(store: GCSStore, tmp_path: Path) -> None:
    size = 48 * 2**20
    path, target = tmp_path / "large", tmp_path / "target"
    target.touch()
    with open(path, "wb") as file:
        file.truncate(size)
    store.put_file("warm/up", target)
    tracemalloc.start()
    try:
        store.put_file("large/object", path)
        store.get_file("large/object", target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (size, True) == (target.stat().st_size, peak < 8 * 2**20)
    store.delete("large/object")


def test_debug_logs_show_no_token(server: GCSServer, store: GCSStore, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        store.put_file("logged/object", source)
        store.head("logged/object")
    assert server.token not in caplog.text


# Parts.


def send(store: GCSStore, key: str, path: Path, data: bytes, size: int) -> tuple[str, list[StoredPart]]:
    path.write_bytes(data)
    upload_id = store.begin(key, len(data))
    ends = [(at, min(at + size, len(data))) for at in range(0, len(data), size)]
    parts = [Part(n, start, end, crc32c(data[start:end])) for n, (start, end) in enumerate(ends, 1)]
    with ThreadPoolExecutor(8) as pool:
        return upload_id, list(pool.map(lambda part: store.put_part(key, upload_id, path, part), parts))


@pytest.mark.parametrize("n_parts", [1, 2, 32, 33, 64, 1025])
def test_any_number_of_parts_is_composed_in_order(server: GCSServer, store: GCSStore, tmp_path: Path, n_parts: int) -> None:
    data = os.urandom(3 * n_parts - 1)
    key = f"composed-{n_parts}/object"
    upload_id, sent = send(store, key, tmp_path / "source", data, 3)
    assert sent == store.list_parts(key, upload_id)
    assert n_parts == len(sent)
    made = store.complete(
        key, upload_id, sent[::-1], PutOptions(if_absent=True, crc32c=crc32c(data), metadata={"wherry-token": "t"})
    )
    assert (len(data), crc32c(data), "t") == (made.size_bytes, made.crc32c, made.token)
    target = tmp_path / "target"
    target.touch()
    store.get_file(key, target, if_match=made.etag)
    assert data == target.read_bytes()
    assert {key} == server.names(f"composed-{n_parts}/")


def test_wrong_whole_never_takes_the_name(server: GCSServer, store: GCSStore, source: Path, tmp_path: Path) -> None:
    before = store.put_file("whole/object", source)
    data = os.urandom(100)
    for size in (1, 50, 100):
        upload_id, sent = send(store, "whole/object", tmp_path / "parts", data, size)
        with pytest.raises(IntegrityError, match=f"CRC32C {crc32c(data):08x}"):
            store.complete("whole/object", upload_id, sent, PutOptions(crc32c=crc32c(data) ^ 1))
        assert before == store.head("whole/object")
        assert sent == store.list_parts("whole/object", upload_id)
        store.abort("whole/object", upload_id)
        assert {"whole/object"} == server.names("whole/")


def test_part_sent_again_since_is_not_found(store: GCSStore, tmp_path: Path) -> None:
    for size in (4, 8):
        upload_id, sent = send(store, "again/object", tmp_path / "source", b"01234567", size)
        store.put_part("again/object", upload_id, tmp_path / "source", Part(1, 0, size, crc32c(b"01234567"[:size])))
        with pytest.raises(NotFoundError) as raised:
            store.complete("again/object", upload_id, sent)
        assert not isinstance(raised.value, BucketNotFoundError)
        store.complete("again/object", upload_id, store.list_parts("again/object", upload_id))


def test_refused_complete_keeps_the_parts(server: GCSServer, store: GCSStore, source: Path, tmp_path: Path) -> None:
    store.put_file("taken/object", source)
    upload_id, sent = send(store, "taken/object", tmp_path / "parts", b"01234567", 4)
    for _ in range(2):
        with pytest.raises(AlreadyExistsError):
            store.complete("taken/object", upload_id, sent, PutOptions(if_absent=True))
    assert sent == store.list_parts("taken/object", upload_id)
    store.complete("taken/object", upload_id, sent)
    assert {"taken/object"} == server.names("taken/")


def test_upload_without_parts_is_refused(store: GCSStore) -> None:
    upload_id = store.begin("nothing/object", 0)
    with pytest.raises(PermanentError):
        store.complete("nothing/object", upload_id, [])
    store.abort("nothing/object", upload_id)


def test_longest_keys_go_in_parts(server: GCSServer, store: GCSStore, tmp_path: Path) -> None:
    for letter in ("x", "ü"):
        key = "long/" + letter * ((1024 - 5) // len(letter.encode()))
        upload_id, sent = send(store, key, tmp_path / "source", b"01234567", 4)
        assert all(TEMPORARY_MARK in name for name in server.names("long/"))
        store.complete(key, upload_id, sent)
        assert {key} == server.names("long/")
        store.delete(key)


def test_uploads_of_the_longest_keys_are_listed_whole(server: GCSServer, store: GCSStore, tmp_path: Path) -> None:
    """Names of temporary objects have no room for them: their mark has the rest."""
    keys = [f"cut/{'x' * 1019}a", f"cut/{'x' * 1019}b", f"cut/{'ü' * 510}", "cut/short", f"cut/{'x' * 900}"]
    begun = {key: send(store, key, tmp_path / "source", b"01234567", 4)[0] for key in keys}
    assert begun == {upload.key: upload.upload_id for upload in store.list_uploads("cut/")}
    for key, upload_id in begun.items():
        found = [upload for upload in store.list_uploads(key) if upload.key == key]
        assert [upload_id] == [upload.upload_id for upload in found]
        store.abort(found[0].key, found[0].upload_id)
    assert set() == server.names("cut/")


def test_objects_that_merely_have_the_mark_are_nobodys_upload(server: GCSServer, store: GCSStore, source: Path) -> None:
    """Whatever a user has put there is neither listed as an upload nor deleted with one."""
    upload_id = store.begin("mark/key", 10, PutOptions(metadata={"wherry-token": "t"}))
    ours = f"mark/key{TEMPORARY_MARK}{upload_id}/"
    foreign = {
        f"mark/a{TEMPORARY_MARK}notes",
        f"mark/a{TEMPORARY_MARK}{'0' * 32}",
        f"mark/a{TEMPORARY_MARK}{'0' * 32}/notes.txt",
        f"mark/a{TEMPORARY_MARK}{'0' * 31}g/begun",
        f"mark/a{TEMPORARY_MARK}{'A' * 32}/00001",
        f"{ours}notes.txt",
        f"{ours}00001/x",
        f"{ours}join-0-1",
    }
    for name in foreign:
        store.put_file(name, source)
    assert [("mark/key", upload_id, True)] == [(up.key, up.upload_id, up.is_ours) for up in store.list_uploads("mark/")]
    for each in (upload_id, "0" * 32, "", "notes"):
        store.abort("mark/key", each)
        store.abort("mark/a", each)
    assert foreign == server.names("mark/")


def test_age_of_an_upload_is_that_of_its_newest_part(store: GCSStore, source: Path) -> None:
    upload_id = store.begin("age/key", 10)
    (begun,) = store.list_uploads("age/")
    store.put_part("age/key", upload_id, source, Part(1, 0, 10, crc32c(b"some bytes")))
    (later,) = store.list_uploads("age/")
    assert begun.begun_s < later.begun_s
    store.abort("age/key", upload_id)


def test_a_refused_condition_that_nobody_made_is_a_trouble_of_the_way(source: Path) -> None:
    with scripted(refusal(412)) as script, anonymous(script.url) as store:
        with pytest.raises(TransientError, match="412"):
            store.put_file("object", source)
        with pytest.raises(AlreadyExistsError, match="choose another name or allow overwriting"):
            store.put_file("object", source, PutOptions(if_absent=True))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(403), "403 "),
        (Answer(403, b"<html>no way</html>"), "403 <html>no way</html>"),
        (Answer(418), "418 "),
        (Answer(404, b'{"error": {"message": "The specified bucket does not exist."}}'), "The specified bucket does not exist"),
    ],
)
def test_an_error_names_the_server_that_says_it(server: GCSServer, source: Path, answer: Answer, words: str) -> None:
    with fault_proxy("127.0.0.1", server.port, [When("POST", "", answer, times=9)]) as proxy:
        with open_gcs(server, endpoint_url=proxy.url) as store, pytest.raises(PermanentError) as caught:
            store.put_file("named", source)
        assert words == caught.value.message[: len(words)]
        assert caught.value.message.endswith(f", says {proxy.url}")


def test_an_empty_object_without_a_size_is_empty() -> None:
    """Google's own testbench leaves a size of 0 out; an answer that leaves out more describes no object."""
    headers = {"Content-Type": "application/json"}
    empty = json.dumps({"name": "a", "generation": "1", "crc32c": "AAAAAA=="}).encode()
    full = json.dumps({"name": "a", "generation": "1", "crc32c": "AAAAAQ=="}).encode()
    with scripted((200, headers, empty), (200, headers, full)) as script, anonymous(script.url) as store:
        assert store.head("a").size_bytes == 0
        with pytest.raises(TransientError, match="does not describe"):
            store.head("a")
