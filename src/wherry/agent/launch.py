"""How an agent is started: by the first user of a spool (start_agent), or as a service (``wherry agent``).

`start_agent` waits until the new process has detached itself, so what is not needed before that is imported later.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.clock import Clock
    from wherry.config import AgentConfig
    from wherry.spool.spool import Spool

log = logging.getLogger("wherry.agent.agent")

#: An agent that was killed leaves workers which die with it; their lock is free soon after.
_LOCK_WAIT_S = 15.0
_LOG_LIMIT_BYTES = 5 * 2**20
#: Python's own 700 costs 15 ms of the time to the first byte: libraries are loaded, and nothing of them becomes garbage.
_OBJECTS_A_COLLECTION = 10_000
LOG_FORM = "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
#: Of mallopt(3).
_M_ARENA_MAX = -8


def start_agent(folder: Path, config: AgentConfig) -> None:
    """Start the agent of the spool `folder` in a session of its own, and return when it has detached itself.

    No error if one is running already: the second sees that and leaves. OSError if none can start.
    """
    import subprocess

    from wherry.errors import ConfigError

    if not sys.executable:
        raise ConfigError("this Python does not know its own executable: set AgentConfig(run_in='caller')")
    environment = dict(os.environ)
    package_parent = str(Path(__file__).resolve().parents[2])
    if "site-packages" not in package_parent and "dist-packages" not in package_parent:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH", "")]))
    environment.setdefault("MALLOC_ARENA_MAX", "1")  # with an arena a thread, glibc keeps 2 MiB more, and is no faster
    settings = json.dumps(asdict(config))
    started = subprocess.run(
        [sys.executable, "-m", "wherry.agent", "--spool", str(folder), "--settings", settings, "--detach"],
        check=False,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    if started.returncode < 0:
        raise ChildProcessError(f"{sys.executable} was ended by {signal.Signals(-started.returncode).name}")
    if started.returncode > 0:
        raise ChildProcessError(f"{sys.executable} ended with exit status {started.returncode}")


def main(argv: list[str] | None = None) -> int:
    """Run as ``python -m wherry.agent``. Exit status 0: done or another agent is running; 1: the spool cannot be used."""
    gc.set_threshold(_OBJECTS_A_COLLECTION)  # the workers have it from their fork
    import argparse

    from wherry.errors import SpoolError
    from wherry.redact import log_to_stderr
    from wherry.spool.spool import Spool

    parser = argparse.ArgumentParser(prog="python -m wherry.agent")
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--settings", default="{}", help="AgentConfig as JSON")
    parser.add_argument("--detach", action="store_true", help="go on in the background, with the log in the spool")
    parser.add_argument("--stay", action="store_true", help="run as a service: do not leave when there is nothing to do")
    options = parser.parse_args(argv)
    if options.detach:
        if os.fork() > 0:
            os._exit(0)  # the starter waits for this process only, so that it never has a zombie
        os.setsid()  # the leader of the session that the starter made is gone; this one's priority is its own
    try:
        spool = Spool(options.spool)
    except SpoolError as error:
        sys.stderr.write(f"wherry: {error}\n")
        return 1
    if options.detach:
        _to_log(spool.inside("agent.log"))
    log_to_stderr(logging.INFO, LOG_FORM)
    status = run_agent(spool, json.loads(options.settings), stay=options.stay)
    if options.detach:
        logging.shutdown()
        os._exit(status)  # at once: who waits for the agent's lock to be free expects the process to be gone
    return status


def _to_log(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)


def run_agent(
    spool: Spool,
    settings: dict[str, object],
    *,
    stay: bool = False,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> int:
    """Be the agent of a spool until nobody needs it. 0: done, or another is running.

    `environ`: take secrets that stores had from their users' environment from this one, as its user asks for it. An agent that
    was started on behalf of one program does not: its environment may have the keys of another account.
    """
    if stay:
        use_one_arena()
    from wherry.agent.agent import Agent
    from wherry.config import AgentConfig

    lock = _take_lock(spool)
    if lock is None:
        log.info("another agent has the spool %s", spool.folder)
        return 0
    try:
        return Agent(spool, AgentConfig(**settings), stay=stay, environ=environ or {}, clock=clock).run()  # type: ignore[arg-type]
    finally:
        os.close(lock)


def use_one_arena() -> None:
    """Ask of glibc what start_agent() asks by a variable. Other C libraries have no arenas."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        import ctypes

        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _take_lock(spool: Spool) -> int | None:
    """The spool's lock, or None if a living agent has it."""
    from wherry.agent.wakeup import notify
    from wherry.posix.locks import lock_and_sign

    lock = os.open(spool.inside("agent.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + _LOCK_WAIT_S
    while lock_and_sign(lock, str(os.getpid())) is not None:
        if notify(spool.inside("bell")) or time.monotonic() > until_s:
            os.close(lock)
            return None
        time.sleep(0.05)  # flock has no time-out; the holder is starting, leaving, or a dead agent's last worker
    return lock
