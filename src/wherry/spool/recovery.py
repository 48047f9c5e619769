"""Opening a journal that may be damaged: the damaged one is put aside with its staged files, and nothing is deleted."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TypeVar

from wherry.clock import Clock
from wherry.errors import JournalError, SpoolError
from wherry.spool.journal.database import JournalDamaged
from wherry.spool.journal.journal import Journal, readable_jobs
from wherry.spool.journal.role import Role
from wherry.spool.journal.submit import NewJob, Uploads
from wherry.spool.leftovers import set_aside
from wherry.spool.presence import living_sessions
from wherry.spool.reserve import size_bytes_of
from wherry.spool.spool import HALF, Spool

log = logging.getLogger("wherry")

#: SQLite's smallest page; a shorter file is a database that was never written, or was cut off at its head.
_SMALLEST_BYTES = 512


#: After so many jobs the journal is measured again. A job and what the indexes have of it take about so many bytes.
_MEASURED_JOBS = 64
_JOB_BYTES = 2_048

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Role)


class MendedJournal(Journal):
    """A journal that is put aside and begun anew when a call finds it damaged; the call is then made again, once.

    So it is when its disk is full, after the spool's reserve was given to it.
    """

    def __init__(self, spool: Spool, *, checkpoints: bool, clock: Clock | None = None) -> None:
        self._spool = spool
        self._n_unmeasured = _MEASURED_JOBS
        super().__init__(spool.held_journal(), spool.config.durability, checkpoints=checkpoints, clock=clock)

    def _role(self, role: type[_R]) -> _R:
        made = super()._role(role)
        for name in dir(role):
            if not name.startswith("_"):
                setattr(made, name, self._mended(getattr(made, name)))
        if isinstance(made, Uploads):
            vars(made)["submit"] = partial(self._submit, partial(Uploads.submit, made))
        return made

    def _mended(self, call: Callable[..., _T]) -> Callable[..., _T]:
        @wraps(call)
        def again(*args: object, **options: object) -> _T:
            try:
                return call(*args, **options)
            except JournalDamaged:
                self.mend()
                return call(*args, **options)
            except JournalError as error:
                if not self.make_room(error):
                    raise
                return call(*args, **options)

        return again

    def _submit(self, submit: Callable[..., _T], owner: str, store_id: int, new: Sequence[NewJob], *, shared: bool = False) -> _T:
        """As `Uploads.submit`. The files of these jobs are kept when a damaged journal is put aside.

        Nothing is accepted without the room to finish it: SpoolError.
        """
        try:
            with self._spool.explained("the journal's notes of it"):
                self._spool.reserve.fill(self._size_to_be(len(new)))
            return submit(owner, store_id, new, shared=shared)
        except JournalDamaged:
            self.mend(keep=[job.object_id for job in new])
            return submit(owner, store_id, new)  # the jobs whose staged files these were are not in the new one

    def _size_to_be(self, n_new: int) -> int:
        """How large the file will be with so many jobs more; 0 where that was found out a few jobs ago, as it takes a moment."""
        self._n_unmeasured += n_new
        if self._n_unmeasured < _MEASURED_JOBS:
            return 0
        self._n_unmeasured = 0
        return self.size_bytes() + max(n_new, _MEASURED_JOBS) * _JOB_BYTES

    def make_room(self, error: JournalError) -> bool:
        """Give the reserve to the journal if it may be what it lacks, and shorten its log. Whether it is worth to write again."""
        if "locked" in str(error):
            return False
        with self._database.shortening() as (move_log, size_bytes):
            had_bytes = self._spool.reserve.release()
            is_short = move_log()
            kept_bytes = self._spool.reserve.keep_for_database(size_bytes)
        return is_short or kept_bytes < had_bytes

    def mend(self, keep: Sequence[str] = ()) -> None:
        """Put the journal aside if it is damaged. Nothing happens if another process was faster."""
        open_journal(self._spool, keep=keep, thorough=True).close()


def open_journal(
    spool: Spool, *, keep: Sequence[str] = (), checkpoints: bool = False, thorough: bool = False, clock: Clock | None = None
) -> Journal:
    """Open the spool's journal; a damaged one is quarantined first, which is logged with a list of the staged files.

    So it is when the damage shows later, see `MendedJournal`. `keep` are staged files of uploads that are just being
    accepted: they stay where they are. `thorough`: look for damage everywhere, however long that takes.
    """
    opened = partial(_opened, spool, checkpoints, thorough, clock)
    with spool.explained("its journal"):
        try:
            return opened()
        except JournalDamaged:
            with spool.locked("quarantine.lock"):
                try:
                    return opened()  # another process was faster
                except JournalDamaged as damage:
                    log.error("%s", _put_aside(spool, str(damage), keep))
                    journal = MendedJournal(spool, checkpoints=checkpoints, clock=clock)
                    # Whoever holds the number of a lost job must not be told of another. Nobody submits a thousand in a second.
                    Uploads.number_from(journal.uploads, time.time_ns() // 1_000_000)
                    return journal


def restore_quarantined(spool: Spool, object_ids: Iterable[str]) -> None:
    """Fetch staged files back that were put aside with a damaged journal just before the new one accepted their jobs."""
    if not spool.has("quarantine"):
        return
    for object_id in object_ids:
        if not spool.path(object_id).exists():
            for aside in spool.inside("quarantine").glob(f"*/objects/{object_id}"):
                aside.rename(spool.path(object_id))


def remove_unneeded_reserve(spool: Spool, journal: Journal) -> None:
    """Give the reserve's room back when nobody has the spool open and nothing in it is left to be finished."""
    with suppress(SpoolError):  # it only takes room
        if spool.reserve.exists() and not living_sessions(spool) and not journal.queries.referenced_objects():
            spool.reserve.remove()


def _opened(spool: Spool, checkpoints: bool, thorough: bool, clock: Clock | None) -> Journal:
    try:
        return _checked(spool, checkpoints, thorough, clock)
    except JournalDamaged:
        raise
    except JournalError:
        if not spool.reserve.release():
            raise
        return _checked(spool, checkpoints, thorough, clock)


def _checked(spool: Spool, checkpoints: bool, thorough: bool, clock: Clock | None) -> Journal:
    if _is_lost(spool):
        raise JournalDamaged(f"the journal {spool.journal_path} is gone or empty, but there are staged files")
    journal = MendedJournal(spool, checkpoints=checkpoints, clock=clock)
    try:
        (journal.check if thorough else journal.quick_check)()
    except JournalDamaged:
        journal.close()
        raise
    return journal


def _is_lost(spool: Spool) -> bool:
    """Whether there are staged files, but no journal to say what they are: a new one would take them for orphans."""
    if size_bytes_of(spool.inside("journal.db")) >= _SMALLEST_BYTES:
        return False
    # Before the second look: a journal is there before the first file is staged.
    staged = [name for name in os.listdir(spool.inside("objects")) if not name.endswith(HALF)]
    return bool(staged) and size_bytes_of(spool.inside("journal.db")) < _SMALLEST_BYTES


def _put_aside(spool: Spool, reason: str, keep: Sequence[str]) -> str:
    uris = {object_id: uri for object_id, uri, _ in readable_jobs(spool.inside("journal.db"))}
    # Those that are being written are of no job yet: their writers go on.
    names = [name for name in os.listdir(spool.inside("objects")) if name not in keep and not name.endswith(HALF)]
    aside, listing = set_aside(spool, reason, names, uris, journal=True)
    return f"{reason}. It was put aside in {aside}, and a new one is in use. Staged files, none deleted:\n{listing}"
