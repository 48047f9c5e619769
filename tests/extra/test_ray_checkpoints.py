"""run_config() with the real Ray Train: two workers, on a folder and on an S3 server, killed and started again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import wherry
from docs_programs import program
from gate import wait_until
from programs import Program
from servers.real import S3Server
from support import end_agent

pytestmark = [pytest.mark.extra, pytest.mark.timeout(680)]  # it starts Ray twice

#: In the environment of every process that Ray starts here.
MARK = "WHERRY_TEST_OF_RAY"
START = """
import os, signal, sys, threading, time, ray

def end_with_the_test(parent=os.getppid()):
    while os.getppid() == parent:  # nobody tells a process that its parent is gone
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)  # Ray's processes end when this one is gone

threading.Thread(target=end_with_the_test, daemon=True).start()
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=sys.argv[1])
for script in sys.argv[2:]:
    print("fits", script, flush=True)
    exec(compile(open(script).read(), script, "exec"), {"__name__": "__main__"})
ray.shutdown()
"""


class RayPrograms:
    """Runs the page's program in Ray's processes; all of them have a mark, by which they are found."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        # Ray's sockets lie here, and their names may have no more than 107 characters.
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        ours: dict[str, str] = {
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        }
        self.environment = {**os.environ, **environment, **ours, MARK: self.mark, "OMP_NUM_THREADS": "1"}

    def script(self, name: str, bucket: str) -> str:
        """The page's program, for another bucket."""
        path = self.folder / f"{name}.py"
        path.write_text(program("ray", page="checkpoints").replace("s3://my-bucket", bucket))
        return str(path)

    def start(self, log: Path, *scripts: str) -> Program[str]:
        arguments = [sys.executable, "-c", START, self.temporary, *scripts]
        with open(log, "w") as output:
            return Program(arguments, cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT, text=True)

    def processes(self, name: str = "") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and name in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill all of Ray, the program among it, as when a machine is lost; but not the agent, which is of the spool."""
        while found := [one for one in self.processes() if "wherry.agent" not in " ".join(one.cmdline())]:
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(found, timeout=5)


@pytest.fixture
def ray(tmp_path: Path, seaweedfs_server: S3Server) -> Iterator[RayPrograms]:
    variables = {
        "AWS_ENDPOINT_URL": seaweedfs_server.url,
        "AWS_ACCESS_KEY_ID": seaweedfs_server.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key,
        "AWS_REGION": "us-east-1",
        "WHERRY_SPOOL": str(tmp_path / "spool"),
    }
    with end_agent(tmp_path / "spool"):
        programs = RayPrograms(tmp_path, variables)
        try:
            yield programs
        finally:
            programs.kill()
            shutil.rmtree(programs.temporary, ignore_errors=True)


def steps(checkpoints: wherry.Checkpoints) -> list[int]:
    return [one.step for one in checkpoints.list()]


def began_at(log: str, script: str) -> list[int]:
    """Where each start of rank 0 or 1 began: the steps that do not follow another of the same process."""
    text = log.partition(f"fits {script}")[2].partition("\nfits ")[0]
    last: dict[str, int] = {}
    found = []
    for pid, step in re.findall(r"RayTrainWorker pid=(\d+)\)\S* step (\d+)", text):
        if pid not in last:
            found.append(int(step))
        last[pid] = int(step)
    return found


def test_a_killed_worker_and_a_killed_cluster_resume_from_the_bucket(ray: RayPrograms, seaweedfs_server: S3Server) -> None:
    here, there = str(ray.folder / "bucket"), f"s3://{seaweedfs_server.bucket}/{uuid.uuid4().hex[:8]}"
    spool = ray.folder / "spool-of-the-test"
    in_folder = wherry.Checkpoints(here, "my-run", spool=spool)
    in_bucket = wherry.Checkpoints(there, "my-run", spool=spool, storage_options=seaweedfs_server.options)
    local, remote = ray.script("local", here), ray.script("remote", there)
    log = ray.folder / "first.log"
    with end_agent(spool), in_folder, in_bucket:
        with ray.start(log, local, remote) as process:

            def has_sets(checkpoints: wherry.Checkpoints) -> bool:
                assert process.poll() is None, log.read_text()
                time.sleep(0.3)  # Ray needs the processors; a set takes it seconds
                return any(name.step >= 2 for name in checkpoints.catalog.names())

            wait_until(lambda: has_sets(in_folder), 300, what="a set in the folder")
            ray.processes("RayTrainWorker")[0].send_signal(signal.SIGKILL)
            wait_until(lambda: has_sets(in_bucket), 300, what="a set in the bucket")
            ray.kill()
            process.wait()
        said = log.read_text()
        assert f"result {here}/my-run/checkpoint_000006 [5, 6]" in said, said
        first, second, *again = began_at(said, local)
        assert (1, 1) == (first, second)
        assert again, said
        assert all(step > 1 for step in again), said

        left = steps(in_bucket)
        log = ray.folder / "second.log"
        with ray.start(log, remote) as process:
            wait_until(lambda: process.poll() is not None, 300, what="the second start to end")
        said = log.read_text()
        assert 0 == process.returncode, said
        (resumed,) = set(began_at(said, remote))
        assert resumed > max(left), said
        assert f"result {there.removeprefix('s3://')}/my-run/checkpoint_000006" in said, said
        assert [5, 6] == steps(in_bucket)[-2:]
    wait_until(lambda: not ray.processes("raylet"), 60, what="Ray to end")
