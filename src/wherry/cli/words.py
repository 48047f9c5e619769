"""Sizes, durations and states as users read them."""

from __future__ import annotations

from wherry.spool.journal.jobs import JobState

#: What users call a state, where the journal has a name of its own for it.
_WORDS = {JobState.LEASED: "uploading", JobState.SUPERSEDED: "replaced"}


def word(state: JobState) -> str:
    """The state in the words of `wherry status`: queued, uploading, done, failed, replaced, discarded."""
    return _WORDS.get(state, state.value)


def size_text(n_bytes: float) -> str:
    """A size for people, in decimal units: ``12.3 MB``."""
    from rich.filesize import decimal

    return decimal(int(n_bytes)).replace("bytes", "B")


def age_text(age_s: float) -> str:
    """A duration for people, in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{age_s:.0f} s"


def attempts_text(attempts: int) -> str:
    """``1 attempt``, ``7 attempts``."""
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
