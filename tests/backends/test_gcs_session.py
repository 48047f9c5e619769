"""Large objects of GCS in resumable sessions: resumed at the server's offset, decided at the end, their URLs told to nobody."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import Action, Answer, BlackHole, CutAnswer, DropAnswer, Reset, When, fault_proxy, gcs_error
from servers.real import Server
from servers.way import WAY
from servers.worlds import QUICK
from wherry import Config, Uploader
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c, crc32c_of_file
from wherry.config import AgentConfig, TransferConfig
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
    UploadFailed,
)
from wherry.store import TOKEN_METADATA, MultipartStore, Part, PutOptions, StoredPart
from wherry.uri import StoreURI

CHUNK = 256 * 1024
SESSION = "^/upload/.*upload_id="


pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(scope="module")
def server(way: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


def open_sessions(server: GCSServer, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", server.bucket), {**server.options, **WAY, "upload": "session", **options})


@pytest.fixture
def store(server: GCSServer) -> Iterator[GCSStore]:
    with open_sessions(server) as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three chunks and a bit."""
    path = tmp_path / "source"
    path.write_bytes(os.urandom(3 * CHUNK + 1001))
    return path


def begin(store: MultipartStore, key: str, source: Path, *, if_absent: bool = False) -> str:
    size, crc = source.stat().st_size, crc32c_of_file(source)
    return store.begin(key, size, PutOptions(if_absent=if_absent, crc32c=crc, metadata={TOKEN_METADATA: "t"}))


def send(store: MultipartStore, key: str, upload_id: str, source: Path, part_bytes: int) -> list[StoredPart]:
    """Go on from what the server holds, as a Sender does; all receipts."""
    sent, size = store.list_parts(key, upload_id), source.stat().st_size
    at = sum(part.size_bytes for part in sent)
    while at < size:
        end = min(at - at % part_bytes + part_bytes, size)
        sent.append(store.put_part(key, upload_id, source, Part(len(sent) + 1, at, end, 0)))
        at = end
    return sent


def stored(store: GCSStore, key: str, folder: Path) -> bytes:
    (folder / "stored").write_bytes(b"")
    store.get_file(key, folder / "stored")
    return (folder / "stored").read_bytes()


@pytest.mark.parametrize("part_bytes", [CHUNK, CHUNK + 1, 2 * CHUNK - 1, 100_000, 2**30])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_any_size_of_parts_makes_the_object(
    server: GCSServer, store: GCSStore, tmp_path: Path, part_bytes: int, extra: int
) -> None:
    source, key = tmp_path / "sized", f"sizes/{part_bytes}{extra}"
    source.write_bytes(os.urandom(2 * CHUNK + extra))
    upload_id = begin(store, key, source, if_absent=True)
    made = store.complete(key, upload_id, send(store, key, upload_id, source, part_bytes), PutOptions(if_absent=True))
    assert (2 * CHUNK + extra, crc32c_of_file(source), "t") == (made.size_bytes, made.crc32c, made.token)
    assert source.read_bytes() == stored(store, key, tmp_path)
    assert {key} == server.names(key)


def test_one_byte_and_no_byte_make_objects(store: GCSStore, tmp_path: Path) -> None:
    for size in (0, 1):
        source = tmp_path / "small"
        source.write_bytes(b"x" * size)
        upload_id = begin(store, "small", source)
        part = store.put_part("small", upload_id, source, Part(1, 0, size, 0))
        assert size == store.complete("small", upload_id, [part]).size_bytes


def test_independent_server_takes_our_chunks(fake_gcs_server: Server, source: Path) -> None:
    """fake-gcs-server 1.54 cannot do more: a question for the status ends a session there, and conditions are not kept."""
    options: dict[str, object] = {"endpoint_url": fake_gcs_server.url, "anonymous": True, **WAY, "upload": "session"}
    with GCSStore(StoreURI("gs", fake_gcs_server.bucket), options) as store:
        upload_id, size = begin(store, "session/object", source), source.stat().st_size
        ranges = [(1, 0, 2 * CHUNK), (2, 2 * CHUNK, size)]
        sent = [store.put_part("session/object", upload_id, source, Part(*each, 0)) for each in ranges]
        assert crc32c_of_file(source) == store.complete("session/object", upload_id, sent).crc32c


