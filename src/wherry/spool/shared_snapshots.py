"""One snapshot for all destinations of one call: a file that goes to several stores is staged once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.spool.staging import Staged

#: (spool folder, source) -> its snapshot; None outside shared_snapshots().
_shared: ContextVar[dict[tuple[Path, Path], Staged] | None] = ContextVar("wherry_shared_snapshots", default=None)


@contextmanager
def shared_snapshots() -> Iterator[None]:
    """Within the block, uploads of one file through one spool share the snapshot that the first of them made.

    For one logical call: what the file holds between its uploads is not looked at again.
    """
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def shared_snapshot(spool: Path, source: Path) -> Staged | None:
    """The snapshot of `source` that this call has made in that spool, if any; it may have been uploaded and freed since."""
    found = _shared.get()
    return None if found is None else found.get((spool, source.absolute()))


def share_snapshot(spool: Path, source: Path, staged: Staged) -> None:
    """Let later uploads of this call have the snapshot."""
    found = _shared.get()
    if found is not None:
        found[spool, source.absolute()] = staged
