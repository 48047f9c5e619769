"""The tables of a journal, what its triggers keep true, and how an older journal is brought into this form.

Everything that a worker, an agent or a session asks again and again is answered from an index or from a sum that triggers keep, so
that it costs the same with ten jobs and with a million: which job is next (`jobs_ready`), how many are in which state
(`totals`), which staged files are needed (`staged`) and how large they are together (`held`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from sqlite3 import Connection

from wherry.spool.journal.comparisons import COMPARISONS_SCHEMA
from wherry.spool.journal.database import run_script
from wherry.spool.journal.journal_time import TIME_SCHEMA
from wherry.spool.journal.parts import PARTS_SCHEMA

VERSION = 6
_OPEN = "('queued', 'leased')"
_NEEDED = "('queued', 'leased', 'failed')"  # states in which a job's staged file is kept

_TABLES = """
CREATE TABLE stores (
    id INTEGER PRIMARY KEY,      -- made of the next four and the environment
    scheme TEXT NOT NULL, root TEXT NOT NULL,
    options TEXT NOT NULL,       -- JSON, public ones only
    secret_names TEXT NOT NULL,  -- JSON list: the options that live in memory
    settings TEXT NOT NULL,      -- JSON: retry and transfer configuration, of whoever registered the store last; its environment
    is_locked INTEGER NOT NULL,  -- the agent that runs, or ran last, does not have its secrets
    waits_for TEXT,              -- what an operator has to mend before anything can be sent there; see WaitsFor
    refusals INTEGER NOT NULL DEFAULT 0,  -- how many tries in a row have found that
    due_s REAL NOT NULL DEFAULT 0,        -- elapsed time of the next try
    error TEXT, error_kind TEXT
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, owner TEXT NOT NULL,
    store_id INTEGER NOT NULL REFERENCES stores (id),
    uri TEXT NOT NULL, key TEXT NOT NULL,
    place TEXT NOT NULL,         -- with the URI: which object; see endpoint_key()
    object_id TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    overwrite INTEGER NOT NULL,  -- 0, 1, 2: only what an earlier attempt of its run has left, 3: and say whose it was, by the tokens
    token TEXT NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    created_s REAL NOT NULL, finished_s REAL,  -- by the wall clock, to be shown
    counted_from_s REAL NOT NULL DEFAULT 0,    -- run time from which its deadline counts
    due_s REAL NOT NULL DEFAULT 0,             -- elapsed time of the next try; 0: at once
    ended_s REAL,                              -- elapsed time of its end
    blocked_by INTEGER,          -- an unfinished job that must end first, if there is one: kept by submit() and the triggers
    waits_for TEXT,              -- as of a store, of a job that has found it
    lease_owner TEXT, lease_until_s REAL, leases_lost INTEGER NOT NULL DEFAULT 0,  -- elapsed time
    crc32c INTEGER, pieces BLOB,  -- 4 bytes, big endian, for each piece of a large file
    upload_id TEXT, part_size_bytes INTEGER, etag TEXT,
    is_listed INTEGER NOT NULL DEFAULT 0,  -- its worker knows which parts the store holds: others may send the missing ones
    exclusive INTEGER,           -- without overwrite, when done: whether the store itself saw to it that the name was free
    error TEXT, error_kind TEXT, -- of the last attempt that failed: the words, and see kind_of()
    superseded_by INTEGER, reported INTEGER NOT NULL DEFAULT 0,
    is_urgent INTEGER NOT NULL DEFAULT 0   -- see wherry.spool.journal.order
);
CREATE TABLE requirements (
    job_id INTEGER NOT NULL, key TEXT NOT NULL, after_job INTEGER,
    PRIMARY KEY (job_id, key)
) WITHOUT ROWID;
CREATE TABLE totals (            -- how many jobs, by owner, store, kind and state
    owner TEXT NOT NULL, store_id INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
    n INTEGER NOT NULL, size_bytes INTEGER NOT NULL, retries INTEGER NOT NULL,
    PRIMARY KEY (owner, store_id, kind, state)
) WITHOUT ROWID;
CREATE TABLE staged (            -- the staged files that unfinished and failed jobs need, and how many of these
    object_id TEXT PRIMARY KEY, n_jobs INTEGER NOT NULL, size_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE held (              -- the sum of their sizes
    id INTEGER PRIMARY KEY CHECK (id = 1), size_bytes INTEGER NOT NULL
);
INSERT INTO held VALUES (1, 0);
"""
_URGENT_INDEX = (
    "CREATE INDEX jobs_urgent ON jobs (store_id, due_s, id) WHERE is_urgent AND state = 'queued' AND blocked_by IS NULL;"
)
_INDEXES = f"""
CREATE INDEX jobs_open ON jobs (uri, id) WHERE state IN {_OPEN};
CREATE INDEX jobs_ready ON jobs (store_id, due_s, id) WHERE state = 'queued' AND blocked_by IS NULL;
{_URGENT_INDEX}
CREATE INDEX jobs_leased ON jobs (lease_owner) WHERE state = 'leased';
CREATE INDEX jobs_blocked ON jobs (blocked_by) WHERE blocked_by IS NOT NULL;
CREATE INDEX jobs_waiting ON jobs (store_id) WHERE waits_for IS NOT NULL;
CREATE INDEX jobs_suspect ON jobs (leases_lost) WHERE leases_lost > 0 AND state = 'queued';
CREATE INDEX jobs_uploads ON jobs (state) WHERE upload_id IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (ended_s) WHERE state IN ('done', 'superseded', 'discarded') AND upload_id IS NULL;
CREATE INDEX jobs_by_owner ON jobs (owner, state);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_uri ON jobs (uri, id);
CREATE INDEX requirements_after ON requirements (after_job) WHERE after_job IS NOT NULL;
"""


#: SQL for a job that a row of `jobs` must wait for, or NULL: an older open one of its name, a newer one of it that is being sent,
#: or an open one that it requires. Of several that are required the newest, as it probably ends last.
#: A "+" before a column keeps SQLite's planner, which knows no figures of the tables, from walking all jobs of a state.
_NAMESAKE = (
    f"SELECT MAX(e.id) FROM jobs e INDEXED BY jobs_open WHERE e.uri = jobs.uri AND e.place = jobs.place AND e.state IN {_OPEN}"
)
BLOCKER = (
    f"COALESCE(({_NAMESAKE} AND e.id < jobs.id), ({_NAMESAKE} AND e.id > jobs.id AND e.state = 'leased'),"
    " (SELECT MAX(e.id) FROM requirements r CROSS JOIN jobs e ON e.id = r.after_job"
    f" WHERE r.job_id = jobs.id AND +e.state IN {_OPEN}))"
)
#: Statements of triggers that take the row OLD out of the totals, and put the row NEW in.
_COUNTED_OUT = """
    UPDATE totals SET n = n - 1, size_bytes = size_bytes - OLD.size_bytes, retries = retries - MAX(OLD.attempts - 1, 0)
        WHERE owner = OLD.owner AND store_id = OLD.store_id AND kind = OLD.kind AND state = OLD.state;"""
_COUNTED_IN = """
    INSERT INTO totals VALUES (NEW.owner, NEW.store_id, NEW.kind, NEW.state, 1, NEW.size_bytes, MAX(NEW.attempts - 1, 0))
        ON CONFLICT (owner, store_id, kind, state) DO UPDATE SET n = n + 1, size_bytes = size_bytes + excluded.size_bytes,
        retries = retries + excluded.retries;"""
_TRIGGERS = f"""
CREATE TRIGGER jobs_counted AFTER INSERT ON jobs BEGIN{_COUNTED_IN}
END;
CREATE TRIGGER jobs_counted_anew AFTER UPDATE OF state, attempts ON jobs BEGIN{_COUNTED_OUT}{_COUNTED_IN}
END;
CREATE TRIGGER jobs_forgotten AFTER DELETE ON jobs BEGIN{_COUNTED_OUT}
    DELETE FROM totals WHERE owner = OLD.owner AND store_id = OLD.store_id AND kind = OLD.kind AND state = OLD.state AND n = 0;
    DELETE FROM requirements WHERE job_id = OLD.id;
    DELETE FROM parts WHERE job_id = OLD.id;
END;
CREATE TRIGGER jobs_staged AFTER INSERT ON jobs WHEN NEW.object_id != '' AND NEW.state IN {_NEEDED} BEGIN
    INSERT INTO staged VALUES (NEW.object_id, 1, NEW.size_bytes) ON CONFLICT (object_id) DO UPDATE SET n_jobs = n_jobs + 1;
END;
CREATE TRIGGER jobs_let_go AFTER UPDATE OF state ON jobs
WHEN OLD.object_id != '' AND OLD.state IN {_NEEDED} AND NEW.state NOT IN {_NEEDED} BEGIN
    UPDATE staged SET n_jobs = n_jobs - 1 WHERE object_id = OLD.object_id;
    DELETE FROM staged WHERE object_id = OLD.object_id AND n_jobs <= 0;
END;
CREATE TRIGGER staged_added AFTER INSERT ON staged BEGIN
    UPDATE held SET size_bytes = size_bytes + NEW.size_bytes;
END;
CREATE TRIGGER staged_removed AFTER DELETE ON staged BEGIN
    UPDATE held SET size_bytes = size_bytes - OLD.size_bytes;
END;
CREATE TRIGGER jobs_unblock AFTER UPDATE OF state ON jobs WHEN OLD.state IN {_OPEN} AND NEW.state NOT IN {_OPEN} BEGIN
    UPDATE jobs SET blocked_by = {BLOCKER} WHERE blocked_by = NEW.id;
    UPDATE jobs SET blocked_by = NULL, waits_for = NULL WHERE id = NEW.id AND (blocked_by IS NOT NULL OR waits_for IS NOT NULL);
END;
CREATE TRIGGER jobs_given_back AFTER UPDATE OF state ON jobs WHEN OLD.state = 'leased' AND NEW.state = 'queued' BEGIN
    UPDATE jobs SET blocked_by = {BLOCKER} WHERE id = NEW.id;
    UPDATE jobs SET blocked_by = {BLOCKER} WHERE blocked_by = NEW.id AND +id < NEW.id;
END;
CREATE TRIGGER jobs_reopened AFTER UPDATE OF state ON jobs WHEN OLD.state NOT IN {_OPEN} AND NEW.state IN {_OPEN} BEGIN
    UPDATE jobs SET blocked_by = {BLOCKER} WHERE id = NEW.id;
    UPDATE jobs SET blocked_by = {BLOCKER} WHERE +blocked_by IS NULL AND +state = 'queued' AND id IN (
        SELECT job_id FROM requirements WHERE after_job = NEW.id UNION
        SELECT MIN(e.id) FROM jobs e INDEXED BY jobs_open WHERE e.uri = NEW.uri AND e.place = NEW.place AND e.id > NEW.id AND e.state IN {_OPEN});
END;
"""
SCHEMA = _TABLES + PARTS_SCHEMA + TIME_SCHEMA + _INDEXES + _TRIGGERS + COMPARISONS_SCHEMA


def store_row(
    scheme: str,
    root: str,
    options: Mapping[str, object],
    secret_names: Iterable[str],
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str, str, str, str]:
    """The id of a store and the columns that it is made of: the same store has the same id in every journal.

    `environment` (see `StoreRecord`) is a part of what it is, and kept among its settings.

    Secrets are handed over and stores kept open by this id, also when a damaged journal is replaced by a new one: a number that
    means another store there would send a file to the wrong place.
    """
    row = (scheme, root, json.dumps(options, sort_keys=True), json.dumps(sorted(secret_names)))
    whole = row if environment is None else (*row, json.dumps(environment, sort_keys=True))
    return int.from_bytes(hashlib.sha256(json.dumps(whole).encode()).digest()[:6], "big"), *row


#: A backoff at its longest, with the settings of that version.
_LONGEST_WAIT_S = 300.0
_OLD_TABLES = ("stores", "jobs", "requirements", "parts", "begins")
#: The columns that jobs of version 3 have in common with ours.
_KEPT = (
    "id, kind, owner, uri, key, place, object_id, size_bytes, overwrite, token, state, attempts, created_s, finished_s, lease_owner,"
    " leases_lost, crc32c, pieces, upload_id, part_size_bytes, etag, is_listed, exclusive, error, error_kind, superseded_by, reported"
)


def from_version_3(db: Connection, now_s: float) -> None:
    """Bring a journal of version 3 into this form, within the transaction that is open. `now_s`: the wall clock's time.

    There deadlines, waits and leases were times of the wall clock, and a store was another one with each configuration. Every
    unfinished job gets the whole deadline of its store, and waits no longer than a backoff is.
    """
    last_id = db.execute("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'").fetchone()[0]
    for table in _OLD_TABLES:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for (index,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall():
        db.execute(f"DROP INDEX {index}")
    run_script(db, _TABLES + PARTS_SCHEMA + TIME_SCHEMA)
    db.execute("CREATE TEMP TABLE renamed (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
    # Of several that are one store now, the last one that accepted a job has the settings.
    for old, scheme, root, options, names, settings in db.execute(
        "SELECT id, scheme, root, options, secret_names, settings FROM old_stores AS s"
        " ORDER BY (SELECT MAX(j.id) FROM old_jobs j WHERE j.store_id = s.id)"
    ).fetchall():
        row = store_row(scheme, root, json.loads(options), json.loads(names))
        register(db, row, settings)
        db.execute("INSERT INTO renamed VALUES (?, ?)", (old, row[0]))
    db.execute(
        f"INSERT INTO jobs ({_KEPT}, store_id, due_s, ended_s, lease_until_s)"
        f" SELECT {_KEPT}, (SELECT new FROM renamed WHERE old = store_id), MIN(not_before_s, ?), finished_s, MIN(lease_until_s, ?)"
        " FROM old_jobs ORDER BY id",
        (now_s + _LONGEST_WAIT_S, now_s + _LONGEST_WAIT_S),
    )
    db.execute("INSERT INTO requirements SELECT job_id, key, after_job FROM old_requirements")
    columns = "job_id, number, crc32c, etag, size_bytes, lease_owner, tries"
    db.execute(f"INSERT INTO parts ({columns}, lease_until_s) SELECT {columns}, lease_until_s FROM old_parts")
    db.execute("INSERT INTO begins SELECT id, (SELECT new FROM renamed WHERE old = store_id), key, begun_s FROM old_begins")
    for table in reversed(_OLD_TABLES):
        db.execute(f"DROP TABLE old_{table}")
    db.execute("DROP TABLE renamed")
    run_script(db, _INDEXES)
    db.execute(
        "INSERT INTO totals SELECT owner, store_id, kind, state, COUNT(*), SUM(size_bytes), SUM(MAX(attempts - 1, 0)) FROM jobs"
        " GROUP BY owner, store_id, kind, state"
    )
    db.execute(
        "INSERT INTO staged SELECT object_id, COUNT(*), MAX(size_bytes) FROM jobs"
        f" WHERE object_id != '' AND state IN {_NEEDED} GROUP BY object_id"
    )
    db.execute("UPDATE held SET size_bytes = (SELECT COALESCE(SUM(size_bytes), 0) FROM staged)")
    db.execute(f"UPDATE jobs SET blocked_by = {BLOCKER} WHERE state = 'queued'")
    run_script(db, _TRIGGERS + COMPARISONS_SCHEMA)
    db.execute("DELETE FROM sqlite_sequence WHERE name = 'jobs'")
    db.execute("INSERT INTO sqlite_sequence VALUES ('jobs', ?)", (last_id,))


def from_version_4(db: Connection) -> None:
    """Bring a journal of version 4, which compares no uploads, into this form, within the transaction that is open."""
    run_script(db, COMPARISONS_SCHEMA)
    from_version_5(db)


def from_version_5(db: Connection) -> None:
    """Bring a journal of version 5 into this form. There no job is urgent: those in it keep the order of their calls."""
    db.execute("ALTER TABLE jobs ADD COLUMN is_urgent INTEGER NOT NULL DEFAULT 0")
    db.execute(_URGENT_INDEX)


def register(db: Connection, row: tuple[int, str, str, str, str], settings: str) -> None:
    """Add a store, or give one that is known its newest settings."""
    is_locked = row[4] != "[]"  # until somebody tells the agent its secrets
    db.execute(
        "INSERT INTO stores (id, scheme, root, options, secret_names, settings, is_locked) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET settings = excluded.settings WHERE settings != excluded.settings",
        (*row, settings, is_locked),
    )
