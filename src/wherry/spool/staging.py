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
from wherry.errors import ConfigError, SourceChangedError
from wherry.posix.atomic_write import sync
from wherry.posix.file_copy import CANNOT, STATBLOCK_BYTES, copy_and_sum, copy_data, reflink, require_regular
from wherry.spool.spool import HALF, Spool

#: A file that changes while it is copied is copied again; a third change says that its writer is still at it.
_COPY_ATTEMPTS = 3
#: A file of at most so many bytes is summed while it is copied: that takes 0.1 ms, and saves a worker a transaction. A larger one
#: is copied by the kernel, so that the caller goes on sooner, and summed by a worker, in pieces.
_SUMMED_IN_CALL_BYTES = 2**20
#: A file of at most so many bytes is copied also where its blocks could be shared: that takes as long, and no worker need sum it.
_COPIED_BYTES = 2**16


def announce(spool: Spool, session: str) -> str:
    """Mark a call that is about to stage files: the first part of their names, to be given to stage().

    Files of a marked call are of no job yet: if its program is killed they are removed, be they whole. Acceptance removes the
    mark when the journal has the jobs.
    """
    call = f"{session}-{secrets.token_hex(4)}"
    with spool.explained("the mark of a call"):
        os.close(spool.make_staged(call))
    return call


def mark_of(object_id: str) -> str:
    """The name of the mark of the call that staged the file."""
    return object_id.rpartition("-")[0] + HALF


def session_of(object_id: str) -> str:
    """The session that staged the file, or whose mark it is."""
    return "-".join(object_id.split("-")[:2])


@dataclass(frozen=True)
class Staged:
    """A snapshot in the spool. `method` says how it was made: move, reflink, copy or open.

    `crc32c` is known of small files that were copied; otherwise a worker computes it.
    """

    object_id: str
    size_bytes: int
    method: str
    crc32c: int | None = None


def stage(
    spool: Spool, source: Path, call: str, *, move: bool = False, advance: Callable[[int], object] = lambda n_bytes: None
) -> Staged:
    """Make a snapshot of a regular file; after return its bytes no longer depend on `source`. `call`: as announce() gave it.

    With `move` the file is given away: it is linked into the spool, and release_source() takes the old name away once the
    journal knows the job. Raises FileNotFoundError, PermissionError, ConfigError for what is no regular file,
    SourceChangedError, SpoolError when the spool is full. Nothing half-written is left.
    `advance` is told of bytes that are copied.
    """
    found = os.stat(source)
    require_regular(source, found)
    object_id = f"{call}-{secrets.token_hex(8)}"
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
    spool.name_whole(object_id)
    _make_durable(spool)


def _copy(spool: Spool, source: Path, object_id: str, advance: Callable[[int], object]) -> Staged:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(reader)
        require_regular(source, before)
        out = spool.make_staged(object_id)
        try:
            crc, method = None, "copy"
            if before.st_size > _COPIED_BYTES and reflink(reader, out):
                method = "reflink"
            else:
                crc = _fill(spool, source, reader, out, before, advance)
            after = os.fstat(reader)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise SourceChangedError(
                    f"{source} changed while it was being copied ({before.st_size} -> {after.st_size} bytes): "
                    "call again when its writer has closed it; for a log that grows all the time mirror its folder instead"
                )
            if spool.config.durability == "power":
                os.fsync(out)
        finally:
            os.close(out)
    finally:
        os.close(reader)
    _name_whole(spool, object_id)
    return Staged(object_id, before.st_size, method, crc)


def _fill(spool: Spool, path: Path, source: int, out: int, found: os.stat_result, advance: Callable[[int], object]) -> int | None:
    """Copy the open file `path`, of which `found` was said, into the spool: its CRC32C, if it was summed on the way."""
    if found.st_size > _SUMMED_IN_CALL_BYTES:
        if min(found.st_size, found.st_blocks * STATBLOCK_BYTES) > spool.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy_data(source, out, found.st_size, advance)
        return None
    pieces = copy_and_sum(source, out, found.st_size, advance)
    if not found.st_size and os.read(source, 1) and not os.fstat(source).st_size:
        raise ConfigError(f"{path} says that it has 0 bytes, and has more: copy it to a regular file, and upload that")
    return join_crc32c(pieces, PIECE_BYTES, found.st_size)


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
    with spool.explained("a new file"):
        spool.reserve.fill()
        object_id = f"{announce(spool, session)}-{secrets.token_hex(8)}"
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
