"""Jobs that are told to end: real programs, real signals."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import wherry
from servers.warm_torch import TorchProgram
from support import run_script, stopped_agent, wait_until
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.preemption.forecast import Forecast, throughput
from wherry.checkpoints.world import World
from wherry.errors import ConfigError
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

#: A training loop that says its steps, and that it is ready. argv: bucket, spool; `settings` and `body` differ.
_LOOP = """
import os, signal, sys, time
from pathlib import Path
import wherry

config = wherry.Config(drain_at_exit_s=0.0)
checkpoints = wherry.Checkpoints(sys.argv[1], "run1", spool=sys.argv[2], config=config)
folder = Path(sys.argv[2] + "-state")
folder.mkdir()
step = 0

def save():
    (folder / "model.txt").write_text(f"weights of {step}")
    (folder / "moments.bin").write_bytes(bytes(100_000))
    return checkpoints.save(step, folder)

save().wait(60)  # so that the throughput is known
"""
_POLLED = """
with checkpoints, checkpoints.on_preemption(save, grace_s=float(sys.argv[3])) as preemption:
    print("ready", flush=True)
    for step in range(1, 10_000):
        time.sleep(0.01)
        if report := preemption.poll():
            print("report:", report.is_committed, len(report.left), len(report.forecast.late), report.command)
            break
print("handler:", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def wait_for_ready(process: TorchProgram) -> None:
    assert process.stdout is not None
    said = ""
    while "ready" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line


@contextmanager
def loop(body: str, *arguments: str | os.PathLike[str]) -> Iterator[TorchProgram]:
    """Start the loop; yields when it is ready."""
    with TorchProgram(_LOOP + textwrap.dedent(body), *arguments) as process:
        wait_for_ready(process)
        yield process


def steps_in(bucket: Path, tmp_path: Path) -> list[int]:
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "reader") as reader:
        return [one.step for one in reader.list()]


