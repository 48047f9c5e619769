"""Which metrics say most, and which way is good, by their names; and that the page and the terminal show the same."""

from __future__ import annotations

import pytest

from wherry.runs import KeySummary, RunRow
from wherry.runs.telling import best_columns, best_of, metric_columns
from wherry.web.table import default_columns


@pytest.mark.parametrize(
    ("key", "best"),
    [
        ("train/loss", "min"),
        ("valLoss", "min"),
        ("val/err", "min"),
        ("eval_rmse", "min"),
        ("test/wer", "min"),
        ("perplexity", "min"),
        ("val/acc", "max"),
        ("top1_acc", "max"),
        ("acc1", "max"),
        ("valAcc", "max"),
        ("f1", "max"),
        ("mAP", "max"),
        ("grad_norm", None),
        ("lr", None),
        ("power", None),
        ("interrupts", None),
        ("mapped_bytes", None),
    ],
)
def test_the_best_of_a_metric_is_known_by_its_name(key: str, best: str | None) -> None:
    assert best == best_of(key)


def row(*keys: str) -> RunRow:
    return RunRow("a", "a", "", metrics={key: KeySummary(1.0, 1, 0.0, 0, 2.0, 1) for key in keys})


def test_held_out_losses_come_first_and_nothing_is_the_best_without_a_name_for_it() -> None:
    rows = [row("train/loss", "grad_norm", "val/loss", "val/acc", "system/cpu/percent", "rank1/system/cpu/percent", "epoch")]
    assert ["val/loss", "val/loss.min", "val/acc", "val/acc.max", "train/loss", "train/loss.min"] == metric_columns(rows)
    assert ["val/loss.min", "val/acc.max", "train/loss.min"] == best_columns(rows)
    assert (*metric_columns(rows),) == default_columns(rows)
    assert ["grad_norm", "lr"] == metric_columns([row("lr", "grad_norm", "system/gpu")]) == best_columns([row("lr", "grad_norm")])
