"""A set comes back: its objects into a folder that appears whole and verified, or not at all."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path

from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.restoring.fan_out import Lead, Meeting, Source, Stamp, copy_checked, locked, stamp_of
from wherry.checksum import crc32c_of_file, format_crc32c
from wherry.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta

log = logging.getLogger("wherry.checkpoints")

#: The end of the name of a folder in which a set is restored, beside the folder that it becomes.
STAGING = ".wherry-restore"
_FULL = (errno.ENOSPC, errno.EDQUOT)
Keyed = tuple[str, SetObject]


class DamagedSetError(IntegrityError):
    """An object of a committed set is not there, or its bytes are not those that were saved. Names the set and the object."""


class PrunedWhileRestoringError(DamagedSetError):
    """The set was deleted while it was being restored: restore a newer one."""


class FolderRestore:
    """One set on its way into one folder, which must not be there yet, or be empty, or hold exactly this set.

    The objects are fetched into a folder beside it, which takes the name at the end; a call that was killed goes on there. One
    process at a time restores to a folder, the others wait, and find the set there; of those that come together in `meeting` one
    downloads, and the others copy.

    Raises FileExistsError; ConfigError for a mount point; DamagedSetError; OSError (ENOSPC) if the set does not fit on the disk,
    with both figures, before any byte moves, or if somebody else fills it; any other StoreError as it comes.
    """

    def __init__(
        self,
        objects: Sequence[Keyed],
        folder: Path,
        *,
        set_name: str,
        fetch: Callable[[str, Path], ObjectMeta],
        meeting: Meeting | None = None,
        advance: Callable[[int], object] = lambda n_bytes: None,
    ) -> None:
        self.objects = objects
        # A link to a folder stands for that folder, which then is the one to take the name at the end.
        self.folder = Path(os.path.realpath(folder) if Path(folder).is_dir() else os.path.abspath(folder))
        self.set_name = set_name
        self.staging = beside(self.folder, f".{set_name}{STAGING}")
        #: Whether the folder held the set before this call.
        self.was_there = False
        self._fetch = fetch
        self._meeting = meeting
        self._advance = advance
        self._is_stopped = threading.Event()
        self._stack = ExitStack()
        self._is_begun = self._is_done = self._has_begun_to_write = False
        self._lead: Lead | None = None
        self._source: Source | None = None

    def begin(self, *, wait: bool = True) -> bool:
        """Take the locks. True: this process is to download the set. False: nothing is left to do, or, if `wait` is off, another
        process is at it; run() tells the two apart.
        """
        if not self._is_begun and not self._begin(wait):
            return False
        while self._lead is None and not self._is_done:
            tried = self._source
            with ExitStack() as turn:
                lead = Lead(None, None)
                if self._meeting is not None:
                    entered = turn.enter_context(self._meeting.lead(f"the set {self.set_name}", wait=wait))
                    if entered is None:
                        return False
                    lead = entered
                self._source = lead.source
                if lead.source is None or not lead.source.is_whole or lead.source == tried:
                    self._require_room()
                    self._lead = lead
                    self._stack.push(turn.pop_all())
                    return True
            # The turn is over, so that all others copy at the same time.
            self._is_done = self._copied(lead.source)
        return self._lead is not None

    def _begin(self, wait: bool) -> bool:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock_path = beside(self.folder, f"{STAGING}.lock")
        if self._stack.enter_context(locked(lock_path, f"the folder {self.folder}", wait=wait)) is None:
            return False
        if check_restorable(self.folder):
            _check_names(self.objects)
            make_own(self.staging)
        elif self._holds_the_set():
            self.was_there = self._is_done = True
        else:
            raise FileExistsError(
                f"{self.folder} is not empty, and holds something else than the set {self.set_name}: give a folder that is not "
                "there yet"
            )
        self._is_begun = True
        return True

    def run(self) -> None:
        """Restore, taking the locks first if begin() has not, and freeing them at the end."""
        with self._stack:
            try:
                if self.begin():
                    self._download()
            except DamagedSetError as error:
                shutil.rmtree(self.staging, ignore_errors=True)
                if self.set_name not in error.message:
                    error.message = f"of the set {self.set_name}: {error.message}"
                raise
            except (OSError, StoreError) as error:
                if self._is_begun and not self._has_begun_to_write:
                    with suppress(OSError):
                        self.staging.rmdir()  # if it is empty
                if self._has_begun_to_write and is_full_disk(error):
                    raise full_disk(self.staging, f"the set {self.set_name}", error) from error
                raise

    def close(self) -> None:
        """Free the locks that begin() has taken, if run() is not to be called, or is to begin anew."""
        self._stack.close()
        self._is_begun, self._lead = False, None

    def _download(self) -> None:
        assert self._lead is not None, "begin() has said so"
        self._has_begun_to_write = True
        self._lead.tell(Source(self.staging, is_whole=False))
        each_at_once(self._one, self.objects, stop=self._is_stopped.set)
        self._publish()
        self._lead.tell(Source(self.folder, is_whole=True, stamps=self._stamps()))

    def advance(self, n_bytes: int) -> None:
        """Count bytes that have come, from any thread; CancelledError if another object has failed, or after Ctrl-C: then
        downloads that call this end with their range.
        """
        if self._is_stopped.is_set():
            raise CancelledError
        self._advance(n_bytes)

    def _one(self, keyed: Keyed) -> None:
        key, expected = keyed
        path = self.staging / expected.name
        if not is_there(path, expected) and not (
            self._source is not None
            and self._source.folder != self.staging
            and copy_checked(self._source, expected, path, lambda: None)
        ):
            fetch_checked(key, expected, path, self._fetch)
            return
        self.advance(expected.size_bytes)

    def _copied(self, source: Source) -> bool:
        """Whether all objects could be copied from another rank's folder; then they have the final name."""
        if source.folder != self.folder:
            lock = threading.Lock()
            has_room = False

            def require_room_once() -> None:  # before any file is copied whose blocks cannot be shared
                nonlocal has_room
                with lock:
                    if not has_room:
                        self._require_room()
                        has_room = True

            def copy(keyed: Keyed) -> bool:
                path = self.staging / keyed[1].name
                if not is_there(path, keyed[1]) and not copy_checked(source, keyed[1], path, require_room_once):
                    return False
                self._advance(keyed[1].size_bytes)
                return True

            if all(each_at_once(copy, self.objects)):
                self._publish()
                return True
        return False

    def _holds_the_set(self) -> bool:
        """Whether the folder holds the objects, verified, and nothing else. Files that another process of this node has verified
        and nobody has written to since are not read again.
        """
        missing = {expected.name for _, expected in self.objects}
        for path in self.folder.rglob("*"):
            if path.is_symlink() or not path.is_dir():
                if (name := path.relative_to(self.folder).as_posix()) not in missing:
                    return False  # at the first stranger: the folder may be a large one that is not meant
                missing.remove(name)
        if missing:
            return False
        noted: Source | None = None
        if self._meeting is not None:
            with self._meeting.lead(f"the set {self.set_name}", wait=False) as lead:
                noted = None if lead is None else lead.source

        def is_right(keyed: Keyed) -> bool:
            path = self.folder / keyed[1].name
            if noted is not None and noted.folder == self.folder and noted.holds(keyed[1].name, path.lstat()):
                return path.lstat().st_size == keyed[1].size_bytes
            return is_there(path, keyed[1])

        return all(each_at_once(is_right, self.objects))

    def _publish(self) -> None:
        remove_strangers(self.staging, {expected.name for _, expected in self.objects})
        if self.folder.is_dir():
            self.folder.rmdir()  # it is empty: check_restorable() saw that, and rmdir() refuses otherwise
        os.rename(self.staging, self.folder)
        prefix = beside(self.folder, ".").name
        for path in self.folder.parent.glob(f".*{STAGING}"):
            if path.name.startswith(prefix) and SetName.parse(path.name[len(prefix) : -len(STAGING)]) is not None:
                shutil.rmtree(path, ignore_errors=True)  # another set, whose restore to this folder was never finished

    def _stamps(self) -> dict[str, Stamp]:
        return {expected.name: stamp_of((self.folder / expected.name).lstat()) for _, expected in self.objects}

    def _require_room(self) -> None:
        require_room(self.staging, sum(expected.size_bytes for _, expected in self.objects), f"the set {self.set_name}")


