"""Local files that are or become objects: how they are opened and get their names, their records, and our errors for errno."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotFoundError,
    PermanentError,
    ReadOnlyError,
    StoreError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, ObjectMeta

_NAME_MAX_BYTES = 255
_RECORD = "user.wherry"
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_PASSING = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
)

_FILE_ABOVE = "a file has the name of one of the folders above"
#: errno -> our error and the next step, whether it was a read or a write.
_RULES: dict[int, tuple[type[StoreError], str]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), (TransientError, "free some space: it is tried again until the deadline")),
    **dict.fromkeys(_PASSING, (TransientError, "")),
    **dict.fromkeys((errno.EACCES, errno.EPERM), (AccessDeniedError, "")),
    errno.EROFS: (ReadOnlyError, "make it writable: it is tried again until the deadline"),
    errno.ENAMETOOLONG: (PermanentError, f"each part of the name has at most {_NAME_MAX_BYTES} bytes"),
}
#: What has the name, or a part of it, that a file is to have.
_IN_THE_WAY = {errno.ENOTDIR: _FILE_ABOVE, errno.EEXIST: _FILE_ABOVE, errno.EISDIR: "a folder has this name"}


@dataclass(frozen=True)
class Record:
    """What belongs to an object and has no place in the file itself."""

    crc32c: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def write(self, fd: int) -> None:
        """Keep it with the open file, if the file system can."""
        status = os.fstat(fd)
        text = json.dumps([status.st_size, status.st_mtime_ns, self.crc32c, dict(self.metadata)])
        with suppress(OSError):  # no extended attributes here, or no room for one: the object itself is in no danger
            os.setxattr(fd, _RECORD, text.encode())

    @classmethod
    def read(cls, fd: int, status: os.stat_result) -> Record:
        """The record of an open file; an empty one if there is none or the file was changed since."""
        try:
            size, mtime_ns, crc32c, metadata = json.loads(os.getxattr(fd, _RECORD))
            if (size, mtime_ns) != (status.st_size, status.st_mtime_ns) or not (crc32c is None or _is_crc32c(crc32c)):
                return cls()
            return cls(crc32c, {str(name): str(text) for name, text in metadata.items()})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # no record, or one that we did not write
            return cls()


def _is_crc32c(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32


def translate(error: OSError, writing: bool) -> StoreError:
    """The one table from errno to our errors."""
    code = error.errno or 0
    if writing and code in _IN_THE_WAY:
        return PermanentError(_IN_THE_WAY[code])
    if writing and code == errno.ENOENT:
        return TransientError("the folder was removed meanwhile")
    if code in ABSENT:
        return NotFoundError("there is no such file")
    kind, hint = _RULES.get(code, (PermanentError, ""))
    return kind(error.strerror or str(error), hint=hint)


def open_temporary(target: Path, o_tmpfile: int, mark: str) -> tuple[int, Path | None]:
    """Open a new file in the target's folder for writing: without a name where the file system can, else with that mark."""
    if o_tmpfile:
        try:
            return os.open(target.parent, o_tmpfile | os.O_RDWR | os.O_CLOEXEC, 0o666), None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    name = temporary_name(target, mark)
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), name


def mark_for(metadata: Mapping[str, str]) -> str:
    """The mark in the temporary names of an upload. Attempts of one job share it, so each finds what earlier ones left."""
    token = metadata.get(TOKEN_METADATA)
    return secrets.token_hex(16) if token is None else hashlib.sha256(token.encode()).hexdigest()[:32]


def temporary_name(target: Path, mark: str) -> Path:
    """A name beside `target` with the mark, which list() does not show."""
    ending = TEMPORARY_MARK + mark
    start = target.name.encode(errors="surrogateescape")[: _NAME_MAX_BYTES - len(ending) - 1].decode(errors="ignore")
    return target.with_name(f".{start}{ending}")


def unlink(name: Path) -> None:
    """Remove a name; that it is not there is fine."""
    with suppress(FileNotFoundError):
        os.unlink(name)


def link_file(source: Path, target: Path) -> None:
    """link(2), following `source` if it is a symbolic link, as the names of open files in /proc are."""
    # Python calls linkat(), which can follow, only when it is given a folder to start from.
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(source.absolute(), target.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return those that were missing."""
    if os.path.isdir(folder):
        return []
    missing = []
    for above in (folder, *folder.parents):
        if above.exists():
            break
        missing.append(above)
    os.makedirs(folder, exist_ok=True)
    return missing


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def umask() -> int:
    """The umask of the process, read from /proc: os.umask() would change it for a moment, for all threads."""
    try:
        fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.read(fd, 4096)  # it is the second line
        finally:
            os.close(fd)
        return int(status.split(b"\nUmask:", 1)[1].split(b"\n", 1)[0], 8)
    except (OSError, ValueError, IndexError):
        return 0o077  # unknown: keep to what is safe


def etag(status: os.stat_result) -> str:
    """A text that changes when the file changes."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def describe(key: str, fd: int) -> ObjectMeta:
    """What an open file is as an object, with its record."""
    status = os.fstat(fd)
    record = Record.read(fd, status)
    return replace(describe_status(key, status), crc32c=record.crc32c, metadata=record.metadata)


def describe_status(key: str, status: os.stat_result) -> ObjectMeta:
    """The same without the record, which only the open file has."""
    return ObjectMeta(key, status.st_size, etag=etag(status), modified_s=status.st_mtime)


def taken() -> AlreadyExistsError:
    """The error for a name that is taken."""
    return AlreadyExistsError("the file is there already", hint="choose another name or allow overwriting")


def publish(source: Path, target: Path, if_absent: bool, mark: str) -> None:
    """Give the inode of `source` the name `target` as well; AlreadyExistsError if it is taken and must not be.

    An intermediate link has a temporary name with that mark.
    """
    name = target if if_absent else temporary_name(target, mark)
    try:
        link_file(source, name)
    except FileExistsError as error:
        raise taken() from error
    if not if_absent:
        try:
            os.replace(name, target)
        finally:
            unlink(name)  # there only if the replacing failed
