"""What a local folder does beyond the contract: links, modes, records, full disks, killed writers."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support import let_others_in
from wherry.backends.local.files import translate
from wherry.backends.local.store import LocalStore
from wherry.checksum import crc32c
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    ReadOnlyError,
    TransientError,
    about,
)
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, PutOptions
from wherry.uri import StoreURI, parse_uri


class Folder:
    """A local store and short names in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LocalStore(StoreURI("file", ""), {})

    def key(self, name: str) -> str:
        return parse_uri(self.path).key_for(name)

    def source(self, data: bytes = b"data", mode: int = 0o600) -> Path:
        path = self.path / f"source-{uuid.uuid4().hex}"
        path.write_bytes(data)
        path.chmod(mode)
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_frozen_file_becomes_the_object(folder: Folder) -> None:
    source = folder.source(b"x" * 10_000)
    answer = folder.store.put_file(folder.key("a/b"), source, PutOptions(frozen=True, if_absent=True))
    assert answer.is_shared
    assert os.path.samefile(source, folder.path / "a/b")
    source.unlink()
    assert (folder.path / "a/b").read_bytes() == b"x" * 10_000


def test_frozen_file_replaces_an_object(folder: Folder) -> None:
    folder.store.put_file(folder.key("a"), folder.source(b"old"))
    source = folder.source(b"new")
    assert folder.store.put_file(folder.key("a"), source, PutOptions(frozen=True)).is_shared
    assert (folder.path / "a").read_bytes() == b"new"
    assert source.exists()


def test_own_earlier_attempt_is_recognised(folder: Folder) -> None:
    source = folder.source()
    first = folder.store.put_file(folder.key("a"), source, PutOptions(frozen=True, if_absent=True))
    assert first == folder.store.put_file(folder.key("a"), source, PutOptions(frozen=True, if_absent=True))
    with pytest.raises(AlreadyExistsError):
        folder.store.put_file(folder.key("a"), folder.source(), PutOptions(frozen=True, if_absent=True))


def test_one_frozen_file_under_two_keys_keeps_two_records(folder: Folder) -> None:
    source = folder.source()
    for name in ("a", "b"):
        folder.store.put_file(folder.key(name), source, PutOptions(frozen=True, metadata={TOKEN_METADATA: name}))
    assert [folder.store.head(folder.key(name)).token for name in ("a", "b")] == ["a", "b"]


def test_putting_the_object_onto_itself_keeps_it(folder: Folder) -> None:
    """rename(2) does nothing when both names are links to one file, and would leave the temporary one."""
    source = folder.source(b"same")
    for _ in range(3):
        folder.store.put_file(folder.key("a"), source, PutOptions(frozen=True))
    assert (folder.path / "a").read_bytes() == b"same"
    assert {source.name, "a"} == set(os.listdir(folder.path))


