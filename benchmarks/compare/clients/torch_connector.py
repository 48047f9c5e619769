"""s3torchconnector: what writes checkpoints of PyTorch straight to S3."""

from __future__ import annotations

import os
from pathlib import Path

from s3torchconnector import S3ClientConfig
from s3torchconnector._s3client import S3Client

from clients.contract import PART_BYTES, Client, Endpoint


class TorchConnector(Client):
    """Its writer and its sequential reader, in blocks of 16 MiB; no files: the program reads and writes them."""

    packages = ("s3torchconnector", "s3torchconnectorclient")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        if endpoint.ca_file:
            raise NotImplementedError("it takes no certificate authority of one's own")
        os.environ.update(endpoint.environment)
        config = S3ClientConfig(throughput_target_gbps=10, part_size=PART_BYTES, force_path_style=True)
        self.client = S3Client(region=endpoint.region, endpoint=endpoint.url, s3client_config=config)

    def up(self, path: Path, key: str) -> None:
        with open(path, "rb") as file, self.client.put_object(self.endpoint.bucket, key) as writer:
            while block := file.read(PART_BYTES):
                writer.write(block)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        reader = self.client.get_object(self.endpoint.bucket, key)
        with open(path, "xb") as file:
            while block := reader.read(PART_BYTES):
                file.write(block)


CLIENTS = {"s3torchconnector": TorchConnector}
