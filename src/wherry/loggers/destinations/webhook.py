"""WebhookLogger: alerts of a run, posted as JSON to a URL."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.files.background import Background
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State
from wherry.loggers.values.checks import check_amounts, check_counts
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock, call_in_children
from wherry.redact import redact, register_secret

VARIABLE = "WHERRY_ALERT_URL"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
#: Answers after which the same request may succeed.
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class WebhookConfig:
    """How a WebhookLogger works. ConfigError for values that make no sense."""

    #: How long one request may wait for the server.
    timeout_s: float = 10.0
    #: An alert is given up after so many requests.
    n_tries: int = 3
    #: Between the first two requests; then twice as long each time. The close does not wait for it.
    wait_s: float = 1.0
    #: So many alerts may wait, as a server that hangs must not fill the memory. Further ones are dropped.
    most_waiting: int = 100

    def __post_init__(self) -> None:
        check_amounts(self, "timeout_s")
        check_amounts(self, "wait_s", may_be_zero=True)
        check_counts(self, 1, "n_tries", "most_waiting")


class WebhookLogger(LoggerDestination):
    """Posts each alert of a run (`Logger.alert`) to `url`, by default that in the environment variable ``WHERRY_ALERT_URL``::

        logger = Logger(State(), [RunFolderLogger("runs/{run_name}"), WebhookLogger()])
        logger.alert("loss is NaN", f"at step {step}", "ERROR")

    The body is a JSON object: ``title``, ``text``, ``level``, ``run``, ``rank``, ``host`` and ``t`` (s since 1970). Any 2xx
    answer is success. Every rank posts its alerts; nothing else that is logged is sent.

    The URL of a webhook is a secret: it is in no message, no log and no repr. It has to be https, with a certificate that is
    verified; http is taken for this machine only. Redirects are not followed. A thread posts, so alert() does not wait. What
    fails is tried again, and reported once in the log "wherry". The close waits for the alerts that wait, with one request for
    each, and with none once one has failed. ConfigError for no URL or a bad one.
    """

    rank_zero_only = False

    def __init__(
        self, url: str | None = None, *, config: WebhookConfig | None = None, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        url = os.environ.get(VARIABLE, "") if url is None else url
        register_secret(url)
        _check(url)
        self._post = partial(_post, url)
        self._config = config or WebhookConfig()
        self._now = now
        self._state: State | None = None
        self._queue = Background("webhook")
        self._lock = ChildLock()
        self._closing = threading.Event()
        self._has_failed = False
        self._warnings = WarnOnce()
        self._n_waiting = 0
        call_in_children(self, WebhookLogger._start_afresh)

    def __repr__(self) -> str:
        return f"<WebhookLogger{' closed' if self._closing.is_set() else ''}>"

    def is_ready(self, state: State) -> bool:
        """Take the state, which names the run; True."""
        self._state = state
        return True

    def alert(self, title: str, text: str = "", level: str = "WARN") -> None:
        """Post it, in the background. RuntimeError after the close."""
        if self._closing.is_set():
            raise RuntimeError("this WebhookLogger is closed: make a new one to go on")
        state = self._state
        message: dict[str, object] = {"title": title, "text": text, "level": level, "t": self._now()}
        message |= {"run": state.run_name, "rank": state.rank} if state else {}
        with self._lock:
            if self._n_waiting >= self._config.most_waiting:
                text = f"WebhookLogger: {self._n_waiting} alerts wait to be posted, and further ones are dropped"
                self._warnings.once("full", text)
                return
            self._n_waiting += 1
        self._queue.submit(partial(self._send, {**message, "host": socket.gethostname()}))

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Return when the alerts that wait were posted or have failed. Closing again does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.close()

    def _start_afresh(self) -> None:
        """In a forked child, whose queue is empty."""
        self._n_waiting = 0

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            if not (self._has_failed and self._closing.is_set()):
                self._try(message)
        finally:
            with self._lock:
                self._n_waiting -= 1

    def _try(self, message: Mapping[str, object]) -> None:
        """Post it, again after errors that may pass. Report what fails for good, once."""
        config, wait_s = self._config, self._config.wait_s
        for n_left in reversed(range(config.n_tries)):
            error = self._post(message, config.timeout_s)
            if error is None:
                return
            if not n_left or not _may_pass(error) or self._closing.wait(wait_s):
                self._has_failed = True
                text = f"WebhookLogger: the alert {message['title']!r} was not taken by the webhook, and others may not be: "
                self._warnings.once("failed", redact(f"{text}{error}"))
                return
            wait_s *= 2


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that leads elsewhere is an error: it may lead to a host that nobody has named."""

    def redirect_request(self, *request: object) -> None:
        return None


def _check(url: str) -> None:
    """ConfigError, without the URL, unless it is https, or http to this machine."""
    rule = f"WebhookLogger needs the URL of a webhook, https://..., in its first argument or in {VARIABLE}"
    if not url:
        raise ConfigError(f"{rule}: there is none")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{rule}: what is there is no URL") from None  # its text has the URL
    if not host or parts.scheme not in {"https", "http"} or any(ord(char) <= ord(" ") for char in url):
        raise ConfigError(f"{rule}: what is there is no such URL")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise ConfigError(f"{rule}: http, which anybody on the way can read, is taken for this machine only")


def _post(url: str, message: Mapping[str, object], timeout_s: float) -> Exception | None:
    """One request, with the certificate verified. The error, if there is one; never raises."""
    body = json.dumps(message).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "wherry"}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310  # _check() takes http and https only
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return error
    except (OSError, http.client.HTTPException) as error:
        return error


def _may_pass(error: Exception) -> bool:
    return error.code in _TRY_AGAIN if isinstance(error, urllib.error.HTTPError) else True
