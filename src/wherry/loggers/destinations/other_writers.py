"""OtherWriters: tells a run, once, that another run or process writes the names that it writes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from wherry.errors import JournalError
from wherry.loggers.run.state import State
from wherry.posix.fork import ChildLock
from wherry.spool.journal.tokens import ANOTHER_RUN
from wherry.spool.spool_file import SpoolWriter
from wherry.spool.writer_notes import Writer, other_writer

if TYPE_CHECKING:
    from wherry.spool.handle import UploadHandle
    from wherry.uploader import Uploader

log = logging.getLogger("wherry")

#: So many uploads that look are under way at most: while a store is out of reach, each of them would be asked after.
_MOST_UNDER_WAY = 16
#: Of so many names it is known how often they were overwritten. Others count as new ones, which costs a look.
_MOST_NAMES = 1024


class OtherWriters:
    """What one uploader knows of others that write its names.

    Of runs with the same spool the spool's notes tell, at the call. Of all others the objects do, where the store keeps metadata:
    at the first, second, fourth, eighth ... overwrite of a name the worker looks first whose the object is. Each look is a
    request, and there are none once something was told.
    """

    def __init__(self, uploader: Uploader) -> None:
        self._uploader = uploader
        #: Whether another process of this spool uploads as the same run. It lives, so what it has written is not left behind.
        self.has_a_double = False
        self._is_told = False
        self._n_overwrites: OrderedDict[str, int] = OrderedDict()
        self._under_way: list[tuple[State, UploadHandle | SpoolWriter]] = []
        self._lock = ChildLock()

    def may_overwrite(self, state: State, name: str, *, overwrite: bool) -> bool:
        """Tell if the spool's notes know another writer of this name. Whether the worker has to look whose the object is."""
        if self._is_told or not (overwrite or state.is_resumed):
            return False
        run, rank, uri = state.run_name, state.rank, self._uploader.uri_for(name)
        # Names with the run's own name in them are many, and only a namesake can write them.
        what = f"{self._uploader.uri} {run} {rank}" if run in uri or not overwrite else uri
        other = other_writer(self._uploader.spool, what, Writer(run, rank, self._uploader.owner))
        if other is not None:
            self.has_a_double = other.run == run
            self._tell(state, uri, f"run {other.run!r}" if other.run != run else None)
        return overwrite and other is None and self._is_due(name)

    def _is_due(self, name: str) -> bool:
        with self._lock:
            if len(self._under_way) >= _MOST_UNDER_WAY:
                return False
            n_overwrites = self._n_overwrites[name] = self._n_overwrites.pop(name, 0) + 1
            if len(self._n_overwrites) > _MOST_NAMES:
                self._n_overwrites.popitem(last=False)
            return n_overwrites & (n_overwrites - 1) == 0  # a power of two

    def listen(self, state: State, upload: UploadHandle | SpoolWriter) -> None:
        """Have report() tell what the worker of this upload, which looks first, has found."""
        with self._lock:
            self._under_way.append((state, upload))

    def report(self) -> None:
        """Tell what workers have found, if they have."""
        with self._lock:
            waiting, self._under_way = self._under_way, []
        for state, upload in waiting:
            handle = upload.handle if isinstance(upload, SpoolWriter) else upload
            if handle is None:
                if isinstance(upload, SpoolWriter) and not upload.closed:
                    self.listen(state, upload)
                continue
            try:
                notes = handle.notes()
            except JournalError:  # whoever waits for the upload hears of it
                continue
            if notes is None:
                self.listen(state, upload)
            elif notes and not self._is_told:
                self._tell(state, handle.uri, "another run" if ANOTHER_RUN in notes else None)

    def report_at_end(self) -> None:
        """As report(), after the uploader was closed."""
        if self._under_way:
            self.report()
            self._uploader.journal.close()

    def _tell(self, state: State, uri: str, other: str | None) -> None:
        """`other`: the run that has written `uri`; None: another process of this run."""
        self._is_told = True
        if other is None:
            words = "another process uploads as run %r, rank %d, as well, to %s: give each run a name"
            log.warning(words, state.run_name, state.rank, self._uploader.uri)
        else:
            words = "run %r overwrites %s, which %s has written: put {run_name} into the name, or into name_format, to keep both"
            log.warning(words, state.run_name, uri, other)
