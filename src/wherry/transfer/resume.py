"""Unfinished downloads: the temporary file that a download writes, and what an interrupted one leaves for the next call.

    .model.pt.wherry-tmp-6c1f0a...         the bytes so far, each range in its place, the others holes
    .model.pt.wherry-tmp-6c1f0a....record  a line of JSON: the object's URI, etag and size, and the size of a range;
                                           then a line for each range that is there: its number and its CRC32C

Both names follow from the destination's name and the object's URI, so that the next call finds them. A range's line is written
after its bytes, so a killed process leaves no line without bytes. A power cut may. Therefore the next call computes the CRC32C
of each recorded range again, and checks it like that of a range which it has just fetched; so nothing here needs fsync.

A download holds a lock on its record (flock). A second download to the same destination does not wait for it: it writes a file
with a random name, and begins at the first byte. So does one on a file system without locks, or beside another user's files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from wherry.errors import IntegrityError, NotFoundError
from wherry.posix.locks import try_lock, unlock
from wherry.store import TEMPORARY_MARK

#: A download that nobody has resumed for a week is given up.
STALE_AFTER_S = 7 * 86_400.0

_FORMAT = 1
_RECORD = ".record"
_TEMPORARY = re.compile(rf"\..*{re.escape(TEMPORARY_MARK)}[0-9a-f]{{16}}({re.escape(_RECORD)})?", re.DOTALL)
_LINE = re.compile(rb"([0-9]{1,12}) ([0-9a-f]{8})")
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Version:
    """The version of an object that is fetched, and the size of the ranges into which it is divided."""

    uri: str
    etag: str | None
    size_bytes: int
    range_size_bytes: int

    @property
    def n_ranges(self) -> int:
        """How many ranges there are; none for an empty object."""
        return -(-self.size_bytes // self.range_size_bytes)

    def range(self, number: int) -> tuple[int, int]:
        """[start, end) of a range; numbers count from 0."""
        start = number * self.range_size_bytes
        return start, min(start + self.range_size_bytes, self.size_bytes)


@dataclass
class Partial:
    """An unfinished file. `recorded` has the ranges that an earlier call has written: number -> CRC32C, not verified yet."""

    path: Path
    version: Version
    #: The record beside it, open and locked; None: nothing is kept for a later call.
    record: int | None = None
    recorded: dict[int, int] = field(default_factory=dict)

    def note(self, number: int, crc32c: int) -> None:
        """Record for a later call that a range was written. Several threads may call this."""
        if self.record is not None:
            os.write(self.record, b"%d %08x\n" % (number, crc32c))
            self.recorded[number] = crc32c

    def close(self, *, keep: bool) -> None:
        """Leave the file and its record to the next call, or remove both: the record last, so that no file is without one."""
        if self.record is None:
            return
        if not (keep and self.recorded):
            self.path.unlink(missing_ok=True)
            _record_of(self.path).unlink(missing_ok=True)
        unlock(self.record)  # a child that was forked meanwhile has the file open, too
        os.close(self.record)


@contextmanager
def partial_beside(destination: Path, version: Version) -> Iterator[Partial]:
    """Yield a file of the object's size in the folder of `destination`, which is made: that of an earlier call, if there is one.

    The file is removed at the end, with one exception. If the object has several ranges and an etag, and the block ends by an
    error that the next call may not meet, the file stays for that call, with all ranges recorded so far. It does not stay if
    the object is missing, damaged or replaced, if the destination is taken, or if the disk is full, which would harm others.
    """
    partial = _take(destination, version) if version.etag is not None and version.n_ranges > 1 else None
    if partial is None:
        with temporary_beside(destination, version.size_bytes) as (path, fd):
            os.ftruncate(fd, version.size_bytes)
            yield Partial(path, version)
        return
    try:
        yield partial
    except BaseException as error:
        partial.close(keep=_another_call_may_do(error))
        raise
    partial.close(keep=False)


@contextmanager
def kept_partial(destination: Path, version: Version) -> Iterator[Partial | None]:
    """The file that a download of this version to `destination` goes on with, for ranges that come another way; it stays.

    None for what no download goes on with: an object of one range, or without an etag; or if another download has it.
    """
    partial = _take(destination, version) if version.etag is not None and version.n_ranges > 1 else None
    try:
        yield partial
    finally:
        if partial is not None:
            partial.close(keep=True)


@contextmanager
def temporary_beside(destination: Path, size_bytes: int) -> Iterator[tuple[Path, int]]:
    """A new empty file in the folder of `destination`, open for writing; removed at the end if it still has its name."""
    folder = _folder_of(destination)
    _require_room(folder, size_bytes)
    temporary = folder / _temporary_name(folder, destination.name, secrets.token_hex(8))
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # where there are no locks its age alone protects it from being cleaned away
            try_lock(fd)
        yield temporary, fd
    finally:
        os.close(fd)
        temporary.unlink(missing_ok=True)


def forget_partial(destination: Path, uri: str) -> None:
    """Remove what broken downloads of `uri` to `destination` have left, unless a download is using it."""
    folder = destination.absolute().parent
    if folder.is_dir():
        _remove(folder / _pair_name(folder, destination.name, uri))


def clean_stale_downloads(
    folder: Path, older_than_s: float = STALE_AFTER_S, *, now: float | None = None, dry_run: bool = False
) -> list[Path]:
    """Remove what broken downloads have left in `folder` (not below it) and nobody has written to for `older_than_s`.

    Records without a file are removed at once. Returns the removed files, without their records. Only regular files of this
    user with our mark in their names are removed and, of those that can be resumed, only files with a record that can be read.
    What a running download holds stays, however old it is. With `dry_run` they are only found.
    """
    before_s = (time.time() if now is None else now) - older_than_s
    with os.scandir(folder) as entries:
        ours = {entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)}
    names = {name.removesuffix(_RECORD) for name in ours}
    # A record without a file: the download was killed just after its file had got its final name.
    return [
        folder / name for name in sorted(names) if _remove(folder / name, before_s if name in ours else None, dry_run=dry_run)
    ]


def _folder_of(destination: Path) -> Path:
    folder = destination.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_room(folder: Path, size_bytes: int) -> None:
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    if space.f_blocks and size_bytes > free_bytes:  # some file systems in user space do not tell their size
        raise OSError(errno.ENOSPC, f"no room: {size_bytes} bytes are needed, {free_bytes} are free", str(folder))


def _temporary_name(folder: Path, name: str, token: str) -> str:
    """The name of a temporary file: the destination's, as much of it as leaves room for the rest."""
    ending = TEMPORARY_MARK + token
    while len(os.fsencode(f".{name}{ending}{_RECORD}")) > os.pathconf(folder, "PC_NAME_MAX"):
        name = name[:-1]
    return f".{name}{ending}"


