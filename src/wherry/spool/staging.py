"""Snapshots of files in the spool: linked, cloned (reflink) or copied there, or written there in the first place.

A snapshot is made the fastest safe way: by a link when the file is given away, else a reflink, else a copy. Never by a bare hard
link of a file that its owner keeps: a rewrite in place would change what is uploaded.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wherry.checksum import PIECE_BYTES, join_crc32c
from wherry.errors import SourceChangedError
from wherry.posix.atomic_write import sync
from wherry.posix.file_copy import CANNOT, copy_and_sum, reflink, require_regular
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
    object_id = f"{session}-{secrets.token_hex(8)}"
    with spool.explained(source, found.st_size):
        spool.reserve.fill()
        # A file with another name, by a hard or a symbolic link, can still be changed there: only this name was given away.
        if move and found.st_nlink == 1 and not source.is_symlink() and (staged := _link(spool, source, object_id)) is not None:
            return staged
        try:
            for _ in range(_COPY_ATTEMPTS - 1):
                with suppress(SourceChangedError):
                    return _copy(spool, source, object_id, advance)
                spool.path(object_id + HALF).unlink(missing_ok=True)
            return _copy(spool, source, object_id, advance)
        except BaseException:
            spool.path(object_id + HALF).unlink(missing_ok=True)
            raise


def _link(spool: Spool, source: Path, object_id: str) -> Staged | None:
    """Give the file its name in the spool. None where it cannot have one there."""
    target = spool.path(object_id)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in CANNOT:
            raise
        return None
    linked = os.stat(target)
    if linked.st_uid == os.getuid():
        os.chmod(target, 0o600)
    _make_durable(spool, target)
    return Staged(object_id, linked.st_size, "move")


def _name_whole(spool: Spool, object_id: str) -> None:
    """Give a file that is whole its name: from now on nobody takes it for a half-made one."""
    os.rename(spool.path(object_id + HALF), spool.path(object_id))
    _make_durable(spool)


def _copy(spool: Spool, source: Path, object_id: str, advance: Callable[[int], object]) -> Staged:
    with open(source, "rb", buffering=0) as reader:
        before = os.fstat(reader.fileno())
        require_regular(source, before)
        out = os.open(spool.path(object_id + HALF), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
    _name_whole(spool, object_id)
    crc = join_crc32c(pieces, PIECE_BYTES, before.st_size) if method == "copy" else None
    return Staged(object_id, before.st_size, method, crc, pieces)


def _make_durable(spool: Spool, *staged: Path) -> None:
    """Put staged files and their names on the disk itself, where `durability` asks for that."""
    if spool.config.durability == "power":
        for path in (*staged, spool.inside("objects")):
            sync(path)


def release_source(source: Path) -> None:
    """Take away the old name of a file that was given away. Called after the journal has the job, never before."""
    source.unlink(missing_ok=True)


def open_folder(spool: Spool, session: str) -> tuple[str, Path]:
    """A new, empty, private folder in the spool, to be filled and then staged with ``move=True``: (object id, folder).

    free() removes it, as does whoever clears up after a session that died.
    """
    object_id = f"{session}-{secrets.token_hex(8)}{HALF}"
    with spool.explained("a new folder"):
        spool.path(object_id).mkdir(mode=0o700)
    return object_id, spool.objects / object_id


def open_writer(spool: Spool, session: str) -> tuple[str, BinaryIO]:
    """A new, private file in the spool, open for writing and reading: (object id, file)."""
    object_id = f"{session}-{secrets.token_hex(8)}"
    with spool.explained("a new file"):
        spool.reserve.fill()
        descriptor = os.open(spool.path(object_id + HALF), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # Larger writes, which checkpoints are made of, go around the buffer.
    return object_id, open(descriptor, "w+b", buffering=2**17)


def finish_writer(spool: Spool, object_id: str, file: BinaryIO) -> Staged:
    """The written file is whole: make a snapshot of it."""
    if spool.config.durability == "power":
        os.fsync(file.fileno())
    with spool.explained("what was written"):
        _name_whole(spool, object_id)
    return Staged(object_id, os.fstat(file.fileno()).st_size, "open")
