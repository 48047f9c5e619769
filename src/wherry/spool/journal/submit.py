"""What a session does in a journal: it accepts uploads, and retries, discards or cancels them for its user."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from sqlite3 import Connection

from wherry.errors import AlreadyExistsError, JobFailure, JournalError
from wherry.spool.journal.database import Database
from wherry.spool.journal.group_commit import GroupCommit
from wherry.spool.journal.jobs import LOOKS_FIRST, REPLACES_EARLIER, Job, JobId, JobKind, JobState
from wherry.spool.journal.journal_time import JournalTime
from wherry.spool.journal.order import URGENT_BYTES
from wherry.spool.journal.queries import listed, newest_open, unneeded
from wherry.spool.journal.role import Role
from wherry.spool.journal.schema import BLOCKER, register, store_row
from wherry.spool.journal.tokens import is_of_another_attempt
from wherry.spool.journal.work import resume
from wherry.store.registry import endpoint_key

#: Whether an upload of this URI is queued or under way, at whatever endpoint.
_OF_URI = "SELECT 1 FROM jobs INDEXED BY jobs_open WHERE uri = ? AND state IN ('queued', 'leased') LIMIT 1"


class SnapshotGone(JournalError):
    """The staged file that a new job was to share has been uploaded and freed in the meantime: stage it again."""


class JournalReplaced(JournalError):
    """The journal is not the one that the store was registered in: that one was put aside. Register it again."""


@dataclass(frozen=True)
class NewJob:
    """What submit() needs to know of one upload."""

    kind: JobKind
    uri: str
    key: str
    object_id: str
    size_bytes: int
    overwrite: bool
    token: str
    requires: tuple[tuple[str, str], ...] = ()  # (uri, key) of objects that must be there first
    crc32c: int | None = None
    plan: str | None = None  # of which part of which checkpoint set it is, if it is to be compared with an older one's
    replaces_earlier: bool = False  # without overwrite: replace what an earlier attempt of its run has left
    looks_first: bool = False  # with overwrite: say if that replaces what another run has written
    only_if_free: bool = False  # refuse it while another upload of the name is queued or under way


class Uploads(Role):
    """The calls of a session."""

    def __init__(self, database: Database, time: JournalTime) -> None:
        super().__init__(database, time)
        self._together = GroupCommit(self._transaction)

    def store_id(
        self,
        scheme: str,
        root: str,
        options: Mapping[str, object],
        secret_names: Iterable[str],
        settings: Mapping[str, Mapping[str, float]],
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """The id of the record for this store; made if it is new. The same store has the same id in every journal.

        `settings`, the configuration, is no part of what a store is: all of its jobs follow the newest. `environment` is one: as of
        `StoreRecord`.
        """
        row = store_row(scheme, root, options, secret_names, environment)
        kept = settings if environment is None else {**settings, "environment": environment}
        with self._transaction() as db:
            register(db, row, json.dumps(kept, sort_keys=True))
            resume(db, [row[0]])  # whoever uses a store anew may have mended what its uploads wait for
        return row[0]

    def submit(self, owner: str, store_id: int, new: Sequence[NewJob], *, shared: bool = False) -> tuple[list[JobId], list[str]]:
        """Accept jobs, all or none: (their ids, the staged files that nobody needs any more).

        Threads that call at the same time wait for the disk together.

        A queued, overwriting job for the same name is superseded by an overwriting one, unless another job requires it.
        `shared`: their staged files are those of other jobs; SnapshotGone if one of these is not open any more.
        AlreadyExistsError for a job that is to be accepted `only_if_free`, if its name is held.
        """
        return self._together.write(partial(self._submit, owner, store_id, new, shared=shared))

    def _submit(
        self, owner: str, store_id: int, new: Sequence[NewJob], db: Connection, *, shared: bool
    ) -> tuple[list[JobId], list[str]]:
        ids: list[JobId] = []
        freed: list[str] = []
        store = db.execute("SELECT scheme, options, settings FROM stores WHERE id = ?", (store_id,)).fetchone()
        if store is None:
            raise JournalReplaced(f"the journal does not know the store {store_id}: it is a new one")
        for one in new if shared else ():
            if db.execute("SELECT 1 FROM staged WHERE object_id = ?", (one.object_id,)).fetchone() is None:
                raise SnapshotGone(f"the staged file {one.object_id} is gone")
        endpoint, run_s = _endpoint_of(*store), self._time.run_s(db)
        for job in new:
            is_alone = db.execute(_OF_URI, (job.uri,)).fetchone() is None
            holder = newest_open(db, job.uri, endpoint) if job.only_if_free and not is_alone else None
            if holder and not (job.replaces_earlier and is_of_another_attempt(holder.token, job.token)):
                raise name_is_held(holder)
            ids.append(self._insert(db, job, owner, store_id, endpoint, run_s))
            _note_requirements(db, job, ids[-1], endpoint)
            if job.plan is not None:
                db.execute("INSERT INTO comparisons (job_id, plan) VALUES (?, ?)", (ids[-1], job.plan))
            if is_alone and not job.requires:  # nothing to supersede, and nothing to wait for
                continue
            if job.overwrite and job.kind is JobKind.PUT:
                freed += self._supersede(db, job.uri, endpoint, ids[-1])
            blocker = db.execute(f"SELECT {BLOCKER} FROM jobs WHERE id = ?", (ids[-1],)).fetchone()[0]
            if blocker is not None:
                db.execute("UPDATE jobs SET blocked_by = ? WHERE id = ?", (blocker, ids[-1]))
        return ids, unneeded(db, freed)

    def _insert(self, db: Connection, job: NewJob, owner: str, store_id: int, endpoint: str, run_s: float) -> JobId:
        of_run = REPLACES_EARLIER if job.replaces_earlier else LOOKS_FIRST if job.overwrite and job.looks_first else None
        more = {"kind": job.kind.value, "owner": owner, "store_id": store_id, "place": endpoint}
        cursor = db.execute(
            "INSERT INTO jobs (kind, owner, store_id, uri, key, place, object_id, size_bytes, overwrite, token, state,"
            " created_s, counted_from_s, crc32c, is_urgent) VALUES (:kind, :owner, :store_id, :uri, :key, :place, :object_id,"
            " :size_bytes, :overwrite, :token, 'queued', :created_s, :counted_from_s, :crc32c, :is_urgent)",
            {
                **vars(job),
                **more,
                "overwrite": int(job.overwrite) if of_run is None else of_run,
                "created_s": self._time.wall_s(),
                "counted_from_s": run_s,
                "is_urgent": _is_urgent(job),
            },
        )
        return JobId(cursor.lastrowid or 0)

    def _supersede(self, db: Connection, uri: str, endpoint: str, job_id: JobId) -> list[str]:
        """End the queued, overwriting jobs of a name that are older than `job_id`: the staged files that they had."""
        older = db.execute(
            "SELECT id, object_id, overwrite FROM jobs INDEXED BY jobs_open WHERE uri = ? AND place = ? AND id < ?"
            f" AND state IN ('queued', 'leased') AND state = 'queued' AND overwrite IN (1, {LOOKS_FIRST})"
            " AND kind = 'put' AND NOT EXISTS (SELECT 1 FROM requirements r JOIN jobs w ON w.id = r.job_id"
            "   WHERE r.after_job = jobs.id AND w.state IN ('queued', 'leased'))",
            (uri, endpoint, job_id),
        ).fetchall()
        for old_id, _, overwrite in older:
            self._end_as(db, JobState.SUPERSEDED, "id = ?", old_id, superseded_by=job_id)
            if overwrite == LOOKS_FIRST:  # nobody has looked yet
                db.execute("UPDATE jobs SET overwrite = ? WHERE id = ?", (LOOKS_FIRST, job_id))
        return [object_id for _, object_id, _ in older]

    def _end_as(self, db: Connection, state: JobState, which: str, *args: object, superseded_by: int | None = None) -> None:
        db.execute(
            f"UPDATE jobs SET state = ?, superseded_by = ?, finished_s = ?, ended_s = ? WHERE {which}",
            (state.value, superseded_by, self._time.wall_s(), self._time.elapsed_s(db), *args),
        )

    def number_from(self, first: int) -> None:
        """Give no job that is accepted from now on a lower number than this."""
        with self._transaction() as db:
            db.execute("INSERT INTO sqlite_sequence SELECT 'jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence)")
            db.execute("UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'jobs'", (first - 1,))

    def cancel(self, uri: str, endpoint: str, *, up_to: JobId | None = None) -> list[str]:
        """Take back the queued and the failed uploads of a name that is being deleted. Returns the staged files freed.

        `up_to`: the newest job that is meant; later ones stay.
        """
        which = "uri = ? AND place = ? AND kind = 'put' AND state IN ('queued', 'failed')"
        if up_to is not None:
            which += f" AND id <= {int(up_to)}"
        return self._discard(which, uri, endpoint)[1]

    def has_failures(self, owner: str) -> bool:
        """Whether failures() would find any, of checks or of all else."""
        return self._row("SELECT 1 FROM jobs WHERE owner = ? AND state = 'failed' AND NOT reported LIMIT 1", (owner,)) is not None

    def failures(self, owner: str, *, checks: bool = False, mark: bool = True) -> list[JobFailure]:
        """The owner's failures, of `checks` or of all else, that were not reported yet; with `mark` they are from now on."""
        which = f"owner = ? AND state = 'failed' AND kind {'=' if checks else '!='} 'check' AND NOT reported"
        select = f"SELECT id, uri, attempts, error, error_kind FROM jobs WHERE {which} ORDER BY id"
        rows = self._rows(select, (owner,))
        if rows and mark:
            with self._transaction() as db:
                rows = db.execute(select, (owner,)).fetchall()  # another thread may have reported some in between
                db.execute(f"UPDATE jobs SET reported = 1 WHERE {which}", (owner,))
        return [JobFailure(*row) for row in rows]

    def mark_reported(self, ids: Sequence[JobId]) -> None:
        """These failures have been raised to the user."""
        self._write(f"UPDATE jobs SET reported = 1 WHERE id IN ({listed(ids)})")

    def retry(self, ids: Sequence[JobId] | None, *, overwrite: bool = False) -> tuple[int, list[str]]:
        """Queue failed jobs again (None: all), and count their deadlines from now: (how many, staged files freed).

        `overwrite`: they may replace what has their names.

        An overwriting job whose name got a newer version in the meantime is superseded: it must not put the older bytes back. One
        whose name a queued job has, which must not overwrite, stays failed: it would be sent first, and that one lose the name.
        """
        which = _which(ids)
        freed: list[str] = []
        n_queued = 0
        with self._transaction() as db:
            db.execute(f"DELETE FROM jobs WHERE state = 'failed' AND kind = 'check' AND {which}")
            for job_id, uri, endpoint, object_id in db.execute(
                f"SELECT id, uri, place, object_id FROM jobs WHERE state = 'failed' AND {which}"
            ).fetchall():
                newer = db.execute(
                    "SELECT id FROM jobs WHERE uri = ? AND place = ? AND id > ? AND overwrite"
                    " AND state IN ('queued', 'leased', 'done') LIMIT 1",
                    (uri, endpoint, job_id),
                ).fetchone()
                if newer is not None:
                    self._end_as(db, JobState.SUPERSEDED, "id = ?", job_id, superseded_by=newer[0])
                    freed.append(object_id)
                elif (holder := newest_open(db, uri, endpoint)) is None or holder.id < job_id or holder.state is JobState.LEASED:
                    db.execute(
                        "UPDATE jobs SET state = 'queued', overwrite = CASE WHEN ? THEN 1 ELSE overwrite END, due_s = 0, leases_lost = 0, reported = 0, finished_s = NULL, ended_s = NULL,"
                        " error_kind = NULL, counted_from_s = ? WHERE id = ?",
                        (overwrite, self._time.run_s(db), job_id),
                    )
                    n_queued += 1
            return n_queued, unneeded(db, freed)

    def discard(self, ids: Sequence[JobId] | None) -> tuple[int, list[str]]:
        """Give failed jobs up (None: all): (how many, staged files freed)."""
        return self._discard(f"state = 'failed' AND {_which(ids)}")

    def give_up(self, ids: Sequence[JobId], *, of_dead: str = "") -> tuple[int, list[str]]:
        """As discard(), of these, also queued ones and those that a worker had leased which is dead, `of_dead`."""
        which = f"(state IN ('queued', 'failed') OR (state = 'leased' AND lease_owner = ?)) AND {_which(ids)}"
        return self._discard(which, of_dead)

    def _discard(self, which: str, *args: str) -> tuple[int, list[str]]:
        with self._transaction() as db:
            rows = db.execute(f"SELECT object_id FROM jobs WHERE {which}", args).fetchall()
            self._end_as(db, JobState.DISCARDED, which, *args)
            return len(rows), unneeded(db, (row[0] for row in rows))

    def forget(self, job_id: JobId) -> None:
        """Remove a finished check."""
        self._write("DELETE FROM jobs WHERE id = ? AND kind = 'check' AND state NOT IN ('queued', 'leased')", (job_id,))


