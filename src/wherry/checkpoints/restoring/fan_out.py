"""One download a node: ranks that restore the same set take turns, and all but the first copy what the first one has.

Two locks (flock), which the kernel frees when a process ends in whatever way:

    .<folder>.wherry-restore.lock      beside the folder that a set is restored to: one process at a time restores to it
    <spool>/restores/<sum>             one process a spool at a time downloads this set; it writes here where the files are

Nobody links a file: a rank that writes into its files must not change another rank's. A copy shares the blocks of its original
where the file system can do that (reflink), and is compared with the receipt in any case.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checksum import PIECE_BYTES, crc32c_of_file, join_crc32c
from wherry.errors import SourceChangedError
from wherry.posix.file_copy import copy_and_sum, reflink
from wherry.posix.locks import lock, try_lock, unlock

log = logging.getLogger("wherry.checkpoints")

#: The ranks of one start restore within minutes of one another.
_RECORDS_KEEP_S = 7 * 86_400.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
#: (size, mtime, ctime, inode) of a file whose bytes were verified: as long as they are these, nobody has written to it.
Stamp = tuple[int, int, int, int]


@contextmanager
def locked(path: Path, what: str, *, wait: bool = True, keep: bool = False) -> Iterator[int | None]:
    """Hold a lock file, which is made: its descriptor. None: another process holds it, and `wait` is off.

    It is removed at the end, unless `keep` is on. `what` is for the log. Raises PermissionError if another user's process has
    made it and this one may not use it.
    """
    descriptor = _lock(path, what, wait)
    if descriptor is None:
        yield None
        return
    try:
        yield descriptor
    finally:
        if not keep:
            path.unlink(missing_ok=True)
        unlock(descriptor)  # a child that was forked meanwhile has the file open, too
        os.close(descriptor)


def _lock(path: Path, what: str, wait: bool) -> int | None:
    while True:
        descriptor = _open_lock(path)
        try:
            if not try_lock(descriptor):
                if not wait:
                    os.close(descriptor)
                    return None
                log.info("%s: another process is at it, we wait for that", what)
                lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            log.warning("%s: %s has no locks, so that two restores at a time are not kept apart", what, path.parent)
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder has removed it while we waited


def _open_lock(path: Path) -> int:
    try:
        while (descriptor := _opened_or_made(path)) is None:
            pass
        return descriptor
    except PermissionError as error:
        owner = path.lstat().st_uid if path.exists() else path.parent.stat().st_uid
        raise PermissionError(
            errno.EACCES,
            f"uid {os.geteuid()} may not write here, as it is uid {owner}'s: give a folder of your own",
            str(path),
        ) from error


def _opened_or_made(path: Path) -> int | None:
    """None: look again. Not O_CREAT alone: for another user's file in a folder for all it is refused (protected_regular)."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def stamp_of(status: os.stat_result) -> Stamp:
    """What of a file changes when somebody writes to it."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True)
class Source:
    """A folder where a process of this node has put the set, or was putting it when it ended; `stamps` of its verified files."""

    folder: Path
    is_whole: bool
    stamps: Mapping[str, Stamp] = field(default_factory=dict)

    def holds(self, name: str, status: os.stat_result) -> bool:
        """Whether the file is as it was when its bytes were verified."""
        return self.stamps.get(name) == stamp_of(status)

    @classmethod
    def parse(cls, data: bytes) -> Source | None:
        """What a record says; None if it says nothing."""
        try:
            content = json.loads(data)
            stamps = {str(name): (int(a), int(b), int(c), int(d)) for name, (a, b, c, d) in content["stamps"].items()}
            return cls(Path(content["folder"]), content["is_whole"] is True, stamps)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def to_bytes(self) -> bytes:
        """The record."""
        return json.dumps({"folder": str(self.folder), "is_whole": self.is_whole, "stamps": self.stamps}).encode()


@dataclass
class Lead:
    """The right to download a set on this node. `source`: what an earlier holder has left."""

    descriptor: int | None
    source: Source | None

    def tell(self, source: Source) -> None:
        """Write down where the set is, for those that come after."""
        if self.descriptor is None:
            return
        data = source.to_bytes()
        try:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, data, 0)
        except OSError as error:  # a full spool: the others download it, too
            log.warning("the other ranks of this node cannot be told where the set is: %s", error)


class Meeting:
    """Where the processes of one spool meet that restore the same objects. `folder`: gives the folder of the records."""

    def __init__(self, folder: Callable[[], Path], *same: str) -> None:
        self._folder = folder
        self._name = hashlib.sha256("\0".join(same).encode(errors="surrogateescape")).hexdigest()[:32]

    @contextmanager
    def lead(self, what: str, *, wait: bool = True) -> Iterator[Lead | None]:
        """Hold the right to download. None: another process has it, and `wait` is off."""
        with ExitStack() as stack:
            try:
                folder = self._folder()
                folder.mkdir(mode=0o700, exist_ok=True)
                _remove_old(folder)
                descriptor = stack.enter_context(locked(folder / self._name, what, wait=wait, keep=True))
                lead = None if descriptor is None else _read_lead(descriptor)
            except OSError as error:
                log.warning("the ranks of this node do not share one download: %s", error)
                lead = Lead(None, None)
            yield lead


def _read_lead(descriptor: int) -> Lead:
    os.utime(descriptor)
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return Lead(descriptor, Source.parse(file.read()))


def _remove_old(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _RECORDS_KEEP_S:
                path.unlink()


def copy_checked(source: Source, expected: SetObject, target: Path, room: Callable[[], None]) -> bool:
    """Copy an object's file of another rank, if it is there and has the bytes that were saved. `room` is called if it takes any.

    False: it is not, or it was changed. The target is whole, or not there.
    """
    path = source.folder / expected.name
    try:
        original = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # removed since, or another user's
        return False
    try:
        before = os.fstat(original)
        if not stat.S_ISREG(before.st_mode) or before.st_size != expected.size_bytes:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name[:100]}.copy-{os.getpid()}")
        copy = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if reflink(original, copy):
                is_noted = source.holds(expected.name, before) and source.holds(expected.name, os.fstat(original))
                crc = expected.crc32c if is_noted else crc32c_of_file(temporary)
            else:
                room()
                crc = join_crc32c(copy_and_sum(original, copy, before.st_size), PIECE_BYTES, before.st_size)
            if crc != expected.crc32c or os.fstat(copy).st_size != expected.size_bytes:
                return False
            os.replace(temporary, target)
            return True
        except SourceChangedError:  # its rank is at work with it already
            return False
        finally:
            os.close(copy)
            temporary.unlink(missing_ok=True)
    finally:
        os.close(original)
