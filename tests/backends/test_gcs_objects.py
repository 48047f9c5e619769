from __future__ import annotations

import functools
import json
import logging
import os
import threading
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import Answer, When, fault_proxy
from servers.real import Server
from servers.scripted_gcs import anonymous, open_gcs, refusal, scripted, verbs
from servers.way import WAY
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c
from wherry.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, Part, PutOptions, StoredPart
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
    options: dict[str, object] = {"endpoint_url": fake_gcs_server.url, "anonymous": True, **WAY}
    with GCSStore(StoreURI("gs", fake_gcs_server.bucket), options) as store:
        with pytest.raises(IntegrityError, match="the server holds 10 bytes with CRC32C"):
            store.put_file("lax/object", source, PutOptions(crc32c=1))
        with pytest.raises(NotFoundError):
            store.head("lax/object")


def test_of_two_threads_one_wins(store: GCSStore, source: Path) -> None:
    start = threading.Barrier(2)

    def put(key: str) -> bool:
        start.wait(60)
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
    size = 16 * 2**20
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


#: Three levels of composing, one more than 32 * 32 parts, are slow: the fast run joins so many sources (test_joining.py).
@pytest.mark.parametrize(
    ("way", "n_parts"),
    [
        *((sdk_only, n_parts) for sdk_only in (False, True) for n_parts in (1, 2, 32, 33, 64)),
        *(pytest.param(sdk_only, 1025, marks=pytest.mark.slow) for sdk_only in (False, True)),
    ],
    indirect=["way"],
    scope="module",
)
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
