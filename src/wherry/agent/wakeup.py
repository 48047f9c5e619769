"""Wakeups: datagram sockets in the spool. A message wakes the process that waits there; all facts are in
the journal.

The one thing that a message carries is what must never be written to disk: the secrets of a store, from a session to
the agent. The spool is private to its user, and so are the sockets in it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from wherry.errors import SpoolError

log = logging.getLogger("wherry")

#: sun_path of unix(7) takes 107 bytes.
_LONGEST_PATH_BYTES = 100
#: Ids of stores and jobs; SQLite knows numbers of 63 bits.
_ID = re.compile(r"[0-9]{1,18}")
#: Secrets of one message must fit one datagram; the largest key file of a service account has some 3 kB.
_LARGEST_MESSAGE_BYTES = 100_000
#: A session hands its secrets to the same listener again after this time.
_HAND_OVER_AGAIN_S = 1.0


def _address(path: Path | str) -> str:
    """The name of a socket, if it fits unix(7). Where there is /proc it does: see `SpoolFolder.inside`."""
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise SpoolError(f"the path of the spool {os.path.dirname(path)} is too long for a socket: use a shorter one")
    return str(path)


class Listener:
    """The listening end. Used by one process; close() removes its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_warned = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        os.fchmod(self._socket.fileno(), 0o600)  # bind() gives this mode to the name, at once, whatever the umask is
        path.unlink(missing_ok=True)  # a dead listener's
        self._socket.bind(_address(path))

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message, at most `timeout_s`, and drop all that came. Whether there was one."""
        poll = select.poll()  # select() takes no descriptor above 1,023, and a training process may have more files open
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, timeout_s) * 1000):
            return False
        self.receive()
        return True

    def receive(self) -> list[dict[str, object]]:
        """Take all messages that came, without waiting: what notify() may send, and nothing else.

        Any process of the user can write to the socket. A message that is not ours wakes the listener, and is passed over.
        """
        carried: list[dict[str, object]] = []
        with suppress(BlockingIOError):
            while True:
                data = self._socket.recv(_LARGEST_MESSAGE_BYTES)
                if data and (message := _message(data)) is not None:
                    carried.append(message)
                elif data and not self._has_warned:  # once: whoever sends garbage may send much of it
                    self._has_warned = True
                    log.warning("%s got %d bytes that no wherry sends: they are passed over", self.path, len(data))
        return carried

    def close(self) -> None:
        """Stop listening."""
        self.path.unlink(missing_ok=True)
        self._socket.close()

    def close_inherited(self) -> None:
        """In a forked child: let go of the parent's socket, leave its name."""
        self._socket.close()


def _message(data: bytes) -> dict[str, object] | None:
    """{"secrets": {store id as text: options}, "warm": [store ids], "let_go": [job ids]}, all optional; None for all else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found or set(found) - {"secrets", "warm", "let_go"}:
        return None
    secrets, warm, let_go = found.get("secrets", {}), found.get("warm", []), found.get("let_go", [])
    if not isinstance(secrets, dict) or not isinstance(warm, list) or not isinstance(let_go, list):
        return None
    are_secrets = all(_ID.fullmatch(store_id) and isinstance(options, dict) for store_id, options in secrets.items())
    are_ids = all(type(number) is int and _ID.fullmatch(str(number)) for number in (*warm, *let_go))
    return found if are_secrets and are_ids else None


class Notifier:
    """Wakes a listener and hands it secrets: with the first call, then at most once a second.

    Not with each call, as they make a message that must wait for room; again, as another session may have replaced them.

    It keeps no socket open between calls: a program that becomes a daemon closes all descriptors, and the number of ours
    would soon name a file of its own. Threads may share it; at worst a listener gets the same secrets twice.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: The listener that got the secrets, when, and which.
        self._delivered: tuple[tuple[int, int] | None, float, object] = (None, 0.0, None)
        #: The listener whose queue stayed full: it is not waited for again.
        self._full: tuple[int, int] | None = None

    def notify(
        self,
        path: str,
        secrets: Mapping[str, Mapping[str, object]],
        carried: Mapping[str, object],
        *,
        patience_s: float = 5.0,
    ) -> bool:
        """Wake the listener.

        Args:
            path: The listener's socket.
            secrets: The secret options of each store by its id; may be empty.
            carried: What else this message carries.
            patience_s: Seconds to wait for room in a full queue, once a listener, if there are secrets to hand over.

        Returns:
            False if no process listens.

        Raises:
            SpoolError: The message is too large for a datagram.
        """
        while True:
            listener = _identity(path)
            is_due = bool(secrets) and self._is_due(listener, secrets)
            message = {**carried, "secrets": secrets} if is_due else carried
            try:
                _send(path, message, patience_s if is_due and listener != self._full else 0.0)
            except BlockingIOError:
                if is_due:
                    self._full = listener  # the next call hands them over
                return True
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            if listener == _identity(path):
                if is_due:
                    self._delivered = (listener, self._clock(), dict(secrets))
                return True
            # Another listener came in between, which may not have got the secrets.

    def _is_due(self, listener: tuple[int, int] | None, secrets: Mapping[str, object]) -> bool:
        delivered_to, delivered_s, delivered = self._delivered
        return delivered_to != listener or delivered != secrets or self._clock() - delivered_s >= _HAND_OVER_AGAIN_S


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a listener from those before it at this path, whose inode may have been used again. None: no socket."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def notify(path: Path | str, carried: Mapping[str, object] | None = None, *, patience_s: float = 5.0) -> bool:
    """Wake whoever listens at `path`. False: no process listens.

    Waits for room in a full queue, at most `patience_s`, only when something is carried: else a full queue means that the
    listener is being woken anyway.
    """
    try:
        _send(path, carried or {}, patience_s if carried else 0.0)
    except BlockingIOError:
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def _send(path: Path | str, message: Mapping[str, object], patience_s: float) -> None:
    """Send one datagram, waiting for room at most `patience_s`. BlockingIOError: there was none.

    The socket is connected, since poll() knows of a connected one whether the listener's queue has room. Of another it says
    that there is room always, and waiting becomes a busy loop against the very process that is to make room.
    """
    data = json.dumps(message).encode() if message else b""
    if len(data) > _LARGEST_MESSAGE_BYTES:
        raise SpoolError(
            f"the storage options take {len(data)} bytes as JSON: at most {_LARGEST_MESSAGE_BYTES} can be handed over"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(_address(path))
        until_s = time.monotonic() + patience_s
        while True:
            try:
                sender.send(data)
            except BlockingIOError:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise
            else:
                return
            room = select.poll()
            room.register(sender, select.POLLOUT)
            room.poll(left_s * 1000)