def _pair_name(folder: Path, name: str, uri: str) -> str:
    told_apart = hashlib.sha256(os.fsencode(name) + b"\0" + uri.encode(errors="surrogateescape"))
    return _temporary_name(folder, name, told_apart.hexdigest()[:16])


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + _RECORD)


def _take(destination: Path, version: Version) -> Partial | None:
    """Lock the file and the record of this destination and object; make them anew if they are of another version.

    None if another download holds them, or if they cannot be made.
    """
    folder = _folder_of(destination)
    path = folder / _pair_name(folder, destination.name, version.uri)
    record = _lock_record(_record_of(path))
    if record is None:
        return None
    partial = Partial(path, version, record)
    try:
        with suppress(OSError):  # the folder may be written but not listed
            clean_stale_downloads(folder)  # for large downloads only: not once for each of ten thousand small files
        known, recorded = _read(record)
        if known is not None and known == replace(version, range_size_bytes=known.range_size_bytes) and _is_whole(path, known):
            partial = Partial(path, known, record, {n: crc for n, crc in recorded.items() if n < known.n_ranges})
            _require_room(folder, version.size_bytes - path.stat().st_blocks * 512)
            return partial
        _require_room(folder, version.size_bytes)
        os.ftruncate(record, 0)
        # A new file, not the old one truncated: a thread of an earlier call that was interrupted twice may still write to that.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(fd, version.size_bytes)
        finally:
            os.close(fd)
        os.write(record, json.dumps({"format": _FORMAT, **asdict(version)}).encode() + b"\n")
    except PermissionError:  # in a shared folder, another user has a file of that name
        _record_of(path).unlink(missing_ok=True)
        os.close(record)
        return None
    except BaseException:
        partial.close(keep=True)
        raise
    return partial


