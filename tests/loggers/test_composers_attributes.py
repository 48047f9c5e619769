"""What users of Composer's InMemoryLogger and FileLogger read, by the names and in the format of Composer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wherry.errors import ConfigError
from wherry.loggers import FileConfig, FileLogger, InMemoryConfig, InMemoryLogger, Logger, State, Timestamp
from wherry.loggers.values.text import pandas_json


def logged(n_batches: int = 2, *, max_points: int | None = None) -> InMemoryLogger:
    memory, state = InMemoryLogger(config=InMemoryConfig(max_points=max_points)), State("r")
    logger = Logger(state, memory)
    for batch in range(n_batches):
        logger.log_metrics({"loss": batch / 2})
        state.timestamp = state.timestamp.to_next_batch(samples=4)
    return memory


def test_data_has_when_each_value_was_logged() -> None:
    assert {"loss": [(Timestamp(), 0.0), (Timestamp().to_next_batch(samples=4), 0.5)]} == logged().data


def test_most_recent_timestamps_go_with_most_recent_values() -> None:
    memory = logged()
    assert ({"loss": 0.5}, {"loss": 1}) == (
        memory.most_recent_values,
        {name: timestamp.batch for name, timestamp in memory.most_recent_timestamps.items()},
    )


def test_a_timeseries_has_the_values_and_all_counts() -> None:
    series = logged(3).get_timeseries("loss")
    assert [0.0, 0.5, 1.0] == series["loss"].tolist()
    assert ([0, 1, 2], [0, 4, 8], [0, 0, 0]) == tuple(series[name].tolist() for name in ("batch", "sample", "epoch"))
    assert all(isinstance(values, np.ndarray) for values in series.values())


def test_a_timeseries_of_no_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric 'x' was logged; there are 'loss'"):
        logged().get_timeseries("x")


def test_only_the_newest_points_have_a_timestamp() -> None:
    memory = logged(9, max_points=2)
    assert [7, 8] == [timestamp.batch for timestamp, _ in memory.data["loss"]]
    assert [3.5, 4.0] == memory.get_timeseries("loss")["loss"].tolist()


def test_what_is_logged_without_a_state_is_at_the_start() -> None:
    memory = InMemoryLogger()
    memory.log_metrics({"loss": 1.0}, step=7)
    assert {"loss": [(Timestamp(), 1.0)]} == memory.data


def test_the_file_has_composers_lines(tmp_path: Path) -> None:
    config = FileConfig(capture_stdout=False, capture_stderr=False, lines="composer")
    with FileLogger("log.txt", folder=tmp_path, config=config, state=State("r")) as log:
        log.log_hyperparameters({"foo": 3, "lines": "a\nb"})
        log.log_metrics({"loss": 2, "lr": 3e-6}, step=1)
        log.log_table(["prompt", "generation"], [["p0", "g0"], ["a/é", 1 / 3]], name="test_table")
        log.log_traces({"algorithm_traces/x": 1})
    assert [
        "[hyperparameter]: foo: 3 \n",
        '[hyperparameter]: lines: "a\n',
        '[hyperparameter]: b" \n',
        "[metric][batch=1]: loss: 2 \n",
        "[metric][batch=1]: lr: 0.0000 \n",
        '[table]: test_table: {"columns":["prompt","generation"],"data":[["p0","g0"],["a\\/\\u00e9",0.3333333333]]}\n',
        "[trace]: algorithm_traces/x:1\n",
    ] == (tmp_path / "log.txt").read_text().splitlines(keepends=True)


@pytest.mark.large
def test_a_table_is_written_as_pandas_writes_it() -> None:
    import pandas as pd

    columns, rows = ["a", "b/c"], [[1, 1 / 3], [2.5, float("nan")], [-1, 1e-7]]
    expected = pd.DataFrame.from_records(columns=columns, data=rows).to_json(orient="split", index=False)
    assert json.loads(expected) == json.loads(pandas_json(columns, rows))


def test_other_lines_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"FileConfig\.lines is 'csv': use 'wherry' or 'composer'"):
        FileConfig(lines="csv")  # type: ignore[arg-type]
