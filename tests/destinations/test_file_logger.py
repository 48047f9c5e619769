"""FileLogger: its lines, its name, its files and their upload."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from file_logs import QUIET, of_script
from large import of_torch
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, LoggerDestination, State, Timestamp
from wherry.loggers.destinations.file import FileConfig, FileLogger
from wherry.loggers.run.level import LogLevel

ROLLING = FileConfig(capture_stdout=False, capture_stderr=False, roll_size_bytes=1000)


@pytest.fixture
def lines_of(tmp_path: Path) -> Iterator[Callable[[Callable[[FileLogger], object]], list[str]]]:
    """What a log holds after something was done with its logger."""

    def lines(act: Callable[[FileLogger], object]) -> list[str]:
        with FileLogger("log.txt", folder=tmp_path, config=QUIET) as file:
            act(file)
        written = tmp_path / "log.txt"
        return written.read_text(encoding="utf-8").splitlines() if written.exists() else []

    yield lines


class Uploads(LoggerDestination):
    """Keeps what it is handed, as it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str, bool]] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.files.append((remote_file_name, file_path.read_text(), overwrite))


Lines = Callable[[Callable[[FileLogger], object]], list[str]]


def test_each_kind_has_its_line(lines_of: Lines) -> None:
    def act(file: FileLogger) -> None:
        file.log_hyperparameters({"lr": 3e-6, "model": {"layers": 2}})
        file.log_metrics({"loss": 0.25, "lr": 3e-6}, step=7)
        file.log_metric(1, 7, LogLevel.EPOCH, {"loss": [0.25, 1]})
        file.log_table(["a", "b"], [[1, "x"], [Path("p"), None]], "Samples", 7)
        file.log_text("one\ntwo", "Prompt", 7)
        file.log_traces({"grad": [0.5]})

    assert [
        "[hyperparameter]: lr: 3e-06",
        '[hyperparameter]: model: {"layers": 2}',
        '[metric][step=7]: {"loss": 0.25, "lr": 3e-06}',
        '[EPOCH][step=7]: {"loss": [0.25, 1]}',
        '[table][step=7]: {"name": "Samples", "columns": ["a", "b"], "data": [[1, "x"], ["p", null]]}',
        "[text][step=7] Prompt: one",
        "[text][step=7] Prompt: two",
        "[trace]: grad: [0.5]",
    ] == lines_of(act)


def test_composers_format_can_be_had(tmp_path: Path) -> None:
    config = FileConfig(capture_stdout=False, capture_stderr=False, values="composer")
    with FileLogger("log.txt", folder=tmp_path, config=config) as file:
        file.log_metrics({"loss": 0.25, "lr": 3e-6}, 1)
    assert '[metric][step=1]: { "loss": 0.2500, "lr": 0.0000, }\n' == (tmp_path / "log.txt").read_text()


def test_without_a_step_calls_are_counted(lines_of: Lines) -> None:
    def act(file: FileLogger) -> None:
        for value in (1, 2, 3):
            file.log_metrics({"a": value})

    lines = lines_of(act)
    assert ["[metric][step=0]", "[metric][step=1]", "[metric][step=2]"] == [line.split(":")[0] for line in lines]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        (np.float32(0.5), "0.5"),
        (np.array(3), "3"),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), "0.5"),
        of_torch(lambda torch: torch.tensor([2.0]), "2.0"),
        (None, "null"),
    ],
    ids=repr,
)
def test_any_value_has_a_text(lines_of: Lines, value: float, text: str) -> None:
    (line,) = lines_of(lambda file: file.log_metrics({"a": value}, 1))
    assert line.removeprefix('[metric][step=1]: {"a": ').removesuffix("}") in (text, f"[{text}]")


@pytest.mark.parametrize("key", ["a b", "a/b", "ключ", "k" * 300, 5, None, ("a", 1), "line\nbreak", "\ud800", "{run_name}", ""])
def test_any_key_is_written_in_one_line(lines_of: Lines, key: object) -> None:
    def act(file: FileLogger) -> None:
        file.log_metrics({key: 1.0}, 1)  # type: ignore[dict-item]
        file.log_hyperparameters({key: 1.0})  # type: ignore[dict-item]
        file.log_traces({key: 1.0})  # type: ignore[dict-item]
        file.log_text("text", str(key), 1)

    assert 4 == len(lines_of(act))


def test_empty_calls_write_nothing(lines_of: Lines) -> None:
    def act(file: FileLogger) -> None:
        file.log_metrics({})
        file.log_hyperparameters({})
        file.log_traces({})
        file.log_text("")

    assert [] == lines_of(act)


def test_a_step_may_go_back(lines_of: Lines) -> None:
    def act(file: FileLogger) -> None:
        for step in (10, 5):
            file.log_metrics({"a": 1}, step)

    lines = lines_of(act)
    assert ['[metric][step=10]: {"a": 1}', '[metric][step=5]: {"a": 1}'] == lines