def test_new_credentials_that_may_only_create_are_enough(server: GCSServer, source: Path) -> None:
    """roles/storage.objectCreator: nothing can be listed, read, replaced or deleted."""
    size = source.stat().st_size
    with open_sessions(server, token=server.creator_token) as store:
        upload_id = begin(store, "creator/object", source, if_absent=True)
        sent = [store.put_part("creator/object", upload_id, source, Part(1, 0, size, 0))]
        assert size == store.complete("creator/object", upload_id, sent, PutOptions(if_absent=True)).size_bytes
        for call in (lambda: store.head("creator/object"), lambda: begin(store, "creator/object", source)):
            with pytest.raises(AccessDeniedError):
                call()


@pytest.mark.parametrize(
    ("method", "target", "left"),
    [
        pytest.param("GET", r"/o\?", set(), id="list"),
        pytest.param("GET", "/o/lacking", set(), id="get"),
        pytest.param("DELETE", "/o/lacking", set(), id="delete"),
        pytest.param("DELETE", "begun$", {"begun"}, id="retention policy"),
    ],
)
def test_a_right_that_parts_lack_is_found_before_bytes_are_sent(
    server: GCSServer, source: Path, method: str, target: str, left: set[str]
) -> None:
    """12 hidden objects stayed of 90 MB, and nothing said that upload="session" needs less. Of a retention policy one does."""
    plan = [When(method, target, gcs_error(403, "forbidden"), times=99)]
    with fault_proxy("127.0.0.1", server.port, plan) as proxy:
        lacking = pytest.raises(AccessDeniedError, match='upload="session"')
        with open_sessions(server, endpoint_url=proxy.url, upload="compose") as store, lacking:
            begin(store, "lacking/parts", source)
        assert 0 == proxy.request_bytes("POST", "crc32c=") == len(proxy.requests("POST", "/compose"))
    assert left == {name.rpartition("/")[2] for name in server.names("lacking/")}


def test_an_account_that_may_only_create_is_told_of_sessions_and_leaves_nothing(server: GCSServer, tmp_path: Path) -> None:
    transfer = TransferConfig(multipart_threshold_bytes=2 * CHUNK, part_size_bytes=CHUNK)
    config = Config(transfer=transfer, retry=QUICK, agent=AgentConfig(run_in="caller"))
    options = {**server.options, **WAY, "token": server.creator_token}
    (tmp_path / "file").write_bytes(bytes(3 * CHUNK))

    def upload(**more: object) -> None:
        uri, spool = f"gs://{server.bucket}/lone", tmp_path / "spool"
        with Uploader(uri, storage_options={**options, **more}, spool=spool, config=config) as uploader:
            uploader.put(tmp_path / "file", "x").result()

    with pytest.raises(UploadFailed, match='upload="session"'):
        upload()
    assert set() == server.names("lone/")
    upload(upload="session")
    assert {"lone/x"} == server.names("lone/")


# Resuming.


