"""Filters and orders: what they take, what they refuse, and that nothing of them is ever run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from wherry.errors import ConfigError
from wherry.runs import KeySummary, RunRow, Where, sort_rows
from wherry.runs.filters import differing, notes_of

ROW = RunRow(
    "a",
    "job-a",
    "s3://b/a",
    state="live",
    age_s=5.0,
    hparams={"lr": 1e-3, "model": {"depth": 3}, "opt": "adam", "use_amp": True},
    metrics={
        "loss": KeySummary(0.5, 9, 0.25, 7, 2.0, 0, 10),
        "val/acc": KeySummary(0.9, 9, 0.1, 0, 0.9, 9, 3),
        "my loss": KeySummary(1.0),
    },
)


@pytest.mark.parametrize(
    "text",
    [
        "lr<1e-2 and loss<2",
        "0.1 < loss <= 0.5",
        "model.depth == 3",
        "val/acc > 0.8 and val/acc.min < 0.2",
        "loss.min_step == 7",
        "state == 'live' and opt != 'sgd'",
        "not (loss > 1) or nothing < 3",
        "'da' in opt",
        "key('my loss') == 1",
        "use_amp == True",
        "-1 < loss",
        "age_s < 60",
    ],
)
def test_a_row_passes(text: str) -> None:
    assert Where(text)(ROW)


@pytest.mark.parametrize(
    "text", ["loss > 1", "nothing == 1", "nothing != 1", "opt < 3", "lag_s < 1", "model > 1", "val/nothing < 1"]
)
def test_a_row_does_not_pass(text: str) -> None:
    assert not Where(text)(ROW)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("__import__('os').system('x') == 1", "__import__"),
        ("loss", "loss"),
        ("loss + 1 < 2", "loss + 1"),
        ("[1] == 1", "[1]"),
        ("(lambda: 1)() < 2", "lambda"),
        ("loss is None", "loss is None"),
        ("key(loss) < 1", "key(loss)"),
        ("loss[0] < 1", "loss[0]"),
        ("f'{loss}' == 1", "f'{loss}'"),
        ("lr <", "lr <"),
        ("a" * 3000, "3000 characters"),
        ("(" * 500 + "a<1" + ")" * 500, "filter"),
        ("loss < 1\0", "filter"),
        ("", "filter"),
    ],
)
def test_what_is_no_filter_is_refused_by_its_name(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Where(text)
    assert part in str(caught.value)


def test_names_are_told_for_a_table() -> None:
    assert Where("lr < 1 and val/acc.min > 0 and lr > 0").names == ["lr", "val/acc.min"]


def test_rows_are_sorted_and_those_without_come_last() -> None:
    rows = [RunRow(name, name, "", metrics={"loss": KeySummary(last)}) for name, last in (("a", 2.0), ("b", None), ("c", 1.0))]
    assert [row.id for row in sort_rows(rows, "loss")] == ["c", "a", "b"]
    assert [row.id for row in sort_rows(rows, "-loss")] == ["a", "c", "b"]
    assert [row.id for row in sort_rows(rows, "-name")] == ["c", "b", "a"]
    assert [row.id for row in sort_rows(rows, "nothing")] == ["a", "b", "c"]
    with pytest.raises(ConfigError):
        sort_rows(rows, "-")


def test_hyperparameters_that_differ_are_found() -> None:
    rows = [RunRow(str(n), "", "", hparams={"lr": n, "seed": 1, "model": {"depth": n % 2, "kind": "x"}}) for n in range(3)]
    assert differing(rows) == ["lr", "model.depth"]


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("bs in (8)", True),
        ("bs in (8, 16)", True),
        ("bs in [16, 32]", False),
        ("bs not in (16, 32)", True),
        ("nothing not in (1, 2)", False),
        ("opt in ('adam', 'sgd')", True),
        ("bs in ('8', '16')", True),
        ("bs == '8'", True),
        ("rate < 1e-2", True),
        ("rate == 0.001", True),
        ("sizes == 3", False),
        ("3 in sizes", True),
        ("use_amp == true", True),
        ("use_amp == false", False),
    ],
)
def test_one_of_several_values_is_found(text: str, passes: bool) -> None:
    row = replace(ROW, hparams={**ROW.hparams, "bs": 8, "rate": "1e-3", "sizes": [1, 3]})
    assert passes == Where(text)(row)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("lr = 1e-3", "= is written =="),
        ("opt ~ adam", "~ is written 'part' in name"),
        ("lr<1 & loss<2", "& is written and"),
        ("lr<1 || loss<2", "| is written or"),
        ("lr<1 AND loss<2", "and, or, not, in are written small"),
        ("!(lr<1)", "! is written not"),
    ],
)
def test_the_spelling_of_another_language_is_named(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(remedy)):
        Where(text)


def test_names_that_no_run_has_are_said_with_their_neighbours() -> None:
    assert [] == notes_of([ROW], ["lr", "loss.min", "age_s", "lag_s", "my loss", "model.depth"])
    typo, text = notes_of([ROW], ["model.dept", "adam", "adam"])
    assert "no run has 'model.dept': the nearest name is model.depth" in typo
    assert "no run has 'adam'" in text
    assert "texts are written in quotes" in text
