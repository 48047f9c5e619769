"""Whether something has changed in a folder where nothing was going on, from the kernel where it says so."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

log = logging.getLogger("wherry.mirror")
#: Changes that come so close together are told as one.
_TOGETHER_MS = 200
#: The kernel's queue is asked whether to stop so often; a stop does not wait for it.
_STOP_MS = 1000
#: Once told to, it watches after this long.
_BEGINS_S = 0.5
#: To find all folders takes at most this share of the time, also where something changes all the time ...
_SHARE = 0.01
#: ... but the folder is scanned at least this often in any case.
_LONGEST_S = 10.0


def can_watch() -> bool:
    """Whether watchfiles is installed; it is imported. For the thread that makes the mirror.

    Whoever forks while another thread imports has half a library in the child, for good.
    """
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        return False
    return True


class Watcher:
    """Calls `changed`, once after each arm(), soon after something below `folder` has changed; in a thread of its own.

    Only once, because a file that is written to all the time would wake us all the time: to hear of 640 writes a second costs
    more than a scan each second. Where there are many folders it calls so rarely that it costs little. The kernel does not report
    what other machines change on a network file system: scan now and then all the same.

    Symbolic links in the folder are not followed, so each folder is watched by itself: watchfiles follows links below what it
    watches.
    """

    def __init__(self, folder: Path, changed: Callable[[], object]) -> None:
        self._folder = folder
        self._changed = changed
        self._stop = threading.Event()
        self._armed = threading.Event()
        self._armed_s = 0.0
        self._is_alive = can_watch()
        if self._is_alive:
            try:
                threading.Thread(target=self._run, name="wherry-mirror-watcher", daemon=True).start()
            except RuntimeError:  # "can't start new thread": the interpreter ends; a scan each second does as well
                self._is_alive = False

    def arm(self) -> bool:
        """Watch from now on, which takes a moment to begin; calling it again changes nothing. Whether the folder can be watched.

        There is not where watchfiles is not installed, nor once it has failed (the kernel's limit of watches, a name that is no
        UTF-8, a folder that has gone).
        """
        if not self._armed.is_set():
            self._armed_s = time.monotonic()
            self._armed.set()
        return self._is_alive

    @property
    def has_begun(self) -> bool:
        """Whether it was told to watch so long ago that it does. Changes before that may have been missed: scan once more."""
        return self._armed.is_set() and time.monotonic() - self._armed_s >= _BEGINS_S

    def stop(self) -> None:
        """Call `changed` no more. The thread ends by itself, within a second."""
        self._stop.set()
        self._armed.set()

    def _run(self) -> None:
        from watchfiles import watch  # it is there, see can_watch()

        chatty = logging.getLogger("watchfiles.main")
        if chatty.level == logging.NOTSET:
            chatty.setLevel(logging.WARNING)  # else it says each change, in the user's own log
        told_s = float("-inf")
        try:
            while not self._stop.is_set():
                self._armed.wait()
                began_s = time.monotonic()
                folders = list(_real_folders(self._folder))
                pause_s = min((time.monotonic() - began_s) / _SHARE, _LONGEST_S)
                changes = watch(
                    *folders,
                    watch_filter=None,
                    debounce=_TOGETHER_MS,
                    step=_TOGETHER_MS // 4,
                    stop_event=self._stop,
                    rust_timeout=_STOP_MS,
                    recursive=False,
                    ignore_permission_denied=True,
                )
                try:
                    with closing(changes):
                        next(changes, None)
                except FileNotFoundError:  # one of them went meanwhile, which is a change
                    if not self._folder.is_dir():
                        raise
                self._stop.wait(told_s + pause_s - time.monotonic())
                told_s = time.monotonic()
                self._armed.clear()
                self._changed()
        except Exception as error:  # whatever it is: scanning does as well
            log.info("%s is not watched by inotify: %s; it is looked at every second instead", self._folder, error)
        finally:
            self._is_alive = False
            self._changed()


def _real_folders(folder: Path) -> Iterator[str]:
    """The folder and all below it; no links. One that vanishes or cannot be read is left out, unless it is the first."""
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                pending += [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            if path == str(folder):
                raise
        else:
            yield path
