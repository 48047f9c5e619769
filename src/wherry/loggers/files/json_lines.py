"""JSON Lines: a file that only grows, a record a line, which jq, pandas and DuckDB read while it is being written."""

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
    """One line of strict JSON, floats with all their digits; never raises.

    Arrays and tensors of one element are numbers; NaN, infinities and what JSON has not are written as `format_json` does.
    """
    try:
        return _encode(record).encode() + b"\n"
    except Exception:  # NaN; half of a surrogate pair; what is no number; somebody else's class
        return _careful_line(record)


def _number(value: object) -> int | float:
    """The number in an array scalar, or an array or tensor of one element; else an error, and with it the careful way."""
    number = value.item()  # type: ignore[attr-defined]
    if not isinstance(number, (int, float)):
        raise TypeError("not a number")
    return number


#: What holds itself is a RecursionError then, and goes the careful way as well; the check would cost some of each call.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, default=_number).encode


def _careful_line(record: Mapping[str, object]) -> bytes:
    plain: dict[str, object] = {}
    for key, value in record.items():
        try:
            number = to_number(value)
        except Exception:  # a tensor without content, say
            number = None
        plain[key] = value if number is None else number
    return format_json(plain, significant_digits=None).encode() + b"\n"


def warn_removed(path: Path) -> None:
    """Say in the log "wherry" that somebody removed a file that was being written."""
    log.warning(
        "%s was removed or replaced while it was being written: its lines are lost, and what comes goes to a new file", path
    )


class JsonLines:
    """Appends lines to the file `path`, which is made by the first. Any thread of this process may call.

    Guarantees: a line is in the operating system's hands when append() returns, by one system call, so that SIGKILL loses none
    of them. The file holds whole lines only: what a full disk cut off is taken back and append() raises OSError; what an earlier
    process left of a last line is taken off when the file is opened again, and that is said in the log "wherry". Whole lines
    are never touched. The next append() after an error tries again.

    When somebody removes the file while it is open, the line that finds out goes to a new file, and `on_removed` is called
    first, with the path. What that raises append() raises, and the line is in no file.
    """

    def __init__(self, path: Path, *, on_removed: Callable[[Path], object] = warn_removed) -> None:
        self.path = path
        self._on_removed = on_removed
        self._descriptor = -1
        self._lock = threading.RLock()

    def append(self, lines: bytes) -> None:
        """Add one line, or several, each with its end."""
        with self._lock:
            descriptor = self._descriptor if self._descriptor >= 0 else self._open()
            self._write(descriptor, lines)
            if not os.fstat(descriptor).st_nlink:  # it went to a file that nobody can open any more
                self._on_removed(self.path)
                self.close()
                self._write(self._open(), lines)

    def _write(self, descriptor: int, lines: bytes) -> None:
        written = 0
        try:
            written = os.write(descriptor, lines)
            while written < len(lines):  # a disk that is full takes a part, and then refuses
                written += os.write(descriptor, lines[written:])
        except OSError as error:
            self._take_back(descriptor, written)
            text = (
                f"{error.strerror}; what was to be written is lost, the file is whole without it, and later calls are tried again"
            )
            raise OSError(error.errno, text, str(self.path)) from error

    def check(self, *, fsync: bool = False) -> None:
        """See whether the file was removed, replaced or renamed: then the next line makes a new one."""
        with self._lock:
            if self._descriptor < 0:
                return
            if not is_same_file(self._descriptor, self.path):
                self._on_removed(self.path)
                self.close()
            elif fsync:
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
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

    @staticmethod
    def _take_back(descriptor: int, n_bytes: int) -> None:
        end = os.lseek(descriptor, 0, os.SEEK_CUR)  # of what we wrote, as the file is in append mode
        if n_bytes and os.fstat(descriptor).st_size == end:
            os.ftruncate(descriptor, end - n_bytes)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the open file is still what `path` names."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _repair(descriptor: int, path: Path) -> None:
    """Have the file end with the end of a line: complete the last one, or take off what is left of it."""
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
        log.warning("%s: its last line was cut off when it was being written: %d bytes of it are taken off", path, len(torn))
        os.ftruncate(descriptor, size - len(torn))
    else:
        os.write(descriptor, b"\n")
