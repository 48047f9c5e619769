"""The conformance suite on Azurite under adlfs: a generic fsspec filesystem over a real HTTP server of another kind."""

from __future__ import annotations

import base64
import os
import secrets
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.real import fast_folder
from wherry.backends.fsspec.store import FsspecStore
from wherry.store import ObjectStore
from wherry.testing import StoreConformance
from wherry.uri import parse_uri

pytestmark = pytest.mark.extra
PROGRAM = Path(__file__).parent / "node_modules/.bin/azurite-blob"


@dataclass(frozen=True)
class Azurite:
    """A running Azurite and its one container."""

    connection_string: str
    container: str


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    from azure.storage.blob import BlobServiceClient

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    account, key = "wherry", base64.b64encode(secrets.token_bytes(64)).decode()
    with fast_folder() as folder, open(folder / "log", "wb") as log:
        command = [str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(folder / "data"), "-s"]
        command += ["--disableTelemetry", "--skipApiVersionCheck"]
        environment = {"PATH": os.environ["PATH"], "AZURITE_ACCOUNTS": f"{account}:{key}"}
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
            until_s = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except ConnectionRefusedError:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < until_s, (folder / "log").read_text()
                    time.sleep(0.05)  # a server in the making rings nobody
            endpoint = f"http://127.0.0.1:{port}/{account}"
            connection = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={endpoint};"
            with BlobServiceClient.from_connection_string(connection) as client:
                client.create_container("wherry").close()
            yield Azurite(connection, "wherry")
            process.terminate()


# aiohttp's advice to adlfs on how to hand over a body.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
class TestAzurite(StoreConformance):
    refused_names = frozenset({"what?is#this&that=1"})  # adlfs reads names as URLs

    @pytest.fixture
    def store(self, azurite: Azurite) -> Iterator[ObjectStore]:
        uri = parse_uri(f"az://{azurite.container}/{uuid.uuid4().hex}")
        with FsspecStore(uri, {"connection_string": azurite.connection_string}) as store:
            yield store