def test_killed_sender_is_resumed_at_the_servers_offset(server: GCSServer, source: Path, tmp_path: Path) -> None:
    """Another process goes on with the id alone, and sends less than a part again."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom wherry.backends.gcs.store import GCSStore\n"
        "from wherry.store import Part\nfrom wherry.uri import StoreURI\n"
        "options = {'endpoint_url': sys.argv[1], 'token': os.environ['TOKEN'], 'upload': 'session'}\n"
        "store = GCSStore(StoreURI('gs', sys.argv[2]), options)\n"
        "upload_id = store.begin('killed/object', size_bytes=787433)\n"
        "store.put_part('killed/object', upload_id, Path(sys.argv[3]), Part(1, 0, 600_000, 0))\n"
        "print(upload_id, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, server.url, server.bucket, str(source)]
    environment = {**os.environ, "TOKEN": server.token, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    upload_id = done.stdout.strip()
    with fault_proxy("127.0.0.1", server.port) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        assert [StoredPart(1, 2 * CHUNK, f"0-{2 * CHUNK}")] == store.list_parts("killed/object", upload_id), done
        sent = send(store, "killed/object", upload_id, source, 600_000)
        store.complete("killed/object", upload_id, sent, PutOptions(crc32c=crc32c_of_file(source)))
        assert source.stat().st_size - 2 * CHUNK == proxy.request_bytes("PUT", SESSION)
        assert source.read_bytes() == stored(store, "killed/object", tmp_path)


def test_cut_chunk_goes_on_from_what_arrived(server: GCSServer, source: Path, tmp_path: Path) -> None:
    plan = [When("PUT", SESSION, Reset(after_bytes=CHUNK + 1000))]
    with fault_proxy("127.0.0.1", server.port, plan) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        upload_id, part = begin(store, "cut/object", source), Part(1, 0, source.stat().st_size, 0)
        with pytest.raises(TransientError) as raised:
            store.put_part("cut/object", upload_id, source, part)
        assert raised.value.operation == "put_part"
        sent = store.put_part("cut/object", upload_id, source, part)
        store.complete("cut/object", upload_id, [sent])
        assert [] == proxy.unfired
        assert source.read_bytes() == stored(store, "cut/object", tmp_path)


@pytest.mark.parametrize("if_absent", [False, True])
def test_lost_answer_of_the_end_is_resolved_by_asking(server: GCSServer, source: Path, if_absent: bool) -> None:
    key = f"lost/{if_absent}"
    plan = [When("PUT", SESSION, DropAnswer(), nth=2)]
    with fault_proxy("127.0.0.1", server.port, plan) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        upload_id = begin(store, key, source, if_absent=if_absent)
        sent = [store.put_part(key, upload_id, source, Part(1, 0, source.stat().st_size, 0))]
        with pytest.raises(TransientError):
            store.complete(key, upload_id, sent, PutOptions(if_absent=if_absent))
        assert [] == proxy.unfired
        made = store.complete(key, upload_id, sent, PutOptions(if_absent=if_absent))
        assert (store.head(key).etag, "t") == (made.etag, made.token)


def test_completed_upload_is_not_found_any_more(store: GCSStore, source: Path) -> None:
    """Then head() and the token tell whether it was this upload that made the object."""
    upload_id = begin(store, "over/object", source)
    store.complete("over/object", upload_id, send(store, "over/object", upload_id, source, CHUNK))
    with pytest.raises(NotFoundError, match="the object was made"):
        store.list_parts("over/object", upload_id)
    with pytest.raises(NotFoundError):
        store.put_part("over/object", upload_id, source, Part(1, 0, CHUNK, 0))
    store.abort("over/object", upload_id)
    assert store.head("over/object").token == "t"


def test_refused_status_is_transient_and_nothing_is_lost(server: GCSServer, source: Path) -> None:
    answers = [gcs_error(503, "backendError"), gcs_error(429, "rateLimitExceeded", retry_after_s=7), Answer(200, b"<html>")]
    plan = [When("PUT", SESSION, answer, nth=n) for n, answer in enumerate(answers, 1)]
    kinds: list[type[StoreError]] = []
    with fault_proxy("127.0.0.1", server.port, plan) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        upload_id = begin(store, "refused/object", source)
        part = Part(1, 0, source.stat().st_size, 0)
        for _ in answers:
            with pytest.raises(TransientError) as raised:
                store.put_part("refused/object", upload_id, source, part)
            kinds.append(type(raised.value))
        sent = store.put_part("refused/object", upload_id, source, part)
        assert [TransientError, ThrottledError, TransientError] == kinds
        assert source.stat().st_size == store.complete("refused/object", upload_id, [sent]).size_bytes


def test_end_without_the_last_bytes_is_transient(server: GCSServer, store: GCSStore, source: Path) -> None:
    """They are in the memory of whoever sent them: another process has to send them again, and list_parts() says so."""
    upload_id = begin(store, "tail/object", source)
    sent = send(store, "tail/object", upload_id, source, 2**30)
    with open_sessions(server) as other:
        with pytest.raises(TransientError, match="send the rest again"):
            other.complete("tail/object", upload_id, sent)
        sent = send(other, "tail/object", upload_id, source, 2**30)
        assert [3 * CHUNK, 1001] == [part.size_bytes for part in sent]
        other.complete("tail/object", upload_id, sent)


# The end.


def test_name_taken_meanwhile_is_told_at_the_end(server: GCSServer, store: GCSStore, source: Path, tmp_path: Path) -> None:
    upload_id = begin(store, "taken/object", source, if_absent=True)
    sent = send(store, "taken/object", upload_id, source, CHUNK)
    (tmp_path / "first").write_bytes(b"first")
    store.put_file("taken/object", tmp_path / "first")
    with pytest.raises(AlreadyExistsError):
        store.complete("taken/object", upload_id, sent, PutOptions(if_absent=True))
    with pytest.raises(AlreadyExistsError):  # known by now: nothing is sent
        begin(store, "taken/object", source, if_absent=True)
    store.abort("taken/object", upload_id)
    assert stored(store, "taken/object", tmp_path) == b"first"


def test_wrong_checksum_never_takes_the_name(server: GCSServer, store: GCSStore, source: Path) -> None:
    size = source.stat().st_size
    told = store.begin("wrong/object", size, PutOptions(crc32c=crc32c_of_file(source) ^ 1))
    untold = store.begin("wrong/object", size)
    for upload_id in (told, untold):
        sent = send(store, "wrong/object", upload_id, source, CHUNK)
        with pytest.raises(IntegrityError, match="CRC32C"):
            store.complete("wrong/object", upload_id, sent, PutOptions(crc32c=crc32c_of_file(source) ^ 1))
    assert set() == server.names("wrong/")


def test_receipts_that_leave_a_gap_are_refused(store: GCSStore, source: Path) -> None:
    upload_id = begin(store, "gap/object", source)
    sent = send(store, "gap/object", upload_id, source, CHUNK)
    for parts in ([], sent[1:], [sent[0], *sent[2:]]):
        with pytest.raises(PermanentError):
            store.complete("gap/object", upload_id, parts)
    store.complete("gap/object", upload_id, sent)


def test_source_that_shrank_is_an_integrity_error(server: GCSServer, store: GCSStore, tmp_path: Path) -> None:
    source = tmp_path / "shrunken"
    source.write_bytes(b"x" * 1000)
    for end in (2000, 3 * CHUNK):
        upload_id = store.begin("shrunken", end)
        with pytest.raises(IntegrityError, match="ends at byte 1000"):
            store.put_part("shrunken", upload_id, source, Part(1, 0, end, 0))
    assert set() == server.names("shrunken")


def test_sessions_that_are_not_there_are_not_found(server: GCSServer, store: GCSStore, source: Path) -> None:
    upload_id = begin(store, "gone/object", source)
    store.abort("gone/object", upload_id)
    forged = upload_id.replace("upload_id=", "upload_id=x")
    for each in (upload_id, forged):
        calls: list[Callable[[], object]] = [
            functools.partial(store.put_part, "gone/object", each, source, Part(1, 0, CHUNK, 0)),
            functools.partial(store.list_parts, "gone/object", each),
            functools.partial(store.complete, "gone/object", each, [StoredPart(1, 1, "0-1")]),
        ]
        for call in calls:
            with pytest.raises(NotFoundError) as raised:
                call()
            assert not isinstance(raised.value, BucketNotFoundError)
        store.abort("gone/object", each)


def test_upload_of_the_other_kind_is_begun_anew_and_can_be_aborted(server: GCSServer, store: GCSStore, source: Path) -> None:
    """The option may change while a job is in the journal."""
    with open_sessions(server, upload="compose") as composing:
        parts = begin(composing, "kinds/object", source)
        session = begin(store, "kinds/object", source)
        with pytest.raises(NotFoundError):
            store.list_parts("kinds/object", parts)
        with pytest.raises(NotFoundError):
            composing.list_parts("kinds/object", session)
        assert [parts] == [upload.upload_id for upload in store.list_uploads("kinds/")]
        store.abort("kinds/object", parts)
        composing.abort("kinds/object", session)
        with pytest.raises(NotFoundError):
            store.list_parts("kinds/object", session)
    assert set() == server.names("kinds/")


# The URL.


def test_no_error_and_no_log_tells_the_session(server: GCSServer, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has its URL may write the object."""
    faults: list[Action] = [
        gcs_error(500, "backendError"),
        gcs_error(400, "invalid"),
        gcs_error(403, "forbidden"),
        Answer(307, headers=(("Location", "http://127.0.0.1:1/"),)),
        Reset(),
        Reset(after_bytes=1000),
        BlackHole(),
        CutAnswer(end="close"),
        Answer(200, b"<html>"),
        Answer(404, b"no session for ~"),
    ]
    plan = [When(method, SESSION, fault, nth=n) for method in ("PUT", "DELETE") for n, fault in enumerate(faults, 1)]
    told = []
    with (
        caplog.at_level(logging.DEBUG),
        fault_proxy("127.0.0.1", server.port, plan) as proxy,
        open_sessions(server, endpoint_url=proxy.url, timeout_s=0.3) as store,
    ):
        with open_sessions(server) as patient:
            upload_id = begin(patient, "secret/object", source)
        secret = upload_id.partition("upload_id=")[2]
        for call in (lambda: store.list_parts("secret/object", upload_id), lambda: store.abort("secret/object", upload_id)):
            for _ in range(3 * len(faults)):  # on a busy machine a time-out may come before the request has
                try:
                    call()
                except StoreError as error:
                    told += [*traceback.format_exception(error), repr(error), str(error)]
        assert [] == proxy.unfired
        told.append(repr(store))
    with open_sessions(server, endpoint_url=proxy.url, timeout_s=0.3) as store, pytest.raises(TransientError) as raised:
        store.list_parts("secret/object", upload_id)  # the proxy is gone: refused
    told += [*traceback.format_exception(raised.value), caplog.text, server.log.read_text()]
    assert len(secret) > 20
    assert secret not in "".join(told)
    assert "POST /upload/... " in caplog.text


