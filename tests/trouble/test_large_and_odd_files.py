"""Files at the edges: empty, of exactly one part, of more parts than fit, full of holes, ten thousand of them, and none at all.

Buckets with dots and endpoints with a path are in tests/backends (test_s3_names.py, test_gcs.py).
"""

from __future__ import annotations

import os
import socket
import unicodedata
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from servers.features import tell_spool
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server, fast_folder
from support import IMPATIENT, caller, file_of, leased_job
from wherry.backends.local.store import LocalStore
from wherry.checksum import crc32c_of_file
from wherry.config import MIB, SpoolConfig, TransferConfig
from wherry.errors import ConfigError, PermanentError, UploadFailed
from wherry.store import MultipartStore, Part, PutOptions
from wherry.testing import FaultyStore
from wherry.transfer.upload import Sender
from wherry.uploader import Uploader
from wherry.uri import StoreURI

PART = 5 * MIB
CONFIG = caller(transfer=TransferConfig(multipart_threshold_bytes=PART, part_size_bytes=PART, range_size_bytes=PART))
#: Nothing fits into this spool: files go around it, to a store that must not link them, and so in parts.
AROUND = replace(CONFIG, spool=SpoolConfig(max_spool_bytes=0, when_full="direct"))


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


@pytest.fixture(params=["file", "s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, spool_folder: Path) -> tuple[str, dict[str, object]]:
    """A new prefix of a real store: its URI and the storage options."""
    prefix = uuid.uuid4().hex
    if request.param == "file":
        return str(tmp_path / "dest"), {}
    server: S3Server | GCSServer = request.getfixturevalue("seaweedfs_server" if request.param == "s3" else "gcs")
    if isinstance(server, S3Server):
        tell_spool(spool_folder, server)
    return f"{request.param}://{server.bucket}/{prefix}", dict(server.options)


@pytest.fixture
def uploader(place: tuple[str, dict[str, object]], spool_folder: Path) -> Iterator[Uploader]:
    with Uploader(place[0], storage_options=place[1], spool=spool_folder, config=CONFIG) as opened:
        yield opened


def is_empty(uploader: Uploader) -> bool:
    """Neither a staged file nor a job is in the spool."""
    return not list(uploader.spool.objects.iterdir()) and not uploader.journal.queries.jobs()


# -- sizes


@pytest.mark.parametrize("size_bytes", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
def test_a_file_of_any_size_arrives_once_and_comes_back(uploader: Uploader, tmp_path: Path, size_bytes: int) -> None:
    source = file_of(tmp_path / "source", size_bytes)
    assert size_bytes == uploader.put(source, "x").result().size_bytes
    assert [("x", size_bytes)] == [(uploader.uri.name_for(meta.key), meta.size_bytes) for meta in uploader.list()]
    uploader.get("x", tmp_path / "back")
    assert source.read_bytes() == (tmp_path / "back").read_bytes()
    with pytest.raises(UploadFailed, match="there already"):
        uploader.put(source, "x").result()
    uploader.spool.free(uploader.journal.uploads.discard(None)[1])


@pytest.mark.parametrize("size_bytes", [1, PART - 1, PART, PART + 1])
def test_a_file_that_goes_around_the_spool_arrives_in_a_local_folder_in_parts(
    tmp_path: Path, spool_folder: Path, size_bytes: int
) -> None:
    source = file_of(tmp_path / "source", size_bytes)
    with Uploader(tmp_path / "dest", spool=spool_folder, config=AROUND) as uploader:
        assert size_bytes == uploader.put(source, "x").result().size_bytes
        assert is_empty(uploader)
    assert source.read_bytes() == (tmp_path / "dest" / "x").read_bytes()
    assert ["x"] == os.listdir(tmp_path / "dest")


def test_an_empty_file_that_was_written_or_moved_arrives(uploader: Uploader, tmp_path: Path) -> None:
    with uploader.open("written"):
        pass
    uploader.put(file_of(tmp_path / "source", 0), "moved", move=True).result()
    assert [0, 0] == [meta.size_bytes for meta in uploader.list()]
    assert not (tmp_path / "source").exists()


# -- parts


def test_a_file_of_more_parts_than_the_store_takes_goes_in_larger_ones(tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 10 * MIB + 1)
    transfer = TransferConfig(multipart_threshold_bytes=1, part_size_bytes=MIB)
    with LocalStore(StoreURI("file", ""), {}) as local, ThreadPoolExecutor(4) as pool:
        local.capabilities = replace(local.capabilities, max_parts=10)
        store = FaultyStore(local)
        key = str(tmp_path / "dest" / "x").lstrip("/")
        Sender(None, pool).send(leased_job(key, 10 * MIB + 1), source, store, transfer, retry=IMPATIENT, frozen=False)
    assert 2 <= store.calls["put_part"] <= 10
    assert source.read_bytes() == (tmp_path / "dest" / "x").read_bytes()


def test_a_file_that_the_largest_parts_cannot_hold_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 10 * MIB + 1)
    transfer = TransferConfig(multipart_threshold_bytes=1, part_size_bytes=MIB)
    with LocalStore(StoreURI("file", ""), {}) as local, ThreadPoolExecutor(4) as pool:
        local.capabilities = replace(local.capabilities, max_parts=10, max_part_size_bytes=MIB)
        store = FaultyStore(local)
        job = leased_job(str(tmp_path / "dest" / "x").lstrip("/"), 10 * MIB + 1)
        with pytest.raises(PermanentError, match=r"10485761 bytes are more than the store's 10 parts can hold"):
            Sender(None, pool).send(job, source, store, transfer, retry=IMPATIENT, frozen=False)
    assert {} == dict(store.calls)
    assert not (tmp_path / "dest").exists()


def test_ten_thousand_parts_make_one_object(tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 10_000 * 100)
    with LocalStore(StoreURI("file", ""), {}) as store:
        assert isinstance(store, MultipartStore)
        key = str(tmp_path / "dest" / "x").lstrip("/")
        upload = store.begin(key, source.stat().st_size)
        for number in range(1, 10_001):
            start = (number - 1) * 100
            store.put_part(key, upload, source, Part(number, start, start + 100, crc32c_of_file(source, start, start + 100)))
        held = store.list_parts(key, upload)
        assert list(range(1, 10_001)) == [part.number for part in held]
        store.complete(key, upload, held, PutOptions(crc32c=crc32c_of_file(source)))
    assert source.read_bytes() == (tmp_path / "dest" / "x").read_bytes()


# -- holes


def sparse(path: Path, size_bytes: int) -> Path:
    """Three blocks of data, at the beginning, in the middle and at the end, and holes between them."""
    with open(path, "wb") as file:
        for at in (0, size_bytes // 2 + 1, size_bytes - 4096):
            file.seek(at)
            file.write(os.urandom(4096))
    return path


def test_a_sparse_file_arrives_byte_for_byte(uploader: Uploader, tmp_path: Path) -> None:
    source = sparse(tmp_path / "source", 6 * PART + 12345)
    uploader.put(source, "x").result()
    uploader.get("x", tmp_path / "back")
    assert source.read_bytes() == (tmp_path / "back").read_bytes()


def test_a_sparse_file_that_is_moved_keeps_its_holes(tmp_path: Path, spool_folder: Path) -> None:
    source = sparse(tmp_path / "source", 2**30)
    with Uploader(tmp_path / "dest", spool=spool_folder, config=CONFIG) as uploader:
        uploader.put(source, "x", move=True).result()
    arrived = (tmp_path / "dest" / "x").stat()
    assert 2**30 == arrived.st_size
    assert arrived.st_blocks * 512 < 2**20


# -- what is no file


@pytest.fixture(params=["FIFO", "socket", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """What it is, and a path of such, in a folder of its own."""
    kind = str(request.param)
    (tmp_path / "folder").mkdir()
    file_of(tmp_path / "folder" / "a file", 100)
    monkeypatch.chdir(tmp_path / "folder")  # a socket's address must be short
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        if kind == "FIFO":
            os.mkfifo("odd")
        elif kind == "socket":
            listener.bind("odd")
        else:
            Path("odd").symlink_to(os.devnull)
        yield kind, tmp_path / "folder" / "odd"


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("config", [CONFIG, AROUND], ids=["staged", "around the spool"])
def test_what_is_no_file_is_refused_and_leaves_nothing(
    odd: tuple[str, Path], tmp_path: Path, spool_folder: Path, config: object, move: bool
) -> None:
    kind, path = odd
    with Uploader(tmp_path / "dest", spool=spool_folder, config=CONFIG if config is CONFIG else AROUND) as uploader:
        with pytest.raises(ConfigError, match=rf"odd is a {kind}: only regular files can be uploaded"):
            uploader.put(path, "x", move=move)
        with pytest.raises(ConfigError, match=r"odd is no regular file"):
            uploader.put(path.parent, "x", move=move)
        assert is_empty(uploader)
    assert os.path.lexists(path)
    assert (path.parent / "a file").exists()
    assert not list((tmp_path / "dest").rglob("*"))


# -- names


def test_names_that_differ_by_unicode_form_are_one_and_the_first_is_kept(uploader: Uploader, tmp_path: Path) -> None:
    first, second = file_of(tmp_path / "first", 10), file_of(tmp_path / "second", 20)
    name = "k\u00e4se/\u00e9t\u00e9"
    assert name != unicodedata.normalize("NFD", name)
    uploader.put(first, unicodedata.normalize("NFD", name)).result()
    with pytest.raises(UploadFailed, match="there already"):
        uploader.put(second, name).result()
    uploader.spool.free(uploader.journal.uploads.discard(None)[1])
    assert [(name, 10)] == [(uploader.uri.name_for(meta.key), meta.size_bytes) for meta in uploader.list()]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_two_files_whose_names_differ_by_unicode_form_is_refused(
    uploader: Uploader, tmp_path: Path, overwrite: bool
) -> None:
    """Both would become one object: neither may replace the other in silence."""
    for n, name in enumerate((unicodedata.normalize("NFC", "k\u00e4se"), unicodedata.normalize("NFD", "k\u00e4se")), 1):
        file_of(tmp_path / "folder" / name, n)
    assert 2 == len(os.listdir(tmp_path / "folder"))
    with pytest.raises(ConfigError, match="Unicode form only"):
        uploader.put(tmp_path / "folder", "x", overwrite=overwrite)
    assert is_empty(uploader)
    assert [] == list(uploader.list())


# -- many


@pytest.mark.parametrize("n", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_folder_of_many_small_files_arrives(tmp_path: Path, spool_folder: Path, n: int) -> None:
    for i in range(n):
        path = tmp_path / "folder" / f"{i % 100:02d}" / f"{i:05d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(i).encode())
    with Uploader(tmp_path / "dest", spool=spool_folder, config=CONFIG) as uploader:
        uploader.put(tmp_path / "folder", "x").result()
        assert n == sum(1 for _ in uploader.list())
        assert [] == list(uploader.spool.objects.iterdir())
    arrived = {path.name: path.read_bytes() for path in (tmp_path / "dest" / "x").rglob("*") if path.is_file()}
    assert {f"{i:05d}": str(i).encode() for i in range(n)} == arrived


# -- storage options


@pytest.mark.parametrize(
    ("uri", "known"),
    [("s3://bucket", "endpoint_url"), ("gs://bucket", "credentials_file"), ("/some/folder", "fsync")],
)
def test_an_unknown_storage_option_is_refused_and_the_known_ones_are_named(uri: str, known: str, spool_folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)no_such_option.*{known}") as caught:
        Uploader(uri, storage_options={"no_such_option": "a secret, perhaps"}, spool=spool_folder, config=CONFIG)
    assert "a secret" not in str(caught.value)
