"""Mirror: keeps a prefix of an object store equal to a folder that others write to."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

from wherry.config import TransferConfig, default_spool_folder
from wherry.errors import ConfigError, WherryError
from wherry.mirror.budget import Budget, CountedStore
from wherry.mirror.format.fence import MirrorFencedError
from wherry.mirror.format.layout import manifest_name
from wherry.mirror.mirror_config import MirrorConfig, lie_in_one_another, writer_name
from wherry.mirror.report import MirrorReport
from wherry.mirror.writer.engine import Engine
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.segments import compressor
from wherry.mirror.writer.state_db import MirrorLock, StateDb, state_folder
from wherry.mirror.writer.watcher import Watcher, can_watch
from wherry.posix.thread_pool import DaemonThreadPool, wait_for
from wherry.quantities import count_text
from wherry.spool.spool import Spool
from wherry.store.environment import with_environment
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import check_usable, open_store
from wherry.store.server_features import Endpoints
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.uri import StoreURI, absolute_path, parse_uri

log = logging.getLogger("wherry.mirror")

#: How long close() waits for the thread when there is nothing more to wait for: it ends at once unless a call is under way.
_THREAD_ENDS_S = 5.0
_open_mirrors: set[Mirror] = set()
_Self = TypeVar("_Self", bound="Mirror")


class Mirror:
    """Mirrors `folder`, which may not exist yet, to `uri`, from now until close(), in a thread of its own.

    Growing files are sent as segments, each of which is created once and never sent again; close() makes one plain object of
    each file. Other files are sent when they are complete. Errors of the store are not raised into the program that writes: they
    are logged as "wherry.mirror" and listed in `report`. After a kill the next mirror of the folder goes on: what was not sent is
    still in the folder.

    Example::

        with wherry.Mirror("runs/7", "s3://my-bucket/runs/7") as mirror:
            train()  # writes logs to runs/7
        assert mirror.report.is_complete

    `writer` names this process among all that mirror to `uri`, each with a folder or files of its own: by default the rank,
    else the host. Of two processes with one name the later one goes on, and the other stops. The state database is in `spool`.

    Raises ConfigError for a folder that is a file or not readable, for a URI inside the folder or around it, for unknown options;
    SpoolError when another process mirrors this folder.

    In a forked child the mirror does nothing. At the end of the process a mirror that is still open is closed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        writer: str = "",
        config: MirrorConfig | None = None,
    ) -> None:
        self.folder = absolute_path(folder)
        self.uri = parse_uri(uri)
        self.config = config or MirrorConfig()
        self.writer = writer_name(writer)
        options = with_environment(self.uri.scheme, storage_options or {}, os.environ)
        check_usable(self.uri.scheme, options)
        _check_folder(self.folder, self.uri)
        _check_apart(self.folder, default_spool_folder() if spool is None else Path(os.path.expanduser(spool)), "the spool")
        opened_spool = Spool(spool)
        self._spool_folder = opened_spool.folder
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._woken = threading.Event()
        self._wanted = self._flushed = 0
        self._is_closing = self._is_closed = False
        self._report: MirrorReport | None = None
        self._lock = MirrorLock(state_folder(opened_spool.folder, self.folder), self.folder)
        config = self.config
        try:
            self._backend = open_store(self.uri, options, stall_timeout_s=TransferConfig().stall_timeout_s)
            endpoints = Endpoints(opened_spool.folder / "endpoints.json")
            endpoints.tell(self._backend)
            budget = Budget(config.max_requests_per_hour)
            store = RetryStore(LimitStore(CountedStore(self._backend, budget), max_in_flight=MOST_IN_FLIGHT), config.retry)
            sender = SegmentSender(
                self.folder, self.uri, self.writer, store, self._lock.scratch, config.compression, config.retry
            )
            # What the server honours is found out once, by trials where we write.
            find_out = partial(endpoints.find_out, store, self.uri.key_for(manifest_name(self.writer)))
            self._state_db = StateDb(self._lock.state_db_path(f"{self.uri} {self.writer}"))
            self._pool = DaemonThreadPool(config.sends_in_flight, "wherry-mirror")
            self._pool.start()  # and not when there is something to send: the interpreter may have begun to end by then
            self._engine = Engine(sender, self._state_db, config, budget, self._pool, prepare=find_out, wake=self._woken.set)
            self._report = self._engine.report()
            self._watcher: Watcher | None = None
            can_watch()  # imported here and not by the thread, as the program may fork; and what compresses
            compressor(config.compression)
            self._thread = threading.Thread(target=self._run, name="wherry-mirror", daemon=True)
            self._thread.start()  # RuntimeError when the interpreter has begun to end
        except BaseException:
            self._lock.release()
            raise
        _open_mirrors.add(self)
        _close_at_the_end_of_a_child()
        if self.config.exit_on_sigterm:
            _take_sigterm()

    def __repr__(self) -> str:
        return f"<Mirror {self.folder} -> {self.uri} writer={self.writer}>"

    @property
    def report(self) -> MirrorReport:
        """How far it is, by the last scan of the folder, which is at most some seconds ago."""
        assert self._report is not None
        return self._report

    @property
    def fenced(self) -> MirrorFencedError | None:
        """Why it has stopped for good, if it has: another process mirrors under this writer's name."""
        return self._engine.fenced

    @property
    def is_running(self) -> bool:
        """Whether it sends: it was not closed, not fenced, and no unexpected exception has ended it."""
        return self._thread.is_alive()

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def send_now(self) -> None:
        """Have everything that is complete sent at once, and return without waiting: for the end of a phase, say."""
        self._request()

    def flush(self, timeout_s: float | None = None) -> MirrorReport:
        """Wait until every whole record, and every finished file, that is in the folder now is in the store.

        Files that cannot be sent (not readable, gone) are not waited for: they are in the report's `trouble`. While the store
        is down it waits. Raises TimeoutError, after which nothing is lost and all goes on; MirrorFencedError.
        """
        number = self._request()
        if number is None:
            return self.report
        with self._changed:
            done = wait_for(self._changed, lambda: self._flushed >= number or not self._thread.is_alive(), timeout_s)
        report = self.report
        if self.fenced is not None:
            raise MirrorFencedError(str(self.fenced))
        if not done:
            raise TimeoutError(
                f"{report.unsent_bytes} bytes of {count_text(report.unsent_files, 'file')} are not in {self.uri} "
                f"after {timeout_s} s; they are sent in the background{_because(report)}"
            )
        return report

    def close(self, timeout_s: float | None = None) -> MirrorReport:
        """Send all there is, make plain objects of the files, and end; again, it does nothing.

        Without a limit it goes on as long as it makes progress (`MirrorConfig.give_up_s`). Nothing is raised when time is up:
        `is_complete` of the report is False then, the log has the command that sends the rest, and the next mirror of the folder
        goes on from there.
        """
        if not self._is_here or self._is_closed:
            return self.report
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._is_closing = True
        self._woken.set()
        try:
            # Polled, as no event says that nothing has worked for long.
            while self._thread.is_alive() and not self._is_over(end_s):
                self._thread.join(0.05 if timeout_s is None else min(0.05, max(0.0, timeout_s)))
        finally:
            self._end()
        report = self.report
        if not report.is_complete and self.fenced is None:  # that has been said
            log.warning(
                "%s is not complete in %s: %d bytes of %s are not there%s; the next mirror of the folder goes on, or: %s",
                self.folder, self.uri, report.unsent_bytes, count_text(report.unsent_files, "file"), _because(report),
                self.resume_command(),
            )  # fmt: skip
        return report

    def resume_command(self) -> str:
        """The command that sends what close() has left; storage options go with it by ``-o`` or ``--options-file``."""
        words = ["wherry", "mirror", "resume", str(self.folder), str(self.uri)]
        if self.writer != writer_name(""):
            words += ["--writer", self.writer]
        words += ["--spool", str(self._spool_folder)]
        if self.config.compression is not None:
            words += ["--compress", self.config.compression]
        if not self.config.seal_on_close:
            words.append("--no-seal")
        return shlex.join(words)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _is_here(self) -> bool:
        return self._pid == os.getpid()

    def _request(self) -> int | None:
        if not self._is_here or self._is_closed:
            return None
        with self._changed:
            self._wanted += 1
            number = self._wanted
        self._woken.set()
        return number

    def _is_over(self, end_s: float | None) -> bool:
        """Whether close() has waited long enough."""
        if end_s is not None:
            return time.monotonic() >= end_s
        return self._engine.stuck_s() >= self.config.give_up_s

    def _end(self) -> None:
        self._is_closed = True
        _open_mirrors.discard(self)
        self._engine.runner.stopped.set()
        self._woken.set()
        self._thread.join(_THREAD_ENDS_S)
        if self._watcher is not None:
            self._watcher.stop()
        self._pool.shutdown(wait=False)
        if not self._thread.is_alive():  # else a call hangs: the process is about to end, and must not wait for that
            self._engine.write_incomplete()
            self._backend.close()
            self._state_db.close()
            self._lock.release()
        _give_sigterm_back()

    # -- in the mirror's thread

    def _run(self) -> None:
        try:
            while not self._is_closed and not self._engine.is_finished:
                wanted, final = self._wanted, self._is_closing
                self._woken.clear()
                self._engine.step(force=wanted > self._flushed, final=final)
                self._publish(wanted if self._engine.is_flushed() else self._flushed)
                if self._watcher is None and self.folder.is_dir():
                    self._watcher = Watcher(self.folder, self._woken.set)
                watcher = self._watcher
                is_watched = watcher is not None and self._engine.is_idle() and watcher.arm() and watcher.has_begun
                self._woken.wait(self._engine.pause_s(is_watched=is_watched))
        except MirrorFencedError:
            pass  # it has been said, and flush() says it again
        except Exception as error:  # a mistake of ours must not end the training; the files stay where they are
            self._engine.internal_error = f"the mirror has ended by a mistake of wherry's: {type(error).__name__}: {error}"
            log.exception("the mirror of %s has ended by a mistake of wherry's: nothing more of it is sent", self.folder)
        finally:
            self._publish(self._flushed)

    def _publish(self, flushed: int) -> None:
        report = self._engine.report()
        with self._changed:
            self._report, self._flushed = report, max(flushed, self._flushed)
            self._changed.notify_all()


