"""SystemMetrics: what the machine does is among the metrics, and nothing of it reaches the training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from run_folders import lines_of
from support import run_script, wait_until
from wherry.errors import ConfigError
from wherry.loggers import ConsoleLogger, Event, Logger, LoggerDestination, ProgressBarLogger, RunFolderLogger, State
from wherry.loggers.callbacks.gpus import Gpus, find_gpus
from wherry.loggers.callbacks.machine import Machine
from wherry.loggers.callbacks.system_metrics import SystemMetrics
from wherry.loggers.run.level import LogLevel
from wherry.runs import Runs

#: Of every machine. Its disks and interfaces may be hidden in a container.
SURE = {
    "system/cpu_percent",
    "system/memory_bytes",
    "system/memory_percent",
    "system/disk_bytes",
    "system/disk_percent",
    "system/process_cpu_percent",
    "system/process_memory_bytes",
}


class Metrics(LoggerDestination):
    """Keeps the metrics."""

    def __init__(self, *, all_ranks: bool = False, error: Exception | None = None) -> None:
        super().__init__()
        self.rank_zero_only = not all_ranks
        self.error = error
        self.seen: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.seen.append((step, dict(metrics)))
        if self.error is not None:
            raise self.error


class NVMLError(Exception):
    """As pynvml's."""


