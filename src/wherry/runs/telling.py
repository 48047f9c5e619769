"""Which metrics say most about a run, and which way is good, by their names: for the page and the terminal alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from wherry.runs.records import RunRow

#: More columns of metrics that nobody has asked for cannot be read side by side; the others can be asked for.
_MOST_METRICS = 3
#: Short words count only where they stand alone: `power` is no word error rate.
_LOW = re.compile(r"loss|perplexity|error|divergence|(?<![a-z])(err|ppl|mae|r?mse|nll|wer|cer)(?![a-z])")
_HIGH = re.compile(
    r"accuracy|score|reward|recall|precision|(?<![a-z])(acc|f1|auc|auroc|iou|miou|bleu|rouge|map|psnr|ssim)(?![a-z])"
)
_HELD_OUT = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|dev)(?![a-z])")
_CAMEL = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")


def best_of(key: str) -> Literal["min", "max"] | None:
    """Which number of a metric is its best, by its name; None if the name does not say (`grad_norm`)."""
    name = _CAMEL.sub("_", key).lower()
    return "min" if _LOW.search(name) else "max" if _HIGH.search(name) else None


def rank(key: str) -> tuple[bool, int, int, str]:
    """The place of a metric among others: of held-out data first, losses before scores before others, then by its name."""
    is_held_out = _HELD_OUT.search(_CAMEL.sub("_", key).lower()) is not None
    return not is_held_out, ("min", "max", None).index(best_of(key)), key.count("/"), key


def telling_keys(rows: Sequence[RunRow]) -> list[str]:
    """The metrics that say most: losses and scores that most runs have, else any others."""
    counts = Counter(key for row in rows for key in row.metrics if not _is_of_machine(key) and key != "epoch")
    most = max(counts.values(), default=0)
    common = sorted((key for key in counts if counts[key] * 2 >= most), key=rank)
    return ([key for key in common if best_of(key)] or common)[:_MOST_METRICS]


def metric_columns(rows: Sequence[RunRow]) -> list[str]:
    """Of the metrics that say most the last number, and of losses and scores the best one behind it."""
    found: list[str] = []
    for key in telling_keys(rows):
        found += [key, f"{key}.{best}"] if (best := best_of(key)) else [key]
    return found


def best_columns(rows: Sequence[RunRow]) -> list[str]:
    """Of the metrics that say most the best number, or the last where the name does not say which is the best."""
    return [f"{key}.{best}" if (best := best_of(key)) else key for key in telling_keys(rows)]


def _is_of_machine(key: str) -> bool:
    return "system" in key.split("/")[:-1]
