"""s3fs, as most data pipelines use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import s3fs

from clients.contract import PART_BYTES, THREADS, Client, Endpoint


class S3fs(Client):
    """`put_file` and `get_file`, parts of 16 MiB, 8 side by side; `put` of a folder."""

    packages = ("s3fs", "aiobotocore")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        client: dict[str, Any] = {"region_name": endpoint.region, "verify": endpoint.ca_file}
        self.files: Any = s3fs.S3FileSystem(
            key=endpoint.access_key,
            secret=endpoint.secret_key,
            endpoint_url=endpoint.url,
            client_kwargs=client,
            max_concurrency=THREADS,
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def up(self, path: Path, key: str) -> None:
        self.files.put_file(str(path), f"{self.endpoint.bucket}/{key}", chunksize=PART_BYTES, max_concurrency=THREADS)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.files.get_file(f"{self.endpoint.bucket}/{key}", str(path))

    def many(self, folder: Path, prefix: str) -> None:
        names = [(str(path), f"{self.endpoint.bucket}/{prefix}/{path.name}") for path in folder.iterdir()]
        self.files.put([path for path, _ in names], [key for _, key in names])


CLIENTS = {"s3fs": S3fs}
