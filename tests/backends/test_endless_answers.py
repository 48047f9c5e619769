"""Servers whose answers have no end: redirects of redirects, listings that begin again. Each is an error after a few requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from servers.way import WAY
from wherry.backends.gcs.store import GCSStore
from wherry.backends.pages import Pages
from wherry.backends.s3.store import S3Store
from wherry.errors import PermanentError, StoreError, TransientError
from wherry.store import MultipartStore
from wherry.uri import StoreURI

pytestmark = pytest.mark.usefixtures("way")

#: (status, headers, body) of the answer to a request, by its number and its target.
Says = Callable[[int, str], tuple[int, dict[str, str], bytes]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Obstinate

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.n_requests += 1
        status, headers, body = self.server.says(self.server.n_requests, self.path)
        self.send_response_only(status)
        for name, text in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


class Obstinate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, says: Says) -> None:
        self.says, self.n_requests = says, 0
        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def obstinate(says: Says) -> Iterator[Obstinate]:
    with Obstinate(says) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def opened(scheme: str, port: int) -> MultipartStore:
    url = f"http://127.0.0.1:{port}"
    if scheme == "gs":
        return GCSStore(StoreURI("gs", "bucket"), {"endpoint_url": url, "token": "token", **WAY})
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    return S3Store(StoreURI("s3", "bucket"), {"endpoint_url": url, **keys, **WAY})


CALLS: dict[str, Callable[[MultipartStore, Path], object]] = {
    "head": lambda store, file: store.head("a"),
    "get": lambda store, file: store.get_file("a", file),
    "put": lambda store, file: store.put_file("a", file),
    "list": lambda store, file: list(store.list()),
    "delete": lambda store, file: store.delete("a"),
    "begin": lambda store, file: store.begin("a", 1),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_server_that_redirects_everything_is_named_after_a_few_requests(
    tmp_path: Path, scheme: str, verb: str, status: int
) -> None:
    """A captive portal, or S3 that does not say its region. What may pass by itself is transient."""

    def says(number: int, target: str) -> tuple[int, dict[str, str], bytes]:
        return status, {"Location": f"/login?n={number}"}, b"<html>log in</html>"

    (tmp_path / "file").write_bytes(b"x")
    with obstinate(says) as server, opened(scheme, server.server_port) as store:
        with pytest.raises(StoreError, match=f"/login.*127.0.0.1:{server.server_port}|127.0.0.1.*/login") as caught:
            CALLS[verb](store, tmp_path / "file")
        assert "correct the endpoint" in caught.value.hint
        assert isinstance(caught.value, TransientError) or (scheme, status) == ("s3", 301)
        assert server.n_requests <= 5  # by the direct way once, by the library once more and after its redirects


def s3_page(number: int, target: str) -> tuple[int, dict[str, str], bytes]:
    """One of three pages that lead in a circle, of any kind of listing."""
    token = f"page{number % 3}"
    row = "<ETag>1</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified><Initiated>2026-01-01T00:00:00.000Z</Initiated>"
    row += f"<Key>a{number}</Key><Size>1</Size><UploadId>1</UploadId><PartNumber>{number % 3 + 1}</PartNumber>"
    rows = "".join(f"<{name}>{row}</{name}>" for name in ("Contents", "Upload", "Part"))
    marks = "".join(f"<{name}>{token}</{name}>" for name in ("NextContinuationToken", "NextKeyMarker", "NextUploadIdMarker"))
    return 200, {}, f"<ListPartsResult><IsTruncated>true</IsTruncated>{marks}{rows}</ListPartsResult>".encode()


@pytest.mark.parametrize("what", ["objects", "uploads", "parts"])
def test_a_listing_of_s3_that_leads_in_a_circle_ends_with_an_error(what: str) -> None:
    with obstinate(s3_page) as server, opened("s3", server.server_port) as store:
        lists: dict[str, Callable[[], object]] = {
            "objects": lambda: list(store.list()),
            "uploads": lambda: list(store.list_uploads()),
            "parts": lambda: store.list_parts("a", "1"),
        }
        with pytest.raises(PermanentError, match="no end"):
            lists[what]()
        assert server.n_requests < 20


def test_a_listing_of_gcs_that_leads_in_a_circle_ends_with_an_error() -> None:
    def says(number: int, target: str) -> tuple[int, dict[str, str], bytes]:
        item = {"name": f"a{number}", "size": "1", "generation": "1"}
        page = {"items": [item], "nextPageToken": f"page{number % 3}"}
        return 200, {"Content-Type": "application/json"}, json.dumps(page).encode()

    with obstinate(says) as server, opened("gs", server.server_port) as store:
        with pytest.raises(PermanentError, match="no end"):
            list(store.list())
        assert server.n_requests < 20


@pytest.mark.parametrize(("before", "circle"), [(0, 1), (0, 7), (5, 1), (100, 30)])
def test_every_circle_of_pages_is_found_and_no_straight_way_is_one(before: int, circle: int) -> None:
    straight = Pages()
    assert not any(straight.is_endless(number, 1) for number in range(10_000))
    pages = Pages()
    marks = [*range(before), *(before + at % circle for at in range(3 * (before + circle)))]
    assert any(pages.is_endless(mark, 1) for mark in marks)


def test_pages_without_entries_do_not_go_on_for_ever() -> None:
    pages = Pages()
    assert any(pages.is_endless(number, 0) for number in range(2000))
