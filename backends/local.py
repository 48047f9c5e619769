"""Objects as files of a folder: ``file:///folder`` or a plain path. A key is the file's absolute path without its first slash.

A file appears under its name only when it is whole: it is linked (from a frozen source on the same file system), or written to
an inode without a name (O_TMPFILE, open(2)) or with a temporary one, and then linked or renamed into place. A killed put
therefore leaves nothing behind, except on file systems without O_TMPFILE (NFS): there one file with TEMPORARY_MARK in its name.

Metadata and CRC32C are kept in one extended attribute, ``user.wherry``, with the size and time of the file that they
belong to: a record that does not fit its file any more is ignored. File systems without such attributes keep none, which is
why `capabilities.metadata` is False.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import google_crc32c

from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, Capabilities, ObjectMeta, ObjectStore
from wherry.uri import StoreURI

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int), make a file share another's blocks
_FICLONERANGE = 0x4020940D  # _IOW(0x94, 13, struct file_clone_range)
_BLOCK_BYTES = 2**20
_SUMMED_BYTES = 2**18
_CLONE_BYTES = 2**28
_NAME_MAX_BYTES = 255
_RECORD = "user.wherry"
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Why a file that could be opened cannot be linked; ENOENT: its name was deleted since. A copy needs no link to it.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT})
_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


@dataclass(frozen=True)
class _Record:
    """What belongs to an object and has no place in the file itself."""

    crc32c: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def write(self, fd: int) -> None:
        """Keep it with the open file, as far as its file system can."""
        status = os.fstat(fd)
        text = json.dumps([status.st_size, status.st_mtime_ns, self.crc32c, dict(self.metadata)])
        with suppress(OSError):  # no extended attributes here, or no room for one: the object itself is in no danger
            os.setxattr(fd, _RECORD, text.encode())

    @classmethod
    def read(cls, fd: int, status: os.stat_result) -> _Record:
        """The record of an open file; an empty one if there is none or the file was changed since."""
        try:
            size, mtime_ns, crc32c, metadata = json.loads(os.getxattr(fd, _RECORD))
            if (size, mtime_ns) == (status.st_size, status.st_mtime_ns):
                return cls(None if crc32c is None else int(crc32c), {str(name): str(text) for name, text in metadata.items()})
        except (OSError, ValueError, TypeError, AttributeError):  # no record, or one that we did not write
            return cls()
        return cls()


class LocalStore(ObjectStore):
    """A folder tree as a store. Option `fsync` (False): a finished put also survives a power cut.

    A key and a longer one below it (``a`` and ``a/b``) cannot both be there. Parent folders are made and never removed.
    """

    capabilities = Capabilities(
        conditional_put=True,
        conditional_complete=False,
        multipart=False,
        checks_crc32c=False,
        ranged_get=True,
        atomic_replace=True,
        metadata=False,
    )

    #: The flag that opens a file without a name; 0 where there is none, or no /proc, through which it would get its name.
    _o_tmpfile = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        if unknown := set(options) - {"fsync"}:
            raise ConfigError(f"storage option {min(unknown)!r} is unknown to a local folder: it takes 'fsync' (True or False)")
        fsync = options.get("fsync", False)
        if not isinstance(fsync, bool):
            raise ConfigError(f"storage option 'fsync' is {fsync!r}: use True or False")
        if uri.root:
            raise ConfigError(f"{uri} names the host {uri.root!r}: a local folder is written file:///folder")
        self._uri = uri
        self._fsync = fsync

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
        frozen: bool = False,
    ) -> ObjectMeta:
        """As the contract says. What is stored are the bytes up to the size that `path` has at the start of the call.

        A frozen file becomes the object itself where that is possible: its mode is then set as for any new file (umask). With
        `if_absent`, a name that already is this very file counts as stored: an earlier attempt, whose answer was lost, did it.
        """
        target = self._path(key, "put")
        with ExitStack() as stack, self._translated("put", key, writing=True):
            source = stack.enter_context(_opened_source(path, "put", self._uri.uri_for(key)))
            if (earlier := self._taken(key, target, source, if_absent)) is not None:
                return earlier
            made = _make_folders(target.parent)
            record = _Record(crc32c, metadata or {})
            if frozen and self._link(key, path, source, target, record, if_absent):
                stored, shared = source, True
            else:
                stored, shared = self._copy(key, path, source, target, record, if_absent)
                stack.callback(os.close, stored)
            if self._fsync:
                for folder in (target.parent, *(folder.parent for folder in made)):
                    _sync_folder(folder)
            return replace(_describe(key, stored), crc32c=None, is_shared=frozen and shared)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        crc = None
        with ExitStack() as stack:
            with self._translated("get", key):
                source = _open_object(self._path(key, "get"))
                stack.callback(os.close, source)
            before = os.fstat(source)
            self._check_etag(key, before, if_match)
            end = before.st_size if end is None else end
            if not 0 <= start <= end <= before.st_size:
                words = f"bytes {start} to {end} were asked for, the object has {before.st_size}"
                raise IntegrityError(words, operation="get", uri=self._uri.uri_for(key))
            try:
                target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except OSError as error:
                raise PermanentError(
                    f"the file to write to, {path}, cannot be opened: {error.strerror}",
                    operation="get",
                    uri=self._uri.uri_for(key),
                    hint="get_file() fills a file that is there: make it first",
                ) from error
            stack.callback(os.close, target)
            with self._translated("get", key, writing=True):
                if not _clone_range(source, target, start, end):
                    copied, crc = _copy_and_sum(source, target, start, end)
                    if copied < end - start:
                        words = f"the file became shorter while it was read: {copied} of {end - start} bytes came"
                        raise TransientError(words, operation="get", uri=self._uri.uri_for(key))
            self._check_etag(key, os.fstat(source), if_match)
            return crc

    def head(self, key: str) -> ObjectMeta:
        """As the contract says; a folder, socket or device is no object. `crc32c` is the one that the put was given."""
        with self._translated("head", key):
            fd = _open_object(self._path(key, "head"))
            try:
                return _describe(key, fd)
            finally:
                os.close(fd)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """As the contract says. Links to files count as files; folders behind links are not entered.

        A folder that may not be read is an AccessDeniedError, not a gap.
        """
        folder, _, start = prefix.rpartition("/")
        with self._translated("list", prefix):
            yield from _walk(folder, os.fsencode(start))

    def delete(self, key: str) -> None:
        """As the contract says. Folders stay, also when they are empty now."""
        with self._translated("delete", key):
            try:
                os.unlink(self._path(key, "delete"))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise

    def _path(self, key: str, operation: str) -> Path:
        if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise PermanentError(
                "a key of a local folder has no empty part, '.', '..' or NUL", operation=operation, uri=self._uri.uri_for(key)
            )
        return Path("/", key)

    def _taken(self, key: str, target: Path, source: int, if_absent: bool) -> ObjectMeta | None:
        """Look at what has the name already, before any byte is moved: our own earlier attempt is returned."""
        try:
            there = os.stat(target)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(there.st_mode):
            raise PermanentError(
                "a folder has this name, and a local folder cannot hold both", operation="put", uri=self._uri.uri_for(key)
            )
        if not if_absent:
            return None
        if os.path.samestat(there, os.fstat(source)):
            return replace(_describe(key, source), crc32c=None, is_shared=True)
        raise self._exists(key)

    def _exists(self, key: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            "the file is there already",
            operation="put",
            uri=self._uri.uri_for(key),
            hint="choose another name or allow overwriting",
        )

    def _link(self, key: str, path: Path, source: int, target: Path, record: _Record, if_absent: bool) -> bool:
        """Give the frozen file itself the object's name; False where that cannot be."""
        before = os.fstat(source)
        try:
            # One inode has one mode and one record: a file that has a second name already would carry the wrong ones there.
            # The lock keeps two puts of one file, under two keys, from both finding a single name.
            fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(source).st_nlink != 1 or before.st_dev != os.stat(target.parent).st_dev:
                return False
            os.fchmod(source, 0o666 & ~_umask())
        except OSError:  # not our file, or a file system without locks: a copy needs neither
            return False
        record.write(source)
        if self._fsync:
            os.fsync(source)
        try:
            self._publish(key, path, target, if_absent)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def _copy(self, key: str, path: Path, source: int, target: Path, record: _Record, if_absent: bool) -> tuple[int, bool]:
        """Copy the file and publish the copy; return it, open, and whether it shares the source's blocks."""
        size = os.fstat(source).st_size
        fd, name = _open_temporary(target, self._o_tmpfile)
        try:
            if shared := _clone(source, fd):
                os.ftruncate(fd, size)  # the source may have grown since
            elif (copied := _copy_bytes(source, fd, 0, size)) < size:
                words = f"{path} had {size} bytes and became shorter while it was copied: {copied} came"
                raise IntegrityError(words, operation="put", uri=self._uri.uri_for(key))
            record.write(fd)
            if self._fsync:
                os.fsync(fd)
            if name is not None and not if_absent:
                os.replace(name, target)
            else:
                self._publish(key, name or Path(f"/proc/self/fd/{fd}"), target, if_absent)
        except BaseException:
            os.close(fd)
            raise
        finally:
            if name is not None:
                _unlink(name)
        return fd, shared

    def _publish(self, key: str, source: Path, target: Path, if_absent: bool) -> None:
        """Give the inode of `source` the object's name as well."""
        if if_absent:
            try:
                _link_file(source, target)
            except FileExistsError as error:
                raise self._exists(key) from error
            return
        name = _temporary_name(target)
        _link_file(source, name)
        try:
            os.replace(name, target)
        finally:
            _unlink(name)  # there only if the replacing failed

    def _check_etag(self, key: str, status: os.stat_result, if_match: str | None) -> None:
        if if_match is not None and _etag(status) != if_match:
            raise IntegrityError(
                f"the file is another by now: etag {_etag(status)}, not {if_match}", operation="get", uri=self._uri.uri_for(key)
            )

    @contextmanager
    def _translated(self, operation: str, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise _translate(error, operation, self._uri.uri_for(key), writing) from error


def _translate(error: OSError, operation: str, uri: str, writing: bool) -> StoreError:
    """The one table from errno to our errors."""
    code, words = error.errno, error.strerror or str(error)
    if code in _FULL:
        return TransientError(words, operation=operation, uri=uri, hint="free some space: it is tried again until the deadline")
    if code in _PASSING:
        return TransientError(words, operation=operation, uri=uri)
    if code in _DENIED:
        return AccessDeniedError(words, operation=operation, uri=uri)
    if code == errno.ENAMETOOLONG:
        return PermanentError(
            words, operation=operation, uri=uri, hint=f"each part of the name has at most {_NAME_MAX_BYTES} bytes"
        )
    if writing and code in (errno.ENOTDIR, errno.EEXIST):
        return PermanentError("a file has the name of one of the folders above", operation=operation, uri=uri)
    if writing and code == errno.EISDIR:
        return PermanentError("a folder has this name", operation=operation, uri=uri)
    if writing and code == errno.ENOENT:
        return TransientError("the folder was removed meanwhile", operation=operation, uri=uri)
    if code in _ABSENT:
        return NotFoundError("there is no such file", operation=operation, uri=uri)
    return PermanentError(words, operation=operation, uri=uri)


@contextmanager
def _opened_source(path: Path, operation: str, uri: str) -> Iterator[int]:
    """Open the file to send. That it is missing is no NotFoundError: that word is kept for the object."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise PermanentError(
            f"the file to send, {path}, cannot be read: {error.strerror}", operation=operation, uri=uri
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermanentError(f"{path} is no regular file", operation=operation, uri=uri)
        yield fd
    finally:
        os.close(fd)


def _open_object(path: Path) -> int:
    # O_NONBLOCK: opening a named pipe would wait for a writer
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return fd


def _open_temporary(target: Path, o_tmpfile: int) -> tuple[int, Path | None]:
    """Open a new file in the target's folder for writing: without a name where the file system can do that."""
    if o_tmpfile:
        try:
            return os.open(target.parent, o_tmpfile | os.O_RDWR | os.O_CLOEXEC, 0o666), None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    name = _temporary_name(target)
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), name


