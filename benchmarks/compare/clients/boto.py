"""boto3: as it comes, and with the options that make it fastest (which give up its checksums)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from clients.contract import MIB, THREADS, Client, Endpoint


class Boto3(Client):
    """`upload_file` and `download_file` with every default but 16 kept connections."""

    packages = ("boto3", "botocore", "s3transfer")
    config: ClassVar[dict[str, Any]] = {}
    transfer: ClassVar[dict[str, Any]] = {}

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            region_name=endpoint.region,
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
            verify=endpoint.ca_file,
            config=Config(max_pool_connections=16, **self.config),
        )
        self.pool = ThreadPoolExecutor(THREADS)
        self.options = TransferConfig(**self.transfer)

    def up(self, path: Path, key: str) -> None:
        self.client.upload_file(str(path), self.endpoint.bucket, key, Config=self.options)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.client.download_file(self.endpoint.bucket, key, str(path), Config=self.options)

    def many(self, folder: Path, prefix: str) -> None:
        def put(path: Path) -> None:
            with open(path, "rb") as file:
                self.client.put_object(Bucket=self.endpoint.bucket, Key=f"{prefix}/{path.name}", Body=file)

        list(self.pool.map(put, folder.iterdir()))


class Tuned(Boto3):
    """16 connections, parts of 64 MiB, unsigned payload, no checksums."""

    config: ClassVar[dict[str, Any]] = {
        "s3": {"payload_signing_enabled": False},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    transfer: ClassVar[dict[str, Any]] = {"max_concurrency": 16, "multipart_chunksize": 64 * MIB, "multipart_threshold": 64 * MIB}


CLIENTS = {"boto3": Boto3, "boto3-tuned": Tuned}