def _lock_record(path: Path) -> int | None:
    """Open and lock a record, which is made if there is none. None if another download holds it, or it cannot be trusted."""
    while True:
        is_new = False
        try:
            fd = os.open(path, _OPEN)
        except FileNotFoundError:
            try:
                fd = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            is_new = True
        except OSError:  # a link, or another user's
            return None
        status = os.fstat(fd)
        # In a shared folder, a record with a second name (a hard link) may be a file that must not be written.
        is_usable = _is_ours(status) and status.st_nlink == 1
        try:
            if not try_lock(fd):
                os.close(fd)
                return None
        except OSError:  # no locks on this file system
            is_usable = False
        if is_usable and _is_at(path, status):
            return fd
        os.close(fd)
        if not is_usable:
            if is_new:
                path.unlink(missing_ok=True)
            return None


def _read(record: int) -> tuple[Version | None, dict[int, int]]:
    """Read a record; None if its first line is incomplete or not of our format. Other incomplete lines are skipped."""
    with open(os.dup(record), "rb") as file:
        file.seek(0)
        first, *lines = file.read().split(b"\n")
    try:
        header = json.loads(first)
        if header.pop("format") != _FORMAT:
            return None, {}
        known = Version(str(header.pop("uri")), str(header.pop("etag")), **header)
        if not (type(known.size_bytes) is type(known.range_size_bytes) is int and known.size_bytes > 0 < known.range_size_bytes):
            return None, {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, {}
    found = (match for line in lines if (match := _LINE.fullmatch(line)))
    return known, {int(match[1]): int(match[2], 16) for match in found}


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _is_at(path: Path, status: os.stat_result) -> bool:
    """Whether the open file still has that name: whoever had it locked may have removed it meanwhile."""
    try:
        return os.path.samestat(path.lstat(), status)
    except FileNotFoundError:
        return False


def _is_whole(path: Path, version: Version) -> bool:
    """Whether the download can go on in this file. With a second name it is the destination of a call killed at its end."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return _is_ours(status) and status.st_nlink == 1 and status.st_size == version.size_bytes


def _remove(path: Path, before_s: float | None = None, *, dry_run: bool = False) -> bool:
    """Remove a temporary file and its record, if both are ours and idle and, with `before_s`, were not written to since."""
    files = [each for each in (_record_of(path), path) if os.path.lexists(each)]
    try:
        found = [each.lstat() for each in files]
        if not files or not all(map(_is_ours, found)):
            return False
        if before_s is not None and max(status.st_mtime for status in found) >= before_s:
            return False
        fd = os.open(files[0], _OPEN)
    except OSError:  # its download has just ended, or we may not open it
        return False
    try:
        is_idle = _may_lock(fd) and _is_at(files[0], found[0])
        if not is_idle or (files[0] != path and found[0].st_size and _read(fd)[0] is None):
            return False
        if not dry_run:
            path.unlink(missing_ok=True)
            _record_of(path).unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _may_lock(fd: int) -> bool:
    try:
        return try_lock(fd)
    except OSError:
        return True  # without locks, only the age counts


def _another_call_may_do(error: BaseException) -> bool:
    """Whether what was fetched is of use to the next call after this error."""
    if isinstance(error, (IntegrityError, NotFoundError, FileExistsError)):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return False
        cause = cause.__cause__
    return True
