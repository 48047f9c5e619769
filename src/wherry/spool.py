"""The spool: one private folder that holds the staged files, the journal, and the meeting points of its processes.

    spool/
      journal.db          the jobs (wherry.journal)
      objects/            one file a snapshot, named <client>-<random>
      clients/            one locked file a living client; a lock that is free means that its process is gone
      bell                the agent's doorbell (wherry.doorbell)
      agent.lock          held by the agent and its workers
      agent.log           what they had to say
      endpoints.json      what servers were found to honour (wherry.endpoints)
      downloads/          notes of the folders into which something was downloaded
      quarantine/         damaged journals with the staged files they described; never deleted by us

A snapshot is made the fastest safe way: rename or link when the file is given away, reflink, else a copy in the kernel.
Never a bare hard link of a file that its owner keeps: an in-place rewrite would change what is uploaded.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wherry.checksum import BLOCK_BYTES, PIECE_BYTES, crc32c, join_crc32c
from wherry.config import SpoolConfig, default_spool_folder
from wherry.errors import ConfigError, SourceChangedError, SpoolError

#: ioctl_ficlone(2): share the blocks of another file, copy on write.
_FICLONE = 0x40049409
#: linkat(2), rename(2) and FICLONE say these where they cannot do it on this pair of files; then the next way is taken.
_CANNOT = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.ETXTBSY}
_COPY_CHUNK_BYTES = 2**30
#: What a broken download leaves is stale after a week; in this time an agent has seen it.
_DOWNLOADS_KEEP_S = 30 * 86_400.0
#: A file that changes while it is copied is copied again; a third change says that its writer is still at it.
_COPY_ATTEMPTS = 3
#: SQLite's write-ahead log does not work over these (https://sqlite.org/wal.html), or they forget at a reboot.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "lustre", "beegfs", "ceph"}
_VOLATILE = {"tmpfs", "ramfs"}


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


class Spool:
    """One spool folder, opened by this process. Making it is safe from several processes at once."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, config: SpoolConfig | None = None) -> None:
        self.folder = default_spool_folder() if folder is None else Path(folder).expanduser().absolute()
        self.config = config or SpoolConfig()
        self.objects = self.folder / "objects"
        self.clients = self.folder / "clients"
        self.journal_path = self.folder / "journal.db"
        self._prepare()

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder")
            if found.st_uid != os.getuid():
                raise SpoolError(
                    f"the spool {self.folder} belongs to user {_user_name(found.st_uid)}, not to {_user_name(os.getuid())}: "
                    "name one of your own with spool= or $WHERRY_SPOOL"
                )
            if stat.S_IMODE(found.st_mode) != 0o700:
                self.folder.chmod(0o700)
            self.objects.mkdir(mode=0o700, exist_ok=True)
            self.clients.mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.objects, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it is not writable")
        except SpoolError:
            raise
        except OSError as error:
            raise SpoolError(
                f"the spool {self.folder} cannot be used: {error.strerror or error}. "
                "It must be a folder that you can write: name one with spool= or $WHERRY_SPOOL"
            ) from error

    def path(self, object_id: str) -> Path:
        """Where a staged file lies."""
        return self.objects / object_id

    def stage(self, source: Path, client: str, *, move: bool = False) -> Staged:
        """Make a snapshot of a regular file; after return its bytes no longer depend on `source`.

        With `move` the file is given away: it is linked into the spool, and release_source() takes the old name away once the
        journal knows the job. Raises FileNotFoundError, PermissionError, ConfigError for what is no regular file,
        SourceChangedError, SpoolError when the spool is full. Nothing half-written is left.
        """
        found = source.stat()
        require_regular(source, found)
        object_id = f"{client}-{secrets.token_hex(8)}"
        target = self.path(object_id)
        # A file with another name, by a hard or a symbolic link, can still be changed there: only this name was given away.
        if move and found.st_nlink == 1 and not source.is_symlink():
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise self.explain(error, source, found.st_size) from error
            else:
                staged = os.stat(target)
                if staged.st_uid == os.getuid():
                    os.chmod(target, 0o600)
                self.make_durable(target)
                return Staged(object_id, staged.st_size, "move")
        try:
            for attempt in range(1, _COPY_ATTEMPTS + 1):
                try:
                    return self._copy(source, target, object_id)
                except SourceChangedError:  # noqa: PERF203  three rounds at most
                    target.unlink(missing_ok=True)
                    if attempt == _COPY_ATTEMPTS:
                        raise
        except OSError as error:
            target.unlink(missing_ok=True)
            if isinstance(error, SpoolError):
                raise
            raise self.explain(error, source, found.st_size) from error
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        raise AssertionError("unreachable")

    def _copy(self, source: Path, target: Path, object_id: str) -> Staged:
        with open(source, "rb", buffering=0) as reader:
            before = os.fstat(reader.fileno())
            require_regular(source, before)
            out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                pieces: tuple[int, ...] = ()
                method = "reflink" if _reflink(reader.fileno(), out) else "copy"
                if method == "copy":
                    if before.st_size > self.free_bytes():
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    pieces = _copy_and_sum(reader.fileno(), out, before.st_size)
                after = os.fstat(reader.fileno())
                if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                    raise SourceChangedError(
                        f"{source} changed while it was being copied ({before.st_size} -> {after.st_size} bytes): "
                        "call again when its writer has closed it; for a log that grows all the time mirror its folder instead"
                    )
                if self.config.durability == "power":
                    os.fsync(out)
            finally:
                os.close(out)
        if self.config.durability == "power":
            sync_folder(self.objects)
        crc = join_crc32c(pieces, PIECE_BYTES, before.st_size) if method == "copy" else None
        return Staged(object_id, before.st_size, method, crc, pieces)

    def make_durable(self, target: Path) -> None:
        """Put a staged file on the disk itself, where `durability` asks for that."""
        if self.config.durability == "power":
            with open(target, "rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.objects)

    def release_source(self, source: Path) -> None:
        """Take away the old name of a file that was given away. Called after the journal has the job, never before."""
        source.unlink(missing_ok=True)

    def open_writer(self, client: str) -> tuple[str, BinaryIO]:
        """A new, private file in the spool, open for writing and reading: (object id, file)."""
        object_id = f"{client}-{secrets.token_hex(8)}"
        descriptor = os.open(self.path(object_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return object_id, open(
            descriptor, "w+b", buffering=2**17
        )  # larger writes, which checkpoints are made of, go around the buffer

    def free(self, object_ids: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        """Remove staged files that no job needs any more."""
        for object_id in object_ids:
            if object_id:
                self.path(object_id).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the file system under the spool has left for us."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def explain(self, error: OSError, what: object, size_bytes: int | None = None) -> OSError:
        """Tell a trouble of the spool from one of the source; the source's own errors pass as they are.

        `what` was to be staged; it takes `size_bytes`, if that is known.
        """
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = "more than that is needed" if size_bytes is None else f"{size_bytes} bytes are needed"
            return SpoolError(
                error.errno,
                f"no room in the spool {self.folder} for {what}: {needed}, {self.free_bytes()} are free. "
                "Free some space, or put the spool elsewhere (spool= or $WHERRY_SPOOL): where the files are, "
                "move=True takes no room",
            )
        if error.errno == errno.EROFS or error.filename == str(self.path("")).rstrip("/"):
            return SpoolError(error.errno, f"the spool {self.folder} cannot be written: {error.strerror}")
        return error

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock file `name` in the spool, waiting for whoever has it."""
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def try_lock(self, name: str) -> int | None:
        """The descriptor that holds the lock file `name`, until it is closed; None if somebody else does."""
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def register_client(self, client: str) -> int:
        """Announce a living client and return the descriptor whose lock says so; closing it signs off."""
        path = self.clients / client
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)  # living_clients() looked before the lock was there, and took the client for a dead one

    def forget_client(self, client: str) -> None:
        """Remove what register_client() and the client's bell left."""
        (self.clients / client).unlink(missing_ok=True)
        (self.clients / f"{client}.bell").unlink(missing_ok=True)

    def living_clients(self) -> set[str]:
        """The clients whose process lives; the traces of the others are removed."""
        living: set[str] = set()
        for entry in os.scandir(self.clients):
            if entry.name.endswith(".bell"):
                continue
            with suppress(FileNotFoundError):  # it signed off while we looked
                if self.is_free(self.clients / entry.name):
                    self.forget_client(entry.name)
                else:
                    living.add(entry.name)
        return living

    @staticmethod
    def is_free(path: Path) -> bool:
        """Whether nobody holds the lock of the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def agent_pid(self) -> int | None:
        """The process id of the agent of this spool, or None if there is none."""
        lock = self.folder / "agent.lock"
        try:
            if self.is_free(lock):
                return None
            return int(lock.read_text() or 0) or None
        except (FileNotFoundError, ValueError):
            return None

    def sweep(self, referenced: set[str], found: list[str]) -> list[str]:
        """Remove those of the files `found` that no job refers to and whose client is gone: half-made snapshots.

        `found` must have been listed before `referenced` was read, so that a job accepted in between is not taken for an orphan.
        """
        living = self.living_clients()
        orphans = [name for name in found if name not in referenced and name.rpartition("-")[0] not in living]
        self.free(orphans)
        return orphans

    def note_download(self, folder: Path) -> None:
        """Remember that a download writes into `folder`, where a broken one leaves files that are to be cleaned away some day."""
        notes = self.folder / "downloads"
        note = notes / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        try:
            os.utime(note)
        except FileNotFoundError:
            with suppress(OSError):  # a full disk is no reason not to download
                notes.mkdir(mode=0o700, exist_ok=True)
                note.write_bytes(os.fsencode(folder))

    def download_folders(self) -> list[Path]:
        """The folders into which something was downloaded lately and that are still there."""
        found: list[Path] = []
        for note in (self.folder / "downloads").glob("*"):
            folder = Path(os.fsdecode(note.read_bytes()))
            if os.access(folder, os.R_OK | os.W_OK | os.X_OK) and time.time() - note.stat().st_mtime < _DOWNLOADS_KEEP_S:
                found.append(folder)
            else:
                note.unlink(missing_ok=True)
        return sorted(found)

    def file_system(self) -> str:
        """The type of file system under the spool (``ext4``, ``tmpfs``, ...); empty where it cannot be told."""
        try:
            device = os.stat(self.folder).st_dev
            wanted = f"{os.major(device)}:{os.minor(device)}"
            with open("/proc/self/mountinfo") as lines:
                for line in lines:
                    left, _, right = line.partition(" - ")
                    if left.split()[2] == wanted:
                        return right.split()[0]
        except OSError:
            return ""
        return ""

    def warnings(self) -> list[str]:
        """What is questionable about this spool's place, in plain words."""
        kind = self.file_system()
        if kind in _NETWORK or kind.startswith("fuse."):
            return [
                f"the spool {self.folder} is on {kind}: the journal's write-ahead log does not work over a network file system. "
                "Put the spool on a local disk (spool= or $WHERRY_SPOOL)"
            ]
        if kind in _VOLATILE:
            return [
                f"the spool {self.folder} is on {kind}, in memory: staged files take RAM and are lost at a reboot. "
                "Put the spool on a disk (spool= or $WHERRY_SPOOL) unless that is what you want"
            ]
        return []


def require_regular(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError for a folder, FIFO, socket or device; none of them is opened, for that may block."""
    if not stat.S_ISREG(found.st_mode):
        names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = names.get(stat.S_IFMT(found.st_mode), "a device")
        raise ConfigError(f"{path} is {kind}: only regular files can be uploaded")


def _reflink(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True


def _copy_and_sum(source: int, target: int, size_bytes: int) -> tuple[int, ...]:
    """Copy by blocks that stay in the processor's cache while they are summed: (the CRC32C of each piece of PIECE_BYTES).

    That is as fast as a copy inside the kernel, which the sum would have to read again, and
    the checksum covers everything that happens to the bytes from here on.
    """
    pieces: list[int] = []
    left = size_bytes
    while left:
        crc, in_piece = 0, min(PIECE_BYTES, left)
        left -= in_piece
        while in_piece:
            block = os.read(source, min(BLOCK_BYTES, in_piece))
            if not block:
                there = size_bytes - left - in_piece
                raise SourceChangedError(f"the file shrank while it was being copied: {there} of {size_bytes} bytes were there")
            crc = crc32c(block, crc)
            in_piece -= len(block)
            while block:
                block = block[os.write(target, block) :]
        pieces.append(crc)
    return tuple(pieces)


def _copy_bytes(source: int, target: int, size_bytes: int) -> None:
    """Copy a staged file, in the kernel where it can."""
    copied = 0
    in_kernel = hasattr(os, "copy_file_range")
    while copied < size_bytes:
        left = min(_COPY_CHUNK_BYTES, size_bytes - copied)
        if in_kernel:
            try:
                n = os.copy_file_range(source, target, left)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                in_kernel = False
                continue
        else:
            block = os.read(source, min(left, 2**20))
            n = len(block)
            while block:
                block = block[os.write(target, block) :]
        if n == 0:
            raise SourceChangedError(f"the file shrank while it was being copied: {copied} of {size_bytes} bytes were there")
        copied += n


def sync_folder(folder: Path) -> None:
    """Put a folder on disk (fsync), so that the names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_out(staged: Path, target: int) -> None:
    """Copy a staged file into the open, empty file `target`: reflink where possible."""
    with open(staged, "rb", buffering=0) as reader:
        if not _reflink(reader.fileno(), target):
            _copy_bytes(reader.fileno(), target, os.fstat(reader.fileno()).st_size)


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def quarantine(spool: Spool, reason: str, stamp: str, keep: Sequence[str] = ()) -> Path:
    """Move a damaged journal and the staged files, all but `keep`, aside, into quarantine/<stamp>; nothing is deleted."""
    aside = spool.folder / "quarantine" / stamp
    (aside / "objects").mkdir(mode=0o700, parents=True)
    for folder in (aside.parent, aside):
        folder.chmod(0o700)
    (aside / "REASON").write_text(reason + "\n")
    for entry in list(os.scandir(spool.objects)):  # one by one: who stages a file just now needs the folder
        if entry.name not in keep:
            os.rename(entry.path, aside / "objects" / entry.name)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        if (spool.folder / name).exists():
            os.rename(spool.folder / name, aside / name)
    return aside
