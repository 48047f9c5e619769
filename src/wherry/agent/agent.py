"""The agent: one process a spool, which keeps workers alive while there is work, and outlives the training process.

Started by the first user of a spool (start_agent), or as a service (``wherry agent``). It holds the spool's lock, answers
its doorbell, passes secrets on to workers from memory, takes the leases of dead workers away, and leaves when nobody
needs it.
It is single-threaded and imports no vendor library and no torch, so that it can fork its workers.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from wherry.spool.download_notes import download_folders
from wherry.spool.presence import living_sessions

if TYPE_CHECKING:
    from wherry.clock import Clock
    from wherry.spool.spool import Spool

log = logging.getLogger("wherry.agent.agent")
_T = TypeVar("_T")

#: Without clients and without work: long enough for the next of a row of short commands.
_IDLE_EXIT_S = 2.0
#: Housekeeping: clients that died, leases that expired. Rings and deaths of workers are events and come at once.
_LOOK_AROUND_S = 5.0
#: An agent that was killed leaves workers which die with it; their lock is free soon after.
_LOCK_WAIT_S = 15.0
_LOG_LIMIT_BYTES = 5 * 2**20
#: For fewer missing parts than that another worker is not worth its start.
_PARTS_TO_SHARE = 4
#: A worker that dies at once is not started again at once.
_RESPAWN_WAIT_S = 1.0
#: How often the time that passes is written down, by which deadlines are measured.
_KEEP_BOOKS_S = 1.0
_FULL_DISK_WAIT_S = 30.0
#: What may not be missing is tried to be written so often: nobody tells when a disk has room again.
_WRITE_AGAIN_S = 1.0
#: Who comes back from a wait so much too late was stopped meanwhile.
_STOPPED_S = 15.0


@dataclass
class _Worker:
    name: str
    pid: int
    channel: socket.socket
    started_s: float


def start_agent(folder: Path, config: object) -> None:
    """Start the agent of the spool `folder` in a session of its own, and return when it has detached itself.

    No error if one is running already: the second sees that and leaves. OSError if none can start. `config` is the AgentConfig.
    """
    import subprocess

    from wherry.errors import ConfigError

    if not sys.executable:
        raise ConfigError("this Python does not know its own executable: set AgentConfig(run_in='caller')")
    environment = dict(os.environ)
    package_parent = str(Path(__file__).resolve().parents[2])
    if "site-packages" not in package_parent and "dist-packages" not in package_parent:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH", "")]))
    settings = json.dumps(asdict(config))  # type: ignore[call-overload]
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
    import argparse

    from wherry.errors import SpoolError
    from wherry.spool.spool import Spool

    parser = argparse.ArgumentParser(prog="python -m wherry.agent")
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--settings", default="{}", help="AgentConfig as JSON")
    parser.add_argument("--detach", action="store_true", help="go on in the background, with the log in the spool")
    parser.add_argument("--stay", action="store_true", help="run as a service: do not leave when there is nothing to do")
    options = parser.parse_args(argv)
    if options.detach and os.fork() > 0:
        os._exit(0)  # the starter waits for this process only, so that it never has a zombie
    try:
        spool = Spool(options.spool)
    except SpoolError as error:
        sys.stderr.write(f"wherry: {error}\n")
        return 1
    if options.detach:
        _to_log(spool.inside("agent.log"))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s", stream=sys.stderr
    )
    return run_agent(spool, json.loads(options.settings), stay=options.stay)


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
    from wherry.config import AgentConfig

    lock = _take_lock(spool)
    if lock is None:
        log.info("another agent has the spool %s", spool.folder)
        return 0
    try:
        return Agent(spool, AgentConfig(**settings), lock, stay=stay, environ=environ or {}, clock=clock).run()  # type: ignore[arg-type]
    finally:
        os.close(lock)


def _take_lock(spool: object) -> int | None:
    """The spool's lock, or None if a living agent has it."""
    from wherry.agent.wakeup import ring
    from wherry.posix.locks import lock_and_sign
    from wherry.spool.spool import Spool

    assert isinstance(spool, Spool)
    lock = os.open(spool.inside("agent.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + _LOCK_WAIT_S
    while lock_and_sign(lock, str(os.getpid())) is not None:
        if ring(spool.inside("bell")) or time.monotonic() > until_s:
            os.close(lock)
            return None
        time.sleep(0.05)  # flock has no time-out; the holder is starting, leaving, or a dead agent's last worker
    return lock


class Agent:
    """The agent's loop. Its workers are forked from it and share its lock, which is free only when all of them are gone."""

    def __init__(
        self, spool: object, config: object, lock: int, *, stay: bool, environ: Mapping[str, str], clock: Clock | None
    ) -> None:
        from wherry.agent.open_stores import Stores
        from wherry.agent.wakeup import Bell
        from wherry.config import AgentConfig
        from wherry.spool.recovery import open_journal
        from wherry.spool.spool import Spool

        assert isinstance(spool, Spool)
        assert isinstance(config, AgentConfig)
        self._spool = spool
        self._config = config
        self._lock = lock
        self._stay = stay
        self._environ = environ
        self._journal = open_journal(spool, checkpoints=True, thorough=True, clock=clock)
        self._bell = Bell(spool.inside("bell"))
        self._stores = Stores()
        self._workers: dict[int, _Worker] = {}
        self._n_started = 0
        self._not_before_s = 0.0
        #: When time was counted and old jobs were forgotten; until when nobody's lease is judged.
        self._kept_s = 0.0
        self._lenient_until_s = 0.0
        self._stopping = False
        self._signal_ear, self._signal_mouth = socket.socketpair()
        for end in (self._signal_ear, self._signal_mouth):
            end.setblocking(False)

    def run(self) -> int:
        """Work until nobody needs the agent, or SIGTERM or SIGINT come."""
        signal.set_wakeup_fd(self._signal_mouth.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        os.nice(5)  # training goes first
        self._recover()
        log.info("agent of %s is up", self._spool.folder)
        alone_since_s: float | None = None
        try:
            while not self._stopping:
                self._keep_books()
                self._journal.shorten_log()
                due, next_s = self._journal.work.ready(with_stores=self._usable())
                # A large file is sent by all workers together.
                self._staff(due if self._journal.parts.missing() < _PARTS_TO_SHARE else self._config.n_workers)
                clients = bool(living_sessions(self._spool))
                # Jobs that nobody here can do (their secrets are missing) are no reason to stay.
                work = due > 0 or next_s is not None or self._is_sending()
                now_s = time.monotonic()
                alone_since_s = None if clients or self._stay else (alone_since_s if alone_since_s is not None else now_s)
                timeout_s = _LOOK_AROUND_S
                if next_s is not None:
                    timeout_s = min(timeout_s, max(0.01, next_s - self._journal.work.now_s()))
                if alone_since_s is not None:
                    leave_s = alone_since_s + (self._config.linger_s if work else _IDLE_EXIT_S)
                    if now_s >= leave_s and self._leave(abandon=work):
                        return 0
                    timeout_s = min(timeout_s, max(0.01, leave_s - now_s))
                self._wait(timeout_s)
        finally:
            self._end()
        return 0

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _recover(self) -> None:
        """Take over from an agent that may have been killed: no worker of it lives any more, for we have the lock."""
        from wherry.agent.trial_notes import Trials
        from wherry.agent.worker import living_callers
        from wherry.spool.abandoned_uploads import has_known_uploads
        from wherry.spool.leftovers import sweep
        from wherry.transfer.resume import clean_stale_downloads

        queued, _ = self._insist(lambda: self._journal.work.release(keep=living_callers(self._spool))) or (0, [])
        n_removed = sweep(self._spool, self._journal)
        for left in self._spool.inside("scratch").glob("verify-*"):
            left.unlink(missing_ok=True)
        self._note(self._journal.work.resume)  # whoever starts an agent may have mended what was wrong
        for folder in download_folders(self._spool):
            clean_stale_downloads(folder)
        if has_known_uploads(self._journal) or Trials(self._spool.inside("trials")).left():
            self._hire()  # which cleans them away before it leaves
        if queued or n_removed:
            log.info("recovered: %d job(s) queued again, %d half-made snapshot(s) removed", queued, n_removed)

    def _usable(self) -> set[int]:
        """The stores whose secrets are known here, or that need none. The journal is told which are not."""
        from wherry.store.environment import secrets_here

        records = self._journal.queries.stores()
        if (locked := self._stores.unusable(records)) and self._environ:
            self._learn(secrets_here((records[store_id] for store_id in locked), self._environ))
            locked = self._stores.unusable(records)
        if locked != {record.id for record in records.values() if record.is_locked}:
            self._note(lambda: self._journal.work.note_locked(locked))
        return set(records) - locked

    def _is_sending(self) -> bool:
        return bool(self._workers and {worker.name for worker in self._workers.values()} & self._journal.work.lease_owners())

    def _keep_books(self) -> None:
        """Count the time while there is something to count it for, and forget what was finished long ago."""
        if (now_s := time.monotonic()) - self._kept_s >= _KEEP_BOOKS_S:
            self._kept_s = now_s
            if self._journal.queries.unfinished():
                self._note(self._journal.work.count_time)
            self._note(self._journal.work.prune)

    def _note(self, write: Callable[[], object]) -> None:
        """Write what may be missing for a while: the agent goes on when its disk is full."""
        from wherry.errors import JournalError
        from wherry.spool.journal.database import JournalDamaged

        try:
            write()
        except JournalDamaged:
            raise
        except JournalError as error:
            log.warning("%s", error)
            self._kept_s = time.monotonic() + _FULL_DISK_WAIT_S

    def _insist(self, write: Callable[[], _T]) -> _T | None:
        """Write what may not be missing, for as long as the journal's disk is full. None: this process is to end meanwhile."""
        from wherry.errors import JournalError
        from wherry.spool.journal.database import JournalDamaged

        is_told = False
        while not self._stopping:
            try:
                return write()
            except JournalError as error:  # noqa: PERF203  waits between rounds
                if isinstance(error, JournalDamaged):
                    raise
                if not is_told:
                    log.error("the journal cannot be written, which is tried until it can: %s", error)
                    is_told = True
                select.select([self._signal_ear.fileno()], [], [], _WRITE_AGAIN_S)
        return None

    def _leave(self, *, abandon: bool) -> bool:
        """Stop listening, then look once more: who rings from now on starts the next agent. False: we are needed after all.

        With `abandon` the work that is left stays in the journal.
        """
        from wherry.agent.wakeup import Bell

        self._bell.close()
        due, _ = self._journal.work.ready(with_stores=self._usable())
        if (due and not abandon) or living_sessions(self._spool):
            self._bell = Bell(self._spool.inside("bell"))
            return False
        return True

    def _staff(self, due: int) -> None:
        """Have as many workers as there is work for, at most `n_workers`."""
        wanted = min(self._config.n_workers, due)
        while len(self._workers) < wanted and time.monotonic() >= self._not_before_s:
            self._hire()

    def _hire(self) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._n_started += 1
        name = f"{os.getpid()}-{self._n_started}"
        agent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_worker(name, theirs, ours, agent_pid)
        theirs.close()
        worker = _Worker(name, pid, ours, time.monotonic())
        self._workers[pid] = worker
        self._tell(
            worker, {"hired": True, "secrets": {str(store): dict(options) for store, options in self._stores.known().items()}}
        )
        return worker

    def _be_worker(self, name: str, channel: socket.socket, other_end: socket.socket, agent_pid: int) -> NoReturn:
        """In the child: let go of what is the agent's, work, and leave without its exit handlers."""
        status = 1
        try:
            _die_with_parent(agent_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            self._bell.close_inherited()
            for inherited in (other_end, self._signal_ear, self._signal_mouth, *(w.channel for w in self._workers.values())):
                inherited.close()

            from wherry.agent.worker import Worker

            Worker(self._spool, self._journal, channel, name, self._config).run()
            status = 0
        except BaseException:
            log.exception("worker %s died", name)
        finally:
            logging.shutdown()
            os._exit(status)

    def _tell(self, worker: _Worker, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):  # dead or busy: it looks into the journal anyway
            worker.channel.send(json.dumps(message).encode())

    def _wait(self, timeout_s: float) -> None:
        from wherry.agent.worker import release_dead_callers
        from wherry.spool.journal.jobs import LEASE_S

        started_s = time.monotonic()
        ready, _, _ = select.select([self._bell.fileno(), self._signal_ear.fileno()], [], [], timeout_s)
        if self._signal_ear.fileno() in ready:
            with suppress(BlockingIOError):
                while self._signal_ear.recv(4096):
                    pass
        if self._bell.fileno() in ready:
            self._hear(self._bell.answer())
        self._bury()
        self._insist(lambda: release_dead_callers(self._spool, self._journal))
        now_s = time.monotonic()
        if now_s - started_s - timeout_s > _STOPPED_S:
            # This process was stopped, or its machine: so were its workers, which need their time to renew their leases.
            self._lenient_until_s = now_s + LEASE_S
        for name in self._journal.work.expired() if now_s >= self._lenient_until_s else ():
            for worker in self._workers.values():
                if worker.name == name:
                    log.error("worker %s does not renew its leases: killed", name)
                    os.kill(worker.pid, signal.SIGKILL)

    def _hear(self, rings: list[dict[str, object]]) -> None:
        """Pass on what the rings carry: {"secrets": {store id: options}, "warm": [store ids]}."""
        news: dict[int, Mapping[str, object]] = {}
        warm: list[object] = []
        for carried in rings:
            secrets = carried.get("secrets")
            if isinstance(secrets, dict):
                news.update({int(store_id): options for store_id, options in secrets.items()})
            wanted = carried.get("warm")
            if isinstance(wanted, list):
                warm += wanted
        if warm and not self._workers:
            self._hire()
        self._learn(news, warm)

    def _learn(self, secrets: Mapping[int, Mapping[str, object]], warm: Sequence[object] = ()) -> None:
        """Take secrets in, and ring the workers, with what of it is new. Jobs that waited for new ones are tried at once."""
        news = {store_id: options for store_id, options in secrets.items() if self._stores.learn(store_id, options)}
        message: dict[str, object] = {}
        if news:
            message["secrets"] = {str(store_id): dict(options) for store_id, options in news.items()}
            self._note(lambda: self._journal.work.resume(news))  # before the workers look
        if warm:
            message["warm"] = list(warm)
        for worker in self._workers.values():
            self._tell(worker, message)

    def _bury(self) -> None:
        """Take the leases of workers that are gone away."""
        for pid, worker in list(self._workers.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone == 0:
                continue
            del self._workers[pid]
            worker.channel.close()
            if status != 0:
                queued, doomed = self._insist(partial(self._journal.work.release, worker.name)) or (0, [])
                log.warning(
                    "worker %s died (%s): %d job(s) queued again, %d given up", worker.name, _cause(status), queued, len(doomed)
                )
                if time.monotonic() - worker.started_s < _RESPAWN_WAIT_S:
                    self._not_before_s = time.monotonic() + _RESPAWN_WAIT_S
                for other in self._workers.values():
                    self._tell(other, {})  # the parts that it was sending for them are missing again

    def _end(self) -> None:
        from wherry.spool.recovery import remove_unneeded_reserve

        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGKILL)  # what it was sending is sent again, from the first missing part on
        for worker in self._workers.values():
            os.waitpid(worker.pid, 0)
            worker.channel.close()
            self._note(partial(self._journal.work.release, worker.name))  # else the next agent does it
        remove_unneeded_reserve(self._spool, self._journal)
        self._bell.close()
        self._journal.close()
        signal.set_wakeup_fd(-1)
        self._signal_ear.close()
        self._signal_mouth.close()
        log.info("agent of %s has left", self._spool.folder)


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.WEXITSTATUS(status)}"


def _die_with_parent(agent_pid: int) -> None:
    """Have the kernel kill this process when the agent dies (prctl(2), PR_SET_PDEATHSIG); elsewhere its channel tells."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != agent_pid:  # it died before we asked
        os._exit(1)
