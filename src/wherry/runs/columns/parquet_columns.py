"""Single columns of a Parquet file in a store: the footer, then the ranges of the columns that are asked for, side by side."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from wherry.errors import IntegrityError
from wherry.loggers.files.parquet import PAGE_SUMS
from wherry.posix.thread_pool import map_at_once
from wherry.runs.columns.checked import Checked
from wherry.runs.columns.points import Points
from wherry.runs.objects.place import Place
from wherry.store import ObjectMeta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The footer of 100 columns x 20 row groups takes 200 kB; mostly one request brings it.
_FOOTER_BYTES = 512 * 2**10
#: A hostile footer may say anything of its own size.
_MOST_FOOTER_BYTES = 64 * 2**20
_AT_ONCE = 32
#: pyarrow joins columns with no more than this between them into one read (arrow::io::CacheOptions).
_HOLE_BYTES = 8192
_OURS = ("t", "step", "phase")


class RangeFile(io.RawIOBase):
    """An object as a file for reading, of which some ranges are in memory; any other is fetched when it is read."""

    def __init__(self, fetch: Callable[[int, int], bytes], size_bytes: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._at = 0
        #: (start, bytes).
        self.ranges: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Bytes from here on."""
        end = self._size_bytes if size is None or size < 0 else min(self._size_bytes, self._at + size)
        if end <= self._at:
            return b""
        start, self._at = self._at, end
        for first, data in self.ranges:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        return self._fetch(start, end)


class ParquetColumns:
    """The columns of one Parquet file of metrics. Any thread may call; pyarrow is needed. IntegrityError if it is damaged."""

    def __init__(self, place: Place, meta: ObjectMeta, pool: Executor) -> None:
        self._place = place
        self._meta = meta
        self._pool = pool
        self._lock = threading.Lock()
        self._footer: bytes | None = None
        self._metadata: Any = None
        #: Steps and times of all lines, which each metric needs: 16 MB a million.
        self._axes: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
        self._has_wrong_sum = False

    @property
    def keys(self) -> list[str]:
        """The metrics: columns of numbers."""
        import pyarrow as pa

        schema = self._opened().schema.to_arrow_schema()
        return [
            field.name
            for field in schema
            if field.name not in _OURS
            and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type))
        ]

    @property
    def n_rows(self) -> int:
        """How many lines it was made of."""
        return int(self._opened().num_rows)

    @property
    def last(self) -> tuple[int | None, float | None]:
        """The greatest step and the newest time, as the footer says them; None for what it does not say."""
        step, t = max(self._ends("step"), default=None), max(self._ends("t"), default=None)
        return None if step is None else int(step), t

    def _ends(self, name: str) -> Iterator[float]:
        """The greatest number of a column in each group of rows. A hostile footer may say anything."""
        metadata = self._opened()
        at = metadata.schema.to_arrow_schema().get_field_index(name)
        for group in map(metadata.row_group, range(metadata.num_row_groups) if 0 <= at < metadata.num_columns else ()):
            found = group.column(at).statistics
            most = found.max if found is not None and found.has_min_max else None
            if isinstance(most, (int, float)) and math.isfinite(most):
                yield most

    def check(self) -> Checked:
        """Whether the pages that were read agree with their checksums, which a damaged one does not."""
        if self._has_wrong_sum:
            return Checked(is_right=False)
        has_sums = PAGE_SUMS.items() <= (self._opened().metadata or {}).items()
        return Checked(is_right=True) if has_sums else Checked(None, "the pages of its Parquet file have no checksum")

    def points(self, key: str) -> Points | None:
        """One metric, by reading its column and those of steps and times; None if it has none."""
        import numpy as np

        metadata = self._opened()
        names = set(metadata.schema.to_arrow_schema().names)
        if key not in names or key in _OURS:
            return None
        known = self._axes
        columns = self._read([name for name in (key, *(("t", "step") if known is None else ())) if name in names])
        value = columns[key]
        there = ~columns[f"{key} is null"]
        if known is None:
            n = len(value)
            step = columns["step"].astype(np.int64, copy=False) if "step" in columns else np.arange(n, dtype=np.int64)
            known = self._axes = step, columns["t"] if "t" in columns else np.full(n, np.nan)
        step, t = known
        return Points(step, t, value) if there.all() else Points(step[there], t[there], value[there])

    def _fetch(self, start: int, end: int) -> bytes:
        return self._place.fetch(self._meta, start, end)

    def _opened(self) -> Any:
        """The footer, read once."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._lock:
            if self._metadata is None:
                try:
                    self._metadata = pq.read_metadata(self._with_footer())
                except (pa.ArrowException, OSError, ValueError) as error:
                    raise self._damaged(error) from error
            return self._metadata

    def _with_footer(self) -> RangeFile:
        size_bytes = self._meta.size_bytes
        if self._footer is None:
            start = max(0, size_bytes - _FOOTER_BYTES)
            footer = self._fetch(start, size_bytes)
            needed = int.from_bytes(footer[-8:-4], "little") + 8  # Apache Parquet format: footer, its length, "PAR1"
            if needed > len(footer):
                if needed > min(size_bytes, _MOST_FOOTER_BYTES):
                    raise self._damaged(f"its footer would have {needed} bytes")
                footer = self._fetch(size_bytes - needed, size_bytes)
            self._footer = footer
        file = RangeFile(self._fetch, size_bytes)
        file.ranges.append((size_bytes - len(self._footer), self._footer))
        return file

    def _read(self, names: list[str]) -> dict[str, NDArray[Any]]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = self._opened()
        file = self._with_footer()
        wanted = [
            (start, start + chunk.total_compressed_size)
            for group in range(metadata.num_row_groups)
            for chunk in map(metadata.row_group(group).column, range(metadata.num_columns))
            if chunk.path_in_schema in names and 0 <= (start := _start(chunk)) <= self._meta.size_bytes
        ]
        wanted = _joined([(start, min(end, self._meta.size_bytes)) for start, end in wanted])
        found = map_at_once(self._pool, self._fetch, wanted, at_once=_AT_ONCE)
        file.ranges += [(start, data) for (start, _), data in zip(wanted, found, strict=True)]
        try:
            opened = pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True)
            table = opened.read(columns=names, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            self._has_wrong_sum |= "CRC" in str(error)
            raise self._damaged(error) from error
        arrays: dict[str, NDArray[Any]] = {}
        for name in names:
            column = table.column(name)
            try:
                arrays[name], arrays[f"{name} is null"] = _numbers(column, np.int64 if name == "step" else np.float64)
            except TypeError as error:
                raise self._damaged(f"its column {name!r} has {error}") from error
        del table, column
        pa.default_memory_pool().release_unused()  # else it would keep as much as the largest read took
        return arrays

    def _damaged(self, why: object) -> IntegrityError:
        return IntegrityError(f"this Parquet file cannot be read: {why}", operation="read", uri=self._meta.key)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, with neighbours as one, as pyarrow reads them: what lies in two ranges it would fetch once more."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] <= _HOLE_BYTES:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _start(chunk: Any) -> int:
    """Where a column's pages begin: its dictionary, if it has one, comes first."""
    offsets = (chunk.data_page_offset, chunk.dictionary_page_offset)
    return min(int(one) for one in offsets if one is not None)


