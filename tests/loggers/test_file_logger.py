"""FileLogger: the lines that it writes, the files that it makes, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from large import of_torch
from support import end_agent, own_mounts, run_script, wait_until
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, LoggerDestination, State, Timestamp
from wherry.loggers.destinations.file import FileConfig, FileLogger
from wherry.loggers.run.level import LogLevel

#: Nothing of pytest's own output is captured.
QUIET = FileConfig(capture_stdout=False, capture_stderr=False)
ROLLING = FileConfig(capture_stdout=False, capture_stderr=False, roll_size_bytes=1000)

PROLOGUE = """
import atexit, os, signal, sys, threading, warnings
from wherry.loggers import Event, Logger, ObjectStoreLogger, State
from wherry.loggers.destinations.file import FileLogger, FileConfig

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later, for a fork with threads
folder = sys.argv[1]
"""


def of_script(folder: Path, text: str, *, expected: int = 0, prefix: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """What a script shows, and the lines of the log that it leaves."""
    import textwrap

    shown = run_script(PROLOGUE + textwrap.dedent(text), folder, expected=expected, prefix=prefix)
    return shown, (folder / "log.txt").read_text().splitlines()


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


# lines


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


# levels


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


# names


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


# uploads


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
    config = replace(QUIET, figures_of_all_ranks=of_all)
    with Logger(State("run", rank=1, world_size=2), [FileLogger("log-{rank}.txt", folder=tmp_path, config=config)]) as logger:
        logger.log_metrics({"loss": 1.0})
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert of_all == any("loss" in text for text in texts)


def test_files_that_would_have_one_name_on_all_ranks_are_not_uploaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uploads = Uploads()
    config = replace(QUIET, figures_of_all_ranks=True)
    with Logger(State("run", rank=1, world_size=2), [FileLogger("log.txt", folder=tmp_path, config=config), uploads]) as logger:
        logger.log_text("x")
    assert [] == uploads.files
    assert "put {rank} into the filename" in caplog.text
    assert (tmp_path / "log.txt").exists()


def test_the_log_of_a_run_that_failed_is_in_the_store(tmp_path: Path) -> None:
    """Also if nobody closes anything; its last lines are the traceback."""
    shown, lines = of_script(
        tmp_path,
        """
        store = ObjectStoreLogger(folder + "/store", spool=folder + "/spool")
        logger = Logger(State("run"), [FileLogger("log.txt", folder=folder), store])
        logger.run_event(Event.INIT)
        print("working")
        raise ValueError("no")
        """,
        expected=1,
    )
    assert 1 == shown.count("ValueError: no")
    assert ["[stdout]: working", "[exception]: Traceback (most recent call last):"] == lines[:2]
    assert "[exception]: ValueError: no" == lines[-1]
    with end_agent(tmp_path / "spool"):
        wait_until((tmp_path / "store" / "log.txt").exists, what="the agent to upload the log")
    assert lines == (tmp_path / "store" / "log.txt").read_text().splitlines()


# the end


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('no')",
        "try:\n    raise ValueError('no')\nfinally:\n    logger.close()",
        "with logger:\n    raise ValueError('no')",
        "with file:\n    raise ValueError('no')",
        "sys.excepthook = lambda kind, error, trace: before(kind, error, trace)\nraise ValueError('no')",
    ],
)
def test_the_traceback_is_the_last_thing_in_the_file(tmp_path: Path, end: str) -> None:
    shown, lines = of_script(
        tmp_path,
        f"""
