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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from wherry.errors import SpoolError

log = logging.getLogger("wherry")

#: sun_path of unix(7) takes 107 bytes.
_LONGEST_PATH_BYTES = 100
#: Ids of stores; SQLite knows numbers of 63 bits.
_ID = re.compile(r"[0-9]{1,18}")
#: Secrets of one message must fit one datagram; the largest key file of a service account has some 3 kB.
_LARGEST_MESSAGE_BYTES = 100_000


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
    """{"secrets": {store id as text: options}, "warm": [store ids]}, both optional; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found or set(found) - {"secrets", "warm"}:
        return None
    secrets, warm = found.get("secrets", {}), found.get("warm", [])
    if not isinstance(secrets, dict) or not isinstance(warm, list):
        return None
    are_secrets = all(_ID.fullmatch(store_id) and isinstance(options, dict) for store_id, options in secrets.items())
    are_ids = all(type(store_id) is int and _ID.fullmatch(str(store_id)) for store_id in warm)
    return found if are_secrets and are_ids else None


def notify(path: Path | str, carried: Mapping[str, object] | None = None, *, patience_s: float = 5.0) -> bool:
    """Wake whoever listens at `path`. False: nobody does.

    Waits for room in a full queue, at most `patience_s`, only when something is carried: else a full queue means that the
    listener is being woken anyway. What found no room is carried again by the next message.
    """
    data = json.dumps(carried).encode() if carried else b""
    if len(data) > _LARGEST_MESSAGE_BYTES:
        raise SpoolError(
            f"the storage options take {len(data)} bytes as JSON: at most {_LARGEST_MESSAGE_BYTES} can be handed over"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(patience_s if data else 0.0)
        try:
            sender.sendto(data, _address(path))
        except (BlockingIOError, TimeoutError):
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