def test_a_ragged_table_is_an_error_that_names_table_and_row(lines_of: Lines) -> None:
    def act(file: FileLogger) -> None:
        with pytest.raises(ValueError, match="table 'Samples': row 1 has 1 values, and there are 2 columns"):
            file.log_table(["a", "b"], [[1, 2], [3]], "Samples")

    assert [] == lines_of(act)


def test_a_closed_logger_says_so(tmp_path: Path) -> None:
    file = FileLogger("log.txt", folder=tmp_path, config=QUIET)
    file.close()
    file.close()
    calls: list[Callable[[], None]] = [lambda: file.log_metrics({"a": 1}), lambda: file.log_text("a"), file.flush]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"'log\.txt' is closed: make a new one"):
            call()


def test_lines_of_several_threads_are_whole(lines_of: Lines) -> None:
    text = "x" * 10_000

    def act(file: FileLogger) -> None:
        def log(n: int) -> None:
            for i in range(50):
                file.log_traces({f"{n}-{i}": text})

        threads = [threading.Thread(target=log, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = lines_of(act)
    assert {f'[trace]: {n}-{i}: "{text}"' for n in range(4) for i in range(50)} == set(lines)
    assert 200 == len(lines)


@pytest.mark.parametrize(
    ("config", "level", "epoch", "batch", "expected"),
    [
        (FileConfig(), LogLevel.FIT, 0, 0, True),
        (FileConfig(), LogLevel.EPOCH, 0, 0, True),
        (FileConfig(), LogLevel.BATCH, 0, 0, False),
        (FileConfig(log_level="fit"), LogLevel.EPOCH, 0, 0, False),
        (FileConfig(log_level=5), LogLevel.VERBOSE, 0, 0, True),
        (FileConfig(every_n_epochs=2), LogLevel.FIT, 1, 0, True),
        (FileConfig(every_n_epochs=2), LogLevel.EPOCH, 1, 0, False),
        (FileConfig(every_n_epochs=2), LogLevel.EPOCH, 2, 0, True),
        (FileConfig(log_level="batch", every_n_batches=10), LogLevel.BATCH, 0, 8, False),
        (FileConfig(log_level="batch", every_n_batches=10), LogLevel.BATCH, 0, 9, True),
        (FileConfig(log_level="batch", every_n_batches=10), LogLevel.EPOCH, 0, 8, True),
        (FileConfig(log_level="batch", every_n_epochs=2), LogLevel.BATCH, 1, 0, False),
    ],
)
def test_levels_and_intervals_are_those_of_composers_first_file_logger(
    tmp_path: Path, config: FileConfig, level: LogLevel, epoch: int, batch: int, expected: bool
) -> None:
    from dataclasses import replace

    with FileLogger(folder=tmp_path, config=replace(config, capture_stdout=False, capture_stderr=False)) as file:
        assert expected == file.will_log(State("run", Timestamp(epoch=epoch, batch=batch)), level)


def test_the_router_asks_before_a_figure_is_computed(tmp_path: Path) -> None:
    with Logger(State("run"), FileLogger("log.txt", folder=tmp_path, config=QUIET)) as logger:
        logger.metric("batch", lambda: pytest.fail("nobody wants it"))
        logger.metric("epoch", {"loss": 0.5})
    assert '[EPOCH][step=0]: {"loss": 0.5}\n' == (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"flush_every_n_batches": 0}, "flush_every_n_batches"),
        ({"every_n_epochs": 0}, "every_n_epochs"),
        ({"every_n_batches": -1}, "every_n_batches"),
        ({"roll_size_bytes": -1}, "roll_size_bytes"),
        ({"values": "yaml"}, "values"),
        ({"log_level": "loud"}, "loud"),
    ],
)
def test_a_senseless_option_is_an_error_that_names_it(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FileConfig(**options)  # type: ignore[arg-type]


def test_the_name_is_filled_with_the_state_of_the_first_event_and_lines_before_it_wait(tmp_path: Path) -> None:
    file = FileLogger(folder=tmp_path, config=QUIET)
    file.log_text("before")
    state = State("run", rank=3, world_size=4)
    logger = Logger(state, file)
    logger.run_event(Event.INIT)
    file.log_text("after")
    logger.close()
    assert "[text][step=0] Text: before\n[text][step=1] Text: after\n" == (tmp_path / "run" / "logs-rank3.txt").read_text()


def test_without_any_event_the_first_call_of_the_router_names_the_file(tmp_path: Path) -> None:
    file = FileLogger(folder=tmp_path, config=QUIET)
    Logger(State("run"), file).log_metrics({"a": 1})
    file.flush()
    assert '[metric][step=0]: {"a": 1}\n' == (tmp_path / "run" / "logs-rank0.txt").read_text()
    file.close()


def test_without_a_router_flush_names_the_file_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RUN_NAME": "env", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with FileLogger(folder=tmp_path, config=QUIET) as file:
        file.log_text("text")
        file.flush()
        assert "[text][step=0] Text: text\n" == (tmp_path / "env" / "logs-rank1.txt").read_text()


@pytest.mark.parametrize("filename", ["{nothing}.txt", "../log.txt", "", "logs/", "{rank"])
def test_a_bad_name_is_an_error_at_once(tmp_path: Path, filename: str) -> None:
    with pytest.raises(ConfigError):
        FileLogger(filename, folder=tmp_path, config=QUIET)


def test_a_name_that_cannot_be_filled_stops_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = State("run", rank=1, world_size=2)
    state.run_name = ""
    logger = Logger(state, FileLogger(folder=tmp_path, config=QUIET))
    for _ in range(3):
        logger.log_metrics({"a": 1})
    logger.close()
    assert [] == list(tmp_path.iterdir())
    assert 1 == len(caplog.records)
    assert "writes no file" in caplog.text


def test_files_that_exist_are_kept(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        with FileLogger("log.txt", folder=tmp_path, config=QUIET) as file:
            file.log_text(text)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {
        "log.txt": "[text][step=0] Text: first\n",
        "log.0001.txt": "[text][step=0] Text: second\n",
        "log.0002.txt": "[text][step=0] Text: third\n",
    } == written


def test_the_folder_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with FileLogger("log.txt", config=QUIET) as file:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        file.log_text("x")
    assert (tmp_path / "log.txt").exists()


def test_rank_zero_only_makes_no_file_on_other_ranks(tmp_path: Path) -> None:
    config = FileConfig(rank_zero_only=True)
    _, lines = of_script(
        tmp_path,
        """
        for rank in (1, 0):
            file = FileLogger("log.txt" if rank == 0 else "{run_name}.txt", folder=folder,
                config=FileConfig(rank_zero_only=True))
            with Logger(State("run", rank=rank, world_size=2), file) as logger:
                print("rank", rank, flush=True)
                logger.log_metrics({"a": rank})
                logger.run_event(Event.BATCH_END)
        """,
    )
    assert config.rank_zero_only
    assert ["[stdout]: rank 0", '[metric][step=0]: {"a": 0}'] == lines
    assert ["log.txt"] == [path.name for path in tmp_path.iterdir()]


def test_each_file_is_uploaded_once_when_it_is_closed(tmp_path: Path) -> None:
    uploads = Uploads()
    state = State("run {x}")
    with Logger(state, [FileLogger("{run_name}/log.txt", folder=tmp_path / "{odd}", config=ROLLING), uploads]) as logger:
        for i in range(100):
            logger.log_metrics({"i": i, "text": "x" * 50})  # type: ignore[dict-item]
            state.timestamp = state.timestamp.to_next_batch()
            logger.run_event(Event.BATCH_END)
    names = [name for name, _, _ in uploads.files]
    assert ["run {x}/log.txt", *(f"run {{x}}/log.{i:04d}.txt" for i in range(1, len(names)))] == names
    assert 5 < len(names)
    assert {False} == {overwrite for _, _, overwrite in uploads.files}
    lines = "".join(text for _, text, _ in uploads.files).splitlines()
    assert [f'[metric][step={i}]: {{"i": {i}' for i in range(100)] == [line.split(", ")[0] for line in lines]
    assert all(len(text) < 1100 for _, text, _ in uploads.files)
    on_disk = sorted(path.read_text() for path in (tmp_path / "{odd}" / "run {x}").iterdir())
    assert on_disk == sorted(text for _, text, _ in uploads.files)


def test_files_are_handed_over_while_the_run_goes_on(tmp_path: Path) -> None:
    uploads = Uploads()
    file = FileLogger("log.txt", folder=tmp_path, config=ROLLING)
    logger = Logger(State("run"), [file, uploads])
    logger.log_metrics({"text": "x" * 2000})  # type: ignore[dict-item]
    file.flush()
    assert [] == uploads.files
    logger.run_event(Event.BATCH_END)
    assert ["log.txt"] == [name for name, _, _ in uploads.files]
    logger.close()
    assert ["log.txt"] == [name for name, _, _ in uploads.files]


@pytest.mark.parametrize("of_all", [False, True])
def test_figures_are_of_rank_0_unless_all_are_asked_for(tmp_path: Path, of_all: bool) -> None:
    config = replace(QUIET, metrics_of_all_ranks=of_all)
    with Logger(State("run", rank=1, world_size=2), [FileLogger("log-{rank}.txt", folder=tmp_path, config=config)]) as logger:
        logger.log_metrics({"loss": 1.0})
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert of_all == any("loss" in text for text in texts)


def test_files_that_would_have_one_name_on_all_ranks_are_not_uploaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uploads = Uploads()
    config = replace(QUIET, metrics_of_all_ranks=True)
    with Logger(State("run", rank=1, world_size=2), [FileLogger("log.txt", folder=tmp_path, config=config), uploads]) as logger:
        logger.log_text("x")
    assert [] == uploads.files
    assert "put {rank} into the filename" in caplog.text
    assert (tmp_path / "log.txt").exists()
