"""The points that a chart gets: what is seen is true, and what is left out is said."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servers.web_page import N_STEPS, RATES, Page, log_of, make_runs, page_of
from wherry.loggers import Logger
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.run.state import State
from wherry.runs import Runs, Series
from wherry.web.drawing.bands import band_of
from wherry.web.drawing.chart_data import chart_data
from wherry.web.drawing.chosen_runs import choose
from wherry.web.drawing.curves import Wanted, as_drawn, curve_of


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page_of(make_runs(tmp_path_factory.mktemp("runs"))) as page:
        yield page


def series_of(values: object, steps: object = None, **more: object) -> Series:
    value = np.asarray(values, np.float64)
    step = np.arange(len(value)) if steps is None else np.asarray(steps)
    old = more.pop("overwritten", np.zeros(len(value), np.bool_))
    made = {"key": "a", "step": step, "t": 1e9 + step, "value": value, "overwritten": old, "n_total": len(value)}
    return Series(**{**made, **more})  # type: ignore[arg-type]


def drawn(series: Series, **wanted: object) -> dict[str, object]:
    asked = Wanted(**wanted)  # type: ignore[arg-type]
    return as_drawn(curve_of(series, asked), asked)


def lines(answer: dict[str, object]) -> dict[str, tuple[list[float], list[float]]]:
    found = answer["lines"]
    assert isinstance(found, list)
    return {line["kind"]: (line["x"], line["y"]) for line in found}


def test_all_points_of_a_short_curve_arrive(page: Page) -> None:
    found = page.points("amber", "train/loss")
    best = 1 + abs(math.log10(RATES["amber"]) + 2.5)
    assert list(range(N_STEPS)) == found["lines"][0]["x"]
    assert [best + math.exp(-step / 50) for step in range(N_STEPS)] == found["lines"][0]["y"]


def test_nan_and_infinity_are_marks_and_not_points(page: Page) -> None:
    found = page.points("cedar", "train/loss")
    assert {"NaN": {"n": 2, "x": [100.0, 101.0]}, "+inf": {"n": 1, "x": [200.0]}} == found["marks"]
    assert N_STEPS - 3 == len(found["lines"][0]["x"])


def test_the_overwritten_branch_is_a_line_of_its_own_with_a_tick_at_the_restart(page: Page) -> None:
    found = page.points("birch", "train/loss")
    assert [("raw", 0, N_STEPS - 1), ("older", 100, 199)] == [(one["kind"], one["x"][0], one["x"][-1]) for one in found["lines"]]
    assert [100.0] == found["restarts"]


def test_a_part_counts_the_marks_in_it_and_has_the_total_of_the_whole() -> None:
    steps = [*range(10), *range(5, 20)]
    series = series_of(
        [*range(24), math.nan],
        steps,
        overwritten=np.array([5 <= step and at < 10 for at, step in enumerate(steps)]),
        restarts=[5],
    )

    def counts(**wanted: float) -> tuple[object, object, object]:
        asked = Wanted(**wanted)  # type: ignore[arg-type]
        found = as_drawn(curve_of(series, asked, checkpoint_steps=[3, 7, 15]), asked)
        return found["n_total"], found["n_restarts"], found["n_checkpoints"]

    assert (19, 1, 3) == counts()
    assert (19, 0, 1) == counts(low=10.0)
    assert (19, 1, 2) == counts(low=5.0, high=15.0)


def test_every_spike_of_a_million_points_is_seen() -> None:
    values = np.ones(1_000_000)
    values[250_000::250_000] = 9.0
    found = drawn(series_of(values), n_points=1000)
    assert 3 == lines(found)["raw"][1].count(9.0)
    assert (1_000_000, 1_000_000) == (found["n_total"], found["lines"][0]["n_of"])  # type: ignore[index]
    assert len(lines(found)["raw"][0]) <= 1000


def test_a_zoom_gets_the_points_of_its_part_and_one_more_on_each_side() -> None:
    x, _ = lines(drawn(series_of(np.arange(10_000.0)), n_points=100, low=200.0, high=250.0))["raw"]
    assert list(map(float, range(199, 252))) == x


def test_a_smoothed_constant_is_the_constant_to_the_last_bit() -> None:
    smoothed = lines(drawn(series_of([0.1] * 500, np.arange(500) * 7), half_life_steps=30.0))["smooth"][1]
    assert {0.1} == set(smoothed)


def test_the_past_of_a_smoothed_curve_does_not_move() -> None:
    values = np.random.default_rng(3).normal(size=600)
    before = lines(drawn(series_of(values[:300]), half_life_steps=20.0))["smooth"][1]
    after = lines(drawn(series_of(values), half_life_steps=20.0))["smooth"][1]
    assert before == after[:300]


def test_what_a_logarithmic_axis_cannot_show_is_counted() -> None:
    found = drawn(series_of([1.0, 0.0, -2.0, 4.0, math.nan]), log_y=True)
    assert ([0.0, 3.0], [1.0, 4.0], 2) == (*lines(found)["raw"], found["n_not_positive"])


def test_outliers_are_what_lies_outside_of_the_drawn_axis(tmp_path: Path) -> None:
    """The axis goes on for 5 % beyond the 98 %, and over all runs: points there are seen, and are not counted."""
    for name, values in (("low", [*range(100), 103.0, 1e6]), ("high", [*range(100, 200), -1e6, 1e6])):
        with log_of(tmp_path / name) as log:
            for step, value in enumerate(values):
                log.log_metrics({"loss": float(value)}, step)
    with Runs(tmp_path) as reader:
        both, alone, logarithmic = (
            chart_data(choose(reader, [], ["loss"]), ids, "loss", Wanted(log_y=is_log))
            for ids, is_log in ((["high", "low"], False), (["low"], False), (["high"], True))
        )
    for data, n_outside in ((both, [2, 1]), (alone, [1]), (logarithmic, [1])):
        runs: Any = data["runs"]
        ends: Any = data["clip"]
        outside = [sum(not ends[0] <= y <= ends[1] for y in run["lines"][0]["y"]) for run in runs]
        assert (n_outside, n_outside) == (outside, [run["n_clipped"] for run in runs])


def test_relative_time_begins_at_zero_and_epochs_are_those_of_the_metric(page: Page) -> None:
    assert [0.0, 1.0, 2.0] == lines(drawn(series_of([5.0, 6.0, 7.0]), x="relative"))["raw"][0]
    found = page.points("amber", "train/loss", x="epoch")["lines"][0]
    np.testing.assert_allclose(np.arange(N_STEPS) / 100, found["x"])
    assert list(range(N_STEPS)) == found["step"]


def test_a_run_without_the_metric_is_missing_and_the_others_are_drawn(page: Page) -> None:
    runs = page.get("/data/points?id=amber&id=birch&key=nothing").json["runs"]
    assert [True, True] == [run["missing"] for run in runs]


def band(*runs: tuple[object, object], **wanted: object) -> dict[str, Any]:
    asked = Wanted(**wanted)  # type: ignore[arg-type]
    return band_of([curve_of(series_of(value, step), asked) for step, value in runs], asked)


def test_a_band_is_the_mean_the_least_and_the_greatest_at_each_step() -> None:
    steps = np.arange(300)
    values = np.random.default_rng(5).normal(size=(3, 300))
    found = band(*((steps, one) for one in values))
    assert (list(range(300)), [3] * 300, 3, 900, 300) == tuple(
        found[name] for name in ("x", "n", "n_runs", "n_points", "n_places")
    )
    np.testing.assert_allclose(values.mean(0), found["mean"], rtol=1e-12)
    assert [values.min(0).tolist(), values.max(0).tolist()] == [found["low"], found["high"]]


def test_a_mean_does_not_jump_with_who_has_logged_at_a_step() -> None:
    often, seldom = np.arange(0, 101), np.arange(0, 101, 10)
    found = band((often, 1.0 + often), (seldom, 5.0 + seldom), (seldom + 5, 8.0 + seldom))
    x = np.array(found["x"])
    assert [*range(101), 105] == x.tolist()
    assert [*[2] * 5, *[3] * 96, 1] == found["n"]  # the third run begins at 5, and it alone goes on to 105
    np.testing.assert_allclose(x + 3, found["mean"], rtol=1e-12)
    np.testing.assert_allclose(np.where(x <= 100, x + 1, x + 3), found["low"], rtol=1e-12)
    np.testing.assert_allclose(np.where(x <= 100, x + 5, x + 3), found["high"], rtol=1e-12)


def test_spikes_of_many_points_are_in_the_mean_and_at_the_edges() -> None:
    one, other = np.ones(100_000), np.full(100_000, 3.0)
    one[50_001], other[70_003] = 51.0, -9.0
    found = band((np.arange(100_000), one), (np.arange(100_000), other), n_points=600)
    assert len(found["x"]) <= 600
    at = {x: tuple(found[name][place] for name in ("low", "mean", "high")) for place, x in enumerate(found["x"])}
    assert ((3.0, 27.0, 51.0), (-9.0, -4.0, 1.0), 100_000) == (at[50_001.0], at[70_003.0], found["n_places"])


def test_a_band_says_what_it_is_made_of() -> None:
    found = band(([0, 1, 2, 3], [1.0, math.nan, -2.0, 4.0]), ([10, 11], [1.0, 2.0]), log_y=True, high=4.0)
    made_of = {name: found[name] for name in ("n_runs", "n_points", "n_not_finite", "n_not_positive")}
    assert {"n_runs": 1, "n_points": 2, "n_not_finite": 1, "n_not_positive": 1} == made_of
    assert [0.0, 3.0] == found["x"]  # the second run begins behind the part that is looked at


def test_a_group_is_one_band(page: Page) -> None:
    found = page.get("/data/points?id=amber&id=birch&id=cedar&key=val/loss&group=optimizer").json
    (band,) = found["bands"]
    assert ([], "adamw", 3, 3) == (found["runs"], band["group"], band["n_runs"], band["n_of"])
    runs = [page.points(name, "val/loss")["lines"][0] for name in ("amber", "birch", "cedar")]
    assert all(run["x"] == band["x"] for run in runs)
    np.testing.assert_allclose(np.mean([run["y"] for run in runs], axis=0), band["mean"], rtol=1e-12)


def test_a_group_counts_its_runs_without_the_metric(page: Page, tmp_path: Path) -> None:
    for name, key in (("a", "loss"), ("b", "loss"), ("c", "other")):
        with log_of(tmp_path / name) as log:
            log.log_hyperparameters({"lr": 0.1})
            log.log_metrics({key: 1.0}, 0)
    with page_of(tmp_path) as page:
        found = page.get("/data/points?id=a&id=b&id=c&key=loss&group=lr").json
        assert [("0.1", 2, 3)] == [(band["group"], band["n_runs"], band["n_of"]) for band in found["bands"]]


def test_a_zoom_counts_the_points_that_its_csv_has(page: Page) -> None:
    part = "key=train/loss&low=60.5&high=149.25"
    (found,) = page.get(f"/data/points?id=birch&{part}").json["runs"]
    rows = list(csv.DictReader(page.get(f"/data/csv?id=birch&{part}").text.splitlines()))
    stands, older = ([row for row in rows if row["overwritten"] == one] for one in "01")
    lines = {line["kind"]: line for line in found["lines"]}
    assert (89, 89) == (len(stands), lines["raw"]["n"])
    assert len(older) == lines["older"]["n_of"]
    assert 91 == len(lines["raw"]["x"])  # with the next one on each side, up to which the line goes on


def test_the_csv_leaves_no_point_out(page: Page) -> None:
    text = page.get("/data/csv?id=birch&key=train/loss").text
    rows = [line.split(",") for line in text.splitlines()[1:]]
    assert (400, 100) == (len(rows), sum(row[4] == "1" for row in rows))


def test_the_csv_has_the_part_of_x_that_is_looked_at_of_all_runs(page: Page) -> None:
    answer = page.get("/data/csv?id=amber&id=cedar&key=train/loss&x=epoch&low=0.995&high=1.015")
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert [("amber", "100", "1.0"), ("amber", "101", "1.01")] == [(row["run"], row["step"], row["epoch"]) for row in rows[:2]]
    assert ["nan", "nan"] == [row["value"] for row in rows[2:]]
    assert 'attachment; filename="train_loss_from_0.995_to_1.015.csv"' == answer.headers["content-disposition"]


def test_a_spreadsheet_takes_no_name_of_a_run_for_a_formula(tmp_path: Path) -> None:
    with log_of(tmp_path / "=1+1") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        (row,) = csv.DictReader(page.get("/data/csv?id=%3D1%2B1&key=a").text.splitlines())
        assert ("'=1+1", "1.0") == (row["run"], row["value"])
        assert 404 == page.get("/data/csv?id=%3D1%2B1&key=b").status


def test_whole_epochs_are_spread_over_their_steps() -> None:
    wanted, losses = Wanted(x="epoch"), series_of(np.arange(9.0))
    epochs = series_of([0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert np.allclose(np.arange(9) / 3, curve_of(losses, wanted, epochs).x)


def test_the_epochs_of_a_loop_that_says_where_it_is_are_recorded(tmp_path: Path) -> None:
    state = State("run")
    with RunFolderLogger(tmp_path / "run", config=RunFolderConfig(parquet=False, upload=False), state=state) as log:
        log.init(state, Logger(state))
        for step in range(6):
            log.log_metrics({"loss": 1.0}, step)
            state.timestamp = state.timestamp.to_next_batch()
            if step % 2:
                state.timestamp = state.timestamp.to_next_epoch()
    with page_of(tmp_path) as page:
        assert [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] == page.points("run", "loss", x="epoch")["lines"][0]["x"]
        (answer,) = page.get("/data/points?id=run&key=epoch").json["runs"]
        assert [0.0, 1.0, 1.0, 2.0, 2.0] == answer["lines"][0]["y"]


def test_a_run_without_epochs_says_so_on_their_axis(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        assert "records no epoch" in page.points("run", "a", x="epoch")["trouble"]


def test_a_series_without_points_is_drawn_as_nothing() -> None:
    for axis in ("step", "time", "relative", "epoch"):
        assert ([], []) == lines(drawn(series_of([]), x=axis, half_life_steps=3.0))["raw"]


def test_what_is_read_only_from_its_end_says_so(tmp_path: Path) -> None:
    assert drawn(series_of([1.0], tail_only=True, n_total=5))["tail_only"]
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        assert not page.points("run", "a")["tail_only"]
