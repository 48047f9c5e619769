"""A listing with dates, sizes and names that cannot be: each object is listed, and the others as if it were not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.utils import parse_timestamp

from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.listing import timestamp_of
from wherry.backends.s3.store import S3Store
from wherry.store import ObjectMeta, ObjectStore
from wherry.uri import StoreURI

DATE = "2026-01-01T00:00:00.000Z"
DATES = [
    "9999-99-99T00:00:00.000Z",
    "2026-02-30T00:00:00Z",
    "yesterday",
    "9" * 30,
    "",
    "0000-01-01T00:00:00Z",
    "2026-01-01T99:00:00Z",
]
SIZES = ["abc", "", "9" * 5000, "-", "1.5", "1e400"]
KEYS = ["k" * 10_000_000, "k/" * 5_000_000]


class Listing(BaseHTTPRequestHandler):
    """Answers every request with one page."""

    page = b""
    kind = "application/xml"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(page: str, kind: str) -> Iterator[str]:
    handler = type("Handler", (Listing,), {"page": page.encode(), "kind": kind})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def s3_listing(key: str, size: str = "1", date: str = DATE) -> Iterator[ObjectStore]:
    rows = "".join(
        f"<Contents><Key>{one}</Key><LastModified>{when}</LastModified><ETag>&quot;e&quot;</ETag><Size>{n}</Size></Contents>"
        for one, n, when in (("run/a", "7", DATE), (key, size, date), ("run/z", "8", DATE))
    )
    options = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region": "us-east-1"}
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    with serving(page, "application/xml") as url, S3Store(StoreURI("s3", "bucket"), {**options, "endpoint_url": url}) as store:
        yield store


@contextmanager
def gcs_listing(key: str, size: str = "1", date: str = DATE) -> Iterator[ObjectStore]:
    items = [
        {"name": one, "size": n, "generation": "1", "updated": when}
        for one, n, when in (("run/a", "7", DATE), (key, size, date), ("run/z", "8", DATE))
    ]
    options = {"anonymous": True}
    page = json.dumps({"items": items})
    with serving(page, "application/json") as url, GCSStore(StoreURI("gs", "bucket"), {**options, "endpoint_url": url}) as store:
        yield store


LISTINGS = pytest.mark.parametrize("listing", [s3_listing, gcs_listing], ids=["s3", "gcs"])


def listed(store: ObjectStore) -> tuple[ObjectMeta, dict[str, tuple[int, float | None]]]:
    """The object in the middle, and the others."""
    found = {meta.key: meta for meta in store.list("run/")}
    others = {key: (found.pop(key).size_bytes, 0.0) for key in ("run/a", "run/z")}
    (odd,) = found.values()
    return odd, others  # type: ignore[return-value]


@LISTINGS
@pytest.mark.parametrize("date", DATES, ids=range(len(DATES)))
def test_an_impossible_date_hides_no_object(listing: object, date: str) -> None:
    with listing("run/b", date=date) as store:  # type: ignore[operator]
        odd, others = listed(store)
    assert ("run/b", None) == (odd.key, odd.modified_s)
    assert {"run/a": (7, 0.0), "run/z": (8, 0.0)} == others


@LISTINGS
@pytest.mark.parametrize("size", SIZES, ids=range(len(SIZES)))
def test_an_impossible_size_hides_no_object(listing: object, size: str) -> None:
    with listing("run/b", size=size) as store:  # type: ignore[operator]
        odd, others = listed(store)
    assert ("run/b", -1) == (odd.key, odd.size_bytes)
    assert {"run/a": (7, 0.0), "run/z": (8, 0.0)} == others


@LISTINGS
@pytest.mark.parametrize(
    "date", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2024-02-29T01:02:03.004Z", "2026-01-31T00:00:00Z"]
)
def test_any_date_of_the_calendar_is_read(listing: object, date: str) -> None:
    with listing("run/b", date=date) as store:  # type: ignore[operator]
        assert listed(store)[0].modified_s is not None


@pytest.mark.parametrize(
    "text",
    [DATE, "2024-02-29T01:02:03Z", "2024-02-29T01:02:03.12345Z", "Thu, 29 Feb 2024 01:02:03 GMT", "2024-02-29T01:02:03+02:00"],
)
def test_a_date_is_read_as_botocore_reads_it(text: str) -> None:
    assert parse_timestamp(text) == timestamp_of(text)


@LISTINGS
@pytest.mark.parametrize("key", KEYS, ids=["one-part", "many-parts"])
def test_a_key_of_ten_megabytes_hides_no_object(listing: object, key: str) -> None:
    with listing(f"run/{key}") as store:  # type: ignore[operator]
        odd, others = listed(store)
    assert len(odd.key) > 9_999_999
    assert ["run/a", "run/z"] == list(others)
