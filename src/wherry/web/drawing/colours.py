"""A run's colour comes from its id, so that it is the same on every page and every machine."""

from __future__ import annotations

import hashlib
from collections import Counter
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
    return _digest(run_id)[0] % N_COLOURS


def marks_of(run_ids: Sequence[str]) -> dict[str, Mark]:
    """The marks of runs that are shown together: those of one colour differ by their dash, up to four.

    A run that shares its colour has the dash of its own id as long as no other has it, so that it keeps that from page to page;
    one that is alone in its colour has a plain line.
    """
    marks: dict[str, Mark] = {}
    shared = Counter(map(colour_of, set(run_ids)))
    used: dict[int, Counter[int]] = {}
    for run_id in sorted(set(run_ids)):
        colour = colour_of(run_id)
        n_of_dash = used.setdefault(colour, Counter())
        own = _digest(run_id)[1] % N_DASHES if shared[colour] > 1 else 0
        dash = min(range(N_DASHES), key=lambda one: (n_of_dash[one], (one - own) % N_DASHES))
        n_of_dash[dash] += 1
        marks[run_id] = Mark(colour, dash)
    return marks


def _digest(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()
