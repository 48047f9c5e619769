"""Which sets are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import ConfigError


@dataclass(frozen=True)
class Keep:
    """The sets that prune keeps: all that one of the rules keeps. The newest complete set is kept in any case.

    >>> Keep(last=3, every_steps=1000, best=2, metric="loss")

    `last`: the newest n. `every_steps`: of each step that is a multiple of it, the newest. `best`: the n with the lowest `metric`
    (``mode="max"``: the highest); of equal ones the newest. `younger_than_s`: those that were committed in so many seconds before
    now, by the store's clock. ConfigError for a rule that cannot be, and for no rule at all.
    """

    last: int | None = None
    every_steps: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    younger_than_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("last", "every_steps", "best"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"keep {name}={value!r}: give a whole number from 1 on")
        age_s = self.younger_than_s
        if age_s is not None and (isinstance(age_s, bool) or not isinstance(age_s, (int, float)) or not 0 < age_s < math.inf):
            raise ConfigError(f"keep younger_than_s={age_s!r}: give seconds, more than 0")
        if self.mode not in ("min", "max"):
            raise ConfigError(f"keep mode={self.mode!r}: give min or max")
        if (self.best is None) != (self.metric is None):
            raise ConfigError(
                "keep best= and metric= belong together: best=2, metric='loss' keeps the two sets of the lowest loss"
            )
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric):
            raise ConfigError(f"keep metric={self.metric!r}: give the name of a metric")
        if self.last is None and self.every_steps is None and self.best is None and self.younger_than_s is None:
            raise ConfigError("keep has no rule: give last=, every_steps=, best= with metric=, or younger_than_s=")

    def reasons(self, sets: Sequence[Manifest], is_younger: Callable[[SetName, float], bool]) -> dict[SetName, list[str]]:
        """Of `sets`, which are from the oldest to the newest, those that are kept, each with the rules that keep it.

        `is_younger(name, age_s)` says whether a set may be younger than that.
        """
        found: dict[SetName, list[str]] = {}

        def keep(manifest: Manifest, why: str) -> None:
            found.setdefault(manifest.set, []).append(why)

        for one in sets[-self.last :] if self.last is not None else ():
            keep(one, f"of the last {self.last}")
        if self.every_steps is not None:
            of_step = {one.step: one for one in sets if one.step % self.every_steps == 0}
            for one in of_step.values():
                keep(one, f"every {self.every_steps} steps")
        if self.best is not None and self.metric is not None:
            sign = 1.0 if self.mode == "min" else -1.0
            having = [(sign * value, one) for one in reversed(sets) if (value := one.metrics.get(self.metric)) is not None]
            for _, one in sorted(having, key=lambda each: each[0])[: self.best]:
                keep(one, f"of the best {self.best} by {self.metric}")
        if self.younger_than_s is not None:
            for one in sets:
                if is_younger(one.set, self.younger_than_s):
                    keep(one, f"younger than {self.younger_than_s:g} s")
        return found