def require_room(staging: Path, size_bytes: int, what: str) -> None:
    """OSError (ENOSPC) unless what is missing in the folder of `size_bytes` fits on its disk."""
    here_bytes = 0
    for path in staging.rglob("*"):
        with suppress(FileNotFoundError):  # another thread gives a file its name just now
            status = path.lstat()
            here_bytes += 0 if stat.S_ISDIR(status.st_mode) else status.st_blocks * 512
    space = os.statvfs(staging)
    free_bytes = space.f_bavail * space.f_frsize
    if space.f_blocks and size_bytes - here_bytes > free_bytes:  # some file systems in user space cannot be asked
        raise OSError(
            errno.ENOSPC,
            f"no room for {what}: {size_bytes - here_bytes} bytes are to come, {free_bytes} are free",
            str(staging.parent),
        )


def full_disk(staging: Path, what: str, error: Exception) -> OSError:
    """The error for a disk that somebody else has filled meanwhile."""
    return OSError(
        errno.ENOSPC,
        f"the disk is full, so {what} is not restored ({error}): make room and restore again, which goes on where it was, or "
        "remove this folder",
        str(staging),
    )


def fetch_checked(key: str, expected: SetObject, path: Path, fetch: Callable[[str, Path], ObjectMeta]) -> None:
    """Fetch one object and compare it with its receipt: DamagedSetError if it is not what was saved."""
    if is_there(path, expected):
        return  # an earlier call that was killed has it
    try:
        meta = fetch(key, path)
    except NotFoundError as error:
        raise DamagedSetError("it is not there, although the set is committed", operation="restore", uri=key) from error
    except IntegrityError as error:
        raise DamagedSetError(f"its bytes are damaged: {error}", operation="restore", uri=key) from error
    crc = meta.crc32c if meta.crc32c is not None else crc32c_of_file(path)
    if (path.stat().st_size, crc) != (expected.size_bytes, expected.crc32c):
        found = f"{path.stat().st_size} bytes with CRC32C {format_crc32c(crc)}"
        path.unlink()
        raise DamagedSetError(
            f"it has {found}, saved were {expected.size_bytes} with {format_crc32c(expected.crc32c)}",
            operation="restore",
            uri=key,
        )


