"""What anyone may ask of a journal. Nothing here changes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from sqlite3 import Connection
from typing import Any

from wherry.spool.journal.jobs import LOOKS_FIRST, REPLACES_EARLIER, Counts, End, Job, JobId, JobKind, JobState, Schedule
from wherry.spool.journal.role import Role
from wherry.store.environment import environment_of, secrets_from_environment, split_environment
from wherry.store.registry import endpoint_key

_OWN = [column.name for column in fields(Job) if column.name not in ("schedule", "end")]
#: What the column `overwrite` says as well.
_IN_OVERWRITE = ("replaces_earlier", "looks_first")
#: Of the table: what as_job() takes, and in this order.
JOB_COLUMNS = ", ".join([*_OWN, *(one.name for part in (Schedule, End) for one in fields(part) if one.name not in _IN_OVERWRITE)])


@dataclass(frozen=True)
class StoreRecord:
    """How to open a store again in another process. `secret_names` are the options that must come from memory."""

    id: int
    scheme: str
    root: str
    options: Mapping[str, object]
    secret_names: tuple[str, ...]
    settings: Mapping[str, Mapping[str, float]]
    is_locked: bool = False  # the agent that runs, or ran last, does not have its secrets
    #: The public variables of its programs that choose how it is reached; None: those of whoever opens it.
    environment: Mapping[str, str] | None = None

    @property
    def endpoint_key(self) -> str:
        """Which of the servers that have such a URI it is on."""
        return endpoint_key(self.scheme, self.options, self.environment or {})


def secrets_here(stores: Iterable[StoreRecord], environ: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """The secrets of those stores whose first user had them in the environment, as far as this one has them, too: by store."""
    found: dict[int, dict[str, str]] = {}
    for store in stores:
        _, addresses = split_environment(environment_of(store.scheme, environ))
        here = {**secrets_from_environment(store.scheme, environ), **addresses}
        if "secrets" in store.settings and set(store.secret_names) <= set(here):
            found[store.id] = {name: here[name] for name in store.secret_names}
    return found


class Queries(Role):
    """The questions."""

    def referenced_objects(self) -> set[str]:
        """The staged files that unfinished or failed jobs still need."""
        return {row[0] for row in self._rows("SELECT object_id FROM staged")}

    def unneeded(self, object_ids: Iterable[str]) -> list[str]:
        """Those of the staged files that no unfinished or failed job needs."""
        with self._transaction(read_only=True) as db:
            return unneeded(db, object_ids)

    def known_objects(self, among: Iterable[str]) -> set[str]:
        """Those of the staged files that some job has or had, in whatever state. It reads all rows."""
        wanted = set(among)
        with self._transaction(read_only=True) as db:
            return {row[0] for row in db.execute("SELECT object_id FROM jobs") if row[0] in wanted}

    def is_shared(self, object_id: str) -> bool:
        """Whether several unfinished or failed jobs have this staged file."""
        row = self._row("SELECT n_jobs FROM staged WHERE object_id = ?", (object_id,))
        return row is not None and row[0] > 1

    def spool_bytes(self) -> int:
        """How much the staged files of unfinished and failed jobs take."""
        return int(self._row("SELECT size_bytes FROM held")[0])

    def abandoned_uploads(self) -> list[Job]:
        """Jobs that will not be sent any more but have begun an upload in parts, which takes room in the store."""
        which = "upload_id IS NOT NULL AND state IN ('superseded', 'discarded', 'failed')"
        rows = self._rows(f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_uploads WHERE {which} LIMIT 20")
        return [as_job(row) for row in rows]

    def upload_ids(self) -> set[str]:
        """The ids of all uploads in parts that belong to a job."""
        return {row[0] for row in self._rows("SELECT upload_id FROM jobs WHERE upload_id IS NOT NULL")}

    def stores(self) -> dict[int, StoreRecord]:
        """All store records, by id."""
        rows = self._rows("SELECT id, scheme, root, options, secret_names, settings, is_locked FROM stores")
        found = {}
        for store_id, scheme, root, options, names, settings_text, is_locked in rows:
            settings = json.loads(settings_text)
            environment = settings.pop("environment", None)
            found[store_id] = StoreRecord(
                store_id, scheme, root, json.loads(options), tuple(json.loads(names)), settings, bool(is_locked), environment
            )
        return found

    def counts(self, owner: str | None = None) -> Counts:
        """Uploads by state, of one owner or of all."""
        whose, args, oldest = ("owner = ? AND", (owner,), "jobs_by_owner") if owner is not None else ("", (), "jobs_by_state")
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT state, SUM(n), SUM(size_bytes), SUM(retries) FROM totals WHERE {whose} kind != 'check' GROUP BY state"
                " HAVING SUM(n) > 0",
                args,
            ).fetchall()
            found = {state: (int(n), int(size), int(retries)) for state, n, size, retries in rows}
            still = [state for state in ("queued", "leased") if state in found]
            sent_bytes = db.execute(
                "SELECT COALESCE(SUM(p.size_bytes), 0) FROM parts p CROSS JOIN jobs j ON j.id = p.job_id"
                f" WHERE {whose} p.etag IS NOT NULL AND +j.state IN ('queued', 'leased')",
                args,
            ).fetchone()[0]
            first_s = [
                db.execute(
                    f"SELECT created_s FROM jobs INDEXED BY {oldest} WHERE {whose} state = ? AND kind != 'check' ORDER BY id LIMIT 1",
                    (*args, state),
                ).fetchone()[0]
                for state in still
            ]
        queued, leased, done, failed, superseded = (
            found.get(state, (0, 0, 0)) for state in ("queued", "leased", "done", "failed", "superseded")
        )
        return Counts(
            *(queued[0], leased[0], done[0], failed[0], superseded[0]),
            bytes_queued=max(0, queued[1] + leased[1] - int(sent_bytes)),
            bytes_failed=failed[1],
            oldest_age_s=max((max(0.0, self._time.wall_s() - created_s) for created_s in first_s), default=0.0),
            retries=sum(row[2] for row in found.values()),
        )

    def sent(self, owner: str | None, limit: int) -> list[tuple[float, float, int]]:
        """The newest uploads that are done, of one owner or of all: when each was accepted and finished, and its bytes."""
        whose, args = ("owner = ? AND", (owner,)) if owner is not None else ("", ())
        rows = self._rows(
            f"SELECT created_s, finished_s, size_bytes FROM jobs WHERE {whose} state = 'done' AND +kind = 'put'"
            " AND finished_s IS NOT NULL ORDER BY id DESC LIMIT ?",
            (*args, limit),
        )
        return [(float(begin_s), float(end_s), int(size_bytes)) for begin_s, end_s, size_bytes in rows]

    def queued_at(self, stores: Iterable[int]) -> tuple[int, int]:
        """(how many uploads to these stores are queued, their bytes)."""
        n, size_bytes = self._row(
            "SELECT COALESCE(SUM(n), 0), COALESCE(SUM(size_bytes), 0) FROM totals"
            f" WHERE kind != 'check' AND state = 'queued' AND store_id IN ({listed(stores)})"
        )
        return int(n), int(size_bytes)

    def job(self, job_id: JobId) -> Job | None:
        """One job, or None if it is unknown (or was finished long ago)."""
        found = self.jobs(ids=[job_id])
        return found[0] if found else None

    def jobs(self, *, states: Iterable[JobState] = (), ids: Sequence[JobId] | None = None, checks: bool = True) -> list[Job]:
        """Jobs in the order of their calls, those that match everything given; without `checks` only what sends something."""
        clauses, args = ["1"], [state.value for state in states]
        if args:
            # The "+" keeps the planner from walking all jobs of these states to find a few numbers.
            clauses.append(f"{'' if ids is None else '+'}state IN ({', '.join('?' * len(args))})")
        if not checks:
            clauses.append("kind != 'check'")
        if ids is not None:
            clauses.append(f"id IN ({listed(ids)})")
        rows = self._rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join(clauses)} ORDER BY id", args)
        return [as_job(row) for row in rows]

    def has_done_another(self, job: Job) -> bool:
        """Whether the session of this job has put an earlier upload of its name into the store."""
        done = (
            "SELECT 1 FROM jobs INDEXED BY jobs_by_uri WHERE uri = ? AND id < ? AND owner = ? AND store_id = ? AND state = 'done'"
        )
        return self._row(f"{done} LIMIT 1", (job.uri, job.id, job.owner, job.store_id)) is not None

    def newest_open(self, uri: str, endpoint: str) -> Job | None:
        """The newest job for this URI at that endpoint, if it is still to be sent: what a reader of the name must see now."""
        with self._transaction(read_only=True) as db:
            return newest_open(db, uri, endpoint)

    def first_open(self, uris: Iterable[str], endpoint: str) -> Job | None:
        """As newest_open(), of the first of these URIs for which there is one."""
        with self._transaction(read_only=True) as db:
            return next((job for uri in uris if (job := newest_open(db, uri, endpoint)) is not None), None)

    def newest(self, uri: str, endpoint: str) -> Job | None:
        """The newest upload for this URI at that endpoint, in whatever state."""
        which = "uri = ? AND place = ? AND kind = 'put'"
        row = self._row(f"SELECT {JOB_COLUMNS} FROM jobs WHERE {which} ORDER BY id DESC LIMIT 1", (uri, endpoint))
        return as_job(row) if row else None

    def open_under(self, uri_prefix: str, endpoint: str) -> list[Job]:
        """The newest unfinished upload of each name below a URI prefix at that endpoint, by URI."""
        below, args = "uri >= ?", [uri_prefix]
        if end := _after(uri_prefix):
            below, args = "uri >= ? AND uri < ?", [uri_prefix, end]
        rows = self._rows(
            f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_open WHERE state IN ('queued', 'leased') AND kind = 'put'"
            f" AND place = ? AND {below} ORDER BY uri, id",
            (endpoint, *args),
        )
        return list({job.uri: job for job in map(as_job, rows)}.values())

    def unfinished(self, *, ids: Sequence[JobId] | None = None) -> int:
        """How many jobs are queued or leased: of a list, or of all."""
        if ids is not None:
            return int(self._row(f"SELECT COUNT(*) FROM jobs WHERE id IN ({listed(ids)}) AND +state IN ('queued', 'leased')")[0])
        return int(self._row("SELECT COALESCE(SUM(n), 0) FROM totals WHERE state IN ('queued', 'leased')")[0])


def newest_open(db: Connection, uri: str, endpoint: str) -> Job | None:
    """As `Queries.newest_open`, within a transaction."""
    row = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_open WHERE uri = ? AND place = ? AND state IN ('queued', 'leased')"
        " AND kind = 'put' ORDER BY id DESC LIMIT 1",
        (uri, endpoint),
    ).fetchone()
    return as_job(row) if row else None


def unneeded(db: Connection, object_ids: Iterable[str]) -> list[str]:
    """Those staged files that no unfinished or failed job refers to, within the transaction that has let them go."""
    needed = "SELECT 1 FROM staged WHERE object_id = ?"
    return [one for one in dict.fromkeys(object_ids) if one and db.execute(needed, (one,)).fetchone() is None]


def listed(ids: Iterable[int]) -> str:
    """Numbers for an SQL list."""
    return ", ".join(str(int(one)) for one in ids)


def as_job(row: Sequence[Any]) -> Job:
    """The job of a row of JOB_COLUMNS."""
    own: dict[str, Any] = dict(zip(_OWN, row, strict=False))
    of_runs = {"replaces_earlier": own["overwrite"] == REPLACES_EARLIER, "looks_first": own["overwrite"] == LOOKS_FIRST}
    own |= {"kind": JobKind(own["kind"]), "state": JobState(own["state"]), "overwrite": own["overwrite"] in (1, LOOKS_FIRST)}
    leases_lost, counted_from_s, due_s, is_urgent, finished_s, etag, superseded_by, exclusive = row[len(_OWN) :]
    end = End(finished_s, etag, superseded_by, None if exclusive is None else bool(exclusive))
    return Job(**own, schedule=Schedule(leases_lost, counted_from_s, due_s, bool(is_urgent), **of_runs), end=end)


def _after(prefix: str) -> str:
    """The least text, by code points as SQLite compares them, that is greater than all that begin with `prefix`; "": there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following == 0xD800:  # no text has one of the surrogates
            following = 0xE000
        if following <= 0x10FFFF:
            return prefix[:at] + chr(following)
    return ""
