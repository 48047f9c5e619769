"""JSON Lines: a growing file with a record a line, which jq, pandas and DuckDB can read while it is written."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.text import format_json

log = logging.getLogger("wherry")

_BLOCK_BYTES = 2**16


def json_line(record: Mapping[str, object]) -> bytes:
    """One line of strict JSON, floats with all their digits. Never raises.

    Arrays and tensors of one element are numbers. NaN, infinities and objects that JSON lacks are written as by `format_json`.
    """
    try:
        return _encode(record).encode() + b"\n"
    except Exception:  # NaN, half of a surrogate pair, an array, an object of another class
        return _careful_line(record)


def _number(value: object) -> int | float:
    """The number in an array scalar, or in an array or tensor of one element. Any error leads to `_careful_line`."""
    number = value.item()  # type: ignore[attr-defined]
    if not isinstance(number, (int, float)):
        raise TypeError("not a number")
    return number


#: Without the check for circles, which would slow down each call, one is a RecursionError, which leads to `_careful_line`.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, default=_number).encode


def _careful_line(record: Mapping[str, object]) -> bytes:
    plain: dict[str, object] = {}
    for key, value in record.items():
        try:
            number = to_number(value)
        except Exception:  # for example a tensor without data
            number = None
        plain[key] = value if number is None else number
    return format_json(plain, significant_digits=None).encode() + b"\n"


def warn_removed(path: Path) -> None:
    """Warn in the log "wherry" that a file was removed while it was written."""
    log.warning(
        "%s was removed or replaced while it was being written: its lines are lost, and what comes goes to a new file", path
    )


class JsonLines:
    """Appends lines to the file `path`, which the first line makes. Any thread of this process may call.

    Guarantees: when append() returns, the operating system has the line, by one system call, so that SIGKILL loses no line. The
    file holds whole lines only: if the disk is full, append() removes the part that was written and raises OSError. If an earlier
    process left a part of a last line, it is removed when the file is opened, with a warning in the log "wherry". Whole lines are
    never changed. After an error the next append() tries again.

    If the file was removed while it was open, the next append() calls `on_removed` with the path and writes its lines to a new
    file. If `on_removed` raises, append() raises the same and the lines are in no file.
    """

    def __init__(self, path: Path, *, on_removed: Callable[[Path], object] = warn_removed) -> None:
        self.path = path
        self._on_removed = on_removed
        self._descriptor = -1
        self._lock = threading.RLock()

    def append(self, lines: bytes) -> None:
        """Add one or several lines, each with its newline."""
        with self._lock:
            descriptor = self._descriptor if self._descriptor >= 0 else self._open()
            self._write(descriptor, lines)
            if not os.fstat(descriptor).st_nlink:  # it was written to a file that has no name any more
                self._on_removed(self.path)
                self.close()
                self._write(self._open(), lines)

    def _write(self, descriptor: int, lines: bytes) -> None:
        written = 0
        try:
            written = os.write(descriptor, lines)
            while written < len(lines):  # a disk that gets full takes a part
                written += os.write(descriptor, lines[written:])
        except OSError as error:
            end = os.lseek(descriptor, 0, os.SEEK_CUR)  # the end of what was written, as the file is in append mode
            if written and os.fstat(descriptor).st_size == end:
                os.ftruncate(descriptor, end - written)
            text = f"{error.strerror}; these lines are lost, the file is whole without them, and later calls are tried again"
            raise OSError(error.errno, text, str(self.path)) from error

    def check(self, *, fsync: bool = False) -> None:
        """If the file was removed, replaced or renamed, close it, so that the next line makes a new one. Otherwise `fsync` it."""
        with self._lock:
            if self._descriptor < 0:
                return
            if not is_same_file(self._descriptor, self.path):
                self._on_removed(self.path)
                self.close()
            elif fsync:
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. The next line opens it again."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            _repair(descriptor, self.path)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the open file is still what `path` names."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _repair(descriptor: int, path: Path) -> None:
    """Make the file end with a newline: add it to a whole last line, or remove the part of one."""
    size = start = os.fstat(descriptor).st_size
    tail = b""
    while start and b"\n" not in tail:
        begin = max(0, start - _BLOCK_BYTES)
        tail = os.pread(descriptor, start - begin, begin) + tail
        start = begin
    torn = tail[tail.rfind(b"\n") + 1 :]
    if not torn:
        return
    try:
        json.loads(torn)
    except ValueError:
        log.warning("%s: its last line was cut off while it was written: %d bytes of it are removed", path, len(torn))
        os.ftruncate(descriptor, size - len(torn))
    else:
        os.write(descriptor, b"\n")
