"""The summary of a run: one small file beside the metrics, so that a table of a thousand runs needs one request for each.

``wherry-summary.json``, replaced as a whole while the run is written, and at its end::

    {"format": "wherry-run-summary", "version": 1, "name": "job42", "state": "live", "written_s": 1780000000.0, "next_s": 60.0,
     "hparams": {"lr": 0.1}, "n_lines": 12, "metrics_bytes": 1234, "size_bytes": 5678, "keys_cut": 0,
     "metrics": {"loss": [0.5, 11, 0.4, 9, 2.3, 0, 12, 0]}}

The eight entries of a metric are the fields of `KeyFold`. They are of the first `metrics_bytes` of ``metrics.jsonl``: whoever
reads more of that file goes on from there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

SUMMARY = "wherry-summary.json"
FORMAT = "wherry-run-summary"
VERSION = 1
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
_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_BLOCK_BYTES = 4 * 2**20


def records_of(data: bytes) -> Iterator[dict[str, object]]:
    """The JSON objects in the lines of `data`. Lines that hold none are left out: halves, deep or huge ones."""
    for line in data.split(b"\n"):
        if not line or len(line) > MOST_LINE_BYTES:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


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
    """One metric so far: last, least and greatest number, each with its step, and how many points and NaN there are."""

    __slots__ = ("last", "last_step", "max", "max_step", "min", "min_step", "n_nan", "n_points")

    def __init__(self) -> None:
        self.last: float | None = None
        self.last_step: int | None = None
        self.min: float | None = None
        self.min_step: int | None = None
        self.max: float | None = None
        self.max_step: int | None = None
        self.n_points = self.n_nan = 0

    def add(self, value: float, step: int | None) -> None:
        """Take one more point."""
        self.n_points += 1
        if value != value:
            self.n_nan += 1
            return
        self.last, self.last_step = value, step
        if self.min is None or value < self.min:
            self.min, self.min_step = value, step
        if self.max is None or value > self.max:
            self.max, self.max_step = value, step

    def to_list(self) -> list[object]:
        """As the summary has it; JSON has no infinities."""
        values = (self.last, self.last_step, self.min, self.min_step, self.max, self.max_step, self.n_points, self.n_nan)
        return [_WORDS.get(value, value) if isinstance(value, float) else value for value in values]

    @classmethod
    def from_list(cls, found: object) -> KeyFold | None:
        """Read to_list(); None for anything else."""
        if not isinstance(found, list) or len(found) != 8:
            return None
        one = cls()
        one.last, one.min, one.max = (number_of(found[at]) for at in (0, 2, 4))
        steps = [value if isinstance(value, int) and not isinstance(value, bool) else None for value in found]
        one.last_step, one.min_step, one.max_step = steps[1], steps[3], steps[5]
        one.n_points, one.n_nan = steps[6] or 0, steps[7] or 0
        return one


class MetricsFold:
    """All metrics of the first `n_bytes` of a file of metrics, which add() continues."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: the file is another one."""
        self.keys: dict[str, KeyFold] = {}
        self.n_bytes = 0
        self.n_lines = 0
        #: Metrics that were left out, as there were too many.
        self.keys_cut = 0
        #: When the last line was logged.
        self.last_t: float | None = None

    def add(self, data: bytes) -> None:
        """Take what follows, which ends with a whole line."""
        self.n_bytes += len(data)
        for record in records_of(data):
            self.n_lines += 1
            step = step_of(record)
            if isinstance(t := record.get("t"), float):
                self.last_t = t
            for key, value in record.items():
                if key in OURS or (number := number_of(value)) is None:
                    continue
                fold = self.keys.get(key)
                if fold is None:
                    if len(self.keys) >= MOST_KEYS:
                        self.keys_cut += 1
                        continue
                    fold = self.keys[key] = KeyFold()
                fold.add(number, step)

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
    counts = (found.get(name) for name in ("metrics_bytes", "n_lines", "keys_cut"))
    fold.n_bytes, fold.n_lines, fold.keys_cut = (count if isinstance(count, int) and count >= 0 else 0 for count in counts)
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
    return found if (found.get("format"), found.get("version")) == (FORMAT, VERSION) else None