def _temporary_name(target: Path) -> Path:
    ending = TEMPORARY_MARK + secrets.token_hex(8)
    start = target.name.encode(errors="surrogateescape")[: _NAME_MAX_BYTES - len(ending) - 1].decode(errors="ignore")
    return target.with_name(f".{start}{ending}")


def _unlink(name: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name)


def _link_file(source: Path, target: Path) -> None:
    """link(2), following `source` if it is a symbolic link, as the names of open files in /proc are."""
    # Python calls linkat(), which can follow, only when it is given a folder to start from.
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(source.absolute(), target.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return those that were missing."""
    missing = []
    for above in (folder, *folder.parents):
        if above.exists():
            break
        missing.append(above)
    os.makedirs(folder, exist_ok=True)
    return missing


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _umask() -> int:
    """The umask of the process. /proc tells it; os.umask() would have to change it for a moment, for all threads."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return 0o077  # unknown: keep to what is safe


def _clone(source: int, target: int) -> bool:
    """Make the file share all blocks of another, at once; False where that cannot be (most file systems)."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _clone_range(source: int, target: int, start: int, end: int) -> bool:
    """Make a file share the blocks of a range of another, at the same place; False where that cannot be."""
    if start == end:
        return False  # for the call, no length means all
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, start, end - start, start))
    except OSError:
        return False
    return True


def _copy_and_sum(source: int, target: int, start: int, end: int) -> tuple[int, int]:
    """Copy [start, end) to the same offsets; return how many bytes there were, and their CRC32C.

    Each block is summed between its read and its write, while it is in the processor's cache: that costs a few per cent of the
    copy, and reading the bytes again after a copy inside the kernel a quarter.
    """
    at, crc = start, 0
    while at < end and (block := os.pread(source, min(_SUMMED_BYTES, end - at), at)):
        crc = google_crc32c.extend(crc, block)
        written = os.pwrite(target, block, at)
        while written < len(block):
            written += os.pwrite(target, block[written:], at + written)
        at += len(block)
    return at - start, int(crc)


def _copy_bytes(source: int, target: int, start: int, end: int) -> int:
    """Copy [start, end) to the same offsets, inside the kernel where it can; return how many bytes there were."""
    at = start
    try:
        while at < end and (copied := os.copy_file_range(source, target, min(end - at, _CLONE_BYTES), at, at)):
            at += copied
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while at < end and (block := os.pread(source, min(_BLOCK_BYTES, end - at), at)):
        view = memoryview(block)
        while view:
            written = os.pwrite(target, view, at)
            at += written
            view = view[written:]
    return at - start


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def _describe(key: str, fd: int) -> ObjectMeta:
    status = os.fstat(fd)
    record = _Record.read(fd, status)
    return replace(_describe_status(key, status), crc32c=record.crc32c, metadata=record.metadata)


def _describe_status(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, status.st_size, etag=_etag(status), modified_s=status.st_mtime)


def _walk(folder: str, start: bytes = b"") -> Iterator[ObjectMeta]:
    """The files below `folder` (a key) whose first name starts with `start`, in the order of their keys' bytes.

    ``a-b`` comes before ``a/b``: a folder is sorted with the slash that follows it in the keys.
    """
    try:
        with os.scandir(f"/{folder}") as entries:
            found = [(os.fsencode(entry.name) + b"/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    for sort_name, entry in sorted((pair for pair in found if pair[0].startswith(start)), key=lambda pair: pair[0]):
        if TEMPORARY_MARK in entry.name:
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        if sort_name.endswith(b"/"):
            yield from _walk(key)
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:  # deleted meanwhile, or a link to nothing
            continue
        if stat.S_ISREG(status.st_mode):
            yield _describe_status(key, status)
