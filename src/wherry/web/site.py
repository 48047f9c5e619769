"""Site: what all answers of the page share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wherry.runs import Run, RunRow, Runs
from wherry.web.known_rows import Listing


def version_of(runs: Iterable[Run]) -> int:
    """A number that grows whenever refresh() has found something new in one of the runs."""
    return sum(run.version for run in runs)


@dataclass(frozen=True)
class Site:
    """The runs that are shown, and whether the page is about to end.

    `has_curves`: whether uPlot is there. `options`: the storage options that are no secret. `ending` is set when the server ends,
    for answers that would go on for ever.
    """

    runs: Runs
    listing: Listing
    uris: Sequence[str] = ()
    has_curves: bool = True
    options: Mapping[str, object] = field(default_factory=dict)
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, run_id: str) -> Run:
        """Return the run. NotFoundError."""
        return self.runs.run(run_id)

    def look(self, run_id: str) -> Run:
        """Return the run after a look at what is new in it, which the table then knows too. NotFoundError."""
        run = self.run(run_id)
        if run.refresh() and run.is_read:
            self.listing.take(run.row)
        return run

    def row(self, run_id: str) -> RunRow:
        """Return the row of the run, as the table has it, else as the run says it itself. NotFoundError."""
        return self.listing.row(run_id) or self.runs.run(run_id).row
