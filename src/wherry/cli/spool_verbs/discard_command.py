"""``wherry discard``: give up uploads that have failed, are queued, or are being sent."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    AllOption,
    DryRunOption,
    JsonOption,
    SpoolOption,
    YesOption,
    command,
    confirm,
    parse_target,
    print_done,
    spool_folder,
)
from wherry.cli.spool_verbs.named_jobs import open_existing, plan_jobs
from wherry.errors import ConfigError
from wherry.quantities import count_text, size_text

if TYPE_CHECKING:
    from wherry.spool.journal.jobs import Job
    from wherry.spool.journal.journal import Journal
    from wherry.spool.spool import Spool

#: What is being sent has ended by then: its worker is killed. An upload by a program itself, without an agent, may go on.
_WAIT_S = 30.0
#: Nobody tells of the end of a worker.
_LOOK_AGAIN_S = 0.1
#: Of one name, the newest so many uploads are given up.
_MOST_JOBS = 1000


def discard(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names, URIs or numbers that `wherry status` shows.", show_default=False),
    ] = None,
    all_: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    spool: SpoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up uploads: failed, queued or running ones.

    Their files in the spool are deleted, which cannot be undone, and what is
    in the store of a running one is aborted. It asks first, unless --yes is
    given. --all is for all that have failed; others must be named.
    """
    from wherry.spool.journal.jobs import JobState

    folder = spool_folder(spool)
    if bool(names) == all_:
        raise ConfigError("name the uploads (wherry status shows them), or give --all for all that have failed")
    place, journal = open_existing(folder)
    with closing(journal):
        if all_:
            jobs = journal.queries.jobs(states=[JobState.FAILED], checks=False)
        else:
            jobs = list({job.id: job for name in names or () for job in _named(journal, name, folder)}.values())
        if dry_run:
            plan_jobs("discarded", jobs, as_json=as_json)
            return
        if jobs:
            size = size_text(sum(one.size_bytes for one in jobs))
            confirm(f"Give up {count_text(len(jobs), 'upload')} and delete their staged files, {size}?", yes=yes)
        n_discarded, n_freed = _give_up(place, journal, jobs)
    n_done = len(jobs) - n_discarded
    if as_json:
        typer.echo(json.dumps({"discarded": n_discarded, "deleted_files": n_freed, "ended_before": n_done}))
        return
    done = f"; {n_done} had ended before" if n_done else ""
    print_done(f"{n_discarded} given up, {n_freed} staged file{'s' * (n_freed != 1)} deleted{done}")


def _named(journal: Journal, name: str, folder: Path) -> list[Job]:
    """The uploads of a name, a URI or a number that can be given up. ConfigError where there are none, or of several names."""
    from wherry.cli.status import OPEN
    from wherry.spool.journal.jobs import JobId, JobState

    if name.isdecimal():
        ids = [JobId(int(name))]
    else:
        target = parse_target(name)
        ids = journal.overview.named(name, target.uri_for(target.prefix), _MOST_JOBS)
    jobs = journal.queries.jobs(ids=ids, states=[*OPEN, JobState.FAILED], checks=False)
    if not jobs:
        raise ConfigError(
            f"no upload called {name!r} is queued, running or failed: {command('status', folder)} lists those that are"
        )
    if len(uris := sorted({job.uri for job in jobs})) > 1:
        raise ConfigError(f"{name!r} may be {uris[0]} or {uris[1]}: give the whole URI")
    return jobs


def _give_up(place: Spool, journal: Journal, jobs: Sequence[Job]) -> tuple[int, int]:
    """(uploads given up, staged files deleted). TimeoutError for one that goes on all the same."""
    from wherry.agent.session import Session
    from wherry.config import AgentConfig
    from wherry.spool.journal.jobs import JobState

    ids = [job.id for job in jobs]
    place.free(journal.uploads.give_up(ids)[1])
    if journal.queries.unfinished(ids=ids):
        session, until_s = Session(place, AgentConfig()), time.monotonic() + _WAIT_S
        try:
            while journal.queries.unfinished(ids=ids):
                if time.monotonic() > until_s:
                    raise TimeoutError(f"after {_WAIT_S:g} s an upload still goes on, in a program that sends it itself: end it")
                session.let_go(ids)
                session.wait(_LOOK_AGAIN_S)
                place.free(journal.uploads.give_up(ids)[1])
        finally:
            session.sign_off()
    given_up = journal.queries.jobs(ids=ids, states=[JobState.DISCARDED])
    files = {job.object_id for job in given_up if job.object_id}
    return len(given_up), sum(not place.path(object_id).exists() for object_id in files)
