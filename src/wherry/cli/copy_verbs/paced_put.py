"""``wherry put --max-bytes-per-s``: uploads by this process. The agent's pace is that of every program of its spool."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.cli.copy_verbs.sides import Sides
from wherry.cli.copy_verbs.transfers import Place, Transfers, tracked
from wherry.cli.exit_codes import Exit
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.selection import Source
from wherry.cli.taken_names import refuse_taken
from wherry.spool.sources import sources_of
from wherry.uri import StoreURI, check_new_name

#: Its keys are whole paths.
_ROOT = StoreURI("file", "", "")


def put_here(
    sides: Sides, paths: Sequence[Path | None], target: StoreURI, names: Sequence[str], *, overwrite: bool, as_json: bool
) -> Exit:
    """Upload each of the paths to its name below the target, and wait for it; None is standard input. The exit code."""
    with ExitStack() as stack:
        given = [(_stdin(stack) if path is None else path, name) for path, name in zip(paths, names, strict=True)]
        if not overwrite:
            refuse_taken(target, sides.dests.options(target.scheme), given)
        files = [(file, check_new_name(new)) for path, name in given for file, new in sources_of(path, name)]
        here, there = sides.sources.open(_ROOT), sides.dests.open(target)
        outcome = Outcome("uploaded", as_json=as_json)
        transfers = stack.enter_context(Transfers(sides, len(files)))
        transfers.prepare([there])

        def ends(one: tuple[Path, str]) -> tuple[Source, Place]:
            file, name = one
            return Source(here, os.path.abspath(file).lstrip("/"), name, file.stat().st_size), Place(there, name)

        def send(one: tuple[Path, str]) -> Callable[[], None]:
            source, place = ends(one)
            made = transfers.copy(source, place, overwrite=overwrite)
            return lambda: outcome.add("-" if None in paths else str(one[0]), made.size_bytes, place.shown)

        counted = {one: tracked(*ends(one)) for one in files}
        outcome.each_shown(send, files, lambda one: str(one[0]), sides.dests.bar, counted.__getitem__, is_raised=len(files) == 1)
    return outcome.end()


def _stdin(stack: ExitStack) -> Path:
    """The whole of standard input as a file: its size is known when it ends."""
    path = Path(stack.enter_context(TemporaryDirectory(prefix="wherry-")), "stdin")
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
    return path
