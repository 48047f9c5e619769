"""RunFolderLogger: one folder a run, which stock tools read; whole at any instant, continued and never overwritten."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from large import of_torch
from programs import Program
from wherry.errors import ConfigError
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.object_store import ObjectStoreLogger
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp

RNG = np.random.default_rng(5)
#: A list that holds itself.
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every line, by the strict reading of JSON."""
    return [json.loads(line, parse_constant=refuse) for line in path.read_text().split("\n")[:-1]]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "t"} for line in lines_of(folder / "metrics.jsonl")]


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def check_index(folder: Path) -> list[dict[str, Any]]:
    """The index, after every file in it was compared with its line."""
    index = lines_of(folder / "media/index.jsonl")
    for line in index:
        data = (folder / line["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (line["size_bytes"], line["sha256"])
    return index


def run_script(text: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


def log_all_kinds(run: RunFolderLogger, step: int | None = None) -> None:
    run.log_hyperparameters({"lr": 0.1, "model": {"depth": 3}})
    run.log_metrics({"loss": 0.5, "val/acc": 1}, step)
    run.log_images(RNG.integers(0, 256, (3, 8, 10), np.uint8), "pictures", step=step)
    run.log_table(["name", "score"], [["a", 1.5], ["b", None]], "scores", step)
    run.log_traces({"shapes": {"x": [1, 2]}})
    run.log_text("größer\nthan", "notes", step)
    run.log_histogram(RNG.normal(size=1000), "weights", step)
    run.log_audio(np.sin(np.arange(800) / 10), "tone", 8000, step)
    run.log_video(np.zeros((3, 16, 16), np.uint8), "clip", step=step)
    run.log_point_cloud(RNG.normal(size=(20, 3)), "cloud", step)


# the folder


def test_all_kinds_are_readable_files_in_one_folder(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path / "run") as run:
        log_all_kinds(run, 7)
    assert files_of(tmp_path / "run") == {
        "hparams.json",
        "metrics.jsonl",
        "metrics.parquet",
        "text.jsonl",
        "traces.jsonl",
        "histograms.jsonl",
        "tables/scores.jsonl",
        "tables/scores.parquet",
        "media/index.jsonl",
        "media/images/pictures/7.png",
        "media/audio/tone/7.wav",
        "media/video/clip/7.mp4",
        "media/pointclouds/cloud/7.ply",
    }
    index = check_index(tmp_path / "run")
    assert {(line["kind"], line["key"], line["step"], tuple(line["shape"])) for line in index} == {
        ("image", "pictures", 7, (3, 8, 10)),
        ("audio", "tone", 7, (800,)),
        ("video", "clip", 7, (3, 1, 16, 16)),
        ("point_cloud", "cloud", 7, (20, 3)),
    }
    with wave.open(str(tmp_path / "run/media/audio/tone/7.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 800)
    assert lines_of(tmp_path / "run/text.jsonl")[0]["text"] == "größer\nthan"
    assert lines_of(tmp_path / "run/traces.jsonl")[0]["trace"] == {"x": [1, 2]}


def test_the_template_is_filled_when_something_is_logged_first_and_nothing_is_made_before(tmp_path: Path) -> None:
    run = RunFolderLogger(f"{tmp_path}/{{run_name}}/x", state=State("early"))
    assert not list(tmp_path.iterdir())
    with Logger(State("late"), run) as logger:
        logger.log_metrics({"loss": 1})
    assert files_of(tmp_path) == {"late/x/metrics.jsonl", "late/x/metrics.parquet"}


def test_a_bad_template_or_setting_is_found_at_once() -> None:
    with pytest.raises(ConfigError, match="no_such_field"):
        RunFolderLogger("{no_such_field}")
    with pytest.raises(ConfigError, match="no_such_field"):
        RunFolderConfig(remote_folder="{no_such_field}")
    with pytest.raises(ConfigError, match="n_histogram_bins is 0"):
        RunFolderConfig(n_histogram_bins=0)


@pytest.mark.large
def test_hyperparameters_of_later_calls_and_runs_are_merged(tmp_path: Path) -> None:
    import torch

    with RunFolderLogger(tmp_path) as run:
        first: Any = {"lr": 0.1, "depth": 3, 5: "five"}
        run.log_hyperparameters(first)
        run.log_hyperparameters({"lr": float("nan"), "größe": torch.tensor(2.5, requires_grad=True)})
    with RunFolderLogger(tmp_path) as run:
        run.log_hyperparameters({"resumed": True, "path": Path("a/b")})
    expected = {"lr": "NaN", "depth": 3, "5": "five", "größe": 2.5, "resumed": True, "path": "a/b"}
    assert json.loads((tmp_path / "hparams.json").read_text(), parse_constant=refuse) == expected


def test_a_file_of_hyperparameters_that_somebody_broke_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hparams.json").write_text("{mine")
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match=r"hparams\.json is no JSON object"):
        run.log_hyperparameters({"lr": 0.1})
    assert (tmp_path / "hparams.json").read_text() == "{mine"


def test_without_a_step_the_calls_of_a_name_are_counted(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        for _ in range(3):
            run.log_metrics({"a": 1})
            run.log_text("x", "first")
        run.log_text("x", "second")
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert [line["step"] for line in lines_of(tmp_path / "text.jsonl")] == [0, 1, 2, 0]


def test_a_router_gives_the_batch_as_step_and_its_events_the_phase(tmp_path: Path) -> None:
    state = State("r")
    with Logger(state, RunFolderLogger(tmp_path)) as logger:
        state.timestamp = Timestamp(batch=4)
        logger.log_metrics({"a": 1})
        logger.run_event(Event.EVAL_START)
        logger.log_metrics({"a": 2})
        logger.run_event(Event.EVAL_END)
        logger.log_metrics({"a": 3}, step=2)
        logger.log_traces({"what": "trace"})
    assert metrics_of(tmp_path) == [{"step": 4, "a": 1}, {"step": 4, "phase": "eval", "a": 2}, {"step": 2, "a": 3}]
    assert lines_of(tmp_path / "traces.jsonl")[0]["step"] == 4


def test_several_images_of_a_step_are_numbered_and_none_replaces_another(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (5, 3, 4, 4), np.uint8)
    with RunFolderLogger(tmp_path) as run:
        run.log_images(images[:2], "batch", step=3)
        run.log_images(images[2], "batch", step=3)
        run.log_images(images[3], "one", step=3)
        run.log_images(images[3], "one", step=4)
        run.log_images(images[4], "one", step=3)
    index = check_index(tmp_path)
    assert [line["path"].removeprefix("media/images/") for line in index] == [
        "batch/3-0.png",
        "batch/3-1.png",
        "batch/3-2.png",
        "one/3.png",
        "one/4.png",
        "one/3-1.png",
    ]
    for line, image in zip(index, images[[0, 1, 2, 3, 3, 4]], strict=True):
        assert np.array_equal(np.array(Image.open(tmp_path / line["path"])), np.moveaxis(image, 0, -1))


def test_masks_are_indexed_pngs_with_the_names_of_their_classes(tmp_path: Path) -> None:
    images, labels = RNG.integers(0, 256, (2, 3, 4, 6), np.uint8), RNG.integers(0, 3, (2, 4, 6))
    with RunFolderLogger(tmp_path) as run:
        run.log_images(images, "street", step=1, masks={"truth": labels}, mask_class_labels={0: "road", 1: "sky"})
        run.log_images(images[0], "street", step=2, masks={"truth": labels[0]}, mask_class_labels={2: "car"})
    masks = [line for line in check_index(tmp_path) if line["kind"] == "mask"]
    assert [line["path"] for line in masks] == [f"media/masks/street/truth/{name}.png" for name in ("1-0", "1-1", "2")]
    assert [line["image"] for line in masks] == [f"media/images/street/{name}.png" for name in ("1-0", "1-1", "2")]
    for line, mask in zip(masks, [*labels, labels[0]], strict=True):
        picture = Image.open(tmp_path / line["path"])
        assert picture.mode == "P"
        assert np.array_equal(np.array(picture), mask)
    classes = json.loads((tmp_path / "media/masks/street/classes.json").read_text())
    assert classes == {"0": "road", "1": "sky", "2": "car"}


def test_histograms_have_edges_and_counts(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path, config=RunFolderConfig(n_histogram_bins=4)) as run:
        run.log_histogram([0.0, 1.0, 4.0, float("nan"), float("inf")], "w", 2)
        run.log_histogram([float("nan")], "none", 2)
    first, second = lines_of(tmp_path / "histograms.jsonl")
    assert first["edges"] == [0, 1, 2, 3, 4]
    assert first["counts"] == [1, 1, 0, 1]
    assert [first[name] for name in ("n", "n_nan", "n_inf", "min", "max", "sum", "sum_squares")] == [3, 1, 1, 0, 4, 5, 17]
    assert (second["n"], second["min"]) == (0, "NaN")


# readers


@pytest.mark.large
def test_pandas_reads_metrics_tables_and_index(tmp_path: Path) -> None:
    import pandas as pd

    with RunFolderLogger(tmp_path) as run:
        for step in range(50):
            run.log_metrics({"loss": float("nan") if step == 7 else 1 / (step + 1), "inf": float("-inf")}, step)
            run.log_metrics({"val/acc": step / 100}, step)
        run.log_table(["name", "score"], [["a", 1.5], ["b", float("inf")]], "scores", 3)
        run.log_images(np.zeros((4, 4)), "i", step=3)
        live = pd.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert live.shape == (100, 5)
    assert live["loss"].dtype == float
    assert live["loss"][2] == 0.5
    assert np.isnan(live["loss"][14])
    assert live["inf"][0] == float("-inf")
    table = pd.read_json(tmp_path / "tables/scores.jsonl", lines=True)
    assert (list(table.columns), list(table["name"]), list(table["score"])) == (
        ["t", "step", "name", "score"],
        ["a", "b"],
        [1.5, float("inf")],
    )
    assert list(pd.read_json(tmp_path / "media/index.jsonl", lines=True)["path"]) == ["media/images/i/3.png"]


def test_parquet_has_numbers_where_json_has_none(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        rows: list[Any] = [
            {"loss": float("nan"), "n": 1, "flag": True, "big": 2**70, "mixed": 1, "text": "NaN or not"},
            {"loss": float("inf"), "n": 2, "flag": False, "mixed": "one", "late": 0.5},
        ]
        for step, row in enumerate(rows):
            run.log_metrics(row, step)
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column_names == ["t", "step", "loss", "n", "flag", "big", "mixed", "text", "late"]
    columns = table.to_pydict()
    assert np.isnan(columns["loss"][0])
    assert columns["loss"][1] == float("inf")
    assert (columns["n"], columns["flag"], columns["big"]) == ([1, 2], [True, False], [float(2**70), None])
    assert (columns["mixed"], columns["text"], columns["late"]) == (["1", "one"], ["NaN or not", None], [None, 0.5])
    assert {name: str(table.schema.field(name).type) for name in ("step", "loss", "flag", "mixed")} == {
        "step": "int64",
        "loss": "double",
        "flag": "bool",
        "mixed": "string",
    }


def test_parquet_is_made_of_all_that_was_ever_logged_and_not_again_without_need(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path, config=RunFolderConfig(parquet=False)) as run:
        run.log_table(["a"], [[1]], "untouched later")
        run.log_metrics({"loss": 1.0})
    assert not [name for name in files_of(tmp_path) if name.endswith(".parquet")]
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"other": 2.0})
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 2
    assert pq.read_table(tmp_path / "tables/untouched later.parquet").to_pydict()["a"] == [1]
    before = (tmp_path / "tables/untouched later.parquet").stat()
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 3.0})
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 3
    assert (tmp_path / "tables/untouched later.parquet").stat().st_ino == before.st_ino


def test_many_rows_and_columns_that_come_late_are_all_in_parquet(tmp_path: Path) -> None:
    n = 60_000  # more than a row group
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 1})
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b"".join(b'{"t": 1.0, "step": %d, "a": %d}\n' % (i, i) for i in range(n)))
        run.log_metrics({"late": 0.5}, n)
    table = pq.read_table(tmp_path / "metrics.parquet").to_pydict()
    assert len(table["step"]) == n + 2
    assert sum(filter(None, table["a"])) == 1 + n * (n - 1) // 2
    assert [0.5] == [value for value in table["late"] if value is not None]


