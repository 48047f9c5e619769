"""A run that goes on under its name on another disk: nothing that is in the store is replaced, and the run does not fail."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from servers.features import tell_spool
from servers.real import S3Server
from support import end_agent, run_script
from wherry.config import AgentConfig, Config, RetryConfig
from wherry.errors import StoreError, TransientError, UploadFailed
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.file import FileConfig, FileLogger
from wherry.loggers.destinations.handover import PATIENCE_S, Handover
from wherry.loggers.destinations.object_store import ObjectStoreLogger
from wherry.loggers.destinations.remote_names import FreeNames, RunNames
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State

TIMEOUT_S = 60.0
#: Without agents, whose starts would be most of the time.
CALLER = Config(agent=AgentConfig(run_in="caller"), retry=RetryConfig(call_deadline_s=0.1))
QUIET = FileConfig(capture_stdout=False, capture_stderr=False)
MARKER = ".wherry-run.json"
#: first step, last step, folder of the machine, bucket
PROGRAM = """
    import os, sys
    from wherry.loggers import FileLogger, Logger, ObjectStoreLogger, RunFolderLogger, State
    first, last, machine, bucket = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.makedirs(machine, exist_ok=True)
    os.chdir(machine)
    store = ObjectStoreLogger(bucket, spool=machine + "/spool")
    with Logger(State("job42"), [RunFolderLogger("runs/{run_name}"), FileLogger(folder="runs"), store]) as logger:
        for step in range(first, last):
            logger.log_metrics({"loss": step}, step)
