"""The page of checkpoints: which set is the best, the command that restores it, and the order of the table."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_sets import save_set, write_part
from command_line import CommandLine
from servers.web_page import Page, log_of, page_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.uri import StoreURI

METRICS = {10: (0.5, 0.7, 3.0), 20: (0.2, 0.9, 1.0), 30: (0.3, 0.95, 2.0)}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"loss": 1.0}, 0)
    store = LocalStore(StoreURI("file", "", str(tmp_path).strip("/")), {})
    keys = RunKeys(f"{str(tmp_path / 'run').strip('/')}/checkpoints")
    for step, (loss, acc, norm) in METRICS.items():
        save_set(store, keys, step, world=2, metrics={"val/loss": loss, "val/acc": acc, "grad_norm": norm})
    write_part(store, keys, SetName("000000001", 40), rank=1, world=3)
    with page_of(tmp_path) as found:
        yield found


def shown(page: Page, sort: str = "") -> tuple[list[int], str, str]:
    """The steps in the order of the table, the step that is marked as the best, and the command that restores it."""
    text = page.get(f"/run?id=run&tab=checkpoints&sort={sort}").text
    rows = re.findall(r'<tr role="row" data-id="[^"]+".*?</tr>', text, re.DOTALL)
    steps = [int(found[1]) for row in rows if (found := re.search(r"step (\d+)", row))]
    (best,) = [step for step, row in zip(steps, rows, strict=True) if ">best</span>" in row]
    command = re.search(r'<p class="note">.*?data-copy="([^"]+)"', text, re.DOTALL)
    assert command is not None
    return steps, str(best), html.unescape(command[1])


@pytest.mark.parametrize(
    ("sort", "steps", "best", "which"),
    [
        ("", [40, 30, 20, 10], "20", "best:val/loss"),
        ("step", [10, 20, 30, 40], "20", "best:val/loss"),
        ("val/loss", [20, 30, 10, 40], "20", "best:val/loss"),
        ("-val/acc", [30, 20, 10, 40], "30", "best:val/acc:max"),
        ("grad_norm", [20, 30, 10, 40], "20", "best:grad_norm"),
        ("-grad_norm", [10, 30, 20, 40], "10", "best:grad_norm:max"),
    ],
)
def test_the_best_set_is_marked_by_the_metric_of_the_order(
    page: Page, sort: str, steps: list[int], best: str, which: str
) -> None:
    assert (steps, best) == shown(page, sort)[:2]
    assert shlex.split(shown(page, sort)[2])[-2:] == ["--which", which]


def test_the_command_restores_what_the_page_says(page: Page, tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    for sort, step in (("", 20), ("-val/acc", 30)):
        out, _ = line.run(*shlex.split(shown(page, sort)[2])[1:])
        assert f"_{step:012d}" in out


def test_a_damaged_set_is_not_the_best(page: Page, tmp_path: Path) -> None:
    (data,) = (tmp_path / "run/checkpoints/data").glob("*_000000000020/rank1*")
    data.write_bytes(b"x" * data.stat().st_size)
    CommandLine(tmp_path).run("checkpoints", "verify", tmp_path / "run", "--step", 20, expected=7)
    _, best, command = shown(page)
    assert ("30", "000000001_000000000030") == (best, shlex.split(command)[-1])
