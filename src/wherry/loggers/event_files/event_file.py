"""EventFile: TensorBoard's event files, written without TensorBoard, with one system call for each event and no thread.

The formats: a record is ``uint64 length, uint32 masked crc32c(length), data, uint32 masked crc32c(data)``, little-endian
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details). Its data is an ``Event`` message
(https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto); the first in a file says the version
of the format. TensorBoard reads all files of a folder whose names hold ``tfevents``, in the order of their names.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import google_crc32c

from wherry.loggers.event_files.protobuf import binary, double, float32, string, varint
from wherry.loggers.event_files.summaries import scalar_prefix
from wherry.posix.fork import call_in_children

log = logging.getLogger("wherry")

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_TIME = struct.Struct("<Bd")
_WALL_TIME, _STEP, _SUMMARY, _VALUE = 0x09, b"\x10", b"\x2a", b"\x0a"  # a field's number and wire type, in one byte
#: The number of tags whose encoding is cached. A run that makes new tags for ever must not fill the memory.
_MOST_PREFIXES = 10_000

_numbers = count()


class EventFile:
    """Appends events to a file in `folder`, and starts new files when they are due. Any thread may call. A forked child writes
    to its own file.

    Guarantees: the operating system has an event when its call returns, so that SIGKILL of this process loses nothing, even
    without flush(). With `fsync`, events are also safe from power failure after flush() and after the end of a file. A file
    holds only whole events: if the disk is full, the incomplete event is removed, the call raises OSError, and the next event
    is tried again. If somebody removes the file while it is written, the next event goes to a new file, and a warning is logged.

    If the file has reached `max_file_bytes` or `max_file_age_s` (None: no limit), the next event closes it for ever and starts
    another, so a file exceeds its size by at most one event. No file is made before the first event. File names are
    ``events.out.tfevents.<time>.<host>.<pid>.<number>``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_file_bytes: int | None = None,
        max_file_age_s: float | None = None,
        fsync: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.folder = Path(folder)
        self.max_file_age_s = max_file_age_s
        self._max_file_bytes = max_file_bytes
        self._fsync = fsync
        self._now = now
        self._prefixes: dict[str, bytes] = {}
        self._is_closed = False
        self._name_time_s = 0
        self._start_afresh()
        call_in_children(self, EventFile._start_afresh)

    def _start_afresh(self) -> None:
        """Also called in a forked child, as file, lock and closed files are the parent's; a thread may have held the lock."""
        self._lock = threading.RLock()  # a signal's handler may log, or close, while its thread writes
        self._file: _OpenFile | None = None
        self._closed_paths: list[Path] = []

    def __repr__(self) -> str:
        return f"<EventFile in {self.folder}>"

    @property
    def path(self) -> Path | None:
        """The current file; None before the first event, and between two files."""
        file = self._file
        return None if file is None else file.path

    def add_scalars(self, scalars: Mapping[str, float], step: int, wall_time_s: float | None = None) -> None:
        """Write scalars, tag -> number, as one event. They are stored as 32-bit floats: seven digits; NaN and infinities too."""
        prefixes = self._prefixes
        parts = []
        for tag, number in scalars.items():
            prefix = prefixes.get(tag)
            parts.append(self._remember_prefix(tag) if prefix is None else prefix)
            parts.append(float32(number))
        if parts:
            self._write_summary(b"".join(parts), step, wall_time_s)

    def add_values(self, values: Sequence[bytes], step: int, wall_time_s: float | None = None) -> None:
        """Write values that `summaries.py` has encoded as one event. `wall_time_s`: when they were logged, if not now."""
        if values:
            self._write_summary(b"".join([binary(1, value) for value in values]), step, wall_time_s)

    def flush(self) -> None:
        """Return when all events of earlier calls are in the file, and with `fsync` on the disk."""
        with self._lock:
            if self._fsync and self._file is not None:
                os.fsync(self._file.descriptor)

    def roll(self) -> None:
        """Close the file for ever, if there is one; the next event starts another."""
        with self._lock:
            self._end_file()

    def roll_if_due(self) -> None:
        """Close the file if it has reached its size or age, as the next event would."""
        if self._file is not None:
            with self._lock:
                self._end_file_if_due()

    def take_closed(self) -> list[Path]:
        """The files that were closed since the last call, in order. They will not change any more."""
        if not self._closed_paths:
            return []
        with self._lock:
            taken, self._closed_paths = self._closed_paths, []
        return taken

    def close(self) -> None:
        """Close the last file. Calls that write raise RuntimeError from now on; closing again does nothing."""
        with self._lock:
            self._is_closed = True
            self._end_file()

    def _remember_prefix(self, tag: str) -> bytes:
        if len(self._prefixes) >= _MOST_PREFIXES:
            self._prefixes.clear()
        value = scalar_prefix(tag)
        prefix = self._prefixes[tag] = _VALUE + varint(len(value) + 4) + value
        return prefix

    def _write_summary(self, summary: bytes, step: int, wall_time_s: float | None) -> None:
        logged_at_s = self._now() if wall_time_s is None else wall_time_s
        head = _TIME.pack(_WALL_TIME, logged_at_s) + _STEP + varint(step) + _SUMMARY + varint(len(summary))
        record = _record(head + summary)
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self!r} is closed: make a new one")
            self._end_file_if_due()
            self._append(record)
            if (file := self._file) is not None and file.is_removed():
                log.warning(
                    "%s was removed while it was being written: its events are lost, and what comes goes to a new file", file.path
                )
                self._file = None
                self._append(record)

    # what follows is called with the lock held

    def _append(self, record: bytes) -> None:
        if self._file is None:
            self._file = self._open_file()
        self._file.append(record)

    def _open_file(self) -> _OpenFile:
        self.folder.mkdir(parents=True, exist_ok=True)
        now_s = self._now()
        self._name_time_s = max(self._name_time_s, int(now_s))  # a clock that is set back must not change the order
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())
        while True:
            name = f"events.out.tfevents.{self._name_time_s:010d}.{host}.{os.getpid()}.{next(_numbers):06d}"
            try:
                file = _OpenFile(self.folder / name, now_s)
                break
            except FileExistsError:  # in containers, host name and process number may repeat
                continue
        try:
            file.append(_record(double(1, now_s) + string(3, "brain.Event:2") + binary(10, string(1, "wherry"))))
        except BaseException:
            file.path.unlink()  # it is empty, and later events would lack this record before them
            raise
        return file

    def _end_file_if_due(self) -> None:
        if (file := self._file) is None:
            return
        is_full = self._max_file_bytes is not None and file.size_bytes >= self._max_file_bytes
        is_old = self.max_file_age_s is not None and self._now() - file.opened_at_s >= self.max_file_age_s
        if is_full or is_old or file.is_unfinished:
            self._end_file()

    def _end_file(self) -> None:
        if (file := self._file) is None:
            return
        self._file = None
        if not file.is_removed():
            self._closed_paths.append(file.path)
        if self._fsync:
            os.fsync(file.descriptor)


