"""Uploads in parts to a local folder: several writers of one file, kills at any instant, holes, leftovers, and who may share."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wherry.backends.local import copy as local_bytes
from wherry.backends.local.store import LocalStore
from wherry.checksum import crc32c
from wherry.errors import (
    AlreadyExistsError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, Part, PendingUpload, PutOptions, StoredPart
from wherry.uri import StoreURI, parse_uri

PART = 100_000


class Folder:
    """A local store, short names in it, and a source of four parts and a bit."""

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self.path = path
        self.store = LocalStore(StoreURI("file", ""), {"fsync": fsync})
        self.data = random.Random(1).randbytes(4 * PART + 1001)
        self.source = path / "source"
        self.source.write_bytes(self.data)

    def key(self, name: str) -> str:
        return parse_uri(self.path).key_for(name)

    def begin(self, name: str, *, if_absent: bool = False, token: str | None = None) -> str:
        metadata = {} if token is None else {TOKEN_METADATA: token}
        return self.store.begin(self.key(name), len(self.data), PutOptions(if_absent=if_absent, metadata=metadata))

    def part(self, number: int) -> Part:
        start = (number - 1) * PART
        end = min(start + PART, len(self.data))
        return Part(number, start, end, crc32c(self.data[start:end]))

    def put(self, name: str, upload_id: str, *numbers: int) -> list[StoredPart]:
        return [self.store.put_part(self.key(name), upload_id, self.source, self.part(number)) for number in numbers]

    def held(self, name: str, upload_id: str) -> list[int]:
        return [part.number for part in self.store.list_parts(self.key(name), upload_id)]

    def left(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path != self.source}


@pytest.fixture(params=[False, True], ids=["process", "fsync"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    return Folder(tmp_path, request.param)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder on another file system than the tests' own."""
    path = Path("/dev/shm") / f"wherry-test-{uuid.uuid4().hex}"
    path.mkdir()
    yield path
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


def test_parts_of_several_processes_make_one_file(folder: Folder) -> None:
    upload_id = folder.begin("out/a")
    program = (
        "import sys\nfrom pathlib import Path\nfrom wherry.backends.local.store import LocalStore\n"
        "from wherry.store import Part\nfrom wherry.uri import StoreURI\n"
        "key, upload_id, source, *numbers = sys.argv[1:]\n"
        "for n in map(int, numbers):\n"
        f"    part = Part(n, (n - 1) * {PART}, min(n * {PART}, {len(folder.data)}), 0)\n"
        "    print(LocalStore(StoreURI('file', ''), {}).put_part(key, upload_id, Path(source), part).etag)\n"
    )
    command = [sys.executable, "-c", program, folder.key("out/a"), upload_id, str(folder.source)]
    with ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(subprocess.run, [*command, *numbers], capture_output=True, text=True, timeout=60, check=True)
            for numbers in (("5", "2"), ("1", "3"), ("4",))
        ]
        etags = {etag for call in calls for etag in call.result().stdout.split()}
    held = folder.store.list_parts(folder.key("out/a"), upload_id)
    assert etags == {part.etag for part in held}
    assert [1, 2, 3, 4, 5] == [part.number for part in held]
    folder.store.complete(folder.key("out/a"), upload_id, held)
    assert folder.data == (folder.path / "out/a").read_bytes()
    assert {"out", "out/a"} == folder.left()


@pytest.mark.parametrize("if_absent", [False, True])
def test_object_has_its_record_and_the_mode_of_a_new_file(folder: Folder, if_absent: bool) -> None:
    before = os.umask(0o027)
    try:
        upload_id = folder.begin("a", if_absent=if_absent)
        sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
        metadata = {TOKEN_METADATA: "t"}
        made = folder.store.complete(
            folder.key("a"), upload_id, sent, PutOptions(if_absent=if_absent, crc32c=7, metadata=metadata)
        )
    finally:
        os.umask(before)
    found = folder.store.head(folder.key("a"))
    assert (made.etag, None) == (found.etag, made.crc32c)
    assert (7, "t", len(folder.data)) == (found.crc32c, found.token, found.size_bytes)
    assert 0o640 == stat.S_IMODE((folder.path / "a").stat().st_mode)


