"""A small file that all processes of a user on a node map: a row of numbers for the node, and one for each store.

It is kept in memory (/dev/shm), so it ends with the machine and costs no disk. A row is changed under the file's lock, which the
kernel releases when its holder is killed. Numbers that cannot be are read as 0: whatever is there, nothing stops.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import stat
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wherry.posix.locks import lock, unlock

log = logging.getLogger("wherry.governor")

#: The numbers of a row, by their names.
FIELDS = (
    "used_s",
    "large_free_s",
    "small_free_s",
    "request_free_s",
    "limit",
    "cut_s",
    "n_cuts",
    "max_bytes_per_s",
    "max_requests_per_s",
    "part_bytes_per_s",
)
#: Of so many processes a row knows when each used it last.
_USERS = 16
_KEY_BYTES, _LABEL_BYTES = 16, 96
_ROW_BYTES = 512
_ROWS = 64
_FIELDS_AT = _KEY_BYTES + _LABEL_BYTES
_USERS_AT = _FIELDS_AT + 8 * len(FIELDS)
_OFFSETS = {name: _FIELDS_AT + 8 * number for number, name in enumerate(FIELDS)}
_HEAD = b"wherry governor 1 "
_SIZE_BYTES = _ROW_BYTES * (_ROWS + 1)
_MOST = 1e15
_NUMBER = struct.Struct("=d")


def node_file() -> Path:
    """The file of this user on this node."""
    memory = Path("/dev/shm")  # noqa: S108  a file of ours, 0600, opened without following links
    if os.access(memory, os.W_OK | os.X_OK):
        return memory / f"wherry-{os.getuid()}.governor"
    import tempfile  # late: it loads compression libraries

    return Path(tempfile.gettempdir()) / f"wherry-{os.getuid()}.governor"


class NodeTable:
    """The rows, shared with all processes that open the same file; `path` None, or one that cannot be used: with nobody."""

    def __init__(self, path: Path | None = None) -> None:
        self._mutex = threading.Lock()
        self._file: int | None = None
        self._memory: mmap.mmap | bytearray = bytearray(_SIZE_BYTES)
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                log.warning("%s cannot be used, so limits hold for each process alone: %s", path, error)

    @property
    def is_shared(self) -> bool:
        """Whether other processes see it."""
        return self._file is not None

    def _open(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(file)
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            if not is_ours or found.st_mode & 0o077:
                raise PermissionError("it is not a private file of this user")
            lock(file)
            try:
                # Taken now: a page that a full /dev/shm cannot give when it is written to would kill the process (SIGBUS).
                os.posix_fallocate(file, 0, _SIZE_BYTES)
                self._memory = mmap.mmap(file, _SIZE_BYTES)
                head = _HEAD + _boot()
                if self._memory[: len(head)] != head:  # new, of another version, or of before a reboot
                    self._memory[:] = head.ljust(_SIZE_BYTES, b"\0")
            finally:
                unlock(file)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        weakref.finalize(self, os.close, file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes a row meanwhile."""
        with self._mutex:
            if self._file is not None:
                lock(self._file)
            try:
                yield
            finally:
                if self._file is not None:
                    unlock(self._file)

    def row(self, address: str) -> Row:
        """The row of a store; "" is the node's. It is made, under the lock, when it is written to first."""
        return Row(self, address)

    def addresses(self) -> list[str]:
        """Of all rows that are in use."""
        labels = (self._bytes(at + _KEY_BYTES, _LABEL_BYTES) for at in self._places() if any(self._bytes(at, _KEY_BYTES)))
        return [label.rstrip(b"\0").decode(errors="replace") for label in labels]

    def find(self, key: bytes) -> int | None:
        """Where the row of that key is."""
        return next((at for at in self._places() if self._bytes(at, _KEY_BYTES) == key), None)

    def make(self, key: bytes, label: str) -> int:
        """Under the lock: the row of that key; if there is none, in the place of the one that nobody has used for longest."""
        if (found := self.find(key)) is not None:
            return found
        at = min(self._places(), key=lambda at: self.number(at + _FIELDS_AT))
        text = label.encode()[:_LABEL_BYTES]
        self._memory[at : at + _ROW_BYTES] = (key + text).ljust(_ROW_BYTES, b"\0")
        return at

    def number(self, at: int) -> float:
        """A number of the table; 0 for what is none."""
        (value,) = _NUMBER.unpack_from(self._memory, at)
        return float(value) if -_MOST < value < _MOST else 0.0  # of NaN, too, neither is so

    def write(self, at: int, value: float) -> None:
        """Write a number."""
        _NUMBER.pack_into(self._memory, at, value)

    def holds(self, at: int, key: bytes) -> bool:
        """Whether the row there still has that key."""
        return self._memory[at : at + _KEY_BYTES] == key

    def _bytes(self, at: int, size: int) -> bytes:
        return bytes(self._memory[at : at + size])

    @staticmethod
    def _places() -> range:
        return range(_ROW_BYTES, _SIZE_BYTES, _ROW_BYTES)


class Row:
    """The numbers of one store, by their names in FIELDS; all are 0 until somebody writes one."""

    def __init__(self, table: NodeTable, address: str) -> None:
        self.address = address
        self._table = table
        self._key = hashlib.sha256(address.encode()).digest()[:_KEY_BYTES]
        self._at: int | None = None

    def get(self, name: str) -> float:
        """A number. No lock is needed for one alone."""
        return 0.0 if (at := self._place()) is None else self._table.number(at + _OFFSETS[name])

    def put(self, **numbers: float) -> None:
        """Under the table's lock: write numbers."""
        if (at := self._place()) is None:
            at = self._at = self._table.make(self._key, self.address)
        for name, value in numbers.items():
            self._table.write(at + _OFFSETS[name], value)

    def users(self, since_s: float) -> set[int]:
        """The processes that have used it since then."""
        if (at := self._place()) is None:
            return set()
        pairs = [(self._table.number(each), self._table.number(each + 8)) for each in self._user_places(at)]
        return {int(process) for process, seen_s in pairs if process and seen_s >= since_s}

    def note_user(self, process: int, now_s: float) -> None:
        """Under the table's lock: this process uses it now."""
        self.put(used_s=now_s)
        assert self._at is not None
        places = list(self._user_places(self._at))
        mine = next((each for each in places if self._table.number(each) == process), None)
        place = min(places, key=lambda each: self._table.number(each + 8)) if mine is None else mine
        self._table.write(place, process)
        self._table.write(place + 8, now_s)

    def _place(self) -> int | None:
        if self._at is None or not self._table.holds(self._at, self._key):
            self._at = self._table.find(self._key)
        return self._at

    @staticmethod
    def _user_places(at: int) -> range:
        return range(at + _USERS_AT, at + _USERS_AT + 16 * _USERS, 16)


def _boot() -> bytes:
    """Which start of the machine this is: its monotonic clock begins anew with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
