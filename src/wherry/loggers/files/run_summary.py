"""The summary of a run: one small file beside the metrics, so that a table of a thousand runs needs one request for each.

``wherry-summary.json``, replaced as a whole while the run is written, and at its end::

    {"format": "wherry-run-summary", "version": 2, "name": "job42", "state": "live", "written_s": 1780000000.0, "next_s": 60.0,
     "hparams": {"lr": 0.1}, "n_lines": 12, "metrics_bytes": 1234, "size_bytes": 5678, "keys_cut": 0,
     "n_restarts": 0, "metrics": {"loss": [0.5, 11, 0.4, 9, 2.3, 0, 12, 0, 0, 0, 11, false]}}

The entries of a metric are the fields of `KeyFold`. They are of the first `metrics_bytes` of ``metrics.jsonl``: whoever
reads more of that file goes on from there. A point that a restart has overwritten counts in none of them: when the step of a
metric goes back to s, what it had from s on is of a branch that was left. Version 1 had the first eight entries, of all points.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SUMMARY = "wherry-summary.json"
FORMAT = "wherry-run-summary"
VERSION = 2
#: A live run's summary is written again so often: 60 requests an hour where a mirror sends it, 0.0003 USD.
EVERY_S = 60.0
#: The first one comes sooner, so that a run that has just begun has a name and hyperparameters.
FIRST_AFTER_S = 5.0
#: More are not in a summary; the file would grow beyond 2 MB.
MOST_KEYS = 20_000
#: No reasonable line is longer; a hostile one would take twenty times its size in memory.
MOST_LINE_BYTES = 16 * 2**20
#: What `json_line` writes beside the metrics.
OURS = frozenset({"t", "step", "phase"})
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BLOCK_BYTES = 4 * 2**20
#: Parsed lines take twenty times their size, and those of a block are in memory together.
_BACK_BYTES = 2**20


def records_of(data: bytes, on_unreadable: Callable[[], object] = lambda: None) -> Iterator[dict[str, object]]:
    """The JSON objects in the lines of `data`. Lines that hold none are left out: halves, deep or huge ones. `on_unreadable` is
    called for each of them that is not empty.
    """
    for line in data.split(b"\n"):
        if not line:
            continue
        record = None if len(line) > MOST_LINE_BYTES else parse_object(line)
        if record is not None:
            yield record
        elif not line.isspace():
            on_unreadable()


def number_of(value: object) -> float | None:
    """The number that a metric's value stands for; None if it is none."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _NUMBERS.get(value) if isinstance(value, str) else None