@pytest.mark.extra
def test_duckdb_reads_metrics_tables_and_parquet(tmp_path: Path) -> None:
    import duckdb

    with RunFolderLogger(tmp_path) as run:
        for step in range(50):
            run.log_metrics({"loss": 1 / (step + 1), "bad": float("nan") if step else 2.0}, step)
        run.log_table(["name", "score"], [["a", 1.5], ["b", 2.5]], "scores", 3)
        metrics, tables, parquet = (f"{tmp_path}/{name}" for name in ("metrics.jsonl", "tables/*.jsonl", "metrics.parquet"))
        live = duckdb.read_json(metrics).aggregate("count(*), max(loss), max(bad::DOUBLE)").fetchall()
    assert live[0][:2] == (50, 1.0)
    assert np.isnan(live[0][2])
    rows = duckdb.read_json(tables).order("score DESC").project("name, score").fetchall()
    assert rows == [("b", 2.5), ("a", 1.5)]
    ((least, n, total),) = duckdb.read_parquet(parquet).aggregate("min(loss), count(bad), sum(bad)").fetchall()
    assert (least, n) == (1 / 50, 50)
    assert np.isnan(total)


# continuing, kills, locks


def test_a_folder_is_continued_and_steps_may_go_back(tmp_path: Path) -> None:
    for first in (0, 5):
        with RunFolderLogger(tmp_path) as run:
            for step in range(first, first + 8):
                run.log_metrics({"loss": step}, step)
                run.log_images(np.full((4, 4), step / 20), "i", step=step)
            run.log_table(["a"], [[first]], "t", first)
        if first == 0:
            before = {name: (tmp_path / name).read_bytes() for name in files_of(tmp_path) if not name.endswith(".parquet")}
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [*range(8), *range(5, 13)]
    assert len(check_index(tmp_path)) == 16
    assert {"media/images/i/5.png", "media/images/i/5-1.png", "media/images/i/12.png"} <= files_of(tmp_path)
    for name, data in before.items():
        assert (tmp_path / name).read_bytes().startswith(data), name


