"""MetricsFile: one ``metrics.jsonl`` as columns, each part of it parsed once: the end first, then all from the beginning.

It is cut into chunks of 8 MiB, at the first line that begins behind each multiple of that, so that the cuts are the same whoever
makes them and whether the file is segments or one object. A chunk that is complete is kept on the disk as columns; the last one
is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wherry.checksum import crc32c
from wherry.errors import StoreError
from wherry.loggers.files.run_summary import MOST_LINE_BYTES
from wherry.mirror.format.layout import Assembly
from wherry.runs.columns.checked import Checked
from wherry.runs.columns.points import Columns, ColumnsFile, Points
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place, version_of
from wherry.store import ObjectMeta

CHUNK_BYTES = 8 * 2**20
#: Of a longer file the end is shown before the rest is read: 100 metrics x 1,700 steps.
TAIL_BYTES = 4 * 2**20
#: So much behind the end of a chunk is fetched at once, in search of the end of its last line.
_OVERHANG_BYTES = 64 * 2**10
#: Before what was parsed is taken for the beginning of a replaced object, so many of its last bytes are compared.
_COMPARED_BYTES = 4096
#: A last line that is not finished is no longer than this.
_MOST_UNPARSED_BYTES = 2**20


@dataclass(frozen=True)
class _Chunk:
    """Complete lines [start, end) of the file, on the disk under `name`."""

    start: int
    end: int
    name: str
    n_unreadable: int


class MetricsFile:
    """The metrics of one part of a run. Any thread may call; update() tells it what the file is by now.

    `columns` keeps the chunks. `fill_later` has a thread call what it is given.
    """

    def __init__(self, place: Place, columns: DiskCache, fill_later: Callable[[Callable[[], None]], object]) -> None:
        self._place = place
        self._columns = columns
        self._fill_later = fill_later
        self._lock = threading.RLock()
        self._file: LogicalFile | None = None
        self._begin_anew("")
        #: Counts what was parsed; a new number means new points.
        self.version = 0
        self.keys_cut = 0
        #: What came of the last check(), and of which state of the file.
        self._checked: tuple[str, int, Checked] | None = None
        #: Why it could not be read to its end, in words.
        self.trouble = ""

    def _begin_anew(self, source: str) -> None:
        self._source = source
        self._chunks: list[_Chunk] = []
        self._open = Columns()
        self._open_start = 0
        self._parsed_to = 0
        self._last_bytes = b""
        #: Never changed once it is here: it is read without the lock, which a chunk holds until it is fetched and parsed.
        self._tail: Columns | None = None
        self._is_filling = False
        self._keys: dict[str, None] = {}
        self._last: tuple[int | None, float | None] = (None, None)
        self._crc32c = 0  # of all that was parsed

    def update(self, assembly: Assembly) -> bool:
        """Take what the file is now, and parse what is new if that is little; else its end, and have a thread do the rest.

        True if there are new points. StoreError.
        """
        with self._lock:
            file = LogicalFile(self._place, assembly)
            before = self.version
            if not self._is_continued(file):
                self._begin_anew(file.source)
                self.version += 1
            self._file, self._source = file, file.source
            rest = file.size_bytes - self._parsed_to
            if rest <= CHUNK_BYTES and not self._is_filling:
                self._parse(file.size_bytes)
            elif rest > 0:
                self._read_tail(file)
                if not self._is_filling:
                    self._is_filling = True
                    self._fill_later(self._fill)
            return self.version != before

    @property
    def tail_only(self) -> bool:
        """Whether only the end is known yet."""
        return self._tail is not None

    @property
    def keys(self) -> list[str]:
        """The metrics that are known."""
        if (tail := self._tail) is not None:
            return list(dict(self._keys) | dict.fromkeys(tail.values))
        with self._lock:
            return list(dict(self._keys) | dict.fromkeys(self._open.values))

    @property
    def last(self) -> tuple[int | None, float | None]:
        """The step and the time of the last line that was read; None for what is not known."""
        if (tail := self._tail) is not None:
            return tail.last
        with self._lock:
            return self._last

    @property
    def n_unreadable(self) -> int:
        """How many whole lines of what was read hold no JSON object. A last line that is not finished is none of them."""
        if (tail := self._tail) is not None:
            return tail.n_unreadable
        with self._lock:
            return sum(chunk.n_unreadable for chunk in self._chunks) + self._open.n_unreadable

    def points(self, key: str) -> list[Points]:
        """The points of one metric, in pieces in their order; only those of the end while `tail_only`."""
        if (tail := self._tail) is not None:
            found = [tail.points(key)]
        else:
            with self._lock:
                found = [*(self._points_of(chunk, key) for chunk in self._chunks), self._open.points(key)]
        return [one for one in found if one is not None]

    def check(self) -> Checked:
        """Whether what was read agrees with checksums. Segments were compared as they came; of a plain object the store has one
        of the whole, which may take a request, and which is compared when all of it was read.
        """
        with self._lock:
            file = self._file
            if file is None:
                return Checked(None, "nothing was read")
            if (plain := file.assembly.plain) is None:
                return Checked(is_right=True) if file.is_checked else Checked(None, "the store has no checksum of its segments")
            state = f"{version_of(plain)} {len(file.assembly.segments)}", self._parsed_to
            if self._checked is None or self._checked[:2] != state:
                self._checked = *state, self._check(file, plain)
            return self._checked[2]

    def _check(self, file: LogicalFile, plain: ObjectMeta) -> Checked:
        if file.assembly.segments or self._tail is not None or plain.size_bytes - self._parsed_to > _MOST_UNPARSED_BYTES:
            return Checked(None, "only a part was read, and the checksum is of the whole file")
        try:
            stored = self._place.stored_crc32c(plain)
            if stored is None:
                return Checked(None, f"the {'folder' if self._place.is_local else 'store'} has no checksum of the metrics")
            return Checked(stored == crc32c(file.read(self._parsed_to, plain.size_bytes), self._crc32c))
        except StoreError as error:
            return Checked(None, f"its checksum could not be read: {error.message}")

    def fill(self) -> None:
        """Read all of it now. StoreError."""
        while self._step():
            pass

    def _fill(self) -> None:
        """Parse one chunk, and have a thread do the next: so closing waits for one chunk only, and several files take turns."""
        is_more = False
        try:
            is_more = self._step()
            self.trouble = ""
        except StoreError as error:  # what is known stays, and the next update() tries again
            self.trouble = error.message
        finally:
            if is_more:
                with suppress(RuntimeError):  # the threads were let go
                    self._fill_later(self._fill)
            else:
                with self._lock:
                    self._is_filling = False

    def _step(self) -> bool:
        """Parse one chunk more; False when nothing is left. The lock is free between two of them."""
        with self._lock:
            file = self._file
            if file is None or self._parsed_to >= file.size_bytes:
                self._end_tail()
                return False
            before = self._parsed_to
            self._parse(min(file.size_bytes, _next_cut(self._parsed_to)))
            if self._parsed_to == before:  # an unfinished line is all that is left
                self._end_tail()
                return False
            return True

    def _end_tail(self) -> None:
        if self._tail is not None:
            self._tail = None
            self.version += 1

    def _is_continued(self, file: LogicalFile) -> bool:
        """Whether what was parsed is the beginning of this file: as segments say it, else by its last bytes."""
        if not self._parsed_to:
            return True
        if file.size_bytes < self._parsed_to:
            return False
        if file.source == self._source:
            return True
        return file.read(self._parsed_to - len(self._last_bytes), self._parsed_to) == self._last_bytes

    def _read_tail(self, file: LogicalFile) -> None:
        data = file.read(max(0, file.size_bytes - TAIL_BYTES), file.size_bytes)
        tail = Columns()
        tail.add(data[data.find(b"\n") + 1 : data.rfind(b"\n") + 1])
        self._tail = tail
        self.version += 1

    def _parse(self, until: int) -> None:
        """Parse the complete lines that begin before byte `until`."""
        assert self._file is not None
        file = self._file
        while self._parsed_to < until:
            cut = min(_next_cut(self._open_start), until)
            if self._parsed_to == self._open_start and cut == _next_cut(self._open_start) and self._take_kept(file, cut):
                continue
            data = _lines_until(file, self._parsed_to, cut, once=cut == _next_cut(self._open_start))
            if not data:
                return
            self._open.add(data)
            self._crc32c = crc32c(data, self._crc32c)
            self._last = self._open.last
            self._parsed_to += len(data)
            self._last_bytes = (self._last_bytes + data[-_COMPARED_BYTES:])[-_COMPARED_BYTES:]
            self.version += 1
            self.keys_cut = max(self.keys_cut, self._open.keys_cut)
            if self._parsed_to >= _next_cut(self._open_start):
                self._close_chunk(file)

    def _name(self, file: LogicalFile, start: int) -> str:
        return f"columns 4 {self._place.ident} {file.source} {start}"

    def _take_kept(self, file: LogicalFile, cut: int) -> bool:
        """Take a chunk that was parsed before, by whatever process."""
        kept = self._columns.open(f"{self._name(file, self._open_start)} end")
        if kept is None:
            return False
        with kept:
            text, _, last_bytes = kept.read(64 + _COMPARED_BYTES).partition(b"\n")
        opened = self._columns.open(self._name(file, self._open_start))
        numbers = text.split()
        if opened is None or len(numbers) != 2 or not all(map(bytes.isdigit, numbers)):
            return False
        end, crc = map(int, numbers)
        if not cut <= end <= file.size_bytes:
            return False
        with ColumnsFile(opened) as columns:
            self._keys.update(dict.fromkeys(columns.keys))
            self.keys_cut, self._last = max(self.keys_cut, columns.keys_cut), columns.last
            n_unreadable = columns.n_unreadable
        self._chunks.append(_Chunk(self._open_start, end, self._name(file, self._open_start), n_unreadable))
        self._open, self._open_start, self._parsed_to = Columns(), end, end
        self._last_bytes, self._crc32c = last_bytes, crc
        self.version += 1
        return True

    def _close_chunk(self, file: LogicalFile) -> None:
        """Put the open chunk, which is complete, on the disk."""
        name = self._name(file, self._open_start)
        chunk = _Chunk(self._open_start, self._parsed_to, name, self._open.n_unreadable)
        self._columns.put(chunk.name, self._open.to_bytes())
        self._columns.put(f"{chunk.name} end", b"%d %d\n" % (chunk.end, self._crc32c) + self._last_bytes)
        self._keys.update(dict.fromkeys(self._open.values))
        self._chunks.append(chunk)
        self._open, self._open_start = Columns(), self._parsed_to

    def _points_of(self, chunk: _Chunk, key: str) -> Points | None:
        opened = self._columns.open(chunk.name)
        if opened is None:  # the cache was emptied: parse this part again
            return self._parsed_again(chunk).points(key)
        try:
            with ColumnsFile(opened) as columns:
                return columns.points(key)
        except (ValueError, KeyError, TypeError):  # damaged on the disk
            return self._parsed_again(chunk).points(key)

    def _parsed_again(self, chunk: _Chunk) -> Columns:
        assert self._file is not None
        columns = Columns()
        columns.add(self._file.read(chunk.start, chunk.end))
        self._columns.put(chunk.name, columns.to_bytes())
        return columns


def _next_cut(start: int) -> int:
    """The chunk that begins at `start` ends with the line that reaches this byte."""
    return (start // CHUNK_BYTES + 1) * CHUNK_BYTES


def _lines_until(file: LogicalFile, start: int, until: int, *, once: bool) -> bytes:
    """The complete lines from `start` on that begin before byte `until`; `once`: they are not needed again."""
    data = file.read(start, until, once=once)
    size_bytes, step = file.size_bytes, _OVERHANG_BYTES
    while not data.endswith(b"\n") and start + len(data) < size_bytes:
        if len(data) > until - start + MOST_LINE_BYTES:  # no line of metrics: what it holds is passed over
            return data
        more = file.read(start + len(data), start + len(data) + step)
        end = more.find(b"\n") + 1
        data += more[: end or len(more)]
        step *= 2
    return data[: data.rfind(b"\n") + 1]
