"""Real servers as child processes: they are ready when they say so, and never outlive the test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from servers import real as servers
from servers.real import ServerError, fake_gcs, fast_folder
from support import environment_with_tests, run_script
from wherry.errors import ConfigError

#: Starts a server in the folder it is told, says so, and then waits for its end.
PROGRAM = """
import sys
from pathlib import Path
from servers.real import fake_gcs
with fake_gcs(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
WAIT_S = 60


@pytest.fixture
def starter(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that has a server running."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    return subprocess.Popen(command, env=environment_with_tests(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def guard_and_server(starter: subprocess.Popen[str]) -> list[psutil.Process]:
    assert starter.stdout is not None
    assert "http://127.0.0.1" in starter.stdout.readline()
    found: list[psutil.Process] = psutil.Process(starter.pid).children(recursive=True)
    assert len(found) == 2
    return found


@pytest.mark.parametrize("victim", ["starter", "guard"])
def test_killed_process_takes_its_server_along(starter: subprocess.Popen[str], victim: str) -> None:
    with starter:
        guard, server = guard_and_server(starter)
        os.kill(starter.pid if victim == "starter" else guard.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs([server], timeout=WAIT_S)
        assert alive == []
        assert starter.stdin is not None
        starter.stdin.close()
        starter.wait(WAIT_S)


def test_interrupted_process_ends_its_server(starter: subprocess.Popen[str]) -> None:
    with starter:
        processes = guard_and_server(starter)
        starter.send_signal(signal.SIGINT)
        starter.wait(WAIT_S)
        _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
        assert alive == []


def test_left_server_has_ended_when_the_block_is_left() -> None:
    with fast_folder() as folder:
        with fake_gcs(folder):
            processes = psutil.Process().children(recursive=True)
            started = [process for process in processes if str(folder) in " ".join(process.cmdline())]
            assert len(started) == 2
        assert not any(process.is_running() for process in started)
    assert not folder.exists()


def test_no_secret_is_on_a_command_line(seaweedfs_server: servers.S3Server, juicefs_server: servers.S3Server) -> None:
    lines = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert any("weed" in line for line in lines)
    for server in (seaweedfs_server, juicefs_server):
        assert not any(server.secret_key in line for line in lines)
        assert server.secret_key not in repr(server)
        assert oct(server.log.parent.stat().st_mode)[-3:] == "700"


def test_folder_of_a_killed_process_is_removed_by_the_next_and_no_other_is() -> None:
    program = "import os; from servers.real import fast_folder\nwith fast_folder() as f: print(f, flush=True); os._exit(0)"
    abandoned = Path(run_script(program).strip())
    with fast_folder() as held:
        assert abandoned.exists()  # too young to be judged
        for folder in (abandoned, held):
            os.utime(folder, (0, 0))
        with fast_folder():
            assert not abandoned.exists()
            assert held.exists()


def test_missing_program_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="pip install no-such-server"):
        servers._program("no-such-server", "no-such-program")


def test_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = servers._Command([sys.executable, "-c", "import sys; sys.exit('the reason why')"])
    with (
        pytest.raises(ServerError, match="the reason why"),
        servers._running(lambda ports: command, 1, tmp_path, tmp_path / "log", lambda ports: False),
    ):
        raise AssertionError("it was taken for ready")


def test_taken_port_is_tried_again_with_another(tmp_path: Path) -> None:
    """A server that finds its port taken is started once more; the second time this one stays."""
    program = (
        "import sys, time, pathlib; mark = pathlib.Path('mark')\n"
        "if not mark.exists(): mark.touch(); sys.exit('bind: address already in use')\n"
        "pathlib.Path('ready').touch(); time.sleep(600)"
    )
    command = servers._Command([sys.executable, "-c", program])
    with servers._running(lambda _: command, 1, tmp_path, tmp_path / "log", lambda _: (tmp_path / "ready").exists()) as ports:
        assert len(ports) == 1
