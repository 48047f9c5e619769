"""`wherry ui` from its start to its end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import local
from servers.web_page import log_of, page_of
from support import environment_with_tests
from wherry.errors import ConfigError
from wherry.web import uplot
from wherry.web.server import DEFAULT_PORT, bound_socket


@contextmanager
def command(*arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    env = {**environment_with_tests(), "PYTHONUNBUFFERED": "1", **more}
    words = [sys.executable, "-m", "wherry.cli", "ui", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    return tmp_path


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_answers_and_ends_cleanly(folder: Path, way: signal.Signals) -> None:
    with command(str(folder), "--no-open", "--port", "0") as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+/) ", said)
        assert found, said
        with local.open(found[1], timeout=60) as answer:
            assert b'<tr data-id="run"' in answer.read()
        process.send_signal(way)
        out, err = process.communicate(timeout=60)
    assert "" == err if uplot.is_there() else "make ui-assets" in err
    if way is signal.SIGINT:
        assert (0, "ended\n") == (process.returncode, out)
    else:
        assert -way == process.returncode


def test_another_address_prints_a_token_that_works(folder: Path) -> None:
    with command(str(folder), "--no-open", "--port", "0", "--host", "0.0.0.0") as process:  # noqa: S104
        assert process.stdout is not None
        found = re.match(r"http://[^/]+:(\d+)/\?token=(\S{32})", process.stdout.readline())
        assert found
        address = f"http://127.0.0.1:{found[1]}/"
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        with browser.open(f"{address}?token={found[2]}", timeout=60) as answer:
            assert (200, address) == (answer.status, answer.url)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/no/such/folder"], "there is no such folder"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
        (["s3:/bucket"], "s3://bucket"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(folder: Path, arguments: list[str], expected: str) -> None:
    with command(*arguments, "--no-open") as process:
        _, err = process.communicate(timeout=60)
    assert (3 if "folder" in expected else 2, True, False) == (process.returncode, expected in err, "Traceback" in err)


def test_a_port_in_use_is_an_error_that_says_so(folder: Path) -> None:
    with page_of(folder) as page:
        port = page.server.address.port
        with pytest.raises(ConfigError, match=rf"port {port}: Address already in use; give another --port"):
            bound_socket("127.0.0.1", port)


def test_the_next_free_port_is_taken_where_none_is_asked_for() -> None:
    with bound_socket("127.0.0.1", None) as one, bound_socket("127.0.0.1", None) as other:
        ports = [one.getsockname()[1], other.getsockname()[1]]
    assert DEFAULT_PORT <= ports[0] < ports[1]


def test_a_missing_extra_is_named(folder: Path) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from wherry.cli import main; sys.argv = ['wherry', 'ui', '.']; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (2, True) == (done.returncode, "pip install 'wherry[ui]'" in done.stderr)


def test_curves_that_cannot_be_drawn_are_said(tmp_path: Path) -> None:
    (tmp_path / "uPlot.iife.min.js").touch()
    assert not uplot.is_there(tmp_path)
    (tmp_path / "uPlot.min.css").touch()
    assert uplot.is_there(tmp_path)
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        text = page.get("/run?id=run").text
    assert uplot.is_there() != ("make ui-assets" in text)


def test_a_notebook_shows_the_page_in_a_frame(folder: Path) -> None:
    program = (
        "import sys, urllib.request, wherry\n"
        "frame = wherry.ui(sys.argv[1])\n"
        "assert wherry.ui(sys.argv[1]).src == frame.src\n"
        "print(frame.src, b'runs' in urllib.request.build_opener(urllib.request.ProxyHandler({})).open(frame.src).read())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60)
    assert (0, True) == (done.returncode, done.stdout.endswith("/ True\n")), done.stderr


def test_no_port_is_left_open(folder: Path) -> None:
    with page_of(folder) as page:
        port = page.server.address.port
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