def step_of(record: Mapping[str, object]) -> int | None:
    """The step of a line; None if it has none that 64 bits can hold."""
    step = record.get("step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and -(2**63) <= step < 2**63 else None


class KeyFold:
    """One metric so far: last, least and greatest number, each with its step, and how many points, NaN and infinities there are.

    NaN and infinities are points, and neither last nor least nor greatest. `first_step`, `end_step`: of the points that stand.
    `is_cut`: a restart has overwritten some of the points, and only reading them again tells what the others were.
    `n_restarts`: how often the step went back, of all points that were taken.
    """

    __slots__ = (
        *("below", "end_step", "first_step", "is_cut", "last", "last_step", "max", "max_step", "min", "min_step"),
        *("n_inf", "n_nan", "n_points", "n_restarts", "next_step"),
    )

    def __init__(self, below: float = math.inf) -> None:
        self._forget()
        self.n_points = self.n_nan = self.n_inf = 0
        self.is_cut = False
        self.n_restarts = 0
        #: Of add_before(): the step of the point behind, and the least step that the run went back to behind.
        self.next_step: int | None = None
        self.below = below

    def _forget(self) -> None:
        self.last: float | None = None
        self.last_step: int | None = None
        self.min: float | None = None
        self.min_step: int | None = None
        self.max: float | None = None
        self.max_step: int | None = None
        self.first_step: int | None = None
        self.end_step: int | None = None
        self.n_points = self.n_nan = self.n_inf = 0

    def add(self, value: float, step: int | None) -> None:
        """Take one more point."""
        if step is not None:
            if self.end_step is not None and step < self.end_step:
                self.n_restarts += 1
                self.go_back(step)
            self.end_step = step
            if self.first_step is None:
                self.first_step = step
        self.n_points += 1
        if self._is_number(value):
            self.last, self.last_step = value, step
            if self.min is None or value < self.min:
                self.min, self.min_step = value, step
            if self.max is None or value > self.max:
                self.max, self.max_step = value, step

    def go_back(self, step: int) -> None:
        """The points from this step on do not count any longer."""
        if self.first_step is not None and self.first_step >= step and not self.is_cut:
            self._forget()
        elif self.end_step is None or self.end_step >= step:
            self.is_cut = True
            for name in ("last", "min", "max"):
                at = getattr(self, f"{name}_step")
                if at is None or at >= step:
                    setattr(self, name, None)
                    setattr(self, f"{name}_step", None)

    def add_before(self, value: float, step: int | None) -> None:
        """Take the point before all that were taken so far: it counts if the run did not go back behind it later."""
        at = self.next_step if step is None else step
        if at is not None:
            if self.next_step is not None and self.next_step < at:
                self.n_restarts += 1
                self.below = min(self.below, self.next_step)
            self.next_step = at
            if at >= self.below:
                return
            self.first_step = at
            if self.end_step is None:
                self.end_step = at
        self.n_points += 1
        if self._is_number(value):
            if self.last is None:
                self.last, self.last_step = value, step
            if self.min is None or value <= self.min:
                self.min, self.min_step = value, step
            if self.max is None or value >= self.max:
                self.max, self.max_step = value, step

    def _is_number(self, value: float) -> bool:
        if -math.inf < value < math.inf:  # almost all; a reader of a thousand runs asks a million times
            return True
        self.n_nan += value != value
        self.n_inf += math.isinf(value)
        return False

    def to_list(self) -> list[object]:
        """As the summary has it."""
        numbers = (self.last, self.last_step, self.min, self.min_step, self.max, self.max_step)
        return [*numbers, self.n_points, self.n_nan, self.n_inf, self.first_step, self.end_step, self.is_cut]

    @classmethod
    def from_list(cls, found: object) -> KeyFold | None:
        """Read to_list(), and what version 1 wrote, in which overwritten points may count; None for anything else."""
        if not isinstance(found, list) or len(found) not in (8, 12):
            return None
        one = cls()
        one.last, one.min, one.max = (_finite(number_of(found[at])) for at in (0, 2, 4))
        steps = [value if isinstance(value, int) and not isinstance(value, bool) else None for value in found]
        one.last_step, one.min_step, one.max_step = steps[1], steps[3], steps[5]
        one.n_points, one.n_nan = steps[6] or 0, steps[7] or 0
        if len(found) == 8:
            one.end_step, one.is_cut = one.last_step, True
        else:
            one.n_inf, one.first_step, one.end_step, one.is_cut = steps[8] or 0, steps[9], steps[10], found[11] is True
        return one


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _records_backwards(read: Callable[[int, int], bytes], end: int) -> Iterator[dict[str, object]]:
    """The JSON objects in the lines of the first `end` bytes, the last one first. `read` returns bytes [start, end)."""
    rest = b""
    while end > 0:
        start = max(0, end - _BACK_BYTES)
        block = read(start, end) + rest
        cut = block.find(b"\n") + 1 if start else 0
        if start and not cut:
            rest = block
        else:
            rest = block[:cut]
            yield from reversed(list(records_of(block[cut:])))
        end = start


class MetricsFold:
    """All metrics of the first `n_bytes` of a file of metrics, which add() continues."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: the file is another one."""
        self.keys: dict[str, KeyFold] = {}
        self.n_bytes = 0
        self.n_lines = 0
        #: How much there was when it was last read again.
        self.n_bytes_again = 0
        #: Metrics that were left out, as there were too many.
        self.keys_cut = 0
        #: When the last line was logged.
        self.last_t: float | None = None
        #: What a summary said of the restarts before what was taken since.
        self.n_restarts_before = 0

    def add(self, data: bytes) -> None:
        """Take what follows, which ends with a whole line."""
        self.n_bytes += len(data)
        for record in records_of(data):
            self.n_lines += 1
            step = step_of(record)
            if isinstance(t := record.get("t"), float):
                self.last_t = t
            for key, value in record.items():
                if key in OURS or (number := value if type(value) is float else number_of(value)) is None:
                    continue
                fold = self.keys.get(key)
                if fold is None:
                    if len(self.keys) >= MOST_KEYS:
                        self.keys_cut += 1
                        continue
                    fold = self.keys[key] = KeyFold()
                fold.add(number, step)

    @property
    def n_restarts(self) -> int:
        """How often the run went back to an earlier step, by the metric that shows most of it."""
        return self.n_restarts_before + max((one.n_restarts for one in self.keys.values()), default=0)

    @property
    def is_cut(self) -> bool:
        """Whether some metric has lost points to a restart, and read_again() would tell what the others are."""
        return any(one.is_cut for one in self.keys.values())

    def read_again(self, read: Callable[[int, int], bytes], below: Mapping[str, float] | None = None) -> None:
        """Count the points of the first `n_bytes` anew, from the last to the first. `read` returns bytes [start, end).

        `below`: a later attempt of the run has overwritten a metric from this step on.
        """
        below = below or {}
        self.keys = {key: KeyFold(below.get(key, math.inf)) for key in self.keys}
        self.n_restarts_before = 0
        for record in _records_backwards(read, self.n_bytes):
            step = step_of(record)
            for key, value in record.items():
                if key not in OURS and (fold := self.keys.get(key)) is not None and (number := number_of(value)) is not None:
                    fold.add_before(number, step)

    def read_again_from(self, path: Path) -> None:
        """The same of a file, if that is needed and worth it: a run whose steps go back all the time is not read each minute."""
        if self.is_cut and self.n_bytes * 4 >= self.n_bytes_again * 5:
            with open(path, "rb") as file:
                self.read_again(lambda start, end: os.pread(file.fileno(), end - start, start))
            self.n_bytes_again = self.n_bytes

    def read_on(self, path: Path) -> None:
        """Take what the file has beyond `n_bytes`, up to its last whole line. A shorter file is another one: begin anew."""
        try:
            file = open(path, "rb")  # noqa: SIM115  closed below
        except FileNotFoundError:
            self.begin_anew()
            return
        with file:
            if os.fstat(file.fileno()).st_size < self.n_bytes:
                self.begin_anew()
            file.seek(self.n_bytes)
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                rest += block
                whole = rest.rfind(b"\n") + 1
                self.add(rest[:whole])
                rest = rest[whole:]


def summary_bytes(
    fold: MetricsFold, *, name: str, state: str, written_s: float, hparams: Mapping[str, object], size_bytes: int
) -> bytes:
    """The file, as its readers expect it."""
    found = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "state": state,
        "written_s": written_s,
        "next_s": EVERY_S,
        "hparams": hparams,
        "n_lines": fold.n_lines,
        "last_t": fold.last_t,
        "metrics_bytes": fold.n_bytes,
        "size_bytes": size_bytes,
        "keys_cut": fold.keys_cut,
        "n_restarts": fold.n_restarts,
        "metrics": {key: one.to_list() for key, one in fold.keys.items()},
    }
    return json.dumps(found).encode() + b"\n"


def fold_of(found: Mapping[str, object]) -> MetricsFold:
    """The metrics of a summary that was read: what is no metric in it is left out."""
    fold = MetricsFold()
    metrics = found.get("metrics")
    for key, entries in metrics.items() if isinstance(metrics, dict) else ():
        if (one := KeyFold.from_list(entries)) is not None and len(fold.keys) < MOST_KEYS:
            fold.keys[key] = one
    counts = (found.get(name) for name in ("metrics_bytes", "n_lines", "keys_cut", "n_restarts"))
    fold.n_bytes, fold.n_lines, fold.keys_cut, fold.n_restarts_before = (
        count if isinstance(count, int) and 0 <= count < 2**63 else 0 for count in counts
    )
    fold.last_t = number_of(found.get("last_t"))
    return fold


def parse_object(data: bytes) -> dict[str, object] | None:
    """A JSON object; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def parse_summary(data: bytes) -> dict[str, object] | None:
    """Read a summary; None for one of a newer version and for anything else."""
    found = parse_object(data) or {}
    return found if found.get("format") == FORMAT and found.get("version") in (1, VERSION) else None