atexit.register(print, "late")
file = FileLogger("log.txt", folder=folder)
before = sys.excepthook
logger = Logger(State("run"), file)
logger.run_event(Event.INIT)
print("working")
sys.stdout.write("no end of line")
atexit.register(print, "later")
{end}
""",
        expected=1,
    )
    assert ["[stdout]: working", "[stdout]: no end of line", "[exception]: Traceback (most recent call last):"] == lines[:3]
    assert "[exception]: ValueError: no" == lines[-1]
    assert 1 == "".join(lines).count("ValueError: no")
    assert 1 == shown.count("ValueError: no")
    assert {"later", "late"} <= set(shown.splitlines())


def test_ctrl_c_is_the_last_thing_in_the_file(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        'file = FileLogger("log.txt", folder=folder)\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()',
        expected=-signal.SIGINT,
    )
    assert "[exception]: KeyboardInterrupt" == lines[-1]


@pytest.mark.parametrize(("status", "last"), [(0, "[stdout]: bye"), (3, "[exception]: SystemExit: 3")])
def test_an_exit_that_is_no_failure_leaves_no_traceback(tmp_path: Path, status: int, last: str) -> None:
    _, lines = of_script(
        tmp_path,
        f'with FileLogger("log.txt", folder=folder):\n    print("bye")\n    sys.exit({status})',
        expected=status,
    )
    assert last == lines[-1]


def test_an_exception_of_another_thread_is_printed_and_the_log_goes_on(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        file.log_text("goes on")
        """,
    )
    assert "[stderr]: ZeroDivisionError: division by zero" in lines
    assert "[text][step=0] Text: goes on" in lines


def test_sigterm_loses_no_line(tmp_path: Path) -> None:
    shown, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        print("working", flush=True)
        file.log_text("last")
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        expected=-signal.SIGTERM,
    )
    assert ["[stdout]: working", "[text][step=0] Text: last"] == lines
    assert "working\n" == shown


def test_sigterm_as_an_exception_closes_the_log(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with FileLogger("log.txt", folder=folder):
            print("working")
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        """,
        expected=143,
    )
    assert ["[stdout]: working", "[exception]: SystemExit: 143"] == [lines[0], lines[-1]]


def test_the_end_of_the_interpreter_closes_the_log(tmp_path: Path) -> None:
    _, lines = of_script(tmp_path, 'file = FileLogger("log.txt", folder=folder)\nsys.stdout.write("no end")')
    assert ["[stdout]: no end"] == lines


def test_hooks_are_put_back(tmp_path: Path) -> None:
    before = sys.excepthook
    with FileLogger("log.txt", folder=tmp_path, config=QUIET), FileLogger("other.txt", folder=tmp_path, config=QUIET):
        assert before is not sys.excepthook
    assert before is sys.excepthook


def test_a_forked_child_does_not_close_the_log_of_its_parent(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        logger = Logger(State("run"), file)
        logger.run_event(Event.INIT)
        pid = os.fork()
        if not pid:
            logger.log_metrics({"a": 1})  # reported: it belongs to the parent
            logger.run_event(Event.EPOCH_END)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        pid = os.fork()
        if not pid:
            raise ValueError("of the child")
        os.waitpid(pid, 0)
        print("parent")
        logger.log_metrics({"a": 2})
        """,
    )
    assert ["[stdout]: parent", '[metric][step=0]: {"a": 2}'] == lines[-2:]
    assert 1 == sum("belongs to process" in line and "Traceback" not in line for line in lines if "failed" in line)
    assert 1 == sum("ValueError: of the child" in line for line in lines)
    assert not any(line.startswith("[exception]") for line in lines)


