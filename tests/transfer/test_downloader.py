"""The laws of a download: whole and verified under its name, or not there at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pty
import random
import signal
import stat
import struct
import subprocess
import sys
import termios
import threading
import uuid
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from downloads import DATA, KEY, ONE_BY_ONE, QUICK, RANGES, DamagingStore, LyingStore, break_off, fetch, put
from servers.real import S3Server
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError, IntegrityError, NotFoundError, TransientError
from wherry.store import TEMPORARY_MARK, ObjectMeta
from wherry.store.wrappers import WrappedStore
from wherry.testing.faulty import Fault, FaultyStore
from wherry.transfer.download import _publish, download, place
from wherry.uri import StoreURI


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


class OverlongStore(WrappedStore):
    """Writes a byte too many, once."""

    is_done = False

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        super().get_file(key, path, start=start, end=end, if_match=if_match)
        if end == len(DATA) and not self.is_done:
            self.is_done = True
            with open(path, "ab") as file:
                file.write(b"x")


@pytest.mark.parametrize("size_bytes", [0, 1, 16_383, 16_384, 16_385, 49_152, 100_000])
def test_the_file_holds_the_objects_bytes(store: MemoryStore, tmp_path: Path, size_bytes: int) -> None:
    put(store, tmp_path, DATA[:size_bytes])
    meta = fetch(store, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA[:size_bytes]
    assert (meta.size_bytes, meta.crc32c) == (size_bytes, crc32c(DATA[:size_bytes]))
    assert os.listdir(tmp_path) == ["file"]


def test_a_local_folder_is_read_too(tmp_path: Path) -> None:
    store = LocalStore(StoreURI("file", "", str(tmp_path).strip("/")), {})
    key = f"{str(tmp_path).strip('/')}/store/a"
    put(store, tmp_path, key=key)
    fetch(store, tmp_path / "file", key=key)
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_store_without_ranges_is_asked_once_for_the_whole(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    faulty = FaultyStore(store)
    store.capabilities = replace(store.capabilities, ranged_get=False)
    fetch(faulty, tmp_path / "file")
    assert faulty.calls["get"] == 1
    assert (tmp_path / "file").read_bytes() == DATA


def test_missing_parent_folders_are_made(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    fetch(store, tmp_path / "a" / "b" / "file")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == DATA


def test_a_relative_destination_is_below_the_working_folder(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(store, tmp_path)
    fetch(store, Path("file"))
    assert (tmp_path / "file").read_bytes() == DATA


def test_the_mode_follows_the_umask(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    before = os.umask(0o027)
    try:
        fetch(store, tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_a_name_of_greatest_length_leaves_room_for_the_temporary_one(store: MemoryStore, tmp_path: Path, name: str) -> None:
    put(store, tmp_path)
    fetch(store, tmp_path / name)
    assert (tmp_path / name).read_bytes() == DATA


def test_a_real_server_is_read_in_ranges(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        key = f"downloader/{uuid.uuid4().hex}"
        put(store, tmp_path, key=key)
        counted = FaultyStore(store, [Fault("get", TransientError("reset"), nth=2)])
        meta = fetch(counted, tmp_path / "file", key=key)
    assert (tmp_path / "file").read_bytes() == DATA
    assert (meta.size_bytes, meta.crc32c) == (len(DATA), crc32c(DATA))
    assert counted.calls["get"] == 7 + 1


def test_an_object_replaced_on_a_real_server_is_fetched_anew(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        key = f"downloader/{uuid.uuid4().hex}"
        put(store, tmp_path, key=key)
        replaced = FaultyStore(store, [Fault("get", nth=3, act=lambda: put(store, tmp_path, DATA[::-1], key))])
        fetch(replaced, tmp_path / "file", key=key)
    assert (tmp_path / "file").read_bytes() == DATA[::-1]


# before any byte moves


def test_an_existing_file_is_kept_and_no_byte_moves(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    faulty = FaultyStore(store)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        fetch(faulty, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert faulty.calls.total() == 0


def test_a_link_to_nothing_counts_as_existing(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "file").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        fetch(store, tmp_path / "file")


def test_overwrite_replaces_the_file(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "file").write_text("old")
    fetch(store, tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_no_destination(store: MemoryStore, tmp_path: Path, overwrite: bool) -> None:
    put(store, tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        fetch(store, tmp_path, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_or_a_link_to_one_is_no_destination_and_stays(store: MemoryStore, tmp_path: Path, overwrite: bool) -> None:
    put(store, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")  # as /dev/stdout is one
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="is a device, a pipe or a socket"):
            fetch(store, tmp_path / name, overwrite=overwrite)
    assert stat.S_ISFIFO((tmp_path / "link").stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_missing_object_makes_no_folder(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        fetch(store, tmp_path / "a" / "file")
    assert os.listdir(tmp_path) == []


def test_forbidden_is_not_missing(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    with pytest.raises(AccessDeniedError):
        fetch(FaultyStore(store, [Fault("head", AccessDeniedError("403"))]), tmp_path / "file")


class EndlessStore(MemoryStore):
    """Says that its objects have an exbibyte."""

    def head(self, key: str) -> ObjectMeta:
        return replace(super().head(key), size_bytes=2**60)


def test_a_full_disk_is_found_before_any_byte_moves(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    store.__class__ = EndlessStore
    faulty = FaultyStore(store)
    with pytest.raises(OSError, match=f"{2**60} bytes are needed, [0-9]+ are free") as caught:
        fetch(faulty, tmp_path / "file")
    assert caught.value.errno == errno.ENOSPC
    assert faulty.calls["get"] == 0
    assert os.listdir(tmp_path) == []


# faults


def test_a_range_that_fails_for_a_moment_is_fetched_again(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    faulty = FaultyStore(store, [Fault("head", TransientError("reset"), times=2), Fault("get", TransientError("reset"), times=5)])
    fetch(faulty, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert faulty.calls["get"] == 7 + 5


def test_a_small_object_that_fails_for_good_leaves_nothing(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    with pytest.raises(AccessDeniedError, match="revoked"):
        fetch(FaultyStore(store, [Fault("get", AccessDeniedError("revoked"))]), tmp_path / "file", transfer=TransferConfig())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n_bad", [1, 2])
def test_bad_ranges_are_fetched_again_and_not_the_whole(store: MemoryStore, tmp_path: Path, n_bad: int) -> None:
    put(store, tmp_path)
    counted = FaultyStore(DamagingStore(store, n_bad))
    fetch(counted, tmp_path / "file", transfer=ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert counted.calls == {"head": 1, "get": 7 + n_bad}


def test_a_bad_range_at_the_end_is_found_after_those_before_it(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    counted = FaultyStore(DamagingStore(store, 1, first=7))
    fetch(counted, tmp_path / "file", transfer=ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert counted.calls == {"head": 1, "get": 7 + 7}


def test_an_object_that_is_damaged_in_the_store_is_fetched_twice_and_refused(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    counted = FaultyStore(LyingStore(store, crc32c=7))
    with pytest.raises(IntegrityError, match="says 100000 bytes with CRC32C 00000007"):
        fetch(counted, tmp_path / "file")
    assert counted.calls == {"head": 1, "get": 7 + 7}
    assert os.listdir(tmp_path) == []


def test_an_object_replaced_while_a_bad_range_is_sought_is_fetched_anew(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    plan = [Fault("get", nth=8, act=lambda: put(store, tmp_path, DATA[::-1]))]
    fetch(FaultyStore(DamagingStore(store, 1), plan), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA[::-1]


def test_bytes_beyond_the_end_are_not_kept(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    fetch(OverlongStore(store), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_bytes_damaged_twice_are_refused_with_both_figures(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    wrong = bytearray(DATA)
    wrong[0] ^= 1
    with pytest.raises(IntegrityError) as caught:
        fetch(DamagingStore(store, 2), tmp_path / "file", transfer=TransferConfig())
    assert f"CRC32C {crc32c(bytes(wrong)):08x} came" in str(caught.value)
    assert f"says 100000 bytes with CRC32C {crc32c(DATA):08x}" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_an_object_replaced_while_it_is_fetched_is_fetched_anew(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    newer = DATA[::-1][:70_000]
    faulty = FaultyStore(store, [Fault("get", nth=3, act=lambda: put(store, tmp_path, newer))])
    meta = fetch(faulty, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == newer
    assert meta.size_bytes == 70_000


def test_an_object_that_never_rests_is_given_up(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    faulty = FaultyStore(store, [Fault("get", times=1000, act=lambda: put(store, tmp_path, random.randbytes(100_000)))])
    with pytest.raises(IntegrityError, match="was replaced"):
        fetch(faulty, tmp_path / "file")
    assert faulty.calls["head"] == 4
    assert [name for name in os.listdir(tmp_path) if TEMPORARY_MARK in name] == []


def test_a_file_that_appears_meanwhile_is_kept(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)

    def appear() -> None:
        (tmp_path / "file").write_text("mine")

    faulty = FaultyStore(store, [Fault("get", nth=2, act=appear)])
    with pytest.raises(FileExistsError):
        fetch(faulty, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]


def test_of_many_downloads_to_one_name_exactly_one_wins(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    together = threading.Barrier(4)

    def one(_: int) -> bool:
        together.wait(timeout=60)
        try:
            fetch(store, tmp_path / "file")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(one, range(4))) == [False, False, False, True]
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]


def test_ctrl_c_ends_waiting_threads_and_the_next_call_goes_on(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    patient = RetryConfig(call_deadline_s=100_000, first_wait_s=50_000, longest_wait_s=50_000)
    plan = [
        Fault("get", TransientError("reset"), times=2),  # these two wait for hours in their retry
        # the last range: now the main thread waits for the others
        Fault("get", nth=7, act=lambda: os.kill(os.getpid(), signal.SIGINT)),
    ]
    with pytest.raises(KeyboardInterrupt):
        fetch(FaultyStore(store, plan), tmp_path / "file", retry=patient)
    counted = FaultyStore(store)
    fetch(counted, tmp_path / "file")
    assert counted.calls["get"] == 2
    assert (tmp_path / "file").read_bytes() == DATA
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("wherry-get")] == []


# objects that others uploaded


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


DIGESTS = [
    f"md5:{md5(DATA)}",
    f"sha1:{hashlib.sha1(DATA, usedforsecurity=False).hexdigest()}",
    f"sha256:{hashlib.sha256(DATA).hexdigest()}",
    f"crc32:{zlib.crc32(DATA):08x}",
]


@pytest.mark.parametrize("transfer", [RANGES, TransferConfig()], ids=["ranges", "whole"])
@pytest.mark.parametrize("digest", DIGESTS, ids=lambda digest: digest.partition(":")[0])
def test_another_digest_is_checked_where_there_is_no_crc32c(
    store: MemoryStore, tmp_path: Path, digest: str, transfer: TransferConfig
) -> None:
    put(store, tmp_path)
    foreign = LyingStore(store, crc32c=None, digest=digest)
    fetch(foreign, tmp_path / "file", transfer=transfer)
    fetch(DamagingStore(foreign, 1), tmp_path / "repaired", transfer=transfer)
    assert (tmp_path / "file").read_bytes() == (tmp_path / "repaired").read_bytes() == DATA
    name, _, figure = digest.partition(":")
    wrong = f"{name}:{figure[::-1]}"
    with pytest.raises(IntegrityError, match=f"says 100000 bytes with {name.upper()} {figure[::-1].upper()}"):
        fetch(LyingStore(store, crc32c=None, digest=wrong), tmp_path / "wrong", transfer=transfer)
    assert sorted(os.listdir(tmp_path)) == ["file", "repaired"]


def test_a_digest_holds_for_ranges_of_an_earlier_call_too(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    foreign = LyingStore(store, crc32c=None, digest=DIGESTS[0])
    break_off(foreign, tmp_path / "file", 5)
    counted = FaultyStore(foreign)
    fetch(counted, tmp_path / "file")
    assert counted.calls["get"] == 2
    assert (tmp_path / "file").read_bytes() == DATA


def test_our_own_checksum_counts_before_any_other(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    fetch(LyingStore(store, digest="md5:" + "0" * 32), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("size_bytes", [0, 1000])
def test_an_empty_or_small_foreign_object_is_checked(store: MemoryStore, tmp_path: Path, size_bytes: int) -> None:
    put(store, tmp_path, DATA[:size_bytes])
    fetch(LyingStore(store, crc32c=None, digest=f"md5:{md5(DATA[:size_bytes])}"), tmp_path / "file")
    with pytest.raises(IntegrityError):
        fetch(LyingStore(store, crc32c=None, digest=f"md5:{md5(DATA)}"), tmp_path / "wrong")


# putting in place


def no_links(source: Path, target: Path) -> None:
    raise PermissionError(errno.EPERM, "no hard links on this file system")


def test_without_hard_links_the_file_is_put_in_place_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "temporary").write_bytes(DATA)
    _publish(tmp_path / "temporary", tmp_path / "file", False, link=no_links)
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]


def test_without_hard_links_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "temporary").write_bytes(DATA)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        _publish(tmp_path / "temporary", tmp_path / "file", False, link=no_links)
    assert (tmp_path / "file").read_text() == "mine"


def test_place_writes_what_fill_writes(tmp_path: Path) -> None:
    def fill(fd: int) -> None:
        os.write(fd, b"12345")

    place(tmp_path / "a" / "file", fill, 5)
    assert (tmp_path / "a" / "file").read_bytes() == b"12345"


def test_place_leaves_nothing_when_fill_fails(tmp_path: Path) -> None:
    def fill(fd: int) -> None:
        os.write(fd, b"123")
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        place(tmp_path / "file", fill, 5)
    assert os.listdir(tmp_path) == []


# progress

SCRIPT = """
import sys
from pathlib import Path
from wherry.backends.memory import MemoryStore
from wherry.config import RetryConfig, TransferConfig
from wherry.transfer.download import download
from wherry.uri import StoreURI

