"""Alerts: who shows them, and a webhook that gets them over real HTTP and TLS without its URL being told to anybody."""

from __future__ import annotations

import io
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from servers.tls import make_certificates
from support import wait_until
from wherry.errors import ConfigError
from wherry.loggers import (
    ConsoleConfig,
    ConsoleLogger,
    FileConfig,
    FileLogger,
    Logger,
    RunFolderLogger,
    State,
    WebhookConfig,
    WebhookLogger,
)

SECRET = "T0Ken-of-the-webhook"
HASTY = WebhookConfig(timeout_s=5.0, wait_s=0.0)


class Hook:
    """A webhook on a free port of this machine, which answers with `statuses`, then with 204."""

    def __init__(self, statuses: list[int], context: ssl.SSLContext | None = None) -> None:
        self.posts: list[dict[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        hook, left = self, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.posts.append(body | {"path": self.path, "type": self.headers["Content-Type"]})
                hook.gate.wait(60)
                self.send_response(left.pop(0) if left else 204)
                self.send_header("Location", f"{hook.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                hook.posts.append({"path": self.path})

            def log_message(self, *args: object) -> None:
                """Nothing on stderr."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                """A client that refuses the certificate hangs up."""

        self.server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.server.server_port}/{SECRET}"


@contextmanager
def hook(*statuses: int, context: ssl.SSLContext | None = None) -> Iterator[Hook]:
    made = Hook(list(statuses), context)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "wherry"]


def test_an_alert_reaches_console_file_and_webhook_and_nobody_else(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = ConsoleLogger(stream, config=ConsoleConfig(force=True))
    file = FileLogger("log.txt", folder=tmp_path, config=FileConfig(capture_stdout=False, capture_stderr=False))
    with (
        hook() as made,
        Logger(State("run-7"), [console, file, RunFolderLogger(tmp_path / "run"), WebhookLogger(made.url)]) as log,
    ):
        log.alert("loss is NaN", "at step 5\nlr \x1b[1m0.1", "error")
        log.alert("done", level="INFO")
    assert "ERROR: loss is NaN\n" in stream.getvalue()
    assert "\x1b[1m0.1" not in stream.getvalue()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    expected = [
        "[alert][ERROR]: loss is NaN",
        "[alert][ERROR]: at step 5",
        "[alert][ERROR]: lr \\x1b[1m0.1",
        "[alert][INFO]: done",
    ]
    assert expected == [line for line in lines if "[alert]" in line]
    first, second = made.posts
    assert {"title": "loss is NaN", "text": "at step 5\nlr \x1b[1m0.1", "level": "ERROR"}.items() <= first.items()
    assert {"run": "run-7", "rank": 0, "type": "application/json", "path": f"/{SECRET}"}.items() <= first.items()
    assert {"title": "done", "text": "", "level": "INFO"}.items() <= second.items()


def test_every_rank_alerts() -> None:
    with hook() as made, Logger(State("run", rank=3, world_size=4), [WebhookLogger(made.url)]) as log:
        log.alert("rank is lost")
    assert [3] == [post["rank"] for post in made.posts]


@pytest.mark.parametrize("level", ["", "LOUD", None])
def test_an_unknown_level_is_refused(level: Any) -> None:
    with pytest.raises(ConfigError, match="INFO, WARN, ERROR"):
        Logger(State("run")).alert("title", level=level)


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with hook() as made:
        monkeypatch.setenv("WHERRY_ALERT_URL", made.url)
        with Logger(State("run"), WebhookLogger()) as log:
            log.alert("title")
    assert 1 == len(made.posts)


def test_an_error_that_may_pass_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with hook(503, 429) as made, Logger(State("run"), WebhookLogger(made.url, config=HASTY)) as log:
        log.alert("title")
        wait_until(lambda: len(made.posts) == 3)
    assert [] == warnings(caplog)


@pytest.mark.parametrize(("statuses", "n_posts"), [([404], 1), ([503] * 9, 3), ([302], 1)])
def test_a_failure_is_said_once_and_never_with_the_url(
    statuses: list[int], n_posts: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), hook(*statuses, *statuses) as made:
        webhook = WebhookLogger(made.url, config=HASTY)
        with Logger(State("run"), webhook) as log:
            log.alert("first")
            wait_until(lambda: len(made.posts) == n_posts)
            log.alert("second")
            wait_until(lambda: len(made.posts) == 2 * n_posts)
    (said,) = warnings(caplog)
    assert "'first'" in said
    assert str(statuses[0]) in said
    assert SECRET not in caplog.text + repr(webhook) + repr(vars(log))
    assert {f"/{SECRET}"} == {post["path"] for post in made.posts}


def test_a_server_that_hangs_stops_neither_the_training_nor_the_close(caplog: pytest.LogCaptureFixture) -> None:
    with hook() as made:
        made.gate.clear()
        config = WebhookConfig(timeout_s=0.2, n_tries=2, wait_s=60.0, most_waiting=5)
        with Logger(State("run"), WebhookLogger(made.url, config=config)) as log:
            for i in range(20):
                log.alert(f"alert {i}")
        made.gate.set()
    assert 1 == len(made.posts)
    assert 1 == sum("further ones are dropped" in text for text in warnings(caplog))
    assert 1 == sum("was not taken" in text for text in warnings(caplog))


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    certificates = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.chain, certificates.key)
    return context, certificates.authority


def test_a_certificate_that_is_trusted_is_taken(tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    with hook(context=tls[0]) as made, Logger(State("run"), WebhookLogger(made.url, config=HASTY)) as log:
        log.alert("title")
    assert 1 == len(made.posts)


def test_a_certificate_that_is_not_trusted_gets_nothing(
    tls: tuple[ssl.SSLContext, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with hook(context=tls[0]) as made, Logger(State("run"), WebhookLogger(made.url, config=HASTY)) as log:
        log.alert("title")
    assert [] == made.posts
    (said,) = warnings(caplog)
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "url",
    ["", f"http://example.com/{SECRET}", f"ftp://localhost/{SECRET}", SECRET, f"https://[{SECRET}", f"https://h:99999/{SECRET}"],
)
def test_a_url_that_would_not_do_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="WHERRY_ALERT_URL") as caught:
        WebhookLogger(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_alert_after_the_close_is_a_clear_error() -> None:
    webhook = WebhookLogger("https://localhost/x")
    webhook.close()
    webhook.close()
    with pytest.raises(RuntimeError, match="closed"):
        webhook.alert("title")
