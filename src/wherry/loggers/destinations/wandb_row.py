"""WandbRow: collects what is logged for one step in one row of W&B's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wandb import Run


class WandbRow:
    """Adds to the row of a step until another step is logged, or a name that the row already has, so that no value is replaced.

    W&B's service keeps the open row, and ends it with the run. W&B's own steps count the rows, as it drops what is logged with a
    step that goes back. Only one thread at a time may call.
    """

    def __init__(self, step_metric: str) -> None:
        self._step_metric = step_metric
        self._step: int | None = None
        self._names: set[str] = set()

    def add(self, run: Run, values: Mapping[str, object], step: int) -> None:
        """Log the values; none of them may have the name of the step."""
        if step != self._step or not self._names.isdisjoint(values):
            self.end(run)
        run.log({**values, self._step_metric: step}, commit=False)
        self._step = step
        self._names.update(values)

    def end(self, run: Run) -> None:
        """End the row, if there is one."""
        if self._step is not None:
            self._step = None
            self._names.clear()
            run.log({}, commit=True)