class _OpenFile:
    """A file that is appended to. It is closed when it is garbage collected, so that no caller can forget that.

    `is_unfinished`: the last append has not ended. Either it could not be undone, or this is a signal handler that interrupted
    it. In both cases the next event needs another file, as readers stop at an incomplete event.
    """

    def __init__(self, path: Path, opened_at_s: float) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.path = path
        self.opened_at_s = opened_at_s
        self.size_bytes = 0
        self.is_unfinished = False

    def append(self, record: bytes) -> None:
        self.is_unfinished = True
        left = memoryview(record)
        try:
            while left:
                left = left[os.write(self.descriptor, left) :]
        except BaseException as error:  # Ctrl-C as well
            os.ftruncate(self.descriptor, self.size_bytes)
            self.is_unfinished = False
            if not isinstance(error, OSError):
                raise
            text = f"{error.strerror}; this event is lost, the file is whole without it, and later events are tried again"
            raise OSError(error.errno, text, str(self.path)) from error
        self.size_bytes += len(record)
        self.is_unfinished = False

    def is_removed(self) -> bool:
        """Whether it has no name any more."""
        return not os.fstat(self.descriptor).st_nlink

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _record(data: bytes) -> bytes:
    length = _LENGTH.pack(len(data))
    return b"".join((length, _masked_crc32c(length), data, _masked_crc32c(data)))


def _masked_crc32c(data: bytes) -> bytes:
    """Rotated and shifted, as a CRC of data that contains CRCs is weak."""
    crc = google_crc32c.value(data)
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
