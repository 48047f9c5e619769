"""obstore: the Rust crate object_store, from Python."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from clients.contract import PART_BYTES, THREADS, Client, Endpoint, new_file, ranges


class Obstore(Client):
    """8 requests of 16 MiB side by side, unsigned payload, no checksum."""

    packages = ("obstore",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.store = self.open()
        self.pool = ThreadPoolExecutor(THREADS)

    def open(self) -> Any:
        at = self.endpoint
        return S3Store(
            at.bucket,
            endpoint=at.url,
            region=at.region,
            access_key_id=at.access_key,
            secret_access_key=at.secret_key,
            unsigned_payload=True,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def up(self, path: Path, key: str) -> None:
        obstore.put(self.store, key, path, chunk_size=PART_BYTES, max_concurrency=THREADS)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        with new_file(path, size_bytes) as file:

            def fetch(start: int, end: int) -> None:
                view = memoryview(obstore.get_range(self.store, key, start=start, end=end))
                while view:
                    n = os.pwrite(file, view, start)
                    start, view = start + n, view[n:]

            list(self.pool.map(lambda one: fetch(*one), ranges(size_bytes)))

    def many(self, folder: Path, prefix: str) -> None:
        list(self.pool.map(lambda path: obstore.put(self.store, f"{prefix}/{path.name}", path.read_bytes()), folder.iterdir()))


CLIENTS = {"obstore": Obstore}