@pytest.mark.parametrize("tail", [b'{"t": 1.0, "st', b"\0\0\0", b"\xff\xfe", b'{"a": 1}\n{"b'])
def test_a_torn_last_line_costs_that_line_only(tail: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 1}, 0)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 2}, 1)
    assert metrics_of(tmp_path)[0] == {"step": 0, "loss": 1}
    assert metrics_of(tmp_path)[-1] == {"step": 1, "loss": 2}
    assert "its last line was cut off" in caplog.text


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "long": "' + "x" * 200_000 + '"}')
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 2}, 1)
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 1]


def test_a_kill_after_flush_loses_nothing(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        sys.path[:0] = sys.argv[2:]
        import numpy as np
        from test_run_folder import log_all_kinds
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(5):
            log_all_kinds(run, step)
        run.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_script(script, tmp_path / "run", Path(__file__).parent, Path(__file__).parent.parent)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "run"
    assert [line["step"] for line in metrics_of(folder)] == list(range(5))
    assert len(check_index(folder)) == 5 * 4
    assert {"hparams.json", "text.jsonl", "traces.jsonl"} <= files_of(folder)
    assert len(lines_of(folder / "histograms.jsonl")) == 5
    assert len(lines_of(folder / "tables/scores.jsonl")) == 10


def test_figures_and_texts_survive_a_kill_without_flush(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(100):
            run.log_metrics({"loss": step}, step)
        run.log_text("last words")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_script(script, tmp_path).returncode == -signal.SIGKILL
    assert [line["step"] for line in metrics_of(tmp_path)] == list(range(100))
    assert lines_of(tmp_path / "text.jsonl")[0]["text"] == "last words"


def test_a_kill_at_any_instant_leaves_whole_files_and_a_folder_that_is_continued(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        picture = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
        run.log_images(picture, "first", step=0)
        run.flush()
        for step in range(100_000):
            run.log_metrics({"loss": step}, step)
            run.log_images(picture, "i", step=step)
            run.log_table(["a"], [[step]] * 10, "t", step)
            run.log_hyperparameters({"last": step})
            if step % 7 == 0:
                print(step, flush=True)
    """
    for i in range(4):
        command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
        with Program(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(2 + 3 * i):
                assert process.stdout.readline()
            process.kill()
        assert json.loads((tmp_path / "hparams.json").read_text())["last"] >= 0
        check_index(tmp_path)
        for path in (tmp_path / "media/images").rglob("*.png"):
            with Image.open(path) as picture:
                picture.load()
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": -1}, -1)
        run.log_table(["a"], [[-1]], "t", -1)
    assert metrics_of(tmp_path)[-1] == {"step": -1, "loss": -1}
    assert lines_of(tmp_path / "tables/t.jsonl")[-1]["a"] == -1
    assert not (tmp_path / ".tmp").exists()
    assert not (tmp_path / ".lock").exists()


def test_of_two_processes_one_writes_and_the_other_is_told_which(tmp_path: Path) -> None:
    script = "import sys\nfrom wherry.loggers import RunFolderLogger\nRunFolderLogger(sys.argv[1]).log_metrics({'a': 2})"
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 1})
        other = run_script(script, tmp_path)
        assert f"is being written by process {os.getpid()} on" in other.stderr
        assert "give this run another name" in other.stderr
        with pytest.raises(RuntimeError, match="is being written by process"):
            RunFolderLogger(tmp_path).log_metrics({"a": 3})
    assert metrics_of(tmp_path) == [{"step": 0, "a": 1}]
    assert run_script(script, tmp_path).returncode == 0
    assert [line["a"] for line in metrics_of(tmp_path)] == [1, 2]


def test_a_folder_whose_process_was_killed_is_free_though_its_workers_live_on(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        run.log_metrics({"a": 1})
        if os.fork() == 0:
            sys.stdout.close(); os.close(1); os.close(2)
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    reader, writer = os.pipe()
    try:
        assert run_script(script, tmp_path, stdin=reader).returncode == -signal.SIGKILL
        with RunFolderLogger(tmp_path) as run:
            run.log_metrics({"a": 2})
    finally:
        os.close(writer)
        os.close(reader)
    assert [line["a"] for line in metrics_of(tmp_path)] == [1, 2]


def test_the_child_of_a_fork_writes_files_of_its_own_and_does_not_end_the_folder(tmp_path: Path) -> None:
    """In an interpreter of its own: what threads and pools other tests have left is not forked along."""
    script = """
    import multiprocessing, sys, warnings
    from pathlib import Path
    import numpy as np
    from wherry.loggers import RunFolderLogger

    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that it works is the point
    folder = Path(sys.argv[1])
    run = RunFolderLogger(folder)
    run.log_metrics({"parent": 1}, 0)
    run.log_images(np.zeros((4, 4)), "i", step=0)

    def work():
        run.log_metrics({"child": 1}, 1)
        run.log_images(np.ones((4, 4)), "i", step=0)
        run.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    print(child.pid)
    assert not (folder / "metrics.parquet").exists()
    try:
        RunFolderLogger(folder).log_metrics({"a": 1})
    except RuntimeError as error:
        assert "is being written by" in str(error), error
    else:
        raise AssertionError("the folder is the parent's")
    run.log_metrics({"parent": 2}, 2)
    run.close()
    """
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    own = tmp_path / "children" / done.stdout.strip()
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 2]
    assert [line["step"] for line in metrics_of(own)] == [1]
    assert [len(check_index(tmp_path)), len(check_index(own))] == [1, 1]
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 2


def test_a_run_that_begins_in_a_child_has_its_folder_there(tmp_path: Path) -> None:
    script = """
    import multiprocessing, sys
    from wherry.loggers import Logger, State
    from wherry.loggers.destinations.run_folder import RunFolderLogger

    run = RunFolderLogger(sys.argv[1])

    def work():
        with Logger(State("r"), run) as logger:
            logger.log_metrics({"child": 1}, 1)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    sys.exit(child.exitcode)
    """
    done = run_script(script, tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    assert files_of(tmp_path) == {"metrics.jsonl", "metrics.parquet"}


def test_several_threads_may_log(tmp_path: Path) -> None:
    def work(thread: int) -> None:
        for i in range(200):
            run.log_metrics(dict.fromkeys([f"thread{thread}", "x" * 500], i), i)
            if i % 20 == 0:
                run.log_images(np.zeros((4, 4)), "shared", step=i)
                run.log_hyperparameters({f"thread{thread}": i})

    with RunFolderLogger(tmp_path) as run:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 1000
    assert len(check_index(tmp_path)) == 50
    assert json.loads((tmp_path / "hparams.json").read_text()) == {f"thread{i}": 180 for i in range(5)}


# ranks


def test_ranks_other_than_0_write_nothing_also_without_a_router(tmp_path: Path) -> None:
    state = State("r", rank=1, world_size=2)
    direct = RunFolderLogger(tmp_path / "direct", state=state)
    log_all_kinds(direct)
    direct.flush()
    direct.close()
    with Logger(state, RunFolderLogger(tmp_path / "routed")) as logger:
        logger.log_metrics({"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_with_an_option_each_rank_has_its_folder(tmp_path: Path) -> None:
    for rank in range(3):
        run = RunFolderLogger(tmp_path, config=RunFolderConfig(rank_zero_only=False))
        with Logger(State("r", rank=rank, world_size=3), run) as logger:
            logger.log_metrics({"rank": rank})
    assert files_of(tmp_path) == {f"rank{rank}/metrics.{kind}" for rank in range(3) for kind in ("jsonl", "parquet")}


# uploads


class Recorder(LoggerDestination):
    """Keeps what it is given, as an uploading destination would."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[tuple[str, bytes]] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.uploads.append((remote_file_name, Path(file_path).read_bytes()))


def test_media_are_uploaded_at_once_and_what_grows_at_the_close_and_each_once(tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "{run_name}")
    with Logger(State("r{1}"), [run, recorder]) as logger:
        log_all_kinds(run, 1)
        run.flush()
        early = [name for name, _ in recorder.uploads]
        logger.run_event(Event.EPOCH_END)
        logger.run_event(Event.FIT_END)
        assert len(recorder.uploads) == len(early)
    assert set(early) == {f"r{{1}}/media/{name}" for name in ("audio/tone/1.wav", "images/pictures/1.png")} | {
        f"r{{1}}/media/{name}" for name in ("video/clip/1.mp4", "pointclouds/cloud/1.ply")
    }
    names = [name for name, _ in recorder.uploads]
    assert len(names) == len(set(names))
    assert set(names) == {f"r{{1}}/{name}" for name in files_of(tmp_path / "r{1}")}
    for name, data in recorder.uploads:
        assert (tmp_path / name).read_bytes() == data


def test_the_classes_of_masks_are_uploaded_once_however_often_they_are_given(tmp_path: Path) -> None:
    recorder = Recorder()
    with Logger(State("r"), [RunFolderLogger(tmp_path / "r"), recorder]) as logger:
        for step in range(4):
            labels = {step: "sky", 0: "road"} if step < 3 else {0: "road"}
            masks = {"truth": np.zeros((4, 4), int)}
            logger.log_images(np.zeros((4, 4)), "street", step=step, masks=masks, mask_class_labels=labels)
    sent = [data for name, data in recorder.uploads if name == "r/media/masks/street/classes.json"]
    assert [json.loads(data) for data in sent] == [{"0": "road", "1": "sky", "2": "sky"}]


def test_what_was_logged_before_the_run_began_is_uploaded_too(tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "run")
    run.log_images(np.zeros((4, 4)), "early", step=0)
    run.flush()
    with Logger(State("r"), [run, recorder]):
        pass
    assert "r/media/images/early/0.png" in {name for name, _ in recorder.uploads}


def test_files_of_others_in_the_folder_are_not_uploaded_and_uploads_can_be_off(tmp_path: Path) -> None:
    for upload in (True, False):
        recorder = Recorder()
        (tmp_path / "tb").mkdir(exist_ok=True)
        (tmp_path / "tb/events").write_bytes(b"x")
        with Logger(State("r"), [RunFolderLogger(tmp_path, config=RunFolderConfig(upload=upload)), recorder]) as logger:
            logger.log_metrics({"a": 1})
        assert {name for name, _ in recorder.uploads} == ({"r/metrics.jsonl", "r/metrics.parquet"} if upload else set())


def test_a_store_gets_the_run_folder(tmp_path: Path) -> None:
    store = ObjectStoreLogger(tmp_path / "store", spool=tmp_path / "spool")
    run = RunFolderLogger(tmp_path / "local/{run_name}")
    with Logger(State("r"), [store, run]):
        log_all_kinds(run, 1)
    assert files_of(tmp_path / "store") == {f"r/{name}" for name in files_of(tmp_path / "local/r")}
    check_index(tmp_path / "store/r")


# troubles


def test_a_full_disk_is_an_error_each_file_stays_whole_and_logging_goes_on_when_there_is_room(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = RunFolderLogger(sys.argv[1])
        run.log_metrics({"loss": 0}, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            run.log_metrics({"pad": "x" * 200}, 1)
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.log_metrics({"loss": 2}, 2)
        run.close()
    """
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "metrics.jsonl" in done.stdout
    assert "later calls are tried again" in done.stdout
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 2]


def test_media_that_cannot_be_written_are_one_error_of_flush_and_leave_nothing(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = RunFolderLogger(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        for step in range(5):
            run.log_images(np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8), "i", step=step)
        for _ in range(2):
            try:
                run.flush()
                print("flushed")
            except OSError as error:
                print("failed", error.strerror)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.log_images(np.zeros((4, 4)), "i", step=9)
        run.close()
    """
    done = run_script(script, tmp_path)
    assert done.stdout.splitlines() == ["failed File too large", "flushed"], done.stderr
    assert files_of(tmp_path) == {"media/images/i/9.png", "media/index.jsonl"}
    check_index(tmp_path)


def test_a_folder_that_is_removed_is_made_anew_by_the_next_call_and_that_is_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    folder = tmp_path / "run"
    run = RunFolderLogger(folder)
    run.log_hyperparameters({"lr": 0.1})
    run.log_metrics({"a": 1}, 0)
    run.log_text("t")
    shutil.rmtree(folder)
    run.log_metrics({"a": 2}, 1)
    run.log_text("t")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith(f"the folder {folder} was removed or replaced while it was being written")
    with pytest.raises(RuntimeError, match="is being written by"):
        RunFolderLogger(folder).log_metrics({"a": 4})
    run.close()
    assert [line["step"] for line in metrics_of(folder)] == [1]
    assert len(lines_of(folder / "text.jsonl")) == 1
    assert json.loads((folder / "hparams.json").read_text()) == {"lr": 0.1}
    assert len(caplog.records) == 1


def test_a_folder_that_is_moved_away_is_said_by_the_next_flush_and_a_new_one_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    with Logger(State("r"), RunFolderLogger(folder)) as logger:
        logger.log_metrics({"a": 0})
        folder.rename(tmp_path / "elsewhere")
        logger.run_event(Event.EPOCH_END)
        logger.log_metrics({"a": 9})
    (said,) = (record.message for record in caplog.records)
    assert "was removed or replaced while it was being written" in said
    assert [line["a"] for line in metrics_of(folder)] == [9]


def test_a_file_that_is_removed_alone_is_made_anew_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_text("before")
        run.log_metrics({"a": 0})
        (tmp_path / "metrics.jsonl").unlink()
        run.log_metrics({"a": 1})
        run.log_text("after")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith(f"{tmp_path / 'metrics.jsonl'} was removed or replaced")
    assert [line["a"] for line in metrics_of(tmp_path)] == [1]
    assert [line["text"] for line in lines_of(tmp_path / "text.jsonl")] == ["before", "after"]


def test_a_lock_that_is_removed_alone_is_taken_again_and_nothing_is_said_to_be_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 0})
        (tmp_path / ".lock").unlink()
        run.flush()
        run.log_metrics({"a": 1})
        with pytest.raises(RuntimeError, match="is being written by"):
            RunFolderLogger(tmp_path).log_metrics({"a": 2})
    assert [line["a"] for line in metrics_of(tmp_path)] == [0, 1]
    assert caplog.messages == []


def test_a_removed_folder_that_another_run_has_taken_is_left_to_it(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "run"
    run = RunFolderLogger(folder)
    run.log_metrics({"a": 1})
    shutil.rmtree(folder)
    with RunFolderLogger(folder) as other:
        other.log_metrics({"b": 1})
        for _ in range(2):
            with pytest.raises(RuntimeError, match="is being written by"):
                run.log_metrics({"a": 2})
    run.log_metrics({"a": 3})
    run.close()
    assert metrics_of(folder) == [{"step": 0, "b": 1}, {"step": 3, "a": 3}]


def test_a_place_where_nothing_can_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        RunFolderLogger(tmp_path / "file/run").log_metrics({"a": 1})


def test_after_close_each_call_is_a_clear_error_and_close_does_nothing(tmp_path: Path) -> None:
    run = RunFolderLogger(tmp_path)
    run.log_metrics({"a": 1})
    run.close()
    run.close()
    run.flush()
    with pytest.raises(RuntimeError, match=r"closed.*make a new one"):
        run.log_metrics({"a": 2})
    with pytest.raises(RuntimeError, match=r"closed.*make a new one"):
        run.log_images(np.zeros((4, 4)))


def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(3):
            run.log_images(np.random.default_rng(0).integers(0, 256, (3, 200, 200), np.uint8), "i", step=step)
            run.log_video(np.zeros((5, 3, 64, 64), np.uint8), "v", step=step)
    """
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(check_index(tmp_path)) == 6


def test_without_its_extra_figures_work_and_media_say_what_to_install(tmp_path: Path) -> None:
    script = """
        import sys
        for name in ("PIL", "av", "pyarrow"):
            sys.modules[name] = None
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        with RunFolderLogger(sys.argv[1]) as run:
            run.log_metrics({"a": 1})
            run.log_audio(np.zeros(10))
            for log in (run.log_images, run.log_video):
                try:
                    log(np.zeros((3, 8, 8)))
                except ImportError as error:
                    print(error)
    """
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("pip install 'wherry[media]'") == 2
    assert files_of(tmp_path) == {"metrics.jsonl", "media/index.jsonl", "media/audio/Audio/0.wav"}


# bad input


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (np.float64("nan"), "NaN"),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        of_torch(lambda torch: torch.tensor(0.5, requires_grad=True), 0.5),
        of_torch(lambda torch: torch.tensor([[0.25]]), 0.25),
        of_torch(lambda torch: torch.tensor(float("nan")), "NaN"),
        (True, True),
        (None, None),
        (2**80, 2**80),
        ("text \ud800", "text \ud800"),
        ([1, 2], [1, 2]),
        (np.array([1, 2]), [1, 2]),
        (complex(1, 2), "(1+2j)"),
        (Path("a"), "a"),
        (ENDLESS, ["..."]),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_any_value_of_a_metric_is_a_line_of_strict_json(value: Any, written: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"before": 1.5, "value": value}, 0)
    assert metrics_of(tmp_path) == [{"step": 0, "before": 1.5, "value": written}]


def test_any_key_of_a_metric_is_kept(tmp_path: Path) -> None:
    keys: list[Any] = [
        "a b",
        "a/b",
        "größe",
        "学习率",
        "x" * 300,
        'quo"te',
        "new\nline",
        "",
        7,
        None,
        True,
        ("a", 1),
        "t",
        "step",
        "phase",
    ]
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({key: i for i, key in enumerate(keys)}, 5)
        alike: Any = {1: "a", "1": "b"}
        run.log_metrics(alike, 6)
        run.log_metrics({}, 7)
    first, second, third = metrics_of(tmp_path)
    assert first == {"step": 5} | {(f"{key}_" if key in ("t", "step", "phase") else str(key)): i for i, key in enumerate(keys)}
    assert second == {"step": 6, "1": "a", "1_": "b"}
    assert third == {"step": 7}
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 3


@pytest.mark.parametrize(
    "key", ["a b", "a/b", "/abs", "../../up", "a:b*", "größe", "x" * 300, 7, "", ".hidden", "a/../b", "{run_name}"]
)
def test_any_key_of_media_and_tables_makes_files_in_the_folder(key: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "run/r")
    with Logger(State("r"), [run, recorder]) as logger:
        logger.log_images(np.zeros((4, 4)), key, masks={key: np.zeros((4, 4), int)}, mask_class_labels={0: key})
        logger.log_table(["a"], [[1]], key)
        logger.log_text("x", key)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {line["key"] for line in check_index(tmp_path / "run/r")} == {str(key), f"{key}/{key}"}
    assert {name for name, _ in recorder.uploads} == files_of(tmp_path / "run")


def test_a_table_with_ragged_rows_is_a_clear_error_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        with pytest.raises(ValueError, match=r"table 'scores': row 1 has 1 values, and there are 2 columns"):
            run.log_table(["a", "b"], [[1, 2], [3]], "scores")
        run.log_table(["a"], [], "empty")
    assert files_of(tmp_path) == set()


@pytest.mark.large
def test_a_tables_cells_may_be_objects_and_its_columns_any(tmp_path: Path) -> None:
    import torch

    cell = np.array([1.5, 2.5])
    rows: Sequence[Sequence[object]] = [[Path("p"), cell, {"k": 1}, float("nan"), torch.tensor(2.0), object, None]]
    columns: Any = ["step", "a", "a", "t", 5, "größe", "none"]
    with RunFolderLogger(tmp_path) as run:
        run.log_table(columns, rows, "odd", 3)
        cell[:] = 0
    (line,) = lines_of(tmp_path / "tables/odd.jsonl")
    del line["t"]
    assert line == {
        "step": 3,
        "step_": "p",
        "a": [1.5, 2.5],
        "a_": {"k": 1},
        "t_": "NaN",
        "5": 2.0,
        "größe": "<class 'object'>",
        "none": None,
    }
    assert pq.read_table(tmp_path / "tables/odd.parquet").to_pydict()["a_"] == ['{"k": 1}']


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4)),
        np.full((3, 4, 4), 7, np.uint8),
        np.full((4, 4, 3), 2.5),
        np.full((4, 4), np.nan),
        of_torch(lambda torch: torch.ones(1, 4, 4, dtype=torch.bfloat16, requires_grad=True)),
        [[0.0, 1.0], [1.0, 0.0]],
        np.ones((4, 4), bool),
    ],
    ids=["zeros", "constant uint8", "channel last beyond 1", "nan", "bfloat16", "lists", "bool"],
)
def test_any_image_is_a_picture(image: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_images(image, "i", step=0)
    (line,) = check_index(tmp_path)
    with Image.open(tmp_path / line["path"]) as picture:
        picture.load()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (4,), (2, 2, 3, 4, 4), (7, 9, 11, 13)])
def test_what_is_no_image_is_a_value_error_that_names_it(shape: tuple[int, ...], tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="val/pictures"):
        run.log_images(np.zeros(shape), "val/pictures")
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize(
    "mask",
    [np.zeros((5, 4), int), np.zeros((4, 4)) + 0.5, [np.zeros((4, 4), int)] * 2, np.full((4, 4), -1), np.full((4, 4), 70_000)],
)
def test_a_mask_that_does_not_fit_is_a_value_error_and_the_image_is_written_without_it(mask: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="street/truth"):
        run.log_images(np.zeros((3, 4, 4)), "street", masks={"truth": mask}, mask_class_labels={1: "road"})
    assert files_of(tmp_path) == {"media/index.jsonl", "media/images/street/0.png"}


def test_media_that_are_changed_after_the_call_are_written_as_they_were(tmp_path: Path) -> None:
    image, sound, values = np.full((64, 64), 255, np.uint8), np.full(100, 0.5, np.float32), np.ones(10)
    with RunFolderLogger(tmp_path) as run:
        run.log_images(image, "i", step=0)
        run.log_audio(sound, "a", step=0)
        run.log_histogram(values, "h", 0)
        image[:], sound[:], values[:] = 0, 0, 0
    assert np.array(Image.open(tmp_path / "media/images/i/0.png")).min() == 255
    with wave.open(str(tmp_path / "media/audio/a/0.wav")) as file:
        assert set(np.frombuffer(file.readframes(100), "<i2")) == {16384}
    assert lines_of(tmp_path / "histograms.jsonl")[0]["min"] == 1


def test_silence_a_single_frame_and_a_single_point_are_media(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_audio(np.zeros(100), "silence", step=0)
        run.log_video(np.zeros((1, 3, 8, 8), np.uint8), "still", step=0)
        run.log_point_cloud([[0.0, 1.0, float("nan")]], "point", 0)
        run.log_point_cloud(np.zeros((2, 5, 3)), "batch", 0)
    assert [line["path"].removeprefix("media/") for line in check_index(tmp_path)] == [
        "audio/silence/0.wav",
        "video/still/0.mp4",
        "pointclouds/point/0.ply",
        "pointclouds/batch/0-0.ply",
        "pointclouds/batch/0-1.ply",
    ]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rates_that_are_none_are_value_errors_that_name_the_key(rate: float, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        with pytest.raises(ValueError, match="noise: sample_rate_hz is"):
            run.log_audio(np.zeros(10), "noise", rate)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="clip: frames_per_s is"):
            run.log_video(np.zeros((2, 8, 8)), "clip", rate)


@pytest.mark.parametrize("values", [[], ["a"], np.zeros(0)])
def test_what_is_no_distribution_is_a_value_error_that_names_it(values: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="weights/1"):
        run.log_histogram(values, "weights/1")


def test_levelled_figures_of_all_sorts_are_taken(tmp_path: Path) -> None:
    data: Mapping[str, object] = {"loss": 0.5, "lr": [0.1, 0.2], "note": "hi", "what": object}
    with Logger(State("r"), RunFolderLogger(tmp_path)) as logger:
        logger.metric("epoch", data)
    assert metrics_of(tmp_path) == [{"step": 0, "loss": 0.5, "lr/0": 0.1, "lr/1": 0.2}]
    assert lines_of(tmp_path / "text.jsonl")[0]["text"] == "hi"
    assert lines_of(tmp_path / "traces.jsonl")[0]["trace"] == "<class 'object'>"
