"""States and counts as users read them."""

from __future__ import annotations

from wherry.spool.journal.jobs import JobState

#: What users call a state, where the journal has a name of its own for it.
_WORDS = {JobState.LEASED: "uploading", JobState.SUPERSEDED: "replaced"}


def word(state: JobState) -> str:
    """The state in the words of `wherry status`: queued, uploading, done, failed, replaced, discarded."""
    return _WORDS.get(state, state.value)


def attempts_text(attempts: int) -> str:
    """``1 attempt``, ``7 attempts``."""
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