def is_full_disk(error: BaseException | None) -> bool:
    """Whether a disk without room is the reason of an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def check_restorable(folder: Path) -> bool:
    """Whether nothing is in the way; False if the folder has something in it. FileExistsError if it is a file or a link to
    nothing; ConfigError if it is a mount point.
    """
    try:
        if any(folder.iterdir()):
            return False
    except FileNotFoundError:
        if folder.is_symlink():
            raise FileExistsError(f"{folder} is a link to nothing: remove it, or give another folder") from None
        return True
    except NotADirectoryError:
        raise FileExistsError(f"{folder} is a file: give a folder that is not there yet") from None
    if folder.is_mount():
        raise ConfigError(
            f"{folder} is a mount point, and a set appears by a rename: give the name of a folder in it, such as {folder / 'set'}"
        )
    return True


def remove_strangers(folder: Path, names: set[str]) -> None:
    """What an interrupted download has left beside the files is not part of the set."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in names:
            path.unlink()


def is_there(path: Path, expected: SetObject) -> bool:
    """Whether the file has the bytes that were saved: its size and its CRC32C are those of the receipt."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == expected.size_bytes and crc32c_of_file(path) == expected.crc32c


def _check_names(objects: Iterable[Keyed]) -> None:
    """A receipt may say anything: no name may be a folder of another."""
    names = {expected.name for _, expected in objects}
    for key, expected in objects:
        at = expected.name.find("/")
        while at >= 0:
            if expected.name[:at] in names:
                raise DamagedSetError(
                    f"the set has an object {expected.name[:at]!r} as well, which cannot be a file and a folder",
                    operation="restore",
                    uri=key,
                )
            at = expected.name.find("/", at + 1)


def beside(folder: Path, ending: str) -> Path:
    """A hidden name beside the folder, as long as the file system allows."""
    name = f".{folder.name}"
    if len(os.fsencode(name + ending)) > 200:
        name = f".{hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:32]}"
    return folder.with_name(name + ending)


def make_own(folder: Path) -> None:
    """Make a folder, or take one that an earlier call of this user has made."""
    folder.mkdir(exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise FileExistsError(errno.EEXIST, "it is no folder, and what is being restored is put there: remove it", str(folder))
    if status.st_uid != os.geteuid():
        raise PermissionError(
            errno.EACCES,
            f"it belongs to uid {status.st_uid}, who has begun to restore here, and not to uid {os.geteuid()}: give a folder of "
            "your own, or remove it",
            str(folder),
        )
