"""Lines of metrics as columns: parsed once, and kept in a file of which one column can be read without the others.

The file: the length of the head in 8 bytes (little endian), the head in JSON, and the arrays behind it. The head has, for each
metric, where its numbers begin, how many there are, and where the numbers of their lines begin (-1: every line has the metric).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from wherry.loggers.files.run_summary import MOST_KEYS, OURS, number_of, records_of, step_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LENGTH_BYTES = 8
#: The head of a damaged file may say anything.
_MOST_HEAD_BYTES = 64 * 2**20
#: A line without a step is as far as the one before it: this stands for it in the first line.
_NO_STEP = 0


@dataclass(frozen=True, eq=False)
class Points:
    """The points of one metric in a part of a file."""

    step: NDArray[np.int64]
    t: NDArray[np.float64]
    value: NDArray[np.float64]


@dataclass
class Columns:
    """The lines of a part of a file. `lines` of a metric: which line each of its numbers is from. `n_unreadable` are in none."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: dict[str, array[float]] = field(default_factory=dict)
    lines: dict[str, array[int]] = field(default_factory=dict)
    keys_cut: int = 0
    n_unreadable: int = 0

    def add(self, data: bytes) -> None:
        """Take more whole lines."""
        # Looked up once: there may be a hundred numbers in each of a million lines.
        appends = {key: (values.append, self.lines[key].append) for key, values in self.values.items()}
        for record in records_of(data, self._pass_over):
            step, t, at = step_of(record), number_of(record.get("t")), len(self.steps)
            self.steps.append((self.steps[-1] if at else _NO_STEP) if step is None else step)
            self.times.append(float("nan") if t is None else t)
            for key, value in record.items():
                number = value if type(value) is float else number_of(value)
                if number is None or (key not in appends and not self._is_taken(key, appends)):
                    continue
                add_value, add_line = appends[key]
                add_value(number)
                add_line(at)

    def _pass_over(self) -> None:
        self.n_unreadable += 1

    def _is_taken(self, key: str, appends: dict[str, tuple[Callable[[float], None], Callable[[int], None]]]) -> bool:
        """Begin with a new metric; False if it is none, or one too many."""
        if key in OURS:
            return False
        if len(self.values) >= MOST_KEYS:
            self.keys_cut += 1
            return False
        self.values[key], self.lines[key] = array("d"), array("q")
        appends[key] = self.values[key].append, self.lines[key].append
        return True

    def points(self, key: str) -> Points | None:
        """One metric; None if it is not in these lines."""
        import numpy as np

        if key not in self.values:
            return None
        lines = np.array(self.lines[key], np.int64)
        return Points(
            np.array(self.steps, np.int64)[lines], np.array(self.times, np.float64)[lines], np.array(self.values[key], np.float64)
        )

    @property
    def last(self) -> tuple[int | None, float | None]:
        """The step and the time of the last line; None for what is not known."""
        if not self.steps:
            return None, None
        return self.steps[-1], self.times[-1] if self.times[-1] == self.times[-1] else None

    def to_bytes(self) -> bytes:
        """As a file."""
        n_lines, at = len(self.steps), 2 * 8 * len(self.steps)
        keys: dict[str, tuple[int, int, int]] = {}
        parts = [self.steps.tobytes(), self.times.tobytes()]
        for key, values in self.values.items():
            lines_at = -1 if len(values) == n_lines else at + 8 * len(values)
            keys[key] = at, len(values), lines_at
            parts.append(values.tobytes())
            at += 8 * len(values)
            if lines_at >= 0:
                parts.append(self.lines[key].tobytes())
                at += 8 * len(values)
        head = {"n_lines": n_lines, "keys": keys, "keys_cut": self.keys_cut, "last": self.last, "n_unreadable": self.n_unreadable}
        text = json.dumps(head).encode()
        return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts])


class ColumnsFile:
    """What Columns.to_bytes() wrote, read column by column. ValueError for anything else."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        try:
            self._read_head(file)
        except (ValueError, KeyError, TypeError) as error:
            file.close()
            raise ValueError(f"this is no file of columns: {error}") from error

    def _read_head(self, file: BinaryIO) -> None:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= _MOST_HEAD_BYTES:
            raise ValueError(f"its head would have {length} bytes")
        head = json.loads(file.read(length))
        self._base = _LENGTH_BYTES + length
        self._n_lines: int = head["n_lines"]
        self._keys: dict[str, list[int]] = head["keys"]
        self.keys_cut: int = head["keys_cut"]
        self.n_unreadable: int = head["n_unreadable"]
        self.last: tuple[int | None, float | None] = tuple(head["last"])

    def __enter__(self) -> ColumnsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def keys(self) -> list[str]:
        """The metrics in it."""
        return list(self._keys)

    def points(self, key: str) -> Points | None:
        """One metric; None if it is not there."""
        import numpy as np

        if key not in self._keys:
            return None
        at, n, lines_at = self._keys[key]
        steps, times = self._array(0, self._n_lines, np.int64), self._array(8 * self._n_lines, self._n_lines, np.float64)
        values = self._array(at, n, np.float64)
        if lines_at >= 0:
            lines = self._array(lines_at, n, np.int64)
            steps, times = steps[lines], times[lines]
        return Points(steps, times, values)

    def _array(self, at: int, n: int, kind: type[np.int64] | type[np.float64]) -> NDArray[Any]:
        import numpy as np

        self._file.seek(self._base + at)
        data = self._file.read(8 * n)
        if len(data) != 8 * n:
            raise ValueError("the file of columns is cut off")
        return np.frombuffer(data, kind)