def steps_to_come(bucket: Path, tmp_path: Path, n: int) -> list[int]:
    wait_until(lambda: len(steps_in(bucket, tmp_path)) >= n, what="the set, whose program has ended")
    return steps_in(bucket, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_loop_that_is_told_to_end_saves_and_reports(
    bucket: Path, spool_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with loop(_POLLED, bucket, spool_folder, "60") as process:
        if number == signal.SIGUSR1:  # Slurm sends it to all processes of the job
            for one in agent_and_workers(spool_folder):
                one.send_signal(number)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "report: True 0 0 wherry drain" in said
    assert (spool_folder / "agent.log").read_text().count(" is up\n") == 1  # it was not ended, nor started again
    assert f"{number.name}: the set" in said and "is complete in the store" in said
    assert "handler: True" in said
    (first, second) = steps_in(bucket, tmp_path)
    assert first == 0 < second
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "reader") as reader:
        assert (reader.restore("latest", tmp_path / "back") / "model.txt").read_text() == f"weights of {second}"


def agent_and_workers(spool_folder: Path) -> list[psutil.Process]:
    pid = pid_of_agent(Spool(spool_folder))
    assert pid is not None
    agent = psutil.Process(pid)
    return [agent, *agent.children(recursive=True)]


def test_a_grace_time_that_is_too_short_is_reported_and_the_set_arrives_later(
    bucket: Path, spool_folder: Path, tmp_path: Path
) -> None:
    with loop(_POLLED, bucket, spool_folder, "1") as process, stopped_agent(spool_folder):
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "report: False 4 " in said  # two objects, a receipt and the manifest
        assert "is not complete yet; not stored: 4 objects" in said
        assert f"wherry drain --spool {spool_folder}" in said
        assert steps_in(bucket, tmp_path) == [0]
    assert len(steps_to_come(bucket, tmp_path, 2)) == 2


def test_a_second_signal_ends_the_wait(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    """And then the program, as it would have without us; the set arrives."""
    with loop(_POLLED, bucket, spool_folder, "600") as process, stopped_agent(spool_folder):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert "the next safe point saves" in process.stdout.readline()
        assert "is handed over" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, said
    assert "is not complete yet" in said
    assert len(steps_to_come(bucket, tmp_path, 2)) == 2


def test_a_second_signal_before_a_safe_point_ends_the_program(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    body = """
    with checkpoints.on_preemption(save):
        print("ready", flush=True)
        time.sleep(60)
    """
    with loop(body, bucket, spool_folder) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert "the next safe point saves" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert steps_in(bucket, tmp_path) == [0]


def test_at_once_saves_between_two_lines_of_the_program(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    """Not inside a call of torch, here a module of that name; then it ends as sys.exit() does, with what is called at the end."""
    body = """
    import types
    torch = types.ModuleType("torch")
    exec("def half(state, sleep):\\n    state.append('half')\\n    sleep()\\n    state.append('whole')", torch.__dict__)
    state = []

    def save_whole():
        print("saved at", state, flush=True)
        return save()

    def pause():
        print("ready", flush=True)
        while not Path(sys.argv[3]).exists():
            time.sleep(0.01)

    from wherry.loggers.capture.exit_hooks import before_exit, before_traceback

    before_exit(lambda error: print("called at exit", error))
    before_traceback(lambda error: print("this is no error", error))
    with checkpoints, checkpoints.on_preemption(save_whole, grace_s=60, at_once=True):
        step = 7
        torch.half(state, pause)
        step = 8
        time.sleep(60)
    """
    with loop(body, bucket, spool_folder, tmp_path / "sent") as process:
        process.send_signal(signal.SIGTERM)
        (tmp_path / "sent").touch()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "saved at ['half', 'whole']" in said
    assert "called at exit None" in said and "this is no error" not in said
    assert steps_in(bucket, tmp_path) == [0, 7]


def test_at_once_ends_the_program_also_if_it_cannot_save(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    body = """
    def fail():
        raise RuntimeError("no memory")

    with checkpoints, checkpoints.on_preemption(fail, at_once=True):
        print("ready", flush=True)
        time.sleep(60)
    """
    with loop(body, bucket, spool_folder) as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "could not be saved: Traceback" in said and "no memory" in said
    assert steps_in(bucket, tmp_path) == [0]


def test_at_once_waits_for_the_end_of_a_shielded_block(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    body = """
    with checkpoints, checkpoints.on_preemption(save, at_once=True) as preemption:
        with preemption.shielded():
            print("ready", flush=True)
            while not Path(sys.argv[3]).exists():
                time.sleep(0.01)
            step = 9
        time.sleep(60)
    """
    with loop(body, bucket, spool_folder, tmp_path / "sent") as process:
        process.send_signal(signal.SIGUSR1)
        (tmp_path / "sent").touch()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGUSR1, said
    assert steps_in(bucket, tmp_path) == [0, 9]


def test_earlier_handlers_are_called_after_the_save_and_restored(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    body = """
    def mine(number, frame):
        print("mine:", number, len(checkpoints.list()), flush=True)
    signal.signal(signal.SIGTERM, mine)
    with checkpoints:
        with checkpoints.on_preemption(save, grace_s=60) as preemption:
            print("ready", flush=True)
            while not preemption.should_save():
                time.sleep(0.01)
            step = 3
            report = preemption.finish(save())
            print("not asked again:", preemption.should_save(), preemption.poll())
        os.kill(os.getpid(), signal.SIGTERM)
        print("restored:", signal.getsignal(signal.SIGTERM) is mine)
    """
    with loop(body, bucket, spool_folder) as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.count("mine: 15 2") == 2
    assert "not asked again: False None" in said
    assert "restored: True" in said


def test_after_close_a_signal_ends_the_program(bucket: Path, spool_folder: Path) -> None:
    body = """
    preemption = checkpoints.on_preemption(save)
    checkpoints.close()
    print("ready", flush=True)
    time.sleep(60)
    """
    with loop(body, bucket, spool_folder) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_forked_child_is_ended_by_the_signal(bucket: Path, spool_folder: Path) -> None:
    said = run_script(
        """
        import os, signal, sys, time, wherry
        with wherry.Checkpoints(sys.argv[1], "run1", spool=sys.argv[2]) as checkpoints:
            with checkpoints.on_preemption(lambda: print("saved")) as preemption:
                ends = set()
                for _ in range(30):  # some before it has run a line
                    child = os.fork()
                    if child == 0:
                        time.sleep(60)
                    os.kill(child, signal.SIGTERM)
                    ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                print("children:", ends, preemption.should_save())
                os.kill(os.getpid(), signal.SIGTERM)
                assert preemption.should_save()
        """,
        bucket,
        spool_folder,
    )
    assert "children: {-15} False" in said
    assert "SIGTERM came, and nothing was saved since" in said


def test_a_set_that_cannot_be_stored_is_reported(bucket: Path, spool_folder: Path) -> None:
    body = """
    import shutil
    with checkpoints, checkpoints.on_preemption(grace_s=60) as preemption:
        print("ready", flush=True)
        while not preemption.should_save():
            time.sleep(0.01)
        try:
            with checkpoints.save(5) as folder:
                raise RuntimeError("no memory")
        except RuntimeError:
            pass
        report = preemption.finish()
        print("report:", report.set.step, report.is_committed)
    """
    with loop(body, bucket, spool_folder) as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert "report: 0 True" in said  # the set of before


_RANK = """
import sys, time
import torch.distributed as dist
import wherry

rank = int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=2)
checkpoints = wherry.Checkpoints(sys.argv[1], "run1", spool=sys.argv[2])
with checkpoints, checkpoints.on_preemption(lambda: checkpoints.save(step, {"at": step}), grace_s=60, every=3) as preemption:
    for step in range(1, 10_000):
        if step == 10:
            print("ready", flush=True)
        time.sleep(0.01)
        if report := preemption.poll():
            print("report:", report.set.step % 3, report.is_committed, report.signal)
            break
dist.destroy_process_group()
"""


@pytest.mark.large
def test_ranks_agree_on_the_step(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    """One signal to one rank; torch.distributed says so to the other."""
    places = [(bucket, f"{spool_folder}-{rank}", str(rank), tmp_path / "together") for rank in range(2)]
    with TorchProgram(_RANK, *places[0]) as first, TorchProgram(_RANK, *places[1]) as second:
        wait_for_ready(first)
        wait_for_ready(second)
        second.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert "report: 0 True a signal to another rank" in said[0]
    assert "report: 0 True SIGTERM" in said[1]
    assert len(steps_in(bucket, tmp_path)) == 1


@pytest.fixture
def run(bucket: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        yield checkpoints


def test_bad_input_is_refused(run: Checkpoints) -> None:
    for options, why in (
        ({"grace_s": 0}, "grace_s"),
        ({"signals": [signal.SIGKILL]}, "signals"),
        ({"every": 0}, "every"),
        ({"at_once": True}, "needs `save`"),
    ):
        with pytest.raises(ConfigError, match=why):
            run.on_preemption(**options)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_only_the_main_thread_can_ask_for_it(run: Checkpoints) -> None:
    found: list[Exception] = []

    def ask() -> None:
        try:
            run.on_preemption()
        except ConfigError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "another thread than the main one" in str(found[0])


def test_ranks_that_cannot_agree_are_told_so_before_the_signal(bucket: Path, spool_folder: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", attempt=1, world=World(0, 2), spool=spool_folder) as ranks:
        with ranks.on_preemption() as preemption, pytest.raises(ConfigError, match="must save the same step"):
            preemption.should_save()
        with pytest.raises(ConfigError, match="at_once=True with 2 ranks"):
            ranks.on_preemption(lambda: None, at_once=True)
        with ranks.on_preemption(agree=lambda asked: True) as preemption:
            assert preemption.should_save()


def test_throughput_counts_the_time_in_which_something_was_sent() -> None:
    assert throughput([(0.0, 2.0, 100), (1.0, 3.0, 200), (10.0, 12.0, 200)]) == 100.0
    assert throughput([]) is None
    assert throughput([(5.0, 5.0, 10)]) is None


def test_a_forecast_says_what_is_late() -> None:
    assert str(Forecast(10.0, 0, None, (), ())) == "all objects are stored"
    short = str(Forecast(10.0, 3_000_000_000, 1e8, ("s3://b/a",), ("s3://b/c",)))
    assert short.startswith("2 objects, 2.8 GiB to send: 30.0 s at the 95.4 MiB/s of this run, 10.0 s are left; ")
    assert short.endswith("1 of 2 objects will arrive, too late: s3://b/c")
    assert "nobody knows" in str(Forecast(10.0, 5, None, (), ("s3://b/c",)))
