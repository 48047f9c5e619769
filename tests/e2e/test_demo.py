"""The demo: on a real server, as `make demo` runs it; as users run it, without torch; and on a store that spoils a byte."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from browser import local
from support import environment_with_tests, environment_without, without_waits

#: A local folder in which a byte of the third checkpoint changes after it was verified.
_ROTTING = """
from pathlib import Path
from wherry.backends.local.store import LocalStore
from wherry.uri import StoreURI

class RottingStore(LocalStore):
    def __init__(self, uri, options):
        super().__init__(StoreURI("file", ""), options)

    def put_file(self, key, path, *put):
        meta = super().put_file(key, path, *put)
        if key.endswith("ep003.pt"):
            stored = Path("/", key)
            data = bytearray(stored.read_bytes())
            data[len(data) // 2] ^= 1
            stored.write_bytes(data)
        return meta
"""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo's processes make their temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def without_extras(tmp_path: Path, temporary: Path) -> dict[str, str]:
    """The environment of a wheel that was installed without the development set."""
    return {**environment_without(tmp_path / "site", "torch", "sklearn"), "TMPDIR": str(temporary)}


def demo(*arguments: str, environment: Mapping[str, str], timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wherry.cli", "demo", *arguments]
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=timeout_s)


def left_behind(folder: Path) -> list[str]:
    """Files below the folder, and processes that know of it."""
    processes = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [str(path) for path in folder.iterdir()] + [line for line in processes if str(folder) in line]


def uploads_on_their_way(output: str) -> int:
    found = re.search(r"with (\d+) uploads?, [\d.]+ [KM]iB, on their way", output)
    assert found is not None, output
    return int(found[1])


@pytest.mark.extra  # it imports torch and scikit-learn several times
@pytest.mark.ci
def test_demo_loses_nothing_and_leaves_nothing_behind(temporary: Path) -> None:
    command = [sys.executable, "-m", "servers.demo"]
    environment = environment_with_tests({"TMPDIR": str(temporary)})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert (0, "") == (done.returncode, without_waits(done.stderr)), done.stdout
    assert "an S3 server (SeaweedFS" in done.stdout
    assert "a torch network on scikit-learn's digits" in done.stdout
    assert uploads_on_their_way(done.stdout) > 0
    assert "Nothing was lost." in done.stdout
    assert [] == left_behind(temporary)


def test_demo_without_the_development_set(without_extras: dict[str, str], temporary: Path) -> None:
    done = demo(environment=without_extras)
    assert (0, "") == (done.returncode, without_waits(done.stderr)), done.stdout
    assert "Destination: a local folder" in done.stdout
    assert "in plain Python" in done.stdout
    assert uploads_on_their_way(done.stdout) > 0
    assert "Nothing was lost." in done.stdout
    assert [] == left_behind(temporary)


@pytest.mark.slow
def test_demo_removes_its_objects_from_a_store_that_was_given(without_extras: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "mine").write_text("not the demo's")
    done = demo("--uri", str(tmp_path / "bucket"), environment=without_extras)
    assert (0, "") == (done.returncode, without_waits(done.stderr)), done.stdout
    assert ["mine"] == [path.name for path in (tmp_path / "bucket").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_demo_keeps_everything_on_request(without_extras: dict[str, str], tmp_path: Path, temporary: Path) -> None:
    done = demo("--uri", str(tmp_path / "bucket"), "--keep", environment=without_extras)
    assert (0, "") == (done.returncode, without_waits(done.stderr)), done.stdout
    (kept,) = temporary.iterdir()
    assert f"Everything is kept in {kept}" in done.stdout
    assert len(list((tmp_path / "bucket").rglob("ep*.pt"))) == 10


@pytest.mark.slow
def test_demo_ends_in_the_page_of_its_own_run(without_extras: dict[str, str], temporary: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wherry.cli", "demo", "--ui", "--no-open"]
    environment = {**without_extras, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            address = next(
                found[1] for line in process.stdout if (found := re.match(r"(http://127\.0\.0\.1:\d+/run\?id=run) ", line))
            )
            with local.open(address, timeout=60) as answer:
                page = answer.read().decode()
            assert "complete to step 10" in page
            assert 'data-key="accuracy"' in page
            process.send_signal(signal.SIGINT)
            assert "ended" in process.stdout.read()
        finally:
            process.kill()
    assert 0 == process.returncode, process.stderr
    assert [] == left_behind(temporary)


@pytest.mark.slow
def test_demo_fails_when_a_byte_differs(without_extras: dict[str, str], tmp_path: Path, temporary: Path) -> None:
    site = tmp_path / "site"
    info = site / "rotting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rotting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wherry.backends]\nrotting = rotting_store:RottingStore\n")
    (site / "rotting_store.py").write_text(_ROTTING)
    done = demo("--uri", f"rotting://x{tmp_path}/bucket", environment=without_extras)
    assert 1 == done.returncode, done.stdout + done.stderr
    assert "ep003.pt differs from the file that was handed over" in done.stdout
    assert "Nothing was lost." not in done.stdout
    assert [] == left_behind(temporary)
