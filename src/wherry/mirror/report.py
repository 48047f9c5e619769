"""MirrorReport and PullReport: how far a mirror, or a copy, is. And names made printable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Of a longer name only the beginning is shown. A key has 1,024 bytes at most; a hostile store's may have any number.
_MOST_SHOWN = 1024
_FEW = 3


@dataclass(frozen=True)
class MirrorReport:
    """How far a mirror is: what `Mirror.report`, `flush()` and `close()` return.

    `is_complete`: closed, and every byte of the folder is in the store. `lag_s`: age of the oldest byte that is not.
    `trouble` is empty when all is well; each entry names a file or the store, the reason, and what happens next.

    Example::

        report = mirror.close(timeout_s=60)
        if not report.is_complete:
            print(report.unsent_bytes, "bytes are not in", report.uri, *report.trouble)
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


@dataclass(frozen=True)
class PullReport:
    """How far a copy is, by the last listing of the store.

    `state`: open (a writer runs), lost (none runs, and one has been silent for long), incomplete (all have closed, one with bytes
    unsent), sealed (all have closed, and everything is there), unknown (there is no manifest), none (no mirror has made anything
    there: its objects are pulled as they are). `heard_s` is the age of the oldest manifest of a writer that has not sealed, and
    `lag_s` how late such writers were then. `n_bytes` were written by this call, with `n_requests` to
    the store. Each entry of `trouble` names a file or an object, and the reason.
    """

    uri: str
    folder: Path
    n_files: int
    n_segments: int
    n_bytes: int
    state: str
    heard_s: float | None = None
    lag_s: float | None = None
    lost: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    n_requests: int = 0


def printable(path: str) -> str:
    """A name as a log may show it: a hostile one must neither control a terminal nor fill a screen."""
    if len(path) > _MOST_SHOWN:
        return f"{printable(path[:100])}... ({len(path)} characters)"
    return path if path.isprintable() else repr(path)


def first_few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(map(printable, names[:_FEW])) + more
