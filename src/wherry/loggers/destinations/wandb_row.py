"""WandbRow: what is logged of one step as one row of W&B's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wandb import Run


class WandbRow:
    """Adds to the row of a step until another step is logged, or a name that the row has already: no value replaces another.

    W&B's service keeps the row that is not ended, and ends it with the run. Its own steps count the rows: it drops what is logged
    with one that goes back. Only one thread at a time may call.
    """

    def __init__(self, step_metric: str) -> None:
        self._step_metric = step_metric
        self._step: int | None = None
        self._names: set[str] = set()

    def add(self, run: Run, values: Mapping[str, object], step: int) -> None:
        """Log the values, which are not called as the step is."""
        if step != self._step or not self._names.isdisjoint(values):
            self.end(run)
        run.log({**values, self._step_metric: step}, commit=False)
        self._step = step
        self._names.update(values)

    def end(self, run: Run) -> None:
        """Have the row written, if there is one."""
        if self._step is not None:
            self._step = None
            self._names.clear()
            run.log({}, commit=True)