class Nvml:
    """As the module pynvml, of a machine with two GPUs, the second of which is divided by MIG."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.is_open = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  # NVIDIA's name, as those below
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802
        return i

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=(handle + 1) * 2**30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=87)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wherry-system"]


def test_the_machine_is_sampled_in_the_units_of_the_names(tmp_path: Path) -> None:
    clock = iter(range(100))
    machine = Machine(Gpus(), now=lambda: float(next(clock)))
    (tmp_path / "written").write_bytes(bytes(2**20))
    found = machine.sample()
    assert SURE <= set(found)
    assert 0 < found["system/memory_bytes"] < psutil.virtual_memory().total
    assert 0 <= found["system/cpu_percent"] <= 100
    assert 2**20 < found["system/process_memory_bytes"] < psutil.virtual_memory().total
    assert psutil.disk_usage(".").used == pytest.approx(found["system/disk_bytes"], rel=0.1)
    assert all(value >= 0 for value in found.values())


def test_what_cannot_be_read_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Gpus):
        def sample(self) -> dict[str, float]:
            raise OSError("the bus is gone")

    machine = Machine(Broken(Nvml()))
    assert SURE <= set(machine.sample())
    assert ["the bus is gone" in record.getMessage() for record in caplog.records if record.name == "wherry"] == [True]


def test_gpus_are_in_percent_and_bytes_and_what_mig_hides_is_missing() -> None:
    nvml = Nvml()
    gpus = Gpus(nvml)
    expected = {"system/gpu0_percent": 87, "system/gpu0_memory_bytes": 2**30, "system/gpu1_memory_bytes": 2 * 2**30}
    assert expected == gpus.sample()
    assert expected.items() <= Machine(gpus).sample().items()
    gpus.close()
    gpus.close()
    assert not nvml.is_open
    assert {} == gpus.sample()


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert 0 == len(find_gpus(driver=tmp_path / "nvidiactl"))


def test_a_run_folder_has_them_and_a_reader_finds_them(tmp_path: Path) -> None:
    nvml = Nvml()
    callback = SystemMetrics(every_s=0.05, gpus=lambda: Gpus(nvml))
    metrics = tmp_path / "run" / "metrics.jsonl"
    with Logger(State("run"), [RunFolderLogger(tmp_path / "{run_name}")], [callback]) as logger:
        logger.log_metrics({"loss": 1.0}, step=7)
        wait_until(lambda: sum("system/cpu_percent" in line for line in lines_of(metrics)) >= 3)
    assert [] == threads()
    assert not nvml.is_open
    system = [line for line in lines_of(metrics) if "system/cpu_percent" in line]
    assert {7} == {line["step"] for line in system[1:]}
    with Runs(str(tmp_path)) as runs:
        (row,) = runs.rows()
        found = set(runs.run(row.id).system())
    assert SURE | {"system/gpu0_percent", "system/gpu0_memory_bytes", "system/gpu1_memory_bytes"} <= found


def test_the_console_and_the_bars_do_not_show_them() -> None:
    with closing(ProgressBarLogger()) as bars, closing(ConsoleLogger()) as console:
        assert not bars.will_log(State("run"), LogLevel.VERBOSE)
        assert not console.will_log(State("run"), LogLevel.VERBOSE)


def test_other_ranks_log_their_process_only_and_where_it_is_wanted() -> None:
    state = State("run", rank=1, local_rank=1, world_size=2, local_world_size=2)
    everybody, first = Metrics(all_ranks=True), Metrics()
    with Logger(state, [everybody, first], [SystemMetrics(every_s=0.01)]):
        wait_until(lambda: len(everybody.seen) >= 2)
    assert {"system/process_cpu_percent", "system/process_memory_bytes"} == set(everybody.seen[0][1])
    assert [] == first.seen


def test_no_error_of_a_destination_reaches_the_training(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Metrics(error=OSError("disk full"))
    refusing.on_error = "raise"
    with caplog.at_level(logging.WARNING, "wherry"), Logger(State("run"), refusing, [SystemMetrics(every_s=0.01)]):
        wait_until(lambda: len(refusing.seen) >= 3)
    assert 1 == caplog.text.count("disk full")


def test_gpus_that_cannot_be_asked_end_the_thread_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Gpus:
        raise OSError("no library")

    metrics = Metrics()
    with Logger(State("run"), metrics, [SystemMetrics(every_s=0.01, gpus=fail)]):
        wait_until(lambda: "no library" in caplog.text)
        wait_until(lambda: not threads())
    assert [] == metrics.seen


def test_a_forked_child_neither_samples_nor_waits_for_the_parents_thread(tmp_path: Path) -> None:
    said = run_script(
        """
        import os, sys, threading
        from wherry.loggers import Logger, RunFolderLogger, State
        from wherry.loggers.callbacks.system_metrics import SystemMetrics
        from support import wait_until
        system = SystemMetrics(every_s=0.01)
        with Logger(State("run"), [RunFolderLogger(sys.argv[1])], [system]) as logger:
            logger.log_metrics({"loss": 1.0})
            pid = os.fork()
            if pid == 0:
                system.close(logger.state, logger)
                print("child", threading.active_count(), flush=True)
                os._exit(0)
            print("ended", os.waitpid(pid, 0)[1], flush=True)
            metrics = sys.argv[1] + "/metrics.jsonl"
            size = os.path.getsize(metrics)
            wait_until(lambda: os.path.getsize(metrics) > size)
        """,
        tmp_path / "run",
        env={"PYTHONWARNINGS": "ignore::DeprecationWarning"},  # Python 3.12 warns of a fork beside threads, which is the point
    )
    assert ["child 1", "ended 0"] == said.splitlines()
    assert not (tmp_path / "run" / "children").exists()


def test_a_program_that_never_closes_ends_at_once_and_one_that_begins_at_its_end_says_nothing_worse(tmp_path: Path) -> None:
    said = run_script(
        """
        import atexit, sys
        from wherry.loggers import Event, Logger, RunFolderLogger, State
        from wherry.loggers.callbacks.system_metrics import SystemMetrics
        first = Logger(State("one"), [RunFolderLogger(sys.argv[1] + "/one")], [SystemMetrics()])
        first.run_event(Event.INIT)
        second = Logger(State("two"), [RunFolderLogger(sys.argv[1] + "/two")], [SystemMetrics()])
        atexit.register(lambda: (second.run_event(Event.INIT), second.close(), print("closed")))
        """,
        tmp_path,
    )
    assert "Traceback" not in said
    assert "closed" in said


def test_a_second_init_starts_no_second_thread_and_after_a_close_a_run_may_begin_again() -> None:
    metrics, callback = Metrics(), SystemMetrics(every_s=0.01)
    state = State("run")
    for _ in range(2):
        with Logger(state, metrics, [callback]) as logger:
            logger.run_event(Event.INIT)
            assert 1 == len(threads())
            n = len(metrics.seen)
            wait_until(lambda n=n: len(metrics.seen) > n)  # type: ignore[misc]
        assert [] == threads()


@pytest.mark.parametrize("every_s", [0, -1, float("inf"), float("nan"), "10", True])
def test_an_interval_that_makes_no_sense_is_refused(every_s: float) -> None:
    with pytest.raises(ConfigError, match="every_s"):
        SystemMetrics(every_s)


def test_without_psutil_the_extra_is_named() -> None:
    said = run_script(
        """
        import sys

        class Without:  # as in an environment without psutil
            def __init__(self, finder):
                self.finder = finder

            def find_spec(self, name, path=None, target=None):
                return None if name == "psutil" else self.finder.find_spec(name, path, target)

        from wherry.loggers import SystemMetrics
        from wherry.errors import MissingExtraError
        sys.meta_path[:] = [Without(one) for one in sys.meta_path]
        try:
            SystemMetrics()
        except MissingExtraError as error:
            print(error)
        """
    )
    assert "pip install 'wherry[system]'" in said
