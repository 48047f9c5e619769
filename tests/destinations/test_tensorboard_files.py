"""TensorBoardLogger: its threads and processes, ranks, uploads, and disks that are full."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boards import image, state_of, written
from support import CALLER, run_script
from tfevents import event_files, read_events, read_scalars, read_values
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.destinations.tensorboard import TensorBoardConfig, TensorBoardLogger


@pytest.fixture
def board(tmp_path: Path) -> TensorBoardLogger:
    return TensorBoardLogger(tmp_path, state=state_of())


class Uploads(LoggerDestination):
    """Takes files, as they are at that moment."""

    def __init__(self) -> None:
        self.taken: dict[str, bytes] = {}
        self.overwrites: list[bool] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        assert remote_file_name not in self.taken
        self.taken[remote_file_name] = file_path.read_bytes()
        self.overwrites.append(overwrite)
        return None


def test_flush_is_a_barrier_that_sigkill_cannot_break(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_hyperparameters({"lr": 0.5})
        for step in range(50):
            board.log_metrics({"loss": float(step)}, step)
            board.log_images(np.random.default_rng(step).integers(0, 255, (3, 256, 256), np.uint8), "noise", step=step)
            board.log_histogram(np.arange(10_000), "numbers", step)
        board.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run_script(script, tmp_path, expected=-signal.SIGKILL, env={"RUN_NAME": "run"})
    steps: dict[str, list[int]] = {}
    for step, value in read_values(tmp_path):
        steps.setdefault(value.tag, []).append(step)
    everything = list(range(50))
    assert {"hyperparameters": [0], "_hparams_/session_start_info": [0]} | dict.fromkeys(
        ("loss", "noise", "numbers"), everything
    ) == steps


def test_flush_raises_what_encoding_raised_once(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_text("a", "samples")
    board._background.submit(lambda: print(1 / 0))
    board.log_images(image(), "other", step=0)
    with pytest.raises(ZeroDivisionError):
        board.flush()
    board.flush()
    assert {"samples", "other"} == set(written(board, tmp_path))


def test_nothing_is_lost_where_nobody_closes(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_metrics({"loss": 1.0}, 0)
        board.log_images(np.zeros((3, 300, 300), np.uint8), "samples", step=0)
    """
    run_script(script, tmp_path)
    assert ["loss", "samples"] == [value.tag for _, value in read_values(tmp_path)]


def test_a_closed_one_says_so_by_name(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"a": 1.0}, 0)
    board.close()
    board.close()
    board.flush()
    calls: list[Callable[[], None]] = [
        lambda: board.log_metrics({"a": 1.0}),
        lambda: board.log_hyperparameters({"a": 1}),
        lambda: board.log_text("a"),
        lambda: board.log_table(["a"], [[1]]),
        lambda: board.log_traces({"a": 1}),
        lambda: board.log_images(image()),
        lambda: board.log_histogram([1.0]),
        lambda: board.log_audio(np.zeros(10)),
        lambda: board.log_video(np.zeros((2, 3, 4, 4), np.uint8)),
        lambda: board.log_point_cloud(np.zeros((5, 3))),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"TensorBoardLogger .* closed.*: make a new one"):
            call()
    assert {"a": [(0, 1.0)]} == read_scalars(tmp_path)


def test_threads_lose_nothing(board: TensorBoardLogger, tmp_path: Path) -> None:
    def log(number: int) -> None:
        for step in range(100):
            board.log_metrics({f"m{number}": float(step)}, step)
            if step % 25 == 0:
                board.log_images(image(), f"i{number}", step=step)
                board.log_text("x", f"t{number}")

    threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {tag: [step for step, _ in values] for tag, values in written(board, tmp_path).items()}
    expected: dict[str, list[int]] = {}
    for number in range(4):
        expected |= {f"m{number}": list(range(100)), f"i{number}": [0, 25, 50, 75], f"t{number}": [0, 1, 2, 3]}
    assert expected == found
    assert 1 == len(event_files(tmp_path))


