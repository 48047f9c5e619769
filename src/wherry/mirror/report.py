"""MirrorReport: how far a mirror is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MirrorReport:
    """How far a mirror is. `trouble` is empty when all is well; else each entry names what, why, and what happens now.

    `is_complete`: closed, and every byte of the folder is in the store. `lag_s`: age of the oldest byte that is not.
    """

    uri: str
    writer: str
    epoch: int
    is_complete: bool
    n_files: int
    unsent_files: int
    unsent_bytes: int
    sent_bytes: int
    n_requests: int
    lag_s: float
    trouble: tuple[str, ...] = ()


def shown(path: str) -> str:
    """A name as a log may show it: anybody may have made it, and it must not command a terminal."""
    return path if path.isprintable() else repr(path)
