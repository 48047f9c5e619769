"""Clients of GCS: Google's own, its transfer manager, gcsfs, obstore. Without credentials, as the sink asks for none."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from clients.contract import MIB, THREADS, Client, Endpoint
from clients.rust import Obstore

PART_BYTES = 32 * MIB


class GoogleStorage(Client):
    """google-cloud-storage, one stream: `upload_from_filename` without a checksum, `download_to_filename`."""

    packages: tuple[str, ...] = ("google-cloud-storage",)

    def __init__(self, endpoint: Endpoint) -> None:
        from google.cloud import storage

        credentials: Any = import_module("google.auth.credentials")
        super().__init__(endpoint)
        self.client: Any = storage.Client(
            project="none", credentials=credentials.AnonymousCredentials(), client_options={"api_endpoint": endpoint.url}
        )
        self.bucket = self.client.bucket(endpoint.bucket)

    def up(self, path: Path, key: str) -> None:
        self.bucket.blob(key).upload_from_filename(str(path), checksum=None)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.bucket.blob(key).download_to_filename(str(path))


class TransferManager(GoogleStorage):
    """google-cloud-storage's transfer manager: 8 processes, parts of 32 MiB; up without a checksum."""

    def up(self, path: Path, key: str) -> None:
        from google.cloud.storage import transfer_manager

        blob = self.bucket.blob(key)
        transfer_manager.upload_chunks_concurrently(str(path), blob, chunk_size=PART_BYTES, max_workers=THREADS, checksum=None)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        from google.cloud.storage import transfer_manager

        blob = self.bucket.blob(key)
        transfer_manager.download_chunks_concurrently(blob, str(path), chunk_size=PART_BYTES, max_workers=THREADS)


class Gcsfs(Client):
    """`put_file` in pieces of 32 MiB, one after the other; `get_file`."""

    packages = ("gcsfs",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        # It asks over gRPC what kind of bucket this is, and waits for minutes where nobody answers.
        os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
        import gcsfs

        self.files: Any = gcsfs.GCSFileSystem(
            project="none", token="anon", endpoint_url=endpoint.url, use_listings_cache=False, skip_instance_cache=True
        )

    def up(self, path: Path, key: str) -> None:
        self.files.put_file(str(path), f"{self.endpoint.bucket}/{key}", chunksize=PART_BYTES)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.files.get_file(f"{self.endpoint.bucket}/{key}", str(path))


class ObstoreGCS(Obstore):
    """8 requests of 16 MiB side by side, no checksum, no credentials."""

    def open(self) -> Any:
        from obstore.store import GCSStore

        account = {
            "gcs_base_url": self.endpoint.url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return GCSStore(self.endpoint.bucket, service_account_key=json.dumps(account), client_options={"allow_http": True})


CLIENTS = {"google-cloud-storage": GoogleStorage, "transfer-manager": TransferManager, "gcsfs": Gcsfs, "obstore-gcs": ObstoreGCS}