def test_killed_writer_leaves_whole_parts_only(folder: Folder) -> None:
    """Killed by SIGXFSZ in the middle of its third part, then a new process goes on."""
    upload_id = folder.begin("a", token="t")
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom wherry.backends.local.store import LocalStore\n"
        "from wherry.store import Part\nfrom wherry.uri import StoreURI\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))\n"
        "for n in (1, 2, 3):\n"
        f"    part = Part(n, (n - 1) * {PART}, n * {PART}, 0)\n"
        "    LocalStore(StoreURI('file', ''), {}).put_part(sys.argv[1], sys.argv[2], Path(sys.argv[3]), part)\n"
    )
    command = [sys.executable, "-c", program, folder.key("a"), upload_id, str(folder.source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert -signal.SIGXFSZ == done.returncode, done
    assert [1, 2] == folder.held("a", upload_id)
    assert upload_id == folder.begin("a", token="t")  # the answer of the first was lost
    assert [1, 2] == folder.held("a", upload_id)
    held = folder.store.list_parts(folder.key("a"), upload_id)
    folder.store.complete(folder.key("a"), upload_id, [*held, *folder.put("a", upload_id, 3, 4, 5)])
    assert folder.data == (folder.path / "a").read_bytes()


@pytest.mark.parametrize("n_bytes", range(1, 41, 3))
def test_torn_receipt_is_none(tmp_path: Path, n_bytes: int) -> None:
    folder = Folder(tmp_path)
    upload_id = folder.begin("a")
    folder.put("a", upload_id, 1, 2)
    (receipts,) = tmp_path.glob(f"*{TEMPORARY_MARK}*/receipts")
    os.truncate(receipts, receipts.stat().st_size - 64 + n_bytes)
    assert [1] == folder.held("a", upload_id)
    folder.put("a", upload_id, 2)
    assert [1, 2] == folder.held("a", upload_id)


def test_receipt_that_was_changed_is_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    upload_id = folder.begin("a")
    folder.put("a", upload_id, 1, 2)
    (receipts,) = tmp_path.glob(f"*{TEMPORARY_MARK}*/receipts")
    with open(receipts, "r+b") as file:
        file.seek(-50, os.SEEK_END)
        file.write(b"\xff")
    assert [1] == folder.held("a", upload_id)


def test_receipts_of_bytes_that_were_not_synced_end_with_the_machine(tmp_path: Path) -> None:
    """A power cut takes the page cache, and may leave the receipts."""
    folders = {fsync: Folder(tmp_path, fsync) for fsync in (False, True)}
    begun = {fsync: folders[fsync].begin(f"{fsync}") for fsync in folders}
    for fsync, upload_id in begun.items():
        folders[fsync].put(f"{fsync}", upload_id, 1)
    program = (
        "import sys\nfrom wherry.backends.local import uploads\nfrom wherry.backends.local.store import LocalStore\n"
        "from wherry.uri import StoreURI\nuploads._boot = lambda: b'tomorrow'\n"
        "print(len(LocalStore(StoreURI('file', ''), {}).list_parts(sys.argv[1], sys.argv[2])))\n"
    )
    found = {}
    for fsync, upload_id in begun.items():
        command = [sys.executable, "-c", program, folders[fsync].key(f"{fsync}"), upload_id]
        found[fsync] = int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert found == {False: 0, True: 1}


# complete


def test_complete_that_was_killed_can_be_called_again(folder: Folder) -> None:
    """Between link() and the removal of the upload: the name is taken, by this very file."""
    upload_id = folder.begin("a", if_absent=True)
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    (data,) = folder.path.glob(f"*{TEMPORARY_MARK}*/data")
    os.link(data, folder.path / "a")
    folder.store.complete(folder.key("a"), upload_id, sent, PutOptions(if_absent=True))
    assert folder.data == (folder.path / "a").read_bytes()
    assert {"a"} == folder.left()


def test_upload_whose_data_has_become_the_object_is_over(folder: Folder) -> None:
    """Killed between rename() and the removal of the rest: nobody finds parts there that are no more."""
    upload_id = folder.begin("a", token="t")
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    (data,) = folder.path.glob(f"*{TEMPORARY_MARK}*/data")
    os.replace(data, folder.path / "a")
    for call in (
        lambda: folder.store.list_parts(folder.key("a"), upload_id),
        lambda: folder.store.complete(folder.key("a"), upload_id, sent),
        lambda: folder.put("a", upload_id, 1),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert upload_id == folder.begin("a", token="t")
    assert [] == folder.held("a", upload_id)
    folder.store.abort(folder.key("a"), upload_id)
    assert {"a"} == folder.left()
    assert folder.data == (folder.path / "a").read_bytes()


def test_name_taken_meanwhile_is_kept(folder: Folder) -> None:
    upload_id = folder.begin("a", if_absent=True)
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    (folder.path / "a").write_bytes(b"first")
    for call in (
        lambda: folder.store.complete(folder.key("a"), upload_id, sent, PutOptions(if_absent=True)),
        lambda: folder.begin("a", if_absent=True),
    ):
        with pytest.raises(AlreadyExistsError):
            call()
    assert (folder.path / "a").read_bytes() == b"first"
    assert sent == folder.store.list_parts(folder.key("a"), upload_id)
    folder.store.complete(folder.key("a"), upload_id, sent)
    assert folder.data == (folder.path / "a").read_bytes()


def test_parts_that_are_not_all_of_the_object_are_refused(folder: Folder) -> None:
    upload_id = folder.begin("a")
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    for parts in ([], sent[:4], sent[1:], [*sent[:2], *sent[3:]], [sent[0], *sent]):
        with pytest.raises(PermanentError):
            folder.store.complete(folder.key("a"), upload_id, parts)
    folder.put("a", upload_id, 3)
    with pytest.raises(NotFoundError, match="sent again since"):
        folder.store.complete(folder.key("a"), upload_id, sent)
    folder.store.complete(folder.key("a"), upload_id, folder.store.list_parts(folder.key("a"), upload_id))
    assert folder.data == (folder.path / "a").read_bytes()


def test_late_writer_does_not_reach_the_object(folder: Folder) -> None:
    """A part that is being written keeps complete() away, and complete() keeps parts away."""
    upload_id = folder.begin("a")
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    (data,) = folder.path.glob(f"*{TEMPORARY_MARK}*/data")
    with open(data, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(TransientError, match="being written"):
            folder.store.complete(folder.key("a"), upload_id, sent)
        folder.put("a", upload_id, 5)
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TransientError, match="being completed"):
            folder.put("a", upload_id, 5)
    folder.store.complete(folder.key("a"), upload_id, folder.store.list_parts(folder.key("a"), upload_id))


def test_part_beyond_the_size_or_of_a_shorter_file_is_refused(folder: Folder) -> None:
    upload_id = folder.begin("a")
    size = len(folder.data)
    with pytest.raises(PermanentError, match="was begun for"):
        folder.store.put_part(folder.key("a"), upload_id, folder.source, Part(5, 4 * PART, size + 1, 0))
    os.truncate(folder.source, 3 * PART + 10)
    with pytest.raises(IntegrityError, match="shorter"):
        folder.put("a", upload_id, 4)
    assert [] == folder.held("a", upload_id)


def test_folder_or_pipe_is_neither_source_nor_target(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe")
    (folder.path / "dir").mkdir()
    with pytest.raises(PermanentError, match="folder has this name"):
        folder.begin("dir")
    with pytest.raises(PermanentError, match="one of the folders above"):
        folder.begin("source/a")
    upload_id = folder.begin("a")
    for name in ("pipe", "dir"):
        with pytest.raises(PermanentError, match="no regular file"):
            folder.store.put_part(folder.key("a"), upload_id, folder.path / name, folder.part(1))
        with pytest.raises(PermanentError, match="no regular file"):
            folder.store.put_file(folder.key("b"), folder.path / name)


def test_full_disk_is_transient_and_the_part_is_not_held(folder: Folder) -> None:
    upload_id = folder.begin("a")
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom wherry.backends.local.store import LocalStore\n"
        "from wherry.store import Part\nfrom wherry.uri import StoreURI\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "store, part = LocalStore(StoreURI('file', ''), {}), Part(1, 0, 100_000, 0)\n"
        "try:\n    store.put_part(sys.argv[1], sys.argv[2], Path(sys.argv[3]), part)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program, folder.key("a"), upload_id, str(folder.source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "put_part file:///" in done.stdout, done
    assert "too large" in done.stdout, done
    assert [] == folder.held("a", upload_id)


# Holes.


def sparse(path: Path) -> bytes:
    """3 MiB of zeros, one byte of data at their middle, in few blocks."""
    with open(path, "wb") as file:
        file.seek(3 * 2**19)
        file.write(b"x")
        file.truncate(3 * 2**20)
    return path.read_bytes()


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_holes_stay_holes(folder: Folder, memory_folder: Path) -> None:
    for n, source in enumerate((folder.path / "sparse", memory_folder / "sparse")):
        data = sparse(source)
        upload_id = folder.store.begin(folder.key(f"parts-{n}"), len(data))
        ranges = [(1, 0, 2**20), (2, 2**20, 2 * 2**20), (3, 2 * 2**20, 3 * 2**20)]
        sent = [folder.store.put_part(folder.key(f"parts-{n}"), upload_id, source, Part(*each, 0)) for each in ranges]
        folder.store.complete(folder.key(f"parts-{n}"), upload_id, sent)
        folder.store.put_file(folder.key(f"whole-{n}"), source)
        for name in (f"parts-{n}", f"whole-{n}"):
            assert data == (folder.path / name).read_bytes()
            assert blocks(folder.path / name) <= blocks(source) + 2**16


def test_part_sent_again_writes_zeros_over_what_was_there(folder: Folder) -> None:
    data = sparse(folder.path / "sparse")
    upload_id = folder.store.begin(folder.key("a"), len(data))
    other = folder.path / "other"
    other.write_bytes(b"y" * len(data))
    part = Part(1, 0, len(data), 0)
    folder.store.put_part(folder.key("a"), upload_id, other, part)
    sent = folder.store.put_part(folder.key("a"), upload_id, folder.path / "sparse", part)
    folder.store.complete(folder.key("a"), upload_id, [sent])
    assert data == (folder.path / "a").read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_any_range_of_any_holes_is_copied_exactly(tmp_path: Path, memory_folder: Path, seed: int) -> None:
    """Over a target with other bytes and other holes."""
    rng = random.Random(seed)
    size = 40 * 4096 + rng.randrange(4096)
    contents = []
    for path in (tmp_path / "from", (memory_folder if seed % 2 else tmp_path) / "to"):
        with open(path, "wb") as file:
            for _ in range(rng.randrange(6)):
                file.seek(rng.randrange(size))
                file.write(rng.randbytes(rng.randrange(1, 20_000)))
            file.truncate(size)
        contents.append((path, path.read_bytes()))
    (source, data), (target, before) = contents
    start, end = sorted(rng.randrange(size + 1) for _ in range(2))
    with open(source, "rb") as reading, open(target, "r+b") as writing:
        assert end - start == local_bytes.copy_range(reading.fileno(), writing.fileno(), start, end)
    assert before[:start] + data[start:end] + before[end:] == target.read_bytes()


# Leftovers.


def test_leftovers_are_listed_and_aborted_and_nothing_else_is(folder: Folder) -> None:
    names = ["a", "deep/er/b", "x" * 255, "deep/" + "ü" * 127, "other"]
    begun = {folder.key(name): folder.begin(name) for name in names}
    killed = folder.path / f"deep/.c{TEMPORARY_MARK}{'0' * 16}"
    killed.write_bytes(b"half of it")
    foreign = {
        f"notes{TEMPORARY_MARK}{'0' * 32}",
        f".notes{TEMPORARY_MARK}{'0' * 31}",
        f".notes{TEMPORARY_MARK}{'G' * 32}",
        f"deep/.d{TEMPORARY_MARK}",
    }
    for name in foreign:
        (folder.path / name).write_bytes(b"somebody's own")
    found = list(folder.store.list_uploads(folder.key("")))
    assert {**begun, folder.key("deep/c"): "0" * 16} == {upload.key: upload.upload_id for upload in found}
    assert all(upload.is_ours for upload in found)
    deep = {upload.key for upload in folder.store.list_uploads(folder.key("deep/"))}
    assert {folder.key(name) for name in ("deep/er/b", "deep/c", f"deep/{'ü' * 127}")} == deep
    assert [folder.key("other")] == [upload.key for upload in folder.store.list_uploads(folder.key("oth"))]
    for upload in found:
        folder.store.abort(upload.key, upload.upload_id)
        folder.store.abort(upload.key, upload.upload_id)
    for upload_id in ("0" * 31, "notes", "", "../../a"):
        folder.store.abort(folder.key("notes"), upload_id)
    assert foreign | {"deep", "deep/er"} == folder.left()


def test_folder_of_an_upload_that_somebody_uses_stays(folder: Folder) -> None:
    upload_id = folder.begin("a")
    (inside,) = folder.path.glob(f"*{TEMPORARY_MARK}*")
    (inside / "notes").write_bytes(b"somebody's own")
    folder.store.abort(folder.key("a"), upload_id)
    assert {inside.name, f"{inside.name}/notes"} == folder.left()


def test_age_of_an_upload_is_that_of_its_newest_part(folder: Folder) -> None:
    upload_id = folder.begin("a")
    (inside,) = folder.path.glob(f"*{TEMPORARY_MARK}*")

    def begun() -> PendingUpload:
        (found,) = folder.store.list_uploads(folder.key("a"))
        return found

    for path in (inside / "data", inside / "receipts"):
        os.utime(path, (1e9, 1e9))
    assert begun().begun_s > 1.5e9  # the folder's own
    folder.put("a", upload_id, 1)
    assert begun().begun_s >= (inside / "receipts").stat().st_mtime


def test_object_of_the_mark_alone_is_found_before_its_header_was_written(folder: Folder) -> None:
    """begin() may be killed after each of its steps."""
    upload_id = folder.begin("a", token="t")
    (inside,) = folder.path.glob(f"*{TEMPORARY_MARK}*")
    for name in ("receipts", "data", ""):
        if name:
            (inside / name).unlink()
        with pytest.raises(NotFoundError):
            folder.store.list_parts(folder.key("a"), upload_id)
        assert [(folder.key("a"), upload_id)] == [(up.key, up.upload_id) for up in folder.store.list_uploads(folder.key(""))]
    assert upload_id == folder.begin("a", token="t")
    sent = folder.put("a", upload_id, 1, 2, 3, 4, 5)
    folder.store.complete(folder.key("a"), upload_id, sent)
    assert {"a"} == folder.left()


def test_key_that_is_no_utf8_is_kept(folder: Folder) -> None:
    key = folder.key(os.fsdecode(b"caf\xe9"))
    upload_id = folder.store.begin(key, len(folder.data))
    assert [key] == [upload.key for upload in folder.store.list_uploads(folder.key(""))]
    sent = [folder.store.put_part(key, upload_id, folder.source, folder.part(n)) for n in range(1, 6)]
    folder.store.complete(key, upload_id, sent)
    assert [key] == [meta.key for meta in folder.store.list(folder.key("caf"))]


# Sharing.


def test_file_of_ours_on_the_same_file_system_can_be_shared(tmp_path: Path, memory_folder: Path) -> None:
    folder = Folder(tmp_path)
    key = folder.key("not/yet/there")
    assert folder.store.can_share(key, folder.source)
    assert folder.store.put_file(key, folder.source, PutOptions(frozen=True)).is_shared
    (memory_folder / "other").write_bytes(b"x" * 2**17)
    assert not folder.store.can_share(key, memory_folder / "other")
    assert not folder.store.can_share(key, tmp_path / "missing")
    assert not folder.store.can_share(key, tmp_path)
    # Now the source has two names: it can be shared only where blocks can.
    large = tmp_path / "large"
    large.write_bytes(bytes(2**17))
    os.link(large, tmp_path / "second")
    shared = folder.store.put_file(folder.key("b"), large, PutOptions(frozen=True)).is_shared
    assert shared == folder.store.can_share(folder.key("c"), large)


def test_errors_name_the_call_and_the_object(folder: Folder) -> None:
    calls: dict[str, Callable[[], object]] = {
        "put_part": lambda: folder.put("a", "0" * 32, 1),
        "list_parts": lambda: folder.held("a", "0" * 32),
        "complete": lambda: folder.store.complete(folder.key("a"), "0" * 32, []),
    }
    for operation, call in calls.items():
        with pytest.raises(StoreError) as raised:
            call()
        assert (NotFoundError, operation, f"file:///{folder.key('a')}") == (
            type(raised.value),
            raised.value.operation,
            raised.value.uri,
        )