def test_flush_is_a_barrier(tmp_path: Path) -> None:
    shown, _ = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        for i in range(100):
            sys.stdout.write(f"{i}\\n")
            file.flush()
            assert open(folder + "/log.txt").read().splitlines()[-1] == f"[stdout]: {i}"
        """,
    )
    assert [str(i) for i in range(100)] == shown.split()


# troubles


def test_a_full_disk_loses_lines_and_not_the_run_and_is_said_once(tmp_path: Path) -> None:
    """On a real file system of 64 KiB. What was lost is counted in the file when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    _, lines = of_script(
        tmp_path,
        """
        import shutil, subprocess
        disk = folder + "/disk"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
        open(disk + "/other", "w").write("x" * 16_000)
        file = FileLogger("log.txt", folder=disk)
        logger = Logger(State("run"), file)
        for i in range(100):
            logger.log_text(f"{i} " + "x" * 1000)
        file.flush()
        os.remove(disk + "/other")
        logger.log_text("room again")
        logger.close()
        print("run goes on")
        shutil.copy(disk + "/log.txt", folder)
        """,
        prefix=own_mounts(),
    )
    kept = [line for line in lines if line.startswith("[text]")]
    (lost,) = (line for line in lines if "could not be written and are lost" in line)
    assert "[text][step=0] Text: room again" == [line for line in lines if not line.startswith("[stderr]")][-1]
    warnings = [line for line in lines if "No space left on device" in line]
    n_lost = int(lost.split()[1])
    assert 100 + 1 + 1 <= len(kept) + n_lost <= 100 + 1 + 3 - len(warnings)


def test_a_folder_that_cannot_be_written_stops_nothing_and_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    shown = run_script(
        PROLOGUE
        + """
file = FileLogger("a file/log.txt", folder=folder)
logger = Logger(State("run"), file)
for i in range(3):
    logger.log_text("x")
    file.flush()
logger.close()
print("run goes on")
""",
        tmp_path,
    )
    assert 1 == shown.count("cannot write")
    assert "a file/log.txt: File exists" in shown
    assert shown.endswith("run goes on\n")


def test_it_works_under_pytest(tmp_path: Path) -> None:
    """Whose own capture replaces the same descriptors, in the process that the test runs in."""
    (tmp_path / "test_inner.py").write_text(
        "from wherry.loggers.destinations.file import FileLogger\n"
        "import os\n"
        "def test_prints(capfd, tmp_path):\n"
        "    with FileLogger('log.txt', folder=tmp_path):\n"
        "        os.write(1, b'printed\\n')\n"
        "    assert capfd.readouterr().out == 'printed\\n'\n"
        "    assert (tmp_path / 'log.txt').read_text() == '[stdout]: printed\\n'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_logging_of_the_run_is_captured(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        'import logging\nwith FileLogger("log.txt", folder=folder):\n    logging.warning("careful")',
    )
    assert ["[stderr]: WARNING:root:careful"] == lines


def test_a_crash_of_a_callback_hook_is_shown_and_stops_no_other(tmp_path: Path) -> None:
    shown = run_script(
        """
        from wherry.loggers.capture.exit_hooks import before_traceback
        def broken(error):
            raise RuntimeError("broken hook")
        before_traceback(lambda error: print("first", error))
        before_traceback(broken)
        raise ValueError("no")
        """,
        expected=1,
    )
    assert {"RuntimeError: broken hook", "first no", "ValueError: no"} <= set(shown.splitlines())


def test_nothing_is_left_open(tmp_path: Path) -> None:
    n_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with suppress(ValueError), FileLogger("log.txt", folder=tmp_path, config=QUIET) as file:
            file.log_text("x")
            raise ValueError
    assert n_before == len(os.listdir("/proc/self/fd"))
    assert logging.getLogger("wherry").handlers == []


def test_a_log_that_is_removed_meanwhile_is_begun_anew_and_that_is_said(tmp_path: Path) -> None:
    shown = run_script(
        PROLOGUE
        + """
import shutil
file = FileLogger("logs/log.txt", folder=folder)
logger = Logger(State("run"), file)
logger.run_event(Event.INIT)
logger.log_text("before")
file.flush()
shutil.rmtree(os.path.join(folder, "logs"))
logger.log_text("after")
logger.log_text("and on")
logger.close()
""",
        tmp_path,
    )
    assert 1 == shown.count("log.txt was removed while it was being written")
    assert ["log.txt"] == os.listdir(tmp_path / "logs")
    lines = (tmp_path / "logs/log.txt").read_text().splitlines()
    assert ["after", "and on"] == [line.split(": ")[1] for line in lines if line.startswith("[text]")]
