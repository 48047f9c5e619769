"""The spool: one private folder that holds the staged files, the journal, and the meeting points of its processes.

    spool/
      journal.db          the jobs (wherry.spool.journal.journal)
      objects/            one file a snapshot, named <client>-<random>
      clients/            one locked file a living client; a lock that is free means that its process is gone
      bell                the agent's doorbell (wherry.agent.wakeup)
      agent.lock          held by the agent and its workers
      agent.log           what they had to say
      reserve             room for the journal that accepting may not use (wherry.spool.reserve)
      endpoints.json      what servers were found to honour (wherry.store.server_features)
      downloads/          notes of the folders into which something was downloaded
      quarantine/         damaged journals with the staged files they described; never deleted by us

A snapshot is made the fastest safe way: rename or link when the file is given away, reflink, else a copy in the kernel.
Never a bare hard link of a file that its owner keeps: an in-place rewrite would change what is uploaded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from wherry.checksum import PIECE_BYTES, join_crc32c
from wherry.config import SpoolConfig, default_spool_folder
from wherry.errors import SourceChangedError, SpoolError
from wherry.posix.file_copy import CANNOT, copy_and_sum, reflink, require_regular, sync_folder
from wherry.posix.locks import is_free, lock, try_lock
from wherry.spool.folder import HeldFile, SpoolFolder, lack_of_inodes
from wherry.spool.reserve import Reserve

#: What a broken download leaves is stale after a week; in this time an agent has seen it.
_DOWNLOADS_KEEP_S = 30 * 86_400.0
#: A file that changes while it is copied is copied again; a third change says that its writer is still at it.
_COPY_ATTEMPTS = 3
#: SQLite's write-ahead log does not work over these (https://sqlite.org/wal.html), or they forget at a reboot.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "lustre", "beegfs", "ceph"}
_VOLATILE = {"tmpfs", "ramfs"}
#: What the name of a staged file ends with until it is whole.
HALF = ".half"
_REMEDY = "It must be a folder that you can write: name one with spool= or $WHERRY_SPOOL"


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
        self._folder = SpoolFolder(default_spool_folder() if folder is None else Path(folder).expanduser().absolute())
        #: The name of the folder. For reading and writing there is inside(), which follows no name.
        self.folder = self._folder.path
        self.config = config or SpoolConfig()
        #: The room that the journal needs to finish what was accepted.
        self.reserve = Reserve(self._folder)
        self.objects = self.folder / "objects"
        self.clients = self.folder / "clients"
        self.journal_path = self.folder / "journal.db"
        with self.explained("its folders"):
            for name in ("objects", "clients"):
                self.inside(name).mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.inside("objects"), os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it is not writable", str(self.inside("objects")))

    def inside(self, *names: str) -> Path:
        """The path of something in the spool, by the descriptor of its folder: nobody can lead it elsewhere."""
        return self._folder.inside(*names)

    def held_journal(self) -> os.PathLike[str]:
        """The journal's file, shown by its name and opened by the folder's descriptor."""
        return HeldFile(self._folder, "journal.db")

    def path(self, object_id: str) -> Path:
        """Where a staged file lies. SpoolError for what is no name of a file in the spool: a damaged journal may say anything."""
        if not _is_name(object_id):
            raise SpoolError(
                f"the journal of the spool {self.folder} names a staged file {object_id!r}, which is no name of a file there: "
                "it was changed by somebody else; give the upload up with wherry discard"
            )
        return self.inside("objects", object_id)

    def open_staged(self, object_id: str) -> int:
        """Open a staged file for reading, not through a link: its descriptor. FileNotFoundError if it is gone."""
        path = self.path(object_id)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._no_staged_file(object_id) from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._no_staged_file(object_id)
        return descriptor

    def staged_path(self, object_id: str) -> Path:
        """The path of a staged file for a store that opens it itself, checked as open_staged() does."""
        os.close(self.open_staged(object_id))
        return self.path(object_id)

    def _no_staged_file(self, object_id: str) -> SpoolError:
        return SpoolError(f"{self.objects / object_id} is no regular file, so it is none that was staged there")

    def stage(
        self, source: Path, client: str, *, move: bool = False, advance: Callable[[int], object] = lambda n_bytes: None
    ) -> Staged:
        """Make a snapshot of a regular file; after return its bytes no longer depend on `source`.

        With `move` the file is given away: it is linked into the spool, and release_source() takes the old name away once the
        journal knows the job. Raises FileNotFoundError, PermissionError, ConfigError for what is no regular file,
        SourceChangedError, SpoolError when the spool is full. Nothing half-written is left.
        `advance` is told of bytes that are copied.
        """
        found = source.stat()
        require_regular(source, found)
        with self.explained(source, found.st_size):
            self.reserve.fill()
        object_id = f"{client}-{secrets.token_hex(8)}"
        target = self.path(object_id)
        # A file with another name, by a hard or a symbolic link, can still be changed there: only this name was given away.
        if move and found.st_nlink == 1 and not source.is_symlink():
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in CANNOT:
                    raise self.explain(error, source, found.st_size) from error
            else:
                linked = os.stat(target)
                if linked.st_uid == os.getuid():
                    os.chmod(target, 0o600)
                self._make_durable(target)
                return Staged(object_id, linked.st_size, "move")
        half = self.path(object_id + HALF)
        try:
            for attempt in range(1, _COPY_ATTEMPTS + 1):
                try:
                    staged = self._copy(source, half, object_id, advance)
                except SourceChangedError:  # noqa: PERF203  three rounds at most
                    half.unlink(missing_ok=True)
                    if attempt == _COPY_ATTEMPTS:
                        raise
                else:
                    self._name_whole(object_id)
                    return staged
        except OSError as error:
            half.unlink(missing_ok=True)
            if isinstance(error, SpoolError):
                raise
            raise self.explain(error, source, found.st_size) from error
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        raise AssertionError("unreachable")

    def _name_whole(self, object_id: str) -> None:
        """Give a file that is whole its name: from now on nobody takes it for a half-made one."""
        os.rename(self.path(object_id + HALF), self.path(object_id))
        if self.config.durability == "power":
            sync_folder(self.inside("objects"))

    def _copy(self, source: Path, target: Path, object_id: str, advance: Callable[[int], object]) -> Staged:
        with open(source, "rb", buffering=0) as reader:
            before = os.fstat(reader.fileno())
            require_regular(source, before)
            out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                pieces: tuple[int, ...] = ()
                method = "reflink" if reflink(reader.fileno(), out) else "copy"
                if method == "copy":
                    if before.st_size > self.free_bytes():
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    pieces = copy_and_sum(reader.fileno(), out, before.st_size, advance)
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
        crc = join_crc32c(pieces, PIECE_BYTES, before.st_size) if method == "copy" else None
        return Staged(object_id, before.st_size, method, crc, pieces)

    def _make_durable(self, target: Path) -> None:
        """Put a staged file on the disk itself, where `durability` asks for that."""
        if self.config.durability == "power":
            with open(target, "rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.inside("objects"))

    def release_source(self, source: Path) -> None:
        """Take away the old name of a file that was given away. Called after the journal has the job, never before."""
        source.unlink(missing_ok=True)

    def open_writer(self, client: str) -> tuple[str, BinaryIO]:
        """A new, private file in the spool, open for writing and reading: (object id, file)."""
        object_id = f"{client}-{secrets.token_hex(8)}"
        with self.explained("a new file"):
            self.reserve.fill()
            descriptor = os.open(self.path(object_id + HALF), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return object_id, open(
            descriptor, "w+b", buffering=2**17
        )  # larger writes, which checkpoints are made of, go around the buffer

    def finish_writer(self, object_id: str, file: BinaryIO) -> Staged:
        """The written file is whole: make a snapshot of it."""
        if self.config.durability == "power":
            os.fsync(file.fileno())
        with self.explained("what was written"):
            self._name_whole(object_id)
        return Staged(object_id, os.fstat(file.fileno()).st_size, "open")

    def discard_writer(self, object_id: str) -> None:
        """Throw away what was written, whether it is whole or not."""
        self.free([object_id + HALF, object_id])

    def free(self, object_ids: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        """Remove staged files that no job needs any more."""
        for object_id in object_ids:
            if _is_name(object_id):  # nothing else is a file of ours
                self.path(object_id).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the file system under the spool has left for staged files: all but the room that the journal needs."""
        found = os.statvfs(self.inside())
        return max(0, found.f_bavail * found.f_frsize - self.reserve.missing_bytes())

    def explain(self, error: OSError, what: object, size_bytes: int | None = None) -> OSError:
        """Tell a trouble of the spool from one of the source; the source's own errors pass as they are.

        `what` was to be staged; it takes `size_bytes`, if that is known.
        """
        if self._folder.is_deleted() or not self.inside("objects").is_dir():
            return SpoolError(
                error.errno or errno.ENOENT,
                f"the spool {self.folder} was removed while it was in use, and what had been accepted there with it: "
                "open a new one (another Uploader), and let nothing else tidy up that folder",
            )
        if isinstance(error, SpoolError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return SpoolError(error.errno, f"no room in the spool {self.folder} for {what}: {self._shortage(error, size_bytes)}")
        if error.errno == errno.EROFS or str(error.filename).startswith(str(self.inside())):
            return SpoolError(error.errno, f"the spool {self.folder} cannot be used: {error.strerror}. {_REMEDY}")
        return error

    def _shortage(self, error: OSError, size_bytes: int | None) -> str:
        if words := lack_of_inodes(self.inside()):
            return words
        if error.errno == errno.EDQUOT:
            return "your disk quota is used up. Free some space, or put the spool elsewhere (spool= or $WHERRY_SPOOL)"
        needed = "more than that is needed" if size_bytes is None else f"{size_bytes} bytes are needed"
        return (
            f"{needed}, {self.free_bytes()} are free. Free some space, or put the spool elsewhere (spool= or $WHERRY_SPOOL): "
            "where the files are, move=True takes no room"
        )

    @contextmanager
    def explained(self, what: object, size_bytes: int | None = None) -> Iterator[None]:
        """Make SpoolErrors of the errors that come from making `what` in the spool."""
        try:
            yield
        except OSError as error:
            told = self.explain(error, what, size_bytes)
            if told is error:
                raise
            raise told from error

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock file `name` in the spool, waiting for whoever has it."""
        descriptor = self._open_lock(name)
        try:
            lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self, name: str) -> int:
        with self.explained(f"its lock {name}"):
            return os.open(self.inside(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def try_lock(self, name: str) -> int | None:
        """The descriptor that holds the lock file `name`, until it is closed; None if somebody else does."""
        descriptor = self._open_lock(name)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        return descriptor

    def register_client(self, client: str) -> int:
        """Announce a living client and return the descriptor whose lock says so; closing it signs off."""
        path = self.inside("clients", client)
        while True:
            with self.explained("its mark of a living client"):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            lock(descriptor, shared=True)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)  # somebody looked before the lock was there, and took the client for a dead one

    def forget_client(self, client: str) -> None:
        """Remove what register_client() and the client's bell left."""
        self.inside("clients", client).unlink(missing_ok=True)
        self.inside("clients", f"{client}.bell").unlink(missing_ok=True)

    def living_clients(self) -> set[str]:
        """The clients whose process lives."""
        return self._clients()[0]

    def dead_clients(self) -> set[str]:
        """The clients whose process is gone without having signed off, until forget_client()."""
        return self._clients()[1]

    def _clients(self) -> tuple[set[str], set[str]]:
        living: set[str] = set()
        dead: set[str] = set()
        for entry in os.scandir(self.inside("clients")):
            if entry.name.endswith(".bell"):
                continue
            with suppress(FileNotFoundError):  # it signed off while we looked
                (dead if is_free(Path(entry.path)) else living).add(entry.name)
        return living, dead

    def agent_pid(self) -> int | None:
        """The process id of the agent of this spool, or None if there is none."""
        lock_file = self.inside("agent.lock")
        try:
            if is_free(lock_file):
                return None
            return int(lock_file.read_text() or 0) or None
        except (FileNotFoundError, ValueError):
            return None

    def note_download(self, folder: Path) -> None:
        """Remember that a download writes into `folder`, where a broken one leaves files that are to be cleaned away some day."""
        notes = self.inside("downloads")
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
        for note in self.inside("downloads").glob("*"):
            folder = Path(os.fsdecode(note.read_bytes()))
            if os.access(folder, os.R_OK | os.W_OK | os.X_OK) and time.time() - note.stat().st_mtime < _DOWNLOADS_KEEP_S:
                found.append(folder)
            else:
                note.unlink(missing_ok=True)
        return sorted(found)

    def file_system(self) -> str:
        """The type of file system under the spool (``ext4``, ``tmpfs``, ...); empty where it cannot be told."""
        try:
            device = os.stat(self.inside()).st_dev
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


def _is_name(object_id: str) -> bool:
    """Whether it can be the name of a file in a folder, and of nothing else."""
    return object_id not in ("", ".", "..") and "/" not in object_id and "\0" not in object_id


def quarantine(spool: Spool, reason: str, stamp: str, names: Iterable[str], *, journal: bool) -> list[str]:
    """Move staged files, and the journal with `journal`, into quarantine/<stamp>: those that were there. Nothing is deleted."""
    aside = spool.inside("quarantine", stamp)
    for folder in (aside.parent, aside, aside / "objects"):
        folder.mkdir(mode=0o700, exist_ok=True)
    (aside / "REASON").write_text(reason + "\n")
    moved = []
    for name in names:  # one by one: who stages a file just now needs the folder
        with suppress(FileNotFoundError):  # freed meanwhile
            os.rename(spool.path(name), aside / "objects" / name)
            moved.append(name)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm") if journal else ():
        if spool.inside(name).exists():
            os.rename(spool.inside(name), aside / name)
    return sorted(moved)