def test_session_requests_carry_no_credentials_and_go_to_our_endpoint_only(server: GCSServer, source: Path) -> None:
    """A journal that somebody has changed, or an answer, cannot lead the data or the token elsewhere."""
    never = When("PUT", SESSION, Answer(418), header="^authorization:")
    with fault_proxy("127.0.0.1", server.port, [never]) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        upload_id = begin(store, "endpoint/object", source)
        assert upload_id.startswith("/upload/storage/v1/b/wherry/o?uploadType=resumable&name=endpoint%2Fobject&upload_id=")
        store.complete("endpoint/object", upload_id, send(store, "endpoint/object", upload_id, source, CHUNK))
        assert (5, [never]) == (len(proxy.requests("PUT", SESSION)), proxy.unfired)
    with open_sessions(server) as store:
        for forged in (
            "http://127.0.0.1:1/upload/x",
            "//127.0.0.1:1/upload/x",
            "/storage/v1/b",
            "/upload/../storage/v1/b/wherry",
        ):
            with pytest.raises(NotFoundError, match="another kind"):
                store.list_parts("endpoint/object", forged)


def test_session_behind_a_path_of_the_endpoint(server: GCSServer, source: Path) -> None:
    """What an answer names is put after the endpoint's own path."""
    where = "https://storage.example/elsewhere/upload/storage/v1/b/wherry/o?uploadType=resumable&upload_id=1"
    plan = [
        When("POST", "^/elsewhere/upload/", Answer(200, headers=(("Location", where),))),
        When("PUT", "^/elsewhere/upload/.*upload_id=1$", Answer(308, headers=(("Range", f"bytes=0-{CHUNK - 1}"),))),
    ]
    with (
        fault_proxy("127.0.0.1", server.port, plan) as proxy,
        open_sessions(server, endpoint_url=f"{proxy.url}/elsewhere/") as store,
    ):
        upload_id = begin(store, "path/object", source)
        assert CHUNK == store.list_parts("path/object", upload_id)[0].size_bytes
        assert [] == proxy.unfired