def test_the_child_of_a_fork_can_log_too(tmp_path: Path) -> None:
    script = """
        import os, sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        picture = np.zeros((3, 300, 300), np.uint8)
        board.log_metrics({"parent": 1.0}, 0)
        board.log_images(picture, "parent picture", step=0)
        child = os.fork()
        if child == 0:
            board.log_metrics({"child": 1.0}, 0)
            board.log_images(picture, "child picture", step=0)
            board.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        board.close()
    """
    run_script(script, tmp_path)
    each = sorted(sorted(value.tag for event in read_events(path) for value in event.values) for path in event_files(tmp_path))
    assert [["child", "child picture"], ["parent", "parent picture"]] == each


def test_writing_needs_neither_tensorboard_nor_an_image_library_for_figures(tmp_path: Path) -> None:
    script = """
        import sys
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_hyperparameters({"lr": 0.5})
        board.log_metrics({"loss": 1.0}, 0)
        board.log_text("a")
        board.log_table(["a"], [[1]])
        board.close()
        print([name for name in ("numpy", "PIL", "tensorboard", "google.protobuf", "torch") if name in sys.modules])
    """
    assert "[]\n" == run_script(script, tmp_path)


def test_each_rank_has_a_folder(tmp_path: Path) -> None:
    for rank in range(2):
        board = TensorBoardLogger(tmp_path / "{run_name}", config=TensorBoardConfig(rank_zero_only=False))
        with Logger(state_of(rank, 2), [board]) as logger:
            logger.log_metrics({"loss": float(rank)}, 0)
    folders = {path.parent.relative_to(tmp_path): read_scalars(path.parent) for path in event_files(tmp_path)}
    assert {Path(f"run/rank{rank}"): {"loss": [(0, float(rank))]} for rank in range(2)} == folders


def test_by_default_other_ranks_write_nothing(tmp_path: Path) -> None:
    with Logger(state_of(1, 2), [TensorBoardLogger(tmp_path)]) as logger:
        logger.log_hyperparameters({"a": 1})
        logger.log_metrics({"loss": 1.0}, 0)
        logger.run_event(Event.EPOCH_END)
        logger.run_event(Event.FIT_END)
    assert [] == list(tmp_path.iterdir())


def test_the_run_of_the_router_names_the_folder(tmp_path: Path) -> None:
    logger = Logger(State("mine", Timestamp(batch=7)), [TensorBoardLogger(tmp_path / "{run_name}")])
    logger.log_metrics({"loss": 1.0})  # before any event
    logger.close()
    assert {"loss": [(7, 1.0)]} == read_scalars(tmp_path / "mine" / "rank0")


@pytest.mark.parametrize("folder", ["runs/{unknown}", "runs/{"])
def test_a_bad_template_is_refused_at_once(folder: str) -> None:
    with pytest.raises(ConfigError):
        TensorBoardLogger(folder)
    with pytest.raises(ConfigError):
        TensorBoardConfig(remote_folder=folder)


@pytest.mark.parametrize("name", ["max_file_bytes", "max_file_age_s", "n_histogram_bins", "max_table_rows", "max_points"])
def test_a_bound_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"TensorBoardConfig.{name} is 0"):
        TensorBoardConfig(**{name: 0})  # type: ignore[arg-type]


def test_closed_files_are_handed_over_once_and_the_last_at_the_close(tmp_path: Path) -> None:
    uploads = Uploads()
    folder = tmp_path / "with {braces}"  # a name that is a template to Logger.upload_file, if it is not escaped
    config = TensorBoardConfig(max_file_bytes=2000)
    board = TensorBoardLogger(str(folder).replace("{", "{{").replace("}", "}}"), config=config)
    with Logger(state_of(), [board, uploads]) as logger:
        handed_over = []
        for step in range(200):
            logger.log_metrics({"loss": float(step)}, step)
            logger.run_event(Event.BATCH_END)
            handed_over.append(len(uploads.taken))
    assert 3 < handed_over[-1] < len(uploads.taken)
    assert {f"run/tb/rank0/{path.name}": path.read_bytes() for path in event_files(folder)} == uploads.taken
    assert {False} == set(uploads.overwrites)
    assert [(step, float(step)) for step in range(200)] == read_scalars(folder)["loss"]


