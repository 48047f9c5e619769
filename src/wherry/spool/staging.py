"""Snapshots of files in the spool: linked, cloned (reflink) or copied there, or written there in the first place.

A snapshot is made the fastest safe way: by a link when the file is given away, else a reflink, else a copy. Never by a bare hard
link of a file that its owner keeps: a rewrite in place would change what is uploaded.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wherry.checksum import PIECE_BYTES, join_crc32c
from wherry.errors import SourceChangedError, SpoolError
from wherry.posix.file_copy import CANNOT, copy_and_sum, reflink, require_regular, sync_folder
from wherry.spool.spool import HALF, Spool

#: A file that changes while it is copied is copied again; a third change says that its writer is still at it.
_COPY_ATTEMPTS = 3


@dataclass(frozen=True)
class Staged:
    """A snapshot in the spool. `method` says how it was made: move, reflink, copy or open.

    `crc32c`, and that of each piece of PIECE_BYTES, is known where the bytes went through our hands, by copy; otherwise a worker
    computes it.
    """

    object_id: str
    size_bytes: int
    method: str
    crc32c: int | None = None
    pieces: tuple[int, ...] = ()


def stage(
    spool: Spool, source: Path, session: str, *, move: bool = False, advance: Callable[[int], object] = lambda n_bytes: None
) -> Staged:
    """Make a snapshot of a regular file; after return its bytes no longer depend on `source`.

    With `move` the file is given away: it is linked into the spool, and release_source() takes the old name away once the
    journal knows the job. Raises FileNotFoundError, PermissionError, ConfigError for what is no regular file,
    SourceChangedError, SpoolError when the spool is full. Nothing half-written is left.
    `advance` is told of bytes that are copied.
    """
    found = source.stat()
    require_regular(source, found)
    with spool.explained(source, found.st_size):
        spool.reserve.fill()
    object_id = f"{session}-{secrets.token_hex(8)}"
    target = spool.path(object_id)
    # A file with another name, by a hard or a symbolic link, can still be changed there: only this name was given away.
    if move and found.st_nlink == 1 and not source.is_symlink():
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in CANNOT:
                raise spool.explain(error, source, found.st_size) from error
        else:
            linked = os.stat(target)
            if linked.st_uid == os.getuid():
                os.chmod(target, 0o600)
            _make_durable(spool, target)
            return Staged(object_id, linked.st_size, "move")
    half = spool.path(object_id + HALF)
    try:
        for attempt in range(1, _COPY_ATTEMPTS + 1):
            try:
                staged = _copy(spool, source, half, object_id, advance)
            except SourceChangedError:  # noqa: PERF203  three rounds at most
                half.unlink(missing_ok=True)
                if attempt == _COPY_ATTEMPTS:
                    raise
            else:
                _name_whole(spool, object_id)
                return staged
    except OSError as error:
        half.unlink(missing_ok=True)
        if isinstance(error, SpoolError):
            raise
        raise spool.explain(error, source, found.st_size) from error
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    raise AssertionError("unreachable")


def _name_whole(spool: Spool, object_id: str) -> None:
    """Give a file that is whole its name: from now on nobody takes it for a half-made one."""
    os.rename(spool.path(object_id + HALF), spool.path(object_id))
    if spool.config.durability == "power":
        sync_folder(spool.inside("objects"))


def _copy(spool: Spool, source: Path, target: Path, object_id: str, advance: Callable[[int], object]) -> Staged:
    with open(source, "rb", buffering=0) as reader:
        before = os.fstat(reader.fileno())
        require_regular(source, before)
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            pieces: tuple[int, ...] = ()
            method = "reflink" if reflink(reader.fileno(), out) else "copy"
            if method == "copy":
                if before.st_size > spool.free_bytes():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                pieces = copy_and_sum(reader.fileno(), out, before.st_size, advance)
            after = os.fstat(reader.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise SourceChangedError(
                    f"{source} changed while it was being copied ({before.st_size} -> {after.st_size} bytes): "
                    "call again when its writer has closed it; for a log that grows all the time mirror its folder instead"
                )
            if spool.config.durability == "power":
                os.fsync(out)
        finally:
            os.close(out)
    crc = join_crc32c(pieces, PIECE_BYTES, before.st_size) if method == "copy" else None
    return Staged(object_id, before.st_size, method, crc, pieces)


def _make_durable(spool: Spool, target: Path) -> None:
    """Put a staged file on the disk itself, where `durability` asks for that."""
    if spool.config.durability == "power":
        with open(target, "rb") as file:
            os.fsync(file.fileno())
        sync_folder(spool.inside("objects"))


def release_source(source: Path) -> None:
    """Take away the old name of a file that was given away. Called after the journal has the job, never before."""
    source.unlink(missing_ok=True)


def open_writer(spool: Spool, session: str) -> tuple[str, BinaryIO]:
    """A new, private file in the spool, open for writing and reading: (object id, file)."""
    object_id = f"{session}-{secrets.token_hex(8)}"
    with spool.explained("a new file"):
        spool.reserve.fill()
        descriptor = os.open(spool.path(object_id + HALF), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return object_id, open(
        descriptor, "w+b", buffering=2**17
    )  # larger writes, which checkpoints are made of, go around the buffer


def finish_writer(spool: Spool, object_id: str, file: BinaryIO) -> Staged:
    """The written file is whole: make a snapshot of it."""
    if spool.config.durability == "power":
        os.fsync(file.fileno())
    with spool.explained("what was written"):
        _name_whole(spool, object_id)
    return Staged(object_id, os.fstat(file.fileno()).st_size, "open")
