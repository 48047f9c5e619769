"""The moment of a point: which lines of a log, which start and which checkpoint set belong to it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servers.web_page import log_of, page_of
from wherry.loggers import Logger, State
from wherry.runs import CheckpointRow, LogChunk, Runs, Series
from wherry.web.log_lines import When, lines_near, log_lines
from wherry.web.moment import Restart, is_on_branch, last_before, starts_of

STEPS = [*range(5), *range(2, 6)]


def row(step: int, stored_s: float | None = None, verified: str | None = "when stored") -> CheckpointRow:
    known: dict[str, Any] = {
        "metrics": {},
        "verified_age_s": None,
        "is_pinned": False,
        "is_latest": False,
        "proof": "",
        "restore_command": "",
    }
    return CheckpointRow(
        name=f"set{step}",
        step=step,
        attempt="1",
        state="complete",
        is_complete=True,
        age_s=0.0,
        stored_s=stored_s,
        size_bytes=1,
        verified=verified,
        **known,
    )


def series(steps: list[int]) -> Series:
    n = len(steps)
    return Series("loss", np.array(steps), np.arange(n, dtype=float), np.zeros(n), np.zeros(n, bool))


def found(text: str, when: When) -> str | None:
    lines, at, _ = lines_near(text, when)
    return None if at is None else lines[at]


def test_starts_are_counted_where_the_steps_go_back() -> None:
    starts, restarts = starts_of(series(STEPS))
    assert ([0] * 5 + [1] * 4, [Restart(2, 5.0)]) == (list(starts), restarts)


def test_a_step_that_two_starts_came_by_has_a_line_of_each() -> None:
    text = "".join(f"[metric][step={step}]: {number}\n" for number, step in enumerate(STEPS))
    assert "[metric][step=3]: 6" == found(text, When(3, None, n_later=0))
    assert "[metric][step=3]: 3" == found(text, When(3, None, n_later=1))
    assert found(text, When(9, None)) is None


def test_a_log_without_steps_is_searched_by_its_times() -> None:
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
    text = "2026-01-01 00:00:00,250 first\nmore of it\n2026-01-01 00:00:01.500 second\n"
    assert "2026-01-01 00:00:00,250 first" == found(text, When(1, begin + 1.4))
    assert "2026-01-01 00:00:01.500 second" == found(text, When(1, begin + 2))
    assert [None, None] == [found(text, When(1, begin)), found(text, When(1, begin + 100))]


def test_a_moment_far_from_the_end_of_a_long_log_is_found() -> None:
    lines = [f"[metric][step={step}]: {'x' * 400}\n" for step in range(40_000)]
    text = "".join(lines)

    class Log:
        n_bytes = 0

        def log(self, rank: int | None, *, after: int | None = None, max_bytes: int) -> LogChunk:
            start = max(0, len(text) - max_bytes) if after is None else after
            chunk = text[start : start + max_bytes]
            Log.n_bytes += len(chunk)
            return LogChunk("log", chunk, start, start + len(chunk), len(text), start > 0, (0,))

    for step in (0, 1234, 20_000, 39_999):
        shown = log_lines(Log(), 0, When(step, None))  # type: ignore[arg-type]  # of a run, only its log is asked for
        assert shown.found is not None
        assert lines[step] == f"{shown.lines[shown.found]}\n"
    assert Log.n_bytes < 2 * len(text)


@pytest.mark.parametrize(
    ("start", "stored_s", "step", "expected"),
    [(1, 1.0, 50, True), (1, 1.0, 70, False), (1, 20.0, 70, True), (0, 1.0, 70, True), (0, 20.0, 70, False), (1, None, 70, True)],
)
def test_a_set_of_a_branch_that_was_left_is_none_to_go_back_to(
    start: int, stored_s: float | None, step: int, expected: bool
) -> None:
    assert expected == is_on_branch(row(step, stored_s), start, [Restart(60, 10.0)])


def test_the_newest_verified_set_before_the_step_is_chosen() -> None:
    rows = [row(10), row(20, verified="right"), row(30, verified=None), row(40, verified="wrong"), row(60)]
    assert "set20" == getattr(last_before(rows, 50), "name", None)
    assert last_before(rows, 5) is None


def test_the_code_of_a_moment_is_that_of_its_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = []
    for name, first, begun_s in (("environment.json", 0, 100.0), ("environment-2.json", 5, 200.0)):
        (run / name).write_text(json.dumps({"t": begun_s, "git": {"commit": name}}))
        lines += [json.dumps({"t": begun_s + step, "step": step, "loss": 1.0}) for step in range(first, first + 10)]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with page_of(tmp_path) as page:
        commits = [page.get(f"/data/moment?id=run&key=loss&step={step}").json["code"]["commit"] for step in (2, 12)]
        older = page.get("/data/moment?id=run&key=loss&step=8&start=0").json
    assert ["environment.json", "environment-2.json"] == commits
    assert (8, 0, 1, 2) == (older["step"], older["start"], older["attempt"], older["n_attempts"])


def test_a_run_that_was_started_twice_is_in_its_second_attempt_everywhere(tmp_path: Path) -> None:
    for step in range(2):
        with Logger(State(run_name="run"), [log_of(tmp_path / "run")]) as log:
            log.log_metrics({"loss": 1.0}, step)
    with page_of(tmp_path) as page:
        moment = page.get("/data/moment?id=run&key=loss&step=1").json
        assert (2, 2) == (moment["attempt"], moment["n_attempts"])
        assert page.get("/").text.count("attempt 2") == 1
    with Runs(str(tmp_path)) as runs:
        assert [2] == [row.attempt for row in runs.rows()]