def test_answer_without_a_session_is_transient(server: GCSServer, source: Path) -> None:
    plan = [
        When("POST", "^/upload/", Answer(200, b"<html>Log in</html>"), nth=1),
        When("POST", "^/upload/", Answer(200, headers=(("Location", "https://login.example/"),)), nth=2),
    ]
    with fault_proxy("127.0.0.1", server.port, plan) as proxy, open_sessions(server, endpoint_url=proxy.url) as store:
        for _ in plan:
            with pytest.raises(TransientError, match="names no session"):
                begin(store, "login/object", source)


def test_token_of_a_session_that_expired_meanwhile_does_not_matter(server: GCSServer, source: Path) -> None:
    """The parts are kept: a new client, with new credentials, goes on; so does one whose token is refused by now."""
    with open_sessions(server) as store:
        upload_id = begin(store, "expired/object", source)
        store.put_part("expired/object", upload_id, source, Part(1, 0, CHUNK, 0))
    with open_sessions(server, token="expired") as store:
        with pytest.raises(AccessDeniedError):
            begin(store, "expired/object", source)
        sent = send(store, "expired/object", upload_id, source, CHUNK)
        assert [CHUNK, CHUNK, CHUNK, 1001] == [part.size_bytes for part in sent]
        assert crc32c(source.read_bytes()) == store.complete("expired/object", upload_id, sent).crc32c
