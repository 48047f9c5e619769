"""A run's colour comes from its id, so that it is the same on every page and every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

#: The colours of style.css, `--c0` and so on, which people who confuse colours can tell apart, in light and in dark.
RGB = (
    *((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73), (0xC4, 0x64, 0x9A), (0x3D, 0x96, 0xD6)),
    *((0x9A, 0x7D, 0x00), (0x8A, 0x63, 0xD2), (0xA0, 0x62, 0x3A), (0x7D, 0x7D, 0x7D), (0xD0, 0x30, 0x50)),
)
N_COLOURS = len(RGB)
#: chart.js has this many dashes, the first of which is a plain line.
N_DASHES = 4


@dataclass(frozen=True)
class Mark:
    """The colour and the dash of a run, by their numbers."""

    colour: int
    dash: int = 0


def colour_of(run_id: str) -> int:
    """The number of the run's colour, by its id alone."""
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()[0] % N_COLOURS


def marks_of(run_ids: Sequence[str]) -> dict[str, Mark]:
    """The marks of runs that are shown together: those of one colour differ by their dash."""
    marks: dict[str, Mark] = {}
    used: dict[int, int] = {}
    for run_id in sorted(set(run_ids)):
        colour = colour_of(run_id)
        marks[run_id] = Mark(colour, used.get(colour, 0) % N_DASHES)
        used[colour] = used.get(colour, 0) + 1
    return marks
