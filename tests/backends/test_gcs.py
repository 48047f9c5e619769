"""What GCSStore does beyond the contract's laws: on the strict server, and against servers that fail as scripted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest

from gate import wait_until
from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import CutAnswer, Extend, When, fault_proxy
from servers.real import Server, tls_terminator
from servers.scripted_gcs import VERBS, anonymous, issued, key_file, open_gcs, refusal, scripted, verbs
from servers.tls import make_certificates
from servers.way import WAY
from servers.wire import say, wire
from wherry.backends.gcs.client import connect
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.gcs.store import GCSStore
from wherry.backends.tally import Tally
from wherry.checksum import crc32c
from wherry.errors import (
    AccessDeniedError,
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
from wherry.store import Part, PutOptions
from wherry.store.registry import backend_for, open_store
from wherry.uri import StoreURI

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(scope="module")
def server(way: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture
def store(server: GCSServer) -> Iterator[GCSStore]:
    with open_gcs(server) as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"some bytes")
    return path


# Options.


def test_options_are_those_that_the_registry_knows() -> None:
    entry = backend_for("gs")
    with pytest.raises(ConfigError) as raised:
        GCSStore(StoreURI("gs", "bucket"), {"tokn": "secret-token", "retries": 3})
    assert entry.secret_options is not None
    known = ", ".join(sorted(entry.public_options | entry.secret_options))
    assert f"unknown storage options retries, tokn for gs://: known are {known}" == str(raised.value)


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
        {"token": "secret-token", "anonymous": True, **WAY},
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


def test_an_emulators_host_without_a_scheme_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9023")
    with (
        GCSStore(StoreURI("gs", "bucket"), {}) as store,
        pytest.raises(ConfigError, match="STORAGE_EMULATOR_HOST"),
    ):
        store.head("object")


def test_the_universe_of_a_key_names_the_endpoint() -> None:
    key = {
        "type": "authorized_user",
        "client_id": "i",
        "client_secret": "s",
        "refresh_token": "r",
        "universe_domain": "example.goog",
    }
    connection = connect(GCSOptions(credentials_json=key), Tally())
    assert "https://storage.example.goog" == connection.endpoint
    connection.close()


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
        with GCSStore(StoreURI("gs", server.bucket), {"endpoint_url": server.url, **WAY, **options}) as store:
            stored = store.put_file(f"renewed/{form}", source, PutOptions(crc32c=crc32c(b"some bytes"), if_absent=True))
            assert (10, crc32c(b"some bytes")) == (stored.size_bytes, store.head(f"renewed/{form}").crc32c)
        assert len(issuer.asked) == 2


def test_refused_key_is_access_denied(server: GCSServer) -> None:
    body = json.dumps({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}).encode()
    with scripted((400, {"Content-Type": "application/json"}, body)) as issuer:
        options = {"endpoint_url": server.url, "credentials_json": key_file(issuer.url), **WAY}
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


@pytest.mark.pairwise
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
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with anonymous(url) as store, pytest.raises(TransientError, match="Connection refused"):
            verbs("object", source)[verb](store)


@pytest.mark.parametrize("verb", VERBS)
def test_silent_server_is_cut_and_named(source: Path, verb: str) -> None:
    with scripted(None) as script, anonymous(script.url, timeout_s=0.2) as store:
        with pytest.raises(TransientError) as raised:
            verbs("folder/object", source)[verb](store)
        assert f"{verb} gs://bucket/folder/object: no byte for 0.2 s to or from {script.url}" == str(raised.value)
        wait_until(lambda: script.asked, what="the request, which a busy machine may read late")
        assert 1 == len(script.asked)


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
        options = {"endpoint_url": server.url, "credentials_json": key_file(issuer.url), **WAY}
        with (
            GCSStore(StoreURI("gs", server.bucket), options) as store,
            pytest.raises(ClockSkewedError, match="wrong clock"),
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


@pytest.mark.parametrize("length", ["ten", "-10", "1e1", "9" * 5000])
def test_a_length_that_cannot_be_is_an_error_of_ours(length: str) -> None:
    said = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n0123456789".encode()
    with wire(say(said)) as server, anonymous(f"http://127.0.0.1:{server.port}") as store, pytest.raises(StoreError):
        store.read("object", lambda block, start: None)


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
    with scripted(answer) as script, anonymous(script.url) as store, pytest.raises(TransientError, match="not from the store"):
        store.get_file("object", target, start=2, end=8)
    assert target.read_bytes() == b"untouched"


@pytest.mark.pairwise
@pytest.mark.parametrize("status", [200, 201, 206])
@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"[1]"])
@pytest.mark.parametrize("verb", ["head", "list", "delete"])
def test_a_page_that_is_not_the_stores_is_transient(source: Path, verb: str, page: bytes, status: int) -> None:
    """Nothing was deleted by a network's login page."""
    with scripted((status, {}, page)) as script, anonymous(script.url) as store, pytest.raises(TransientError):
        verbs("object", source)[verb](store)


@pytest.mark.pairwise
@pytest.mark.parametrize("status", [502, 400])
@pytest.mark.parametrize("body", [b'{"error": "bad: gateway"}', b'{"error": {"errors": 5}}', b"[1]", b"null"])
def test_an_error_of_another_form_than_the_stores_is_judged_by_its_status(body: bytes, status: int) -> None:
    expected = TransientError if status == 502 else PermanentError
    with scripted((status, {}, body)) as script, anonymous(script.url) as store, pytest.raises(expected, match=str(status)):
        store.head("object")


@pytest.mark.parametrize("items", [None, {"name": "object"}, ["object"], [{"size": "1", "generation": "1"}], [{"name": 5}]])
def test_a_listing_of_what_has_no_name_is_an_error_for_good(items: object) -> None:
    page = json.dumps({"items": items}).encode()
    with (
        scripted((200, {}, page)) as script,
        anonymous(script.url) as store,
        pytest.raises(PermanentError, match="cannot be read"),
    ):
        list(store.list())


@pytest.mark.parametrize(
    "wrong",
    [{"size": "many"}, {"size": [1]}, {"generation": "first"}, {"updated": "today"}, {"crc32c": "A"}, {"metadata": 5}],
    ids=str,
)
def test_a_description_that_cannot_be_read_is_an_error_for_good(wrong: dict[str, object]) -> None:
    page = json.dumps({"name": "object", "size": "1", "generation": "1", **wrong}).encode()
    with (
        scripted((200, {}, page)) as script,
        anonymous(script.url) as store,
        pytest.raises(PermanentError, match="the server's answer cannot be read"),
    ):
        store.head("object")


@pytest.mark.parametrize("mistake", [ValueError("a bug"), RuntimeError("dictionary changed size during iteration")], ids=str)
def test_a_mistake_of_our_own_is_no_answer_of_the_servers(mistake: Exception) -> None:
    with anonymous("http://127.0.0.1:1") as store, pytest.raises(type(mistake)) as caught, store._bucket.translated():
        raise mistake
    assert caught.value is mistake


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
