"""The first upload to a server that speaks S3, while nobody knows yet what it honours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lax_s3 import Flaw, Kept, LaxServer, lax_server, store_at
from servers.proxy import Answer, Do, When, fault_proxy
from servers.way import WAY
from support import CALLER, end_agent, leased_job, wait_until
from wherry import Uploader
from wherry.checksum import crc32c
from wherry.config import Config, TransferConfig
from wherry.errors import AlreadyExistsError, TransientError
from wherry.store import ObjectMeta, Part, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.transfer.upload import Sender

DATA = b"0123456789"
PREFIX = "run/.wherry-tmp-probe-1/"

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@contextmanager
def uploader_to(port: int, folder: Path, config: Config = CALLER) -> Iterator[Uploader]:
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    options = {"endpoint_url": f"http://127.0.0.1:{port}", **keys, **WAY}
    with Uploader("s3://bucket/run", storage_options=options, spool=folder, config=config) as uploader:
        yield uploader


def test_the_first_upload_does_not_wait_for_the_trial(file: Path, tmp_path: Path) -> None:
    """The server answers nothing of the trial before the upload is done, which it never is if it waits."""
    is_done = threading.Event()
    was_in_time: list[bool] = []
    held = Do(lambda: was_in_time.append(is_done.wait(60)))
    with lax_server() as server, fault_proxy("127.0.0.1", server.server_port, [When("", "wherry-probe", held)]) as proxy:
        with end_agent(tmp_path / "spool"), uploader_to(proxy.port, tmp_path / "spool", Config()) as uploader:
            uploader.put(file, "a", overwrite=True).result()
            is_done.set()
            wait_until(lambda: was_in_time, what="the trial's first request")  # botocore is loaded for it
        assert server.objects["run/a"].body == DATA
    assert was_in_time == [True]


@pytest.mark.parametrize(("flaws", "expected"), [((), True), (("takes the name too late in puts",), False)])
def test_an_upload_is_exclusive_only_where_a_race_was_decided(
    file: Path, tmp_path: Path, flaws: tuple[Flaw, ...], expected: bool
) -> None:
    with lax_server(*flaws) as server, uploader_to(server.server_port, tmp_path / "spool") as uploader:
        for name in ("a", "b"):
            handle = uploader.put(file, name)
            handle.result()
            assert expected is handle.is_exclusive


class Raced(WrappedStore):
    """Another writer's object takes the place of ours in the moment after our put: the server looked first and wrote second."""

    def __init__(self, server: LaxServer, another: bytes) -> None:
        super().__init__(store_at(server.server_port))
        self._server, self._another = server, another

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        meta = super().put_file(key, path, put)
        self._server.objects[key] = Kept(self._another, {"ETag": '"2"', "x-amz-meta-wherry-token": "another"})
        return meta


@pytest.mark.parametrize("another", [b"0123456789", b"other bytes"])
def test_who_loses_a_race_is_told_that_the_name_is_taken(file: Path, tmp_path: Path, another: bytes) -> None:
    """Not that its own bytes were damaged; whatever the other has put there."""
    with lax_server("ignores checksums") as server, Raced(server, another) as store, ThreadPoolExecutor(4) as pool:
        job = leased_job("a", len(DATA), overwrite=False)
        with pytest.raises(AlreadyExistsError, match="same moment"):
            Sender(None, pool).send(job, file, store, TransferConfig())


def put_in_parts(port: int, file: Path) -> ObjectMeta:
    with store_at(port) as store:
        upload_id = store.begin("a", len(DATA), PutOptions(metadata={"wherry-token": "mine"}))
        part = store.put_part("a", upload_id, file, Part(1, 0, len(DATA), crc32c(DATA)))
        return store.complete("a", upload_id, [part], PutOptions(metadata={"wherry-token": "mine"}))


def test_the_etag_that_a_complete_does_not_say_is_looked_up(file: Path) -> None:
    with lax_server("leaves the ETag out of the first answer to a complete") as server:
        meta = put_in_parts(server.server_port, file)
        assert server.objects["a"].headers["ETag"] == f'"{meta.etag}"'


def test_an_answer_without_etag_is_no_success_while_another_object_is_there(file: Path) -> None:
    """A login page in place of the answer, and of that answer alone."""
    page = Answer(200, b"<html>Log in</html>")
    with lax_server() as server, fault_proxy("127.0.0.1", server.server_port, [When("POST", "uploadId", page)]) as proxy:
        server.objects["a"] = Kept(DATA, {"ETag": '"1"', "x-amz-meta-wherry-token": "another"})
        with pytest.raises(TransientError, match="missing or another one"):
            put_in_parts(proxy.port, file)