def _because(report: MirrorReport) -> str:
    return f" ({'; '.join(report.trouble[:3])})" if report.trouble else ""


def _check_folder(folder: Path, uri: StoreURI) -> None:
    try:
        is_there, is_folder = folder.exists(), folder.is_dir()
    except PermissionError:  # of a folder above it
        is_there = is_folder = True
    if is_there and not is_folder:
        raise ConfigError(f"{folder} is no folder: a mirror takes the folder that the logs are in")
    if is_there and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} cannot be read by this user: a mirror has to")
    if uri.scheme == "file":
        _check_apart(folder, Path("/") / uri.prefix, "the URI")


def _check_apart(folder: Path, other: Path, what: str) -> None:
    """One in the other would be mirrored into itself."""
    if lie_in_one_another(folder, other):
        raise ConfigError(f"the folder {folder} and {what}, {other}, lie in one another: choose places beside each other")


def _close_all() -> None:
    for mirror in list(_open_mirrors):
        if not mirror._is_here:
            continue
        try:
            mirror.close()
        except WherryError as error:
            sys.stderr.write(f"wherry: {error}\n")
        except KeyboardInterrupt:
            sys.stderr.write(f"\nwherry: interrupted; {mirror.folder} is not complete in {mirror.uri}\n")


_finalized_pid = 0


def _close_at_the_end_of_a_child() -> None:
    """A child of multiprocessing ends without atexit functions; torch.multiprocessing.spawn makes such ranks."""
    global _finalized_pid
    if "multiprocessing.process" in sys.modules and _finalized_pid != os.getpid():
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            _finalized_pid = os.getpid()
            util.Finalize(None, _close_all, exitpriority=10)


_sigterm_pid = 0


def _take_sigterm() -> None:
    """Have SIGTERM end the program as sys.exit() does, if it has no handler and this is the main thread."""
    global _sigterm_pid
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
        _sigterm_pid = os.getpid()


def _give_sigterm_back() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and not _open_mirrors and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    if _sigterm_pid != os.getpid():  # a forked child, which has no mirror: as if we had never been there
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    raise SystemExit(128 + number)


atexit.register(_close_all)
