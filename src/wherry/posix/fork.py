"""What a forked child does with what its parent has open: it lets go of it, and neither accepts nor discards it.

A child of os.fork() that ends by sys.exit(), or falls off its end, finalises copies of all objects of its parent: a copied
``with`` block closes its file, a copied buffer is flushed, a copied temporary folder is removed. Only the parent may do that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Disowns(Protocol):
    """An object that belongs to the process which made it."""

    def disown(self) -> None:
        """In a forked child: let go of everything, without a trace on the disk. Called before any other code of the child."""


_owned: weakref.WeakSet[Disowns] = weakref.WeakSet()


def disown_in_children(owned: Disowns) -> None:
    """Have `owned.disown()` called in every child that is forked while the object lives. Keeps no reference to it."""
    _owned.add(owned)


@contextmanager
def temporary_folder(prefix: str = "wherry-", parent: Path | None = None) -> Iterator[Path]:
    """A new empty folder, removed at the end of the block by the process that made it.

    tempfile.TemporaryDirectory() registers a removal at exit, which a child that was forked meanwhile carries out as well.
    """
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        if os.getpid() == pid:
            shutil.rmtree(folder)


def _disown_all() -> None:
    for owned in list(_owned):
        owned.disown()
    _owned.clear()


os.register_at_fork(after_in_child=_disown_all)
