"""How uploads are accepted: room is made, files are staged, and rows are written to the journal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from wherry.errors import JobFailure, JournalError, SpoolError
from wherry.quantities import count_text
from wherry.spool.journal.jobs import JobId, JobKind
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import JournalReplaced, NewJob, SnapshotGone, name_is_held
from wherry.spool.journal.tokens import Attempt, new_token
from wherry.spool.recovery import restore_quarantined
from wherry.spool.shared_snapshots import shared_here
from wherry.spool.sources import Source
from wherry.spool.spool import HALF, Spool
from wherry.spool.staging import Staged, announce, finish_writer, mark_of, open_writer, stage
from wherry.uri import StoreURI, check_name

#: The owner of jobs that no session waits for.
_DEPUTY = "deputy"


@dataclass(frozen=True)
class FollowUp:
    """A job whose object the agent makes itself, by what `content` tells it, when the uploads that it requires have ended.

    `is_deputy`: it does what another process is there for, so nobody waits for it. `waits_for_others`: it ends when other
    processes have done their parts, so it is not waited for where it is accepted.
    """

    kind: JobKind
    name: str
    content: bytes
    requires: tuple[str, ...] = ()
    is_deputy: bool = False
    waits_for_others: bool = False


@dataclass
class Acceptance:
    """Accepts uploads of the session `owner` to one store. `register()` adds the store to a journal that is a new one."""

    spool: Spool
    journal: Journal
    uri: StoreURI
    owner: str
    endpoint: str
    store_id: int
    register: Callable[[], object] = field(repr=False)  # it has the store's secrets
    _has_accepted: bool = field(default=False, init=False)
    _seen_replacements: int = field(default=0, init=False)

    def require_usable(self, names: Sequence[str], requires: Sequence[str], *, only_if_free: bool) -> None:
        """Refuse before anything is copied or written what would be refused when it is accepted.

        ConfigError for a name that the store cannot have. With `only_if_free` AlreadyExistsError for one that an upload which is
        queued or under way holds; one that has failed, or is done, holds none.
        """
        for name in requires:
            self._uri_for(name)
        uris = [self._uri_for(name) for name in names]
        if only_if_free and (holder := self.journal.queries.first_open(uris, self.endpoint)) is not None:
            raise name_is_held(holder)

    def make_room(self, size_bytes: int, wait: Callable[[], object]) -> bool:
        """Wait until the budget has room for `size_bytes`. False: there is none; the file has to go around the spool."""
        limit = self.spool.config.max_spool_bytes
        if limit is None:
            return True
        when_full = self.spool.config.when_full
        while (used := self.journal.queries.spool_bytes()) + size_bytes > limit:
            if when_full == "direct":
                return False
            counts = self.journal.queries.counts()
            stuck = not (counts.queued + counts.leased)
            if when_full == "raise" or size_bytes > limit or stuck:
                remedy = (
                    "wherry retry or wherry discard" if stuck and counts.failed else "raise max_spool_bytes or wait for uploads"
                )
                raise SpoolError(
                    f"the spool {self.spool.folder} has {used} of {limit} bytes in use "
                    f"({count_text(counts.failed, 'failed upload')} with "
                    f"{counts.bytes_failed} bytes); {size_bytes} more do not fit: {remedy}"
                )
            wait()
        return True

    def accept(
        self,
        sources: Sequence[Source],
        requires: Sequence[str],
        *,
        overwrite: bool,
        move: bool,
        advance: Callable[[int], object],
        plan: str | None = None,
        attempt: Attempt | None = None,
    ) -> list[JobId]:
        """Make snapshots, or take those that another upload of this call has made, and jobs for them: all or nothing."""
        names = [name for _, name in sources]
        shared = shared_here()
        keys = [] if shared is None else [(self.spool.folder, file.absolute()) for file, _ in sources]
        submit = partial(self.submit, only_if_free=not overwrite, plan=plan, attempt=attempt)
        if shared is not None and all(key in shared for key in keys):
            with suppress(SnapshotGone):  # uploaded and freed in the meantime
                there = [shared[key] for key in keys]
                return submit(there, names, overwrite, requires, shared=True)
        staged: list[Staged] = []
        call = announce(self.spool, self.owner)
        try:
            for file, _ in sources:
                staged.append(stage(self.spool, file, call, move=move, advance=advance))
            ids = submit(staged, names, overwrite, requires)
        except BaseException:
            with suppress(JournalError):  # it cannot be read: what no job needs goes when it can
                unneeded = self.journal.queries.unneeded([one.object_id for one in staged])  # Ctrl-C may come too late
                self.spool.free([*unneeded, call + HALF])
            raise
        if shared is not None:
            shared.update(zip(keys, staged, strict=True))
        return ids

    def submit(
        self,
        staged: Sequence[Staged],
        names: Sequence[str],
        overwrite: bool,
        requires: Sequence[str],
        *,
        shared: bool = False,
        only_if_free: bool = False,
        plan: str | None = None,
        attempt: Attempt | None = None,
    ) -> list[JobId]:
        """Make jobs for staged files: their ids. `plan`: the part of a checkpoint set that they are compared for."""
        new = [
            self._new_job(
                name, one, JobKind.PUT, requires, overwrite=overwrite, only_if_free=only_if_free, plan=plan, attempt=attempt
            )
            for one, name in zip(staged, names, strict=True)
        ]
        ids, freed = self._write(new, shared=shared)
        restore_quarantined(self.spool, [one.object_id for one in staged])
        self.spool.free(freed)
        return ids

    def _new_job(
        self,
        name: str,
        staged: Staged,
        kind: JobKind,
        requires: Sequence[str],
        *,
        overwrite: bool,
        only_if_free: bool = False,
        plan: str | None = None,
        attempt: Attempt | None = None,
    ) -> NewJob:
        key = self.uri.key_for(check_name(name))
        return NewJob(
            kind=kind,
            uri=self.uri.uri_for(key),
            key=key,
            object_id=staged.object_id,
            size_bytes=staged.size_bytes,
            overwrite=overwrite,
            token=new_token(attempt, self.owner),
            requires=tuple((self._uri_for(r), self.uri.key_for(check_name(r))) for r in requires),
            crc32c=staged.crc32c,
            replaces_earlier=attempt is not None and attempt.is_resumed and not overwrite,
            looks_first=attempt is not None and attempt.looks_first,
            only_if_free=only_if_free,
            plan=plan,
        )

    def submit_follow_ups(self, jobs: Sequence[FollowUp]) -> list[JobId]:
        """Stage what these jobs are told, and make them: the ids of those that are no deputies, which are accepted together."""
        staged = [self._stage_bytes(one.content) for one in jobs]
        ids: list[JobId] = []
        for is_deputy in (False, True):
            new = [
                self._new_job(job.name, one, job.kind, job.requires, overwrite=True)
                for job, one in zip(jobs, staged, strict=True)
                if job.is_deputy == is_deputy
            ]
            if new:
                accepted, _ = self._write(new, owner=_DEPUTY if is_deputy else self.owner)
                ids += [] if is_deputy else accepted
        return ids

    def _stage_bytes(self, content: bytes) -> Staged:
        object_id, file = open_writer(self.spool, self.owner)
        with file, self.spool.explained("what the agent is told", len(content)):
            file.write(content)
            file.flush()
            return finish_writer(self.spool, object_id, file)

    def submit_check(self) -> list[JobId]:
        """Make a job that only finds out whether the store lets us in."""
        key = self.uri.key_for(f"wherry-check-{secrets.token_hex(8)}")
        return self._write([NewJob(JobKind.CHECK, self.uri.uri_for(key), key, "", 0, False, "")])[0]

    def _write(self, new: Sequence[NewJob], *, shared: bool = False, owner: str | None = None) -> tuple[list[JobId], list[str]]:
        submit = partial(self.journal.uploads.submit, owner or self.owner, self.store_id, new, shared=shared)
        try:
            accepted = submit()
        except JournalReplaced:
            self.register()
            accepted = submit()
        self.spool.free(list(dict.fromkeys(mark_of(job.object_id) for job in new if job.object_id)))
        if not self._has_accepted:
            self._has_accepted = True
            self._seen_replacements = self.journal.replacements
        return accepted

    def lost(self, *, mark: bool = True) -> list[JobFailure]:
        """A failure that says that the journal was damaged and put aside, if it was; with `mark` once.

        What was not uploaded by then is unknown.
        """
        if self.journal.replacements == self._seen_replacements or not self._has_accepted:
            return []
        if mark:
            self._seen_replacements = self.journal.replacements
        where = self.spool.folder / "quarantine"
        text = f"the journal was damaged and put aside: files that were not uploaded by then are kept and listed in {where}"
        return [JobFailure(0, str(self.uri), 0, text, "JournalError")]

    def _uri_for(self, name: str) -> str:
        return self.uri.uri_for(self.uri.key_for(check_name(name)))