@lru_cache(maxsize=64)
def _endpoint_of(scheme: str, options: str, settings: str) -> str:
    """endpoint_key(), of the options and the environment as the journal keeps them."""
    return endpoint_key(scheme, json.loads(options), json.loads(settings).get("environment") or {})


def name_is_held(holder: Job) -> AlreadyExistsError:
    """The error for an upload that must not overwrite, of a name that this spool is going to put another upload under."""
    return AlreadyExistsError(
        f"an upload of this name, job {holder.id}, is on its way from this spool already",
        operation="put",
        uri=holder.uri,
        hint="overwrite to replace it, or use another name",
    )


def _is_urgent(job: NewJob) -> bool:
    """See `wherry.spool.journal.order`. What it requires becomes so as well."""
    return job.size_bytes >= URGENT_BYTES or job.kind is not JobKind.PUT or bool(job.requires)


def _note_requirements(db: Connection, job: NewJob, job_id: JobId, endpoint: str) -> None:
    for uri, key in job.requires:
        after = db.execute(
            "SELECT id FROM jobs WHERE uri = ? AND place = ? AND id < ? AND kind != 'check' AND state != 'discarded'"
            " ORDER BY id DESC LIMIT 1",
            (uri, endpoint, job_id),
        ).fetchone()
        db.execute("INSERT OR REPLACE INTO requirements VALUES (?, ?, ?)", (job_id, key, after[0] if after is not None else None))
        if after is not None:
            db.execute("UPDATE jobs SET is_urgent = 1 WHERE id = ? AND NOT is_urgent", after)


def _which(ids: Sequence[JobId] | None) -> str:
    return "1" if ids is None else f"id IN ({listed(ids)})"
