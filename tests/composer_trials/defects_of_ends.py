"""Run by tests/extra/test_composer_cases.py, as defects.py: what becomes of the queue when a program ends in some way.

| row of docs/from-composer.md | test |
| --- | --- |
| 3 | test_3_a_script_that_closes_nothing_loses_nothing |
| 4 | test_4_sigterm_to_the_group_drops_nothing |
| 5 | test_5_sigkill_loses_nothing_and_leaves_nobody |
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from composer_trials.sides import BUCKET, Gate, Side, side
from programs import Program
from servers.proxy import Do, When
from support import agent_gone, environment_with_tests, wait_until

WITHOUT_A_TRAINER = """
    log.init(SimpleNamespace(run_name="my-run", timestamp=SimpleNamespace()), None)
    for name in sys.argv[3:]:
        log.upload_file(None, name, __file__, overwrite=False)
"""
IN_A_TRAINER = """
    run = trainer(log)
    for name in sys.argv[3:]:
        run.logger.upload_file(name, __file__)
    Path("second").write_text("second")
    print("handed over", flush=True)
    sys.stdin.readline()
    run.logger.upload_file(sys.argv[3], "second", overwrite=True)
    print("and a second version", flush=True)
    signal.pause()
"""
HEAD = """
import json, signal, sys
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":
    from composer_trials.parts import trainer
    from MODULE import RemoteUploaderDownloader

    log = RemoteUploaderDownloader(*json.loads(sys.argv[1]))
"""
MODULES = {"theirs": "composer.loggers", "ours": "wherry.integrations.composer"}
NAMES = ["latest", "a", "b", "c", "d"]


@contextmanager
def program(name: str, one: Side, text: str) -> Iterator[Program[str]]:
    """A user's program, in a process group of its own; Composer's worker is a process, as it is by default."""
    script = one.folder / "script.py"
    script.write_text(HEAD.replace("MODULE", MODULES[name]) + text)
    arguments = json.dumps([f"s3://{BUCKET}", one.backend_kwargs, "{remote_file_name}", 1, str(one.spool)])
    with Program(
        [sys.executable, str(script), arguments, "--", *NAMES],
        cwd=one.folder,
        env=environment_with_tests(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        yield running


@pytest.mark.parametrize("name", MODULES)
def test_3_a_script_that_closes_nothing_loses_nothing(name: str, tmp_path: Path) -> None:
    with side(name, tmp_path) as one:
        with program(name, one, WITHOUT_A_TRAINER) as running:
            assert 0 == running.wait(timeout=100.0)
        assert ([] if name == "theirs" else sorted(NAMES)) == sorted(one.stored())


@contextmanager
def under_way(name: str, folder: Path) -> Iterator[tuple[Side, Program[str], Gate]]:
    """A Trainer whose first upload, of "latest", is held back; four other files and a second version of it are in the queue."""
    gate = Gate()
    with side(name, folder, When("PUT", "/latest$", Do(gate.hold))) as one, program(name, one, IN_A_TRAINER) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert "handed over\n" == running.stdout.readline()
        assert gate.reached.wait(100.0)
        running.stdin.write("\n")
        running.stdin.flush()
        assert "and a second version\n" == running.stdout.readline()
        yield one, running, gate


@pytest.mark.parametrize("name", MODULES)
def test_4_sigterm_to_the_group_drops_nothing(name: str, tmp_path: Path) -> None:
    with under_way(name, tmp_path) as (one, running, gate):
        os.killpg(running.pid, signal.SIGTERM)
        if name == "theirs":
            running.wait(timeout=100.0)
            gate.opened.set()
            assert not {"a", "b", "c", "d"} & one.stored().keys()
        else:
            gate.opened.set()
            running.wait(timeout=100.0)
            assert sorted(NAMES) == sorted(one.stored())
            assert "second" == one.stored()["latest"]


@pytest.mark.parametrize("name", MODULES)
def test_5_sigkill_loses_nothing_and_leaves_nobody(name: str, tmp_path: Path) -> None:
    with under_way(name, tmp_path) as (one, running, gate):
        children = psutil.Process(running.pid).children(recursive=True)
        workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
        running.kill()
        running.wait(timeout=100.0)
        gate.opened.set()
        wait_until(lambda: sorted(NAMES) == sorted(one.stored()), what="the pipe of Composer's worker, or our journal")
        if name == "theirs":
            (worker,) = workers
            with pytest.raises(psutil.TimeoutExpired):
                worker.wait(3.0)
            assert "second" != one.stored()["latest"]
            assert ["second"] == [path.read_text() for path in one.spool.iterdir()]
            worker.kill()
        else:
            wait_until(lambda: "second" == one.stored()["latest"])
            wait_until(lambda: agent_gone(one.spool), what="the agent to leave")
