"""Uploads in parts to a local folder: several processes write into one file at once, each its own range.

An upload is a folder beside the object to come, ``.<name>.wherry-tmp-<id>``, with two files. ``data`` becomes the object.
``receipts`` tells which parts of it are whole: a header, then for each part number a place of its own, where a receipt is written
after the part's bytes. So a part can be sent again, a torn receipt does not count, and after a kill at any instant there are
receipts of whole parts only. A power cut may leave receipts of bytes that never got to the disk: unless bytes are synced first,
a receipt counts until the machine starts anew.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from wherry.backends.local.copy import clone_range, copy_range
from wherry.backends.local.files import (
    Record,
    describe,
    make_folders,
    mark_for,
    publish,
    sync_folder,
    temporary_name,
    unlink,
)
from wherry.backends.local_file import opened_source
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, PermanentError, TransientError
from wherry.store import TEMPORARY_MARK, ObjectMeta, Part, PendingUpload, PutOptions, StoredPart

#: The longest key is 1024 bytes, and JSON needs up to six for one of them.
_HEADER_BYTES = 8192
#: A power of two, so that no receipt lies across two sectors.
_RECEIPT_BYTES = 64
_RECEIPT = struct.Struct("<IQQ8s8s")  # number, start, end, nonce, start of the machine; then the CRC-32 of all that
_CHECK = struct.Struct("<I")
_SYNCED = bytes(8)
#: 32 digits: an upload in parts. 16: the file of a put.
_ID = re.compile("[0-9a-f]{32}|[0-9a-f]{16}")
_OURS = re.compile(rf"\.(.*){re.escape(TEMPORARY_MARK)}({_ID.pattern})", re.DOTALL)
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True)
class _Receipt:
    """Says that bytes [start, end) are complete; `nonce` is new each time that they are written."""

    number: int
    start: int
    end: int
    nonce: bytes

    def write(self, fd: int, boot: bytes) -> None:
        """Put it into its place, in one call."""
        packed = _RECEIPT.pack(self.number, self.start, self.end, self.nonce, boot)
        packed += _CHECK.pack(zlib.crc32(packed))
        os.pwrite(fd, packed.ljust(_RECEIPT_BYTES, b"\0"), _HEADER_BYTES + (self.number - 1) * _RECEIPT_BYTES)

    @classmethod
    def read(cls, place: bytes, boot: bytes) -> _Receipt | None:
        """Read what is in a place; None if it is empty or torn, or if a power cut may have lost the bytes."""
        packed = place[: _RECEIPT.size]
        if len(place) < _RECEIPT_BYTES or _CHECK.unpack_from(place, _RECEIPT.size) != (zlib.crc32(packed),):
            return None
        number, start, end, nonce, written = _RECEIPT.unpack(packed)
        return cls(number, start, end, nonce) if number and written in (boot, _SYNCED) else None


class LocalUploads:
    """The contract's calls for parts. `target` is the path of the object; OSErrors are for the caller to translate."""

    def __init__(self, fsync: bool) -> None:
        self._fsync = fsync

    def begin(self, key: str, target: Path, size_bytes: int, metadata: Mapping[str, str]) -> str:
        """Make the upload's folder. Its id follows from the token, so that a begin whose answer was lost is begun again."""
        upload_id = mark_for(metadata)
        folder = temporary_name(target, upload_id)
        made = make_folders(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with _open(folder / "data", flags) as data, _open(folder / "receipts", flags) as receipts:
            header = (key, size_bytes, os.fstat(data).st_ino)
            if _header(receipts) != header:  # new, or its data has gone away
                os.ftruncate(receipts, 0)
                os.ftruncate(data, size_bytes)
                os.pwrite(receipts, json.dumps(header).encode().ljust(_HEADER_BYTES), 0)
        if self._fsync:
            for above in made:
                sync_folder(above.parent)
        return upload_id

    def put_part(self, target: Path, upload_id: str, path: Path, part: Part) -> StoredPart:
        """Write the part into its place in ``data``, and then its receipt."""
        with ExitStack() as stack:
            source = stack.enter_context(opened_source(path))
            data, receipts, size = stack.enter_context(_opened(target, upload_id, fcntl.LOCK_SH))
            if part.end > size:
                raise PermanentError(f"part {part.number} ends at byte {part.end}, the upload was begun for {size}")
            if not clone_range(source, data, part.start, part.end):
                copied = copy_range(source, data, part.start, part.end)
                if copied < part.size_bytes:
                    raise IntegrityError(f"{path} is shorter than it was: {copied} bytes of {part.size_bytes} came")
            if self._fsync:
                os.fdatasync(data)
            receipt = _Receipt(part.number, part.start, part.end, secrets.token_bytes(8))
            receipt.write(receipts, _SYNCED if self._fsync else _boot())
            return StoredPart(part.number, part.size_bytes, receipt.nonce.hex())

    def list_parts(self, target: Path, upload_id: str) -> list[StoredPart]:
        """The parts that have receipts."""
        with _opened(target, upload_id, None) as (_, receipts, _):
            return [StoredPart(each.number, each.end - each.start, each.nonce.hex()) for each in _receipts(receipts).values()]

    def complete(self, key: str, target: Path, upload_id: str, parts: Sequence[StoredPart], put: PutOptions) -> ObjectMeta:
        """Give ``data`` the object's name. AlreadyExistsError if that is taken and must not be."""
        with _opened(target, upload_id, fcntl.LOCK_EX) as (data, receipts, size):
            folder = temporary_name(target, upload_id)
            _check(parts, _receipts(receipts), size)
            Record(put.crc32c, put.metadata).write(data)
            if self._fsync:
                os.fsync(data)
            try:
                if put.if_absent:
                    publish(folder / "data", target, True, upload_id)
                else:
                    os.replace(folder / "data", target)
            except AlreadyExistsError:
                if not os.path.samestat(os.stat(target), os.fstat(data)):  # else an earlier call has done it, and was killed
                    raise
            meta = replace(describe(key, data), crc32c=None)
            self.abort(target, upload_id)
        if self._fsync:
            sync_folder(target.parent)
        return meta

    def abort(self, target: Path, upload_id: str) -> None:
        """Remove the upload's files, and nothing that is not ours."""
        if _ID.fullmatch(upload_id) is None:
            return
        temporary = temporary_name(target, upload_id)
        with suppress(NotADirectoryError):  # the file of a put
            unlink(temporary / "receipts")
            unlink(temporary / "data")
            try:
                os.rmdir(temporary)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
            return
        unlink(temporary)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """The uploads below a prefix; what a killed put has left is one as well."""
        for folder, entry in _temporaries(prefix.rpartition("/")[0]):
            match = _OURS.fullmatch(entry.name)
            if match is None:
                continue
            key, begun_s = f"{folder}/{match[1]}" if folder else match[1], 0.0
            with suppress(OSError, ValueError):  # it has ended meanwhile, or was never whole
                begun_s = max(entry.stat(follow_symlinks=False).st_mtime, entry.stat(follow_symlinks=False).st_ctime)
                with _open(Path(entry.path, "receipts"), os.O_RDONLY) as receipts:
                    header = _header(receipts)
                    key = key if header is None else header[0]
                    begun_s = max(begun_s, os.fstat(receipts).st_mtime, os.stat(Path(entry.path, "data")).st_mtime)
            if begun_s and key.startswith(prefix):
                yield PendingUpload(key, match[2], begun_s, is_ours=True)


@contextmanager
def _opened(target: Path, upload_id: str, lock: int | None) -> Iterator[tuple[int, int, int]]:
    """The upload's two files, open, and the size of the object to be; NotFoundError if it is no more, or never was.

    The lock keeps late writers out of the finished object: parts share it, complete() holds it alone.
    """
    unknown = NotFoundError("the upload is unknown, done or aborted")
    if _ID.fullmatch(upload_id) is None:
        raise unknown
    folder = temporary_name(target, upload_id)
    with ExitStack() as stack:
        try:
            data = stack.enter_context(_open(folder / "data", os.O_RDWR))
            receipts = stack.enter_context(_open(folder / "receipts", os.O_RDWR))
            if lock is not None:
                _lock(data, lock)
            there = os.stat(folder / "data")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise unknown from error
        header = _header(receipts)
        if header is None or header[2] != os.fstat(data).st_ino or there.st_ino != header[2]:
            raise unknown
        yield data, receipts, header[1]


def _lock(fd: int, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        words = "a part is being written" if kind == fcntl.LOCK_EX else "the upload is being completed"
        raise TransientError(words) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _check(parts: Sequence[StoredPart], held: Mapping[int, _Receipt], size_bytes: int) -> None:
    """The parts are those that are held, and all of the object."""
    end = 0
    for part in sorted(parts, key=lambda part: part.number):
        receipt = held.get(part.number)
        if receipt is None or receipt.nonce.hex() != part.etag:
            words = f"part {part.number} is not held, or was sent again since"
            raise NotFoundError(words, hint="list_parts() tells what is there now")
        if receipt.start != end:
            raise PermanentError(f"part {part.number} begins at byte {receipt.start}, the one before it ends at {end}")
        end = receipt.end
    if end != size_bytes or not parts:
        raise PermanentError(f"the parts end at byte {end}, the upload was begun for {size_bytes}")


def _receipts(fd: int) -> dict[int, _Receipt]:
    """The valid receipts, by number."""
    boot, found, at = _boot(), dict[int, _Receipt](), _HEADER_BYTES
    while block := os.pread(fd, _RECEIPT_BYTES * 1024, at):
        at += len(block)
        places = (block[start : start + _RECEIPT_BYTES] for start in range(0, len(block), _RECEIPT_BYTES))
        found.update((receipt.number, receipt) for place in places if (receipt := _Receipt.read(place, boot)) is not None)
    return found


def _header(fd: int) -> tuple[str, int, int] | None:
    """(key, size, inode of the data) as begin() wrote it; None if it did not get that far, or somebody else wrote it."""
    try:
        found = json.loads(os.pread(fd, _HEADER_BYTES, 0))
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(found, list) and [str, int, int] == [type(value) for value in found]
    return (found[0], found[1], found[2]) if is_ours else None


def _temporaries(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries below `folder` (a key) with our mark, each with the key of the folder that it is in."""
    try:
        with os.scandir(f"/{folder}") as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if TEMPORARY_MARK in entry.name:
            yield folder, entry
        elif entry.is_dir(follow_symlinks=False):
            yield from _temporaries(f"{folder}/{entry.name}" if folder else entry.name)


@contextmanager
def _open(path: Path, flags: int) -> Iterator[int]:
    # Whoever may write to the folder may have put a link there, to a file of ours elsewhere, or a pipe, which nobody else opens.
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


@lru_cache(maxsize=1)
def _boot() -> bytes:
    """A text that is new at each start of the machine. If there is none, receipts count after a power cut, too."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return hashlib.sha256(file.read()).digest()[:8]
    return b"no mark!"