"""


def steps_of(*files: Path) -> list[int]:
    return [json.loads(line)["step"] for path in sorted(files) for line in path.read_text().splitlines()]


def run_on(machine: Path, buckets: Sequence[Path], steps: range) -> None:
    """What a process does on a machine."""
    stores = [ObjectStoreLogger(bucket, spool=machine / "spool", config=CALLER) for bucket in buckets]
    with Logger(State("job"), [RunFolderLogger(machine / "{run_name}"), *stores]) as logger:
        for step in steps:
            logger.log_metrics({"loss": step}, step)


class FolderStore(LoggerDestination):
    """A destination of somebody else, which keeps files in a folder, and may be down."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.is_down = False
        self.was_asked = threading.Event()
        self.asking_threads: set[str] = set()

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        target = self.folder / remote_file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb" if overwrite else "xb") as file:
            file.write(file_path.read_bytes())

    def download_file(self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        self.asking_threads.add(threading.current_thread().name)
        self.was_asked.set()
        if self.is_down:
            raise TransientError("it is down")
        Path(destination).write_bytes((self.folder / remote_file_name).read_bytes())

    def names(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}


def test_a_run_that_goes_on_on_another_machine_loses_no_step(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with end_agent(tmp_path / "m1/spool"), end_agent(tmp_path / "m2/spool"):
        first = run_script(PROGRAM, "0", "1000", tmp_path / "m1", bucket)
        second = run_script(PROGRAM, "1000", "1100", tmp_path / "m2", bucket)
    job = bucket / "job42"
    assert list(range(1100)) == sorted(steps_of(*job.rglob("metrics.jsonl")))
    assert list(range(1000)) == steps_of(job / "metrics.jsonl")
    assert list(range(1000, 1100)) == steps_of(job / "attempt-2/metrics.jsonl")
    logs = [job / "logs-rank0.txt", job / "logs-rank0.0001.txt"]
    assert [1000, 100] == [path.read_text().count("[metric]") for path in logs]
    assert "" == first
    assert "those of runs/job42 go to job42/attempt-2" in second
    assert "job42/logs-rank0.txt is in the store already" in second


def test_a_run_that_goes_on_in_its_folder_replaces_its_own_objects(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    for machine, first in (("m1", 0), ("m2", 10), ("m1", 20), ("m2", 30)):
        run_on(tmp_path / machine, [bucket], range(first, first + 10))
    assert [*range(10), *range(20, 30)] == steps_of(bucket / "job/metrics.jsonl")
    assert [*range(10, 20), *range(30, 40)] == steps_of(bucket / "job/attempt-2/metrics.jsonl")
    assert {"job", "job/attempt-2"} == {path.parent.relative_to(bucket).as_posix() for path in bucket.rglob("metrics.jsonl")}


def test_what_was_fetched_from_the_store_is_the_same_run(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    run_on(tmp_path / "m1", [bucket], range(5))
    run_on(tmp_path / "m2", [bucket], range(5, 10))
    fetched = tmp_path / "m3/job"
    fetched.mkdir(parents=True)
    for name in (MARKER, "metrics.jsonl"):
        (fetched / name).write_bytes((bucket / "job/attempt-2" / name).read_bytes())
    run_on(tmp_path / "m3", [bucket], range(10, 15))
    assert list(range(5, 15)) == steps_of(bucket / "job/attempt-2/metrics.jsonl")
    assert list(range(5)) == steps_of(bucket / "job/metrics.jsonl")


def test_a_folder_is_free_when_it_is_in_all_stores(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    run_on(tmp_path / "m1", [other], range(5))
    run_on(tmp_path / "m2", [one, other], range(5, 10))
    assert list(range(5)) == steps_of(other / "job/metrics.jsonl")
    assert [list(range(5, 10))] * 2 == [steps_of(bucket / "job/attempt-2/metrics.jsonl") for bucket in (one, other)]


def test_processes_that_start_at_once_each_get_a_folder(tmp_path: Path) -> None:
    script = """
        import sys
        from wherry.config import AgentConfig, Config
        from wherry.loggers import Logger, ObjectStoreLogger, RunFolderLogger, State
        machine, bucket, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
        print("ready", flush=True)
        sys.stdin.readline()
        store = ObjectStoreLogger(bucket, spool=machine + "/spool", config=Config(agent=AgentConfig(run_in="caller")))
        with Logger(State("job"), [RunFolderLogger(machine + "/{run_name}"), store]) as logger:
            for step in range(first, first + 10):
                logger.log_metrics({"loss": step}, step)
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / f"m{n}"), str(tmp_path / "bucket"), str(10 * n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=TIMEOUT_S)
    assert [0, 0, 0] == [process.returncode for process in processes]
    job = tmp_path / "bucket/job"
    files = [job / "metrics.jsonl", job / "attempt-2/metrics.jsonl", job / "attempt-3/metrics.jsonl"]
    assert list(range(30)) == sorted(steps_of(*files))


def test_who_is_second_at_the_same_moment_leaves_no_failed_upload(tmp_path: Path) -> None:
    marker = tmp_path / "bucket/job" / MARKER

    class Second(ObjectStoreLogger):
        """Another process creates the object between our look and our own try."""

        def exists(self, state: State | None, remote_file_name: str) -> bool:
            found = super().exists(state, remote_file_name)
            if not marker.exists():
                marker.parent.mkdir(parents=True)
                marker.write_text("another's")
            return found

    store = Second(tmp_path / "bucket", spool=tmp_path / "spool", config=CALLER)
    with Logger(State("job"), [RunFolderLogger(tmp_path / "{run_name}"), store]) as logger:
        logger.log_metrics({"loss": 1}, 0)
    assert "another's" == marker.read_text()
    assert [0] == steps_of(tmp_path / "bucket/job/attempt-2/metrics.jsonl")
    assert 0 == store.uploader.counts().failed


def test_media_of_a_step_that_an_earlier_process_uploaded_are_kept(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for n in (1, 2):
        destinations = [RunFolderLogger(tmp_path / f"m{n}/{{run_name}}"), FolderStore(store)]
        with Logger(State("job"), destinations) as logger:
            logger.log_images(np.full((4, 4, 3), n, np.uint8), "a", step=7)
    pictures = [store / "job" / folder / "media/images/a/7.png" for folder in ("", "attempt-2")]
    local = [tmp_path / f"m{n}/job/media/images/a/7.png" for n in (1, 2)]
    assert [path.read_bytes() for path in local] == [path.read_bytes() for path in pictures]


def test_a_store_that_is_down_at_first_is_asked_again_by_another_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store/job").mkdir(parents=True)
    (tmp_path / "store/job" / MARKER).write_text("another's")
    store = FolderStore(tmp_path / "store")
    store.is_down = True
    with Logger(
        State("job"), [RunFolderLogger(tmp_path / "{run_name}"), FileLogger(folder=tmp_path, config=QUIET), store]
    ) as log:
        log.log_text("a line")
        log.log_images(np.zeros((4, 4, 3), np.uint8), "a", step=0)
        assert store.was_asked.wait(TIMEOUT_S)
        assert {f"job/{MARKER}"} == store.names()
        store.is_down = False
    assert {"wherry-hand-over"} == store.asking_threads
    assert "another's" == (tmp_path / "store/job" / MARKER).read_text()
    expected = {
        MARKER,
        "attempt-2/environment.json",
        "attempt-2/text.jsonl",
        "attempt-2/media/images/a/0.png",
        "attempt-2/media/index.jsonl",
        f"attempt-2/{MARKER}",
        "logs-rank0.txt",
    }
    assert {f"job/{name}" for name in expected} == store.names()
    assert 1 == caplog.text.count("files wait until the store says what it has of this run")


def test_a_real_store_that_is_no_folder_at_first(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.write_text("in the way")
    store = ObjectStoreLogger(bucket, spool=tmp_path / "spool", config=CALLER, check=False)
    waiting = threading.Event()
    handler = EventHandler(waiting)
    logging.getLogger("wherry").addHandler(handler)
    try:
        with Logger(State("job"), [RunFolderLogger(tmp_path / "runs/{run_name}"), store]) as logger:
            logger.log_metrics({"loss": 1}, 0)
            assert waiting.wait(TIMEOUT_S)
            bucket.unlink()
            bucket.mkdir()
    finally:
        logging.getLogger("wherry").removeHandler(handler)
    assert [0] == steps_of(bucket / "job/metrics.jsonl")


class EventHandler(logging.Handler):
    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def emit(self, record: logging.LogRecord) -> None:
        if "files wait" in record.getMessage():
            self.event.set()


@pytest.mark.parametrize("make", [lambda root: RunNames("job", lambda: root), lambda root: FreeNames()], ids=["run", "file"])
def test_a_store_that_stays_down_gets_the_files_under_names_that_nobody_else_has(
    make: Callable[[Path], RunNames | FreeNames], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FolderStore(tmp_path / "store")
    store.is_down = True
    root = tmp_path / "run"
    root.mkdir()
    (root / "log.txt").write_text("x")
    finished = Handover(make(root), patience_s=0.1)
    finished.see(Logger(State("job"), [store]))
    finished.add([("log.txt", root / "log.txt")])
    assert store.was_asked.wait(TIMEOUT_S)
    finished.finish()
    (name,) = store.names()
    folder, _, file = name.rpartition("/")
    assert "log.txt" not in (name, f"{folder}/{file}".removeprefix("job/"))
    assert "x" == (store.folder / name).read_text()
    assert "did not say what it has of this run" in caplog.text
    if folder:
        assert folder.removeprefix("job/") == json.loads((root / MARKER).read_text())["attempt"]


def test_a_disk_that_takes_no_more_keeps_no_file_from_the_store(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    (tmp_path / ".tmp").write_text("nothing can be written to this folder")
    (tmp_path / "metrics.jsonl").write_text("{}")
    finished = Handover(RunNames("job", lambda: tmp_path), patience_s=0.1)
    finished.see(Logger(State("job"), [store]))
    finished.add([("metrics.jsonl", tmp_path / "metrics.jsonl")])
    finished.finish()
    (name,) = store.names()
    assert name.startswith("job/attempt-")
    assert name.endswith("/metrics.jsonl")


def test_a_run_that_goes_on_in_its_folder_needs_no_answer(tmp_path: Path) -> None:
    """Where the store is down until the end, it has its folder all the same."""
    bucket, root = tmp_path / "bucket", tmp_path / "m2/job"
    run_on(tmp_path / "m1", [bucket], range(5))
    run_on(tmp_path / "m2", [bucket], range(5))
    names = RunNames("{run_name}", lambda: root)
    store = ObjectStoreLogger(bucket, spool=tmp_path / "spool", config=CALLER)
    logger = Logger(State("job"), [store])
    bucket.rename(tmp_path / "away")
    bucket.write_text("in the way")
    with pytest.raises(StoreError):
        names.ask(logger)
    assert "{run_name}/attempt-2/metrics.jsonl" == names.aside(logger, "metrics.jsonl")
    store.post_close()


def test_a_run_goes_on_beside_the_first_on_a_real_server(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    uri, options = f"s3://{seaweedfs_server.bucket}/{uuid.uuid4().hex}", seaweedfs_server.options
    for machine in ("m1", "m2", "m1"):
        tell_spool(tmp_path / machine / "spool", seaweedfs_server)
        store = ObjectStoreLogger(uri, storage_options=options, spool=tmp_path / machine / "spool", config=CALLER)
        destinations = [RunFolderLogger(tmp_path / machine / "{run_name}"), FileLogger(folder=tmp_path / machine, config=QUIET)]
        with Logger(State("job"), [*destinations, store]) as logger:
            logger.log_metrics({"loss": 0.5}, 0)
    with ObjectStoreLogger(uri, storage_options=options, spool=tmp_path / "spool", config=CALLER) as store:
        names = {meta.key for meta in store.uploader.list()}
        store.download_file("job/metrics.jsonl", tmp_path / "metrics.jsonl", progress_bar=False)
    own = (MARKER, "environment.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json")
    files = {f"{folder}{name}" for folder in ("", "attempt-2/") for name in own}
    logs = {"environment-2.json", "logs-rank0.txt", "logs-rank0.0001.txt", "logs-rank0.0002.txt"}
    assert {f"job/{name}" for name in files | logs} == names
    assert [0, 0] == steps_of(tmp_path / "metrics.jsonl")


def test_a_store_that_refuses_us_fails_the_run_loudly_and_soon(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    options = {**seaweedfs_server.options, "aws_secret_access_key": "wrong-" * 6}
    store = ObjectStoreLogger(
        f"s3://{seaweedfs_server.bucket}", storage_options=options, spool=tmp_path / "spool", config=CALLER, check=False
    )
    logger = Logger(State("job"), [RunFolderLogger(tmp_path / "{run_name}"), store])
    logger.run_event(Event.INIT)
    logger.log_metrics({"loss": 0.5}, 0)
    begun_s = time.monotonic()
    with pytest.raises(UploadFailed, match=r"metrics\.jsonl"):
        logger.close()
    assert time.monotonic() - begun_s < PATIENCE_S


def test_a_program_that_never_closes_uploads_its_media(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers import Event, Logger, ObjectStoreLogger, RunFolderLogger, State
        store = ObjectStoreLogger(sys.argv[1] + "/bucket", spool=sys.argv[1] + "/spool")
        logger = Logger(State("job"), [RunFolderLogger(sys.argv[1] + "/{run_name}"), store])
        logger.run_event(Event.INIT)
        logger.log_images(np.zeros((4, 4, 3), np.uint8), "a", step=0)
    """
    with end_agent(tmp_path / "spool"):
        run_script(script, tmp_path)
    assert (tmp_path / "bucket/job/media/images/a/0.png").exists()


def test_event_files_of_two_processes_lie_side_by_side(tmp_path: Path) -> None:
    script = """
        import sys
        from wherry.loggers import Logger, ObjectStoreLogger, State, TensorBoardLogger
        store = ObjectStoreLogger(sys.argv[1] + "/bucket", spool=sys.argv[1] + "/spool")
        with Logger(State("job"), [TensorBoardLogger(sys.argv[1] + "/" + sys.argv[2]), store]) as logger:
            logger.log_metrics({"loss": 1.0}, 0)
    """
    with end_agent(tmp_path / "spool"):
        for machine in ("m1", "m2"):
            run_script(script, tmp_path, machine)
    assert 2 == len(list((tmp_path / "bucket/job/tb/rank0").iterdir()))


def test_log_files_that_roll_get_the_numbers_behind_those_in_the_store(tmp_path: Path) -> None:
    config = FileConfig(capture_stdout=False, capture_stderr=False, roll_size_bytes=1000)
    store = FolderStore(tmp_path / "store")
    for machine in ("m1", "m2"):
        with Logger(State("job"), [FileLogger("log.txt", folder=tmp_path / machine, config=config), store]) as logger:
            for step in range(40):
                logger.log_metrics({machine: float(step), "padding": 1.0}, step)
    n_local = [len(list((tmp_path / machine).iterdir())) for machine in ("m1", "m2")]
    assert min(n_local) > 1
    names = ["log.txt", *(f"log.{n:04d}.txt" for n in range(1, sum(n_local)))]
    assert sorted(names) == sorted(store.names())
    text = "".join((store.folder / name).read_text() for name in names)
    assert 40 == text.count('"m1"') == text.count('"m2"')
    assert text.rindex('"m1"') < text.index('"m2"')
