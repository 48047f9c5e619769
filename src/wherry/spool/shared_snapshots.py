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


def shared_here() -> dict[tuple[Path, Path], Staged] | None:
    """The snapshots that this call has made, by spool folder and source, to be added to; they may have been freed since.

    None: it shares none.
    """
    return _shared.get()