def test_an_object_store_has_what_tensorboard_reads(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    board = TensorBoardLogger(tmp_path / "runs", config=TensorBoardConfig(max_file_bytes=1000))
    store = ObjectStoreLogger(bucket, spool=tmp_path / "spool", config=CALLER)
    with Logger(state_of(), [board, store]) as logger:
        for step in range(100):
            logger.log_metrics({"loss": float(step)}, step)
            logger.run_event(Event.BATCH_END)
    assert 3 < len(event_files(bucket / "run" / "tb" / "rank0"))
    assert [(step, float(step)) for step in range(100)] == read_scalars(bucket)["loss"]


def test_a_file_of_some_age_is_handed_over_also_when_nothing_is_logged(tmp_path: Path) -> None:
    now_s = [1000.0]
    uploads = Uploads()
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(max_file_age_s=60.0), now=lambda: now_s[0])
    with Logger(state_of(), [board, uploads]) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        counts = []
        for seconds in (0.0, 59.0, 1.0, 300.0):
            now_s[0] += seconds
            logger.run_event(Event.BATCH_END)
            counts.append(len(uploads.taken))
    assert [0, 0, 1, 1] == counts
    assert 1 == len(uploads.taken) == len(event_files(tmp_path))


@pytest.mark.parametrize("upload", [True, False])
def test_where_nothing_uploads_age_closes_no_file(tmp_path: Path, upload: bool) -> None:
    now_s = [1000.0]
    uploads = Uploads()
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(upload=upload), now=lambda: now_s[0])
    with Logger(state_of(), [board] if upload else [board, uploads]) as logger:
        for step in range(5):
            logger.log_metrics({"loss": 1.0}, step)
            logger.run_event(Event.BATCH_END)
            now_s[0] += 1000.0
    assert 1 == len(event_files(tmp_path))
    assert {} == uploads.taken


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with Logger(state_of(), [TensorBoardLogger(tmp_path / "file")]) as logger:  # a folder that cannot be made
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert 1 == sum("TensorBoardLogger.log_metrics failed" in message for message in caplog.messages)


def test_a_disk_that_is_full_at_the_close_keeps_nothing_open_and_nothing_back(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from tfevents import event_files, read_scalars
        from pathlib import Path
        from wherry.loggers import Logger, LoggerDestination, State
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        class Uploads(LoggerDestination):
            def can_upload_files(self):
                return True
            def upload_file(self, state, remote_file_name, file_path, *, overwrite):
                print(read_scalars(file_path.parent))
        logger = Logger(State("run"), [TensorBoardLogger(sys.argv[1]), Uploads()])
        logger.log_hyperparameters({"a": 1})
        logger.log_metrics({"loss": 0.5}, 0)
        (path,) = event_files(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
        logger.close()
    """
    said = run_script(script, tmp_path)
    assert "TensorBoardLogger.close failed: [Errno 27] File too large; this event is lost" in said
    assert "{'loss': [(0, 0.5)]}" in said


def test_the_levels_of_the_router_arrive(tmp_path: Path) -> None:
    with Logger(state_of(), [TensorBoardLogger(tmp_path)]) as logger:
        logger.metric("epoch", {"loss": {"train": 0.5}, "note": "good"})
    found = {value.tag: value.number for _, value in read_values(tmp_path)}
    assert {"loss/train": 0.5, "note": None} == found


def test_a_light_import_and_a_light_start() -> None:
    program = (
        "import wherry.loggers.destinations.tensorboard, sys; print([n for n in ('numpy', 'PIL', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "[]\n" == done.stdout
