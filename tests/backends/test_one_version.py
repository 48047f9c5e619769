"""A download of several ranges is of one version of the object, whatever the server makes of conditions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lax_s3 import Flaw, Kept, lax_server, store_at
from servers.way import WAY
from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.gcs.store import GCSStore
from wherry.backends.local.store import LocalStore
from wherry.config import RetryConfig, TransferConfig
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.transfer.download import download
from wherry.uri import StoreURI

SIZE = 100_000
OLD, NEW = b"o" * SIZE, b"n" * SIZE
RANGES = TransferConfig(range_size_bytes=16_384, ranges_in_flight=1)
QUICK = RetryConfig(call_deadline_s=30, first_wait_s=0.001, longest_wait_s=0.001)


def fetch(store: ObjectStore, key: str, folder: Path) -> bytes:
    download(store, key, folder / "file", uri=key, transfer=RANGES, retry=QUICK)
    return (folder / "file").read_bytes()


def kept(data: bytes) -> Kept:
    """An object of two parts: no digest is known of it, and the server keeps no checksum."""
    return Kept(data, {"ETag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}-2"'})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("says_etag", [True, False])
def test_ranges_of_two_versions_are_not_mixed_by_an_s3_server_that_ignores_if_match(tmp_path: Path, says_etag: bool) -> None:
    """Nor by one whose answers to GET have no ETag."""
    flaws: tuple[Flaw, ...] = () if says_etag else ("leaves the ETag out of answers to GET",)
    with lax_server(*flaws) as server, store_at(server.server_port) as store:
        server.objects["a"] = kept(OLD)
        replaced = FaultyStore(store, [Fault("get", nth=3, act=lambda: server.objects.update(a=kept(NEW)))])
        assert fetch(replaced, "a", tmp_path) == NEW


class LaxGCSHandler(BaseHTTPRequestHandler):
    """Describes and sends one object, ignores conditions, keeps no checksums; says generations of answers only if told to."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LaxGCS

    def do_GET(self) -> None:
        data, generation = self.server.data, self.server.generation
        status, headers = 200, {}
        if "alt=media" in self.path:
            if self.server.says_generation:
                headers["X-Goog-Generation"] = str(generation)
            if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, stop = int(match[1]), int(match[2] or len(data) - 1)
                status, headers["Content-Range"] = 206, f"bytes {start}-{stop}/{len(data)}"
                data = data[start : stop + 1]
        else:
            data = json.dumps({"name": "a", "size": str(len(data)), "generation": str(generation)}).encode()
            headers["Content-Type"] = "application/json"
        self.send_response_only(status)
        for name, text in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


class LaxGCS(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, says_generation: bool) -> None:
        self.data, self.generation, self.says_generation = OLD, 1, says_generation
        super().__init__(("127.0.0.1", 0), LaxGCSHandler)

    def put(self, data: bytes) -> None:
        self.data, self.generation = data, self.generation + 1


@contextmanager
def lax_gcs(says_generation: bool) -> Iterator[LaxGCS]:
    with LaxGCS(says_generation) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("says_generation", [True, False])
def test_ranges_of_two_versions_are_not_mixed_by_a_gcs_server_that_ignores_conditions(
    tmp_path: Path, says_generation: bool
) -> None:
    with lax_gcs(says_generation) as server:
        options = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "anonymous": True, **WAY}
        with GCSStore(StoreURI("gs", "bucket"), options) as store:
            replaced = FaultyStore(store, [Fault("get", nth=3, act=lambda: server.put(NEW))])
            assert fetch(replaced, "a", tmp_path) == NEW


@pytest.mark.parametrize("how", ["in place", "by a rename"])
def test_ranges_of_two_versions_of_a_local_file_are_not_mixed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store" / "a"
    path.parent.mkdir()
    path.write_bytes(OLD)
    os.utime(path, (1, 1))

    def put() -> None:
        written = path if how == "in place" else path.with_name("b")
        written.write_bytes(NEW)
        written.replace(path)

    with LocalStore(StoreURI("file", ""), {}) as store:
        replaced = FaultyStore(store, [Fault("get", nth=3, act=put)])
        assert fetch(replaced, str(path).strip("/"), tmp_path) == NEW


class WholeSeconds(WrappedStore):
    """Tells times in whole seconds, and no etags, as FTP and SFTP do."""

    def head(self, key: str) -> ObjectMeta:
        meta = super().head(key)
        assert meta.modified_s is not None
        return replace(meta, etag=None, modified_s=float(int(meta.modified_s)))


def test_ranges_of_two_versions_are_not_mixed_where_nothing_but_the_time_tells_them_apart(tmp_path: Path) -> None:
    path = tmp_path / "store" / "a"
    path.parent.mkdir()
    path.write_bytes(OLD)
    os.utime(path, (1, 1))

    def put() -> None:
        path.write_bytes(NEW)

    with FsspecStore(StoreURI("file", str(path.parent)), {}) as store:
        replaced = FaultyStore(WholeSeconds(store), [Fault("get", nth=3, act=put)])
        assert fetch(replaced, "a", tmp_path) == NEW