def _numbers(column: Any, kind: type[np.int64 | np.float64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A column's values as `kind`, 0 or NaN where there is none, and where that is.

    They are taken out of Arrow's buffers (https://arrow.apache.org/docs/format/Columnar.html): to_numpy() and cast() would import
    pandas, where it is installed, and pyarrow.compute, half a second before the first chart. TypeError for what is no number.
    """
    import numpy as np

    values, is_null = np.zeros(len(column), kind), np.zeros(len(column), np.bool_)
    end = 0
    for chunk in column.chunks:
        begin, end = end, end + len(chunk)
        validity, data = chunk.buffers()[:2] if chunk.type.num_buffers == 2 else (None, None)
        if data is not None:  # else all are missing
            with np.errstate(invalid="ignore"):  # a step that is NaN or beyond 64 bits is some number
                values[begin:end] = _of_buffer(data, chunk, _kind_of(chunk.type))
        if chunk.null_count:
            is_null[begin:end] = True if validity is None else ~_of_buffer(validity, chunk, "bit")
    values[is_null] = 0 if kind is np.int64 else np.nan
    return values, is_null


def _kind_of(type_: Any) -> str:
    import pyarrow as pa

    if pa.types.is_boolean(type_):
        return "bit"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        signed = "f" if pa.types.is_floating(type_) else "i" if pa.types.is_signed_integer(type_) else "u"
        return f"{signed}{type_.bit_width // 8}"
    raise TypeError(f"values of the type {type_}")


def _of_buffer(data: Any, chunk: Any, kind: str) -> NDArray[Any]:
    import numpy as np

    begin, end = chunk.offset, chunk.offset + len(chunk)
    if kind == "bit":
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[begin:end].astype(np.bool_)
    return np.frombuffer(data, kind)[begin:end]
