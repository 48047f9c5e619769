"""Handover: gives the finished files of a destination to the destinations that upload."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from wherry.errors import PermanentError, UploadFailed
from wherry.loggers.destinations.remote_names import FreeNames, RunNames
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import escaped

log = logging.getLogger("wherry")

#: The pause between two requests to a store that does not answer. It grows, as nobody waits before the close.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
#: How long finish() waits for such a store: enough for two calls, which retry for half a minute each. Less when an exception
#: ended the run, as the process may be killed soon.
PATIENCE_S, HASTE_S = 60.0, 5.0


class Handover:
    """Hands each file to the logger once, as soon as the logger is known; drops it if nothing uploads. Any thread may call.

    `names` decides the remote names. If a store must be asked for that, the files wait for a background thread, which asks
    again until there is an answer, and hands them over. Files that still wait at finish() get names that need no answer.
    """

    def __init__(self, names: RunNames | FreeNames, *, upload: bool = True, patience_s: float = PATIENCE_S) -> None:
        self._names = names
        self._upload = upload
        self._patience_s = patience_s
        self._logger: Logger | None = None
        self._waiting: deque[tuple[str, Path]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._is_over = False
        self._failed: Exception | None = None
        self._pid = os.getpid()

    def see(self, logger: Logger | None) -> None:
        """Take the logger that uploads, once. The next add() hands over what has waited for it."""
        if logger is not None and self._logger is None:
            self._upload = self._upload and logger.has_file_upload_destination()
            self._logger = logger

    def begin(self) -> None:
        """Ask the stores now, in the background, so that the answer is there when the first file comes."""
        with self._changed:
            if self._upload and self._logger is not None and self._thread is None and not self._names.is_known(self._logger):
                self._start(self._logger)

    def add(self, files: Iterable[tuple[str, Path]] = ()) -> None:
        """Hand over files, each with its name. If no store has to be asked, this takes as long as snapshots of them take.

        Raises what the logger raises or, in the background, has raised.
        """
        with self._changed:
            if not self._upload:
                self._waiting.clear()
                return
            self._waiting.extend(files)
            self._raise()
            if self._logger is None or self._thread is not None or not self._waiting:
                return
            if not self._names.is_known(self._logger):
                self._start(self._logger)
                return
            while self._waiting:
                name, path = self._waiting.popleft()
                remote = self._names.find(self._logger, name)
                self._logger.upload_file(remote, escaped(str(path)), overwrite=self._names.overwrite)

    def finish(self, *, in_haste: bool = False) -> None:
        """Hand over what waits, under unique names if the stores still do not answer. Raises as add().

        Files that are added later are dropped.
        """
        if os.getpid() != self._pid:  # the parent's files
            return
        atexit.unregister(self.finish)
        with self._changed:
            if (logger := self._logger) is not None and self._upload:
                self._is_ending = True
                self._changed.notify_all()
                left_s = logger.time_left_s()
                patience_s = HASTE_S if in_haste else self._patience_s
                self._changed.wait_for(lambda: self._thread is None, patience_s if left_s is None else min(left_s, patience_s))
                self._is_over = True
                is_said = False
                while self._waiting:
                    aside = self._names.aside(logger, self._waiting[0][0])
                    if not is_said:
                        is_said, name = True, logger.state.fill(aside)
                        log.warning("the store did not say what it has of this run: what waits is uploaded as %s ...", name)
                    self._take(logger, aside)
            self._upload = False
            self._raise()

    def _start(self, logger: Logger) -> None:
        """Ask in a thread. It is a daemon, so that a store that is down does not keep the interpreter alive."""
        self._thread = threading.Thread(target=self._ask, args=(logger,), name="wherry-hand-over", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # "can't start new thread": the interpreter ends, or the system has no more
            self._ask(logger, only_once=True)
        else:
            atexit.unregister(self.finish)
            atexit.register(self.finish)

    def _ask(self, logger: Logger, *, only_once: bool = False) -> None:
        """Hand over what waits, and try again until the store answers."""
        pause_s = _FIRST_PAUSE_S / 2
        has_said = False
        while True:
            with self._changed:
                name = self._waiting[0][0] if self._waiting else None
            found, error = None, None
            try:
                if name is None:
                    self._names.ask(logger)
                else:
                    found = self._names.find(logger, name)
            except Exception as caught:
                error = caught
                if isinstance(caught, UploadFailed):  # of other files: with `Config.on_failure` anybody's next call raises it
                    self._failed = self._failed or caught
            with self._changed:
                if found is not None and not self._is_over:
                    self._take(logger, found)
                if error is None and self._waiting and not self._is_over:
                    continue
                is_hopeless = self._is_ending and isinstance(error, PermanentError)
                if error is None or self._is_over or only_once or is_hopeless:
                    self._thread = None
                    self._changed.notify_all()
                    return
                if not has_said:
                    has_said = True
                    log.warning("files wait until the store says what it has of this run, and it is asked again: %s", error)
                pause_s = _FIRST_PAUSE_S if self._is_ending else min(2 * pause_s, _LONGEST_PAUSE_S)
                self._changed.wait(pause_s)  # finish() ends it

    def _take(self, logger: Logger, remote: str) -> None:
        """Hand over the first file that waits; the caller's thread raises what is wrong with that."""
        _, path = self._waiting.popleft()
        try:
            logger.upload_file(remote, escaped(str(path)), overwrite=self._names.overwrite)
        except Exception as error:
            self._failed = self._failed or error

    def _raise(self) -> None:
        error, self._failed = self._failed, None
        if error is not None:
            raise error
