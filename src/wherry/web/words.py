"""Numbers, sizes, ages, dollars and doubts as the page says them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timezone
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import quote

from wherry.quantities import age_text, size_text, time_text

if TYPE_CHECKING:
    from wherry.runs import Truth, Usage

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: What a browser obeys, or does not show: control characters but tabs and line ends, what turns the direction of text around
#: (https://www.unicode.org/reports/tr9/), and halves of surrogate pairs, which UTF-8 cannot hold.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: What an attribute of HTML cannot hold or changes, what visible() changes but can be quoted, and what exact() quotes by.
_CHANGED = re.compile("[%\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_IN_BYTES = re.compile(r"(?:^|[/_.])bytes(_per_s)?$")


@dataclass(frozen=True)
class Said:
    """A few words with a look (``good``, ``bad``, or none). An age in them stands by itself, as it goes on on an open page."""

    look: str
    words: str
    age_s: float | None = None
    after: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return self.words if self.age_s is None else f"{self.words}{age(self.age_s)}{self.after}"


def visible(value: object) -> object:
    """The text with characters that would not be seen in their escaped form (``\\x00``, ``\\u202e``), as a terminal gets it.

    `static/basics.js` does the same. Other values, and markup of our own, come back as they are.
    """
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)


def exact(text: str) -> str:
    """A name in an attribute that a script reads with decodeURIComponent(): no character of it is lost to HTML."""
    return _CHANGED.sub(lambda found: quote(found[0]), text)


def number(value: object) -> str:
    """Six digits of a number, ``1,234`` for whole ones; other values as their text, cut at 80 characters; ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{Decimal(value).normalize():.6g}"  # a float might not hold it
    if isinstance(value, float):
        if math.isfinite(value) and value == int(value) and abs(value) < 10**6:
            return f"{int(value):,}"
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def measure(name: str, value: object) -> str:
    """A number of the metric `name`: a size or a rate where the name says bytes, as those of SystemMetrics do."""
    found = _IN_BYTES.search(name)
    if (
        found is None or isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**80
    ):  # nor what a float may not hold
        return number(value)
    return size_text(value) + ("/s" if found[1] else "")


def unit_of(name: str, most: float) -> tuple[float, str]:
    """By what the numbers of a metric up to `most` are divided, and the unit then; 1 and no unit for what is not in bytes."""
    found = _IN_BYTES.search(name)
    if found is None:
        return 1.0, ""
    power = max(0, min(len(_UNITS) - 1, math.floor(math.log2(max(abs(most), 1)) / 10)))
    return 1024.0**power, f" {_UNITS[power]}{'/s' if found[1] else ''}"


def age(age_s: float | None) -> str:
    """A duration in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    if age_s is None or not math.isfinite(age_s):
        return "-"
    return age_text(age_s)


def size(n_bytes: float | None) -> str:
    """A size: ``12.3 MiB``."""
    return "-" if n_bytes is None else size_text(n_bytes)


def dollars(usd: float | None) -> str:
    """``$0.0042``: two digits that count; ``<$0.00001`` for less than anybody wants to know."""
    if usd is None:
        return "-"
    if usd == 0:
        return "$0"
    if 0 < usd < 1e-5:
        return "<$0.00001"
    n_digits = max(2, 1 - math.floor(math.log10(abs(usd))))
    return f"${usd:.{min(n_digits, 8)}f}"


def spent(usage: Usage) -> str:
    """What this viewer has asked and what that costs, beside what it may ask of a live run in an hour."""
    words = f"{usage.n_lists + usage.n_gets:,} calls, {dollars(usage.usd)}"
    if not usage.looks_per_hour:
        return words
    return f"{words} (budget of a live run: {usage.looks_per_hour:,} an hour, {dollars(usage.looks_usd_per_hour)})"


def moment(t: float | None) -> str:
    """A time in UTC, to the second; ``-`` where there is none."""
    if t is None or not 0 <= t < 2**38:  # also false for NaN
        return "-"
    return time_text(t, timezone.utc)


def truth(known: Truth) -> list[Said]:
    """How true what is shown is."""
    step = known.complete_to_step
    said = [Said("", f"complete to step {step:,}" if step is not None else "no step is known")]
    if known.newest_point_age_s is not None:
        said.append(Said("", "newest point ", known.newest_point_age_s, " old"))
    look = {"alive": "good", "finished": "good", "lost": "bad"}.get(known.writer, "")
    said.append(Said(look, f"writer {known.writer}" if known.writer != "unknown" else "nothing says whether its writer lives"))
    n_missing = known.segments_missing
    missing = f"{n_missing:,} segment{'' if n_missing == 1 else 's'} missing" if n_missing else "no segment missing"
    said.append(Said("bad" if n_missing else "", missing))
    unchecked = f"not verified: {known.unverified_because}" if known.unverified_because else "no checksum to compare"
    checked = {True: ("good", "checksums verified"), False: ("bad", "checksums differ"), None: ("", unchecked)}
    said.append(Said(*checked[known.checksums_verified]))
    return [*said, *(Said("bad", note) for note in known.notes)]
