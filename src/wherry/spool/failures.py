"""The failures of one session's uploads: what errors and log lines say of them, and what they tell their user to do."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wherry.errors import AlreadyExistsError, JobFailure, UploadFailed, upload_failed
from wherry.quantities import count_text, size_text
from wherry.spool.accept import Acceptance
from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.journal import Journal

log = logging.getLogger("wherry")

#: An error that names the jobs of more failures than this would be read by nobody.
_NAMED_JOBS = 5


class Failures:
    """Each failure is raised once, or logged once, of the session that `acceptance` is for."""

    def __init__(self, journal: Journal, acceptance: Acceptance, spool: Path) -> None:
        self._journal = journal
        self._acceptance = acceptance
        self._owner = acceptance.owner
        self._spool = spool
        self._logged: set[int] = set()

    def report(self, *, raising: bool) -> None:
        """Raise UploadFailed for failures that were not raised before, or log those that were not logged."""
        checks, puts = [], []
        if self._journal.uploads.has_failures(self._owner):
            # The name that a check has tried is nobody's affair.
            found = self._journal.uploads.failures(self._owner, checks=True)
            checks = [replace(one, uri=f"access to {one.uri.rpartition('/')[0]}") for one in found]
            puts = self._journal.uploads.failures(self._owner, mark=raising)
        puts = [*self._acceptance.lost(mark=raising), *puts]  # nothing can go wrong any more before that is said
        if raising and (checks or puts):
            raise upload_failed([*checks, *puts], remedy=self._remedy(puts))
        for failure in [*checks, *puts]:
            if failure.job_id not in self._logged:
                self._logged.add(failure.job_id)
                log.warning("upload of %s failed: %s", failure.uri, failure.error)

    def raise_checks(self, ids: Sequence[JobId]) -> None:
        """Raise UploadFailed if one of these checks has failed."""
        checks = self._journal.uploads.failures(self._owner, checks=True)
        if bad := [failure for failure in checks if failure.job_id in ids]:
            raise UploadFailed(bad)

    def raise_uploads(self, held: Sequence[JobFailure]) -> None:
        """Raise UploadFailed for uploads that failed, and for those that wait for an operator (`held`), if there are any."""
        failures = self._journal.uploads.failures(self._owner)
        if held:
            raise UploadFailed([*failures, *held], remedy=self.remedy_for_waiting(len(held)))
        if failures := [*self._acceptance.lost(), *failures]:
            raise upload_failed(failures, remedy=self._remedy(failures))

    def unfinished(self, target: object, why: str, where: str) -> str:
        """What a wait that is given up leaves, why, and the command that finishes it."""
        counts = self._journal.queries.counts(self._owner)
        failures = self._journal.uploads.failures(self._owner, mark=False)
        n_left = counts.queued + counts.leased
        failed = f". {len(failures)} failed: {failures[0].error}" if failures else ""
        return (
            f"{count_text(n_left, 'upload')} to {target} {'is' if n_left == 1 else 'are'} not finished {why}; {where}, "
            f"{size_text(counts.bytes_queued)}. To finish them: {drain_command(self._spool)}{failed}"
        )

    def left(self, *, has_agent: bool) -> str:
        """What a close leaves that is interrupted, and the command for it; without an agent nobody sends it meanwhile."""
        counts = self._journal.queries.counts(self._owner)
        where, verb = ("left to the background", "wait") if has_agent else ("left in the spool", "send")
        what = f"{count_text(counts.queued + counts.leased, 'upload')}, {size_text(counts.bytes_queued)}"
        return f"{where}: {what}. To {verb}: {drain_command(self._spool)}"

    def remedy_for_waiting(self, n_named: int) -> str:
        """What to do about uploads that wait for an operator, of which an error names so many."""
        n_queued = self._journal.queries.counts(self._owner).queued
        more = f"{n_queued - n_named} more wait as well. " if n_queued > n_named else ""
        return (
            f"{more}They stay queued until somebody mends that, and are tried every five minutes, or at once when new secrets "
            f"arrive or by: {drain_command(self._spool)}"
        )

    def _remedy(self, failures: Sequence[JobFailure]) -> str:
        """What works: an upload whose name is taken fails again when it is only tried again."""
        if not failures:
            return ""
        where = f"--spool {shlex.quote(str(self._spool))}"
        taken = [str(failure.job_id) for failure in failures if failure.kind == AlreadyExistsError.__name__]
        found = [] if len(taken) == len(failures) else [f"wherry retry --all {where} (or discard)"]
        if taken:
            jobs = " ".join(taken) if len(taken) <= _NAMED_JOBS else "JOB..."
            found.append(f"where the name is taken, wherry retry --overwrite {jobs} {where} (or discard)")
        return f"their files are kept: {'; '.join(found)}"


def drain_command(spool: Path) -> str:
    """The command that finishes what is in the spool."""
    return f"wherry drain --spool {shlex.quote(str(spool))}"