def test_frozen_file_of_another_file_system_is_copied(folder: Folder) -> None:
    other = Path("/dev/shm") / f"wherry-test-{uuid.uuid4().hex}"
    other.write_bytes(b"from memory")
    try:
        assert other.stat().st_dev != folder.path.stat().st_dev
        folder.store.put_file(folder.key("a"), other, PutOptions(frozen=True, if_absent=True))
    finally:
        other.unlink()
    assert (folder.path / "a").read_bytes() == b"from memory"


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_object_has_the_mode_of_a_new_file(folder: Folder, frozen: bool, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        folder.store.put_file(folder.key("a"), folder.source(mode=0o600), PutOptions(frozen=frozen))
    finally:
        os.umask(before)
    assert mode == stat.S_IMODE((folder.path / "a").stat().st_mode)


def test_record_comes_back_and_ends_with_a_change(folder: Folder) -> None:
    key = folder.key("a")
    crc = crc32c(b"12345")
    folder.store.put_file(key, folder.source(b"12345"), PutOptions(crc32c=crc, metadata={TOKEN_METADATA: "t", "x": "ä"}))
    found = folder.store.head(key)
    assert (found.crc32c, dict(found.metadata)) == (crc, {TOKEN_METADATA: "t", "x": "ä"})
    with open(folder.path / "a", "r+b") as file:
        file.write(b"other")
    os.utime(folder.path / "a", ns=(1, 1))
    changed = folder.store.head(key)
    assert (changed.crc32c, changed.metadata) == (None, {})
    assert changed.etag != found.etag


def test_a_file_that_is_written_to_while_it_is_copied_is_not_published(folder: Folder) -> None:
    """Its owner may truncate and fill it again: what is there then is no version of it, and of its very size."""
    key = folder.key("a")
    folder.store.put_file(key, folder.source(b"whole"))
    with pytest.raises(IntegrityError, match="changed while it was copied"):
        folder.store.put_file(key, folder.source(b"mixed"), PutOptions(crc32c=crc32c(b"whole")))
    assert b"whole" == (folder.path / "a").read_bytes()


@pytest.mark.parametrize("record", [b"", b"no json", b"[]", b"{}", b"[4, 1, 2, 3]", b"null"])
def test_strange_record_is_no_record(folder: Folder, record: bytes) -> None:
    (folder.path / "a").write_bytes(b"data")
    os.utime(folder.path / "a", ns=(1, 1))
    os.setxattr(folder.path / "a", "user.wherry", record)
    found = folder.store.head(folder.key("a"))
    assert (found.size_bytes, found.crc32c, found.metadata) == (4, None, {})


def test_record_too_large_for_the_file_system_costs_only_itself(folder: Folder) -> None:
    folder.store.put_file(folder.key("a"), folder.source(), PutOptions(metadata={"x": "y" * 100_000}))
    assert (folder.path / "a").read_bytes() == b"data"
    assert folder.store.head(folder.key("a")).metadata == {}


def test_folder_is_no_object(folder: Folder) -> None:
    folder.store.put_file(folder.key("a/b"), folder.source())
    with pytest.raises(PermanentError, match="folder has this name"):
        folder.store.put_file(folder.key("a"), folder.source())
    with pytest.raises(PermanentError, match="folder has this name"):
        folder.store.put_file(folder.key("a"), folder.source(), PutOptions(if_absent=True))
    with pytest.raises(PermanentError, match="one of the folders above"):
        folder.store.put_file(folder.key("a/b/c"), folder.source())
    folder.store.delete(folder.key("a"))
    folder.store.delete(folder.key("a/b/c"))
    assert (folder.path / "a/b").read_bytes() == b"data"


@pytest.mark.parametrize("name", ["a/../../x", "a//b", "./a", "a/", ""])
def test_key_cannot_leave_its_place(folder: Folder, name: str) -> None:
    for call in (folder.store.head, folder.store.delete):
        with pytest.raises(PermanentError):
            call(f"{folder.key('a')}/{name}")


@pytest.mark.parametrize("name", ["back\\slash", "~", "$HOME", "-rf", "con:", " "])
def test_names_mean_nothing_to_a_local_folder(folder: Folder, name: str) -> None:
    folder.store.put_file(folder.key(f"out/{name}"), folder.source())
    assert [folder.key(f"out/{name}")] == [meta.key for meta in folder.store.list(folder.key("out/"))]
    assert [name] == os.listdir(folder.path / "out")


def test_pipe_does_not_block(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe")
    with pytest.raises(NotFoundError):
        folder.store.head(folder.key("pipe"))
    with pytest.raises(PermanentError, match="no regular file"):
        folder.store.put_file(folder.key("a"), folder.path)
    assert list(folder.store.list(folder.key(""))) == []


def test_a_folder_that_cannot_be_read_is_named_wherever_it_lies(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who can read any."""
    locked = folder.path / "a/locked"
    locked.mkdir(parents=True)
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path == str(locked):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(AccessDeniedError, match=f"list file://{locked}/: Permission denied"):
        list(folder.store.list(folder.key("")))


def test_listing_follows_links_to_files_and_enters_no_linked_folder(folder: Folder) -> None:
    (folder.path / "real").mkdir()
    (folder.path / "real/file").write_bytes(b"12")
    (folder.path / "link").symlink_to("real/file")
    (folder.path / "loop").symlink_to(".")
    (folder.path / "nothing").symlink_to("missing")
    (folder.path / "itself").symlink_to("itself")
    found = {meta.key: meta.size_bytes for meta in folder.store.list(folder.key(""))}
    assert found == {folder.key("link"): 2, folder.key("real/file"): 2}


def test_too_long_name_says_so(folder: Folder) -> None:
    with pytest.raises(PermanentError, match="255 bytes"):
        folder.store.put_file(f"{folder.key('x')}{'x' * 255}", folder.source())  # no name of a caller comes so far


@pytest.mark.parametrize(
    ("code", "writing", "kind"),
    [
        (errno.ENOENT, False, NotFoundError),
        (errno.ENOTDIR, False, NotFoundError),
        (errno.EISDIR, False, NotFoundError),
        (errno.ENOENT, True, TransientError),
        (errno.ENOTDIR, True, PermanentError),
        (errno.EACCES, False, AccessDeniedError),
        (errno.EPERM, True, AccessDeniedError),
        (errno.EROFS, True, ReadOnlyError),
        (errno.ENOSPC, True, TransientError),
        (errno.EDQUOT, True, TransientError),
        (errno.EIO, False, TransientError),
        (errno.ESTALE, False, TransientError),
        (errno.EMFILE, False, TransientError),
        (errno.ENAMETOOLONG, True, PermanentError),
        (errno.EFBIG, True, PermanentError),
    ],
)
def test_errno_decides_the_class(code: int, writing: bool, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised, about("put", "file:///x"):
        raise translate(OSError(code, os.strerror(code)), writing)
    assert kind is raised.type
    assert "file:///x" in str(raised.value)


def run_limited(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_file_that_does_not_fit_leaves_nothing(folder: Folder) -> None:
    """RLIMIT_FSIZE stands for the full disk: the copy breaks in the middle."""
    source = folder.source(b"x" * 3_000_000)
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from wherry.backends.local.store import LocalStore\nfrom wherry.uri import StoreURI\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try:\n    LocalStore(StoreURI('file', ''), {}).put_file(sys.argv[1], Path(sys.argv[2]))\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = run_limited(program, folder.key("out/a"), str(source))
    assert "too large" in done.stdout, done
    assert os.listdir(folder.path / "out") == []


@pytest.mark.parametrize("named", [False, True])
def test_killed_put_leaves_no_object(folder: Folder, named: bool) -> None:
    """Killed in mid-copy, by SIGXFSZ. Without a name (O_TMPFILE) nothing at all is left; with one, a file that list() hides."""
    source = folder.source(b"x" * 100_000)
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from wherry.backends.local.store import LocalStore\nfrom wherry.uri import StoreURI\n"
        "class Store(LocalStore):\n    if sys.argv[3] == 'True':\n        _o_tmpfile = 0\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "Store(StoreURI('file', ''), {}).put_file(sys.argv[1], Path(sys.argv[2]))\n"
    )
    done = run_limited(program, folder.key("out/a"), str(source), str(named))
    assert done.returncode == -signal.SIGXFSZ, done
    left = os.listdir(folder.path / "out")
    assert (1 if named else 0) == len(left)
    assert all(TEMPORARY_MARK in name for name in left)
    assert list(folder.store.list(folder.key("out/"))) == []
    folder.store.put_file(folder.key("out/a"), source, PutOptions(if_absent=True))
    assert (folder.path / "out/a").read_bytes() == b"x" * 100_000


def test_source_that_is_shorter_than_its_size_is_an_integrity_error(folder: Folder) -> None:
    """As one that shrinks meanwhile. The kernel's files in /sys say 4096 bytes and hold less."""
    source = next(path for path in Path("/sys/kernel").rglob("*") if path.is_file() and os.access(path, os.R_OK))
    assert source.stat().st_size > len(source.read_bytes())
    with pytest.raises(IntegrityError, match="became shorter"):
        folder.store.put_file(folder.key("out/a"), source)
    assert os.listdir(folder.path / "out") == []


def test_unreadable_folder_is_denied_not_skipped(folder: Folder) -> None:
    (folder.path / "closed").mkdir()
    program = (
        "import os, sys\nfrom wherry.backends.local.store import LocalStore\nfrom wherry.uri import StoreURI\n"
        "os.chmod(sys.argv[2], 0)\n"
        "if os.getuid() == 0:\n    os.setgroups([])\n    os.setgid(65534)\n    os.setuid(65534)\n"
        "try:\n    print(list(LocalStore(StoreURI('file', ''), {}).list(sys.argv[1])))\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
    )
    let_others_in(folder.path)
    done = run_limited(program, folder.key(""), str(folder.path / "closed"))
    (folder.path / "closed").chmod(0o755)
    assert done.stdout.strip() == "AccessDeniedError", done


def test_host_in_a_file_uri_is_refused() -> None:
    with pytest.raises(ConfigError, match="host"):
        LocalStore(StoreURI("file", "server"), {})