source = Path(sys.argv[1])
store = MemoryStore(StoreURI("memory", "bar"), {})
store.put_file("a", source)
download(store, "a", source.with_name("file"), uri="memory://bar/a", transfer=TransferConfig(range_size_bytes=16384),
         retry=RetryConfig(), progress_bar=sys.argv[2] == "bar")
"""


def run_in_terminal(arguments: Sequence[str]) -> str:
    """What a Python process writes to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stderr=theirs)
        os.close(theirs)
        text = b""
        while True:
            try:
                block = os.read(ours, 4096)
            except OSError:  # EIO: the process, its last writer, has ended
                break
            if not block:
                break
            text += block
        assert process.wait(timeout=60) == 0, text.decode()
        return text.decode()
    finally:
        os.close(ours)


def test_the_progress_bar_is_shown_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    assert "100%" in run_in_terminal([str(tmp_path / "source"), "bar"])
    assert (tmp_path / "file").read_bytes() == DATA


def test_no_progress_bar_is_shown_that_was_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    assert run_in_terminal([str(tmp_path / "source"), "no bar"]) == ""


def test_no_progress_bar_is_written_to_a_file(store: MemoryStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put(store, tmp_path)
    download(store, KEY, tmp_path / "file", uri="memory://a", transfer=RANGES, retry=QUICK, progress_bar=True)
    assert capfd.readouterr().err == ""
