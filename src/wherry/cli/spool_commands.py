"""The commands about the spool: status, drain, retry, agent. discard is in spool_verbs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    AllOption,
    DryRunOption,
    FileOption,
    JobsArgument,
    JsonOption,
    SpoolOption,
    TimeoutOption,
    command,
    print_done,
    print_err,
    print_out,
    read_options_file,
    spool_folder,
)
from wherry.cli.exit_codes import Exit
from wherry.cli.shell.verbosity import is_quiet, is_verbose
from wherry.cli.spool_verbs.named_jobs import NO_JOURNAL, open_existing, plan_jobs
from wherry.errors import ConfigError, NotFoundError, SpoolError
from wherry.quantities import count_text, size_text
from wherry.redact import log_to_stderr, register_secret

if TYPE_CHECKING:
    from wherry.agent.job_waiter import JobWaiter
    from wherry.agent.session import Session
    from wherry.cli.status import Waiting
    from wherry.errors import JobFailure
    from wherry.spool.journal.jobs import Counts, Job, JobId
    from wherry.spool.journal.journal import Journal
    from wherry.spool.journal.queries import StoreRecord
    from wherry.spool.spool import Spool


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show everything about one upload: its name, URI or number.", show_default=False),
    ] = None,
    spool: SpoolOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 9 if an upload has failed, or is stuck.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="S", min=0.0, help="With --check: stuck S seconds after it was accepted (3600)."),
    ] = None,
) -> None:
    """Show queued, running and failed uploads.

    Also why they failed, what uploads wait for, when they are tried next,
    whether an agent is running, and what a damaged journal left behind. The
    spool is not changed.
    """
    import sys

    from wherry.cli.status import STUCK_AFTER_S, snapshot
    from wherry.cli.status_text import status_json, status_lines
    from wherry.cli.status_watch import REFRESH_S, watch as watch_status

    folder = spool_folder(spool)
    if name is not None and (watch or check):
        raise ConfigError("--watch and --check are about all uploads: leave the name out")
    if older_than is not None and not check:
        raise ConfigError("--older-than goes with --check")
    if watch and check:
        raise ConfigError("--check looks once: leave --watch out")
    if name is not None:
        _print_history(name, folder, as_json=as_json)
        return
    if watch and not as_json:
        if not sys.stdout.isatty():
            raise ConfigError("--watch needs a terminal; for a program, --watch --json writes a line every second")
        watch_status(folder)
        return
    try:
        while True:
            found = snapshot(folder, stuck_after_s=STUCK_AFTER_S if older_than is None else older_than)
            if as_json:
                typer.echo(status_json(found))
            else:
                for line in status_lines(found):
                    print_out(line)
            if check and found.trouble:
                print_err(found.trouble)
                raise typer.Exit(Exit.UNHEALTHY)
            if not watch:
                return
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        if not watch:  # --watch ends by Ctrl-C
            raise


def _print_history(name: str, folder: Path, *, as_json: bool) -> None:
    from wherry.cli.upload_history import stories, story_lines

    found = stories(name, folder)
    if not found:
        raise NotFoundError("no upload of this spool is called so", operation="status", uri=name)
    for number, story in enumerate(found):
        if as_json:
            typer.echo(story.as_json())
            continue
        for line in ([""] if number else []) + story_lines(story):
            print_out(line)


def drain(
    spool: SpoolOption = None,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until everything in the spool is uploaded.

    It starts an agent if there is none. Secret options that no process has
    any more (wherry status names them) are given with --options-file: {"option": "value"}
    for every store that misses exactly these, or {"store number": {"option":
    "value"}}. Ctrl-C leaves the rest to the background.
    """
    from wherry.cli.status import waiting_for_secrets
    from wherry.cli.status_text import left_to_others_lines
    from wherry.spool.drain import wait_until_drained
    from wherry.spool.journal.jobs import JobState
    from wherry.spool.presence import living_sessions, pid_of_agent
    from wherry.spool.recovery import open_journal
    from wherry.spool.spool import Spool

    folder = spool_folder(spool)
    given = read_options_file(options_file) if options_file is not None else {}
    if not (folder / "journal.db").exists():
        _drained_nothing(folder, as_json=as_json)
        return
    place = Spool(folder)
    journal = open_journal(place)
    if dry_run:
        with closing(journal):
            plan_jobs("uploaded", journal.queries.jobs(states=[JobState.QUEUED, JobState.LEASED], checks=False), as_json=as_json)
        return
    secrets = {**_secrets_here(journal), **secrets_for(journal, given)}
    agent_pid = pid_of_agent(place)
    before = journal.queries.counts()

    def left_to_others() -> list[JobFailure]:
        return journal.overview.left_to_others(living_sessions(place))

    try:
        with _waiter(place, journal, secrets) as waiter:
            closed = [one.store_id for one in waiting_for_secrets(journal, agent_pid, secrets)]
            is_done = wait_until_drained(
                _doable(journal, agent_pid, secrets),
                waiter.wait,
                timeout_s=timeout,
                is_stuck=lambda _: timeout is None and (bool(journal.overview.held_up(closed=closed)) or bool(left_to_others())),
                progress=not is_quiet(),
            )
    except KeyboardInterrupt:
        left = journal.queries.counts()
        n_left = left.queued + left.leased
        print_err(f"interrupted; going on in the background: {count_text(n_left, 'upload')}, {size_text(left.bytes_queued)}")
        raise typer.Exit(Exit.INTERRUPTED) from None
    counts = journal.queries.counts()
    held = journal.overview.held_up(closed=closed)
    others = left_to_others()
    waiting = waiting_for_secrets(journal, agent_pid, secrets)
    failures = journal.queries.jobs(states=[JobState.FAILED], checks=False)
    journal.close()
    n_left = counts.queued + counts.leased
    if as_json:
        _print_drained(counts.done - before.done, n_left, counts.failed, counts.bytes_queued)
    else:
        print_done(f"{counts.done - before.done} uploaded, {n_left} left, {counts.failed} failed")
    _say_what_is_left(failures, waiting, held, folder)
    if others:
        print_err("\n".join(left_to_others_lines(others)))
    elif not held and not is_done:
        print_err(
            f"after {timeout:g} s going on in the background: {count_text(n_left, 'upload')}, {size_text(counts.bytes_queued)}"
        )
    if n_left:
        raise typer.Exit(Exit.TIMED_OUT)
    if failures:
        raise typer.Exit(Exit.FAILED)


def _drained_nothing(folder: Path, *, as_json: bool) -> None:
    if as_json:
        _print_drained(0, 0, 0, 0)
    else:
        print_done(f"{NO_JOURNAL}: {folder} has no journal")


def _print_drained(n_uploaded: int, n_left: int, n_failed: int, bytes_left: int) -> None:
    typer.echo(json.dumps({"uploaded": n_uploaded, "left": n_left, "failed": n_failed, "bytes_left": bytes_left}))


def _say_what_is_left(failures: Sequence[Job], waiting: Sequence[Waiting], held: Sequence[JobFailure], spool: Path) -> None:
    from wherry.cli.status_text import failure_lines, failures_remedy, waiting_lines

    if failures:
        lines = [*failure_lines(failures), *failures_remedy(failures, spool)]
        print_err("\n".join([f"{count_text(len(failures), 'upload')} failed; their files are kept:", *lines]))
    if waiting:
        print_err("\n".join(waiting_lines(waiting, spool)))
    if held:
        lines = [f"  job {one.job_id}  {one.uri}: {one.error}" for one in held]
        print_err("\n".join(["uploads wait until somebody mends what keeps them; they are tried every five minutes:", *lines]))


def _session(spool: Spool, secrets: Mapping[int, dict[str, object]]) -> Session:
    from wherry.agent.session import Session
    from wherry.config import AgentConfig

    session = Session(spool, AgentConfig())
    session.secrets = {str(store_id): options for store_id, options in secrets.items()}
    return session


@contextmanager
def _waiter(spool: Spool, journal: Journal, secrets: Mapping[int, dict[str, object]]) -> Iterator[JobWaiter]:
    """Have the agent try all uploads now, and wait for them within the block."""
    from wherry.agent.job_waiter import JobWaiter

    session = _session(spool, secrets)
    waiter = JobWaiter(session, journal)
    try:
        journal.work.resume()  # the user may have mended what uploads wait for
        session.call_agent()
        yield waiter
    finally:
        waiter.close()
        session.sign_off()


def _doable(journal: Journal, agent_pid: int | None, given: Mapping[int, object]) -> Callable[[], Counts]:
    """Counts of the uploads that can be made: without those that wait for secrets, which would never end."""
    from wherry.cli.status import waiting_for_secrets

    def counts() -> Counts:
        found = journal.queries.counts()
        if not (waiting := {one.store_id for one in waiting_for_secrets(journal, agent_pid, given)}):
            return found
        n_jobs, n_bytes = journal.queries.queued_at(waiting)
        return replace(found, queued=found.queued - n_jobs, bytes_queued=found.bytes_queued - n_bytes)

    return counts


def _secrets_here(journal: Journal) -> dict[int, dict[str, object]]:
    """The secrets that their first user had in the environment, as far as this process's environment has them as well."""
    from wherry.spool.journal.queries import secrets_here

    found = secrets_here(journal.queries.stores().values(), os.environ)
    for options in found.values():
        register_secret(options)
    return {store_id: dict(options) for store_id, options in found.items()}


def secrets_for(journal: Journal, given: Mapping[str, object]) -> dict[int, dict[str, object]]:
    """Which stores of the journal get which secret options, from what the user wrote in an options file.

    ``{"3": {...}}`` is for store 3. ``{"name": ...}`` is for every store that misses just these names; public options among
    them must be those of the store. ConfigError if that fits no store, though uploads are left that need secret options.
    """
    stores = journal.queries.stores()
    is_by_store = bool(given) and all(isinstance(options, dict) and key.isdecimal() for key, options in given.items())
    secret = [given[name] for store in stores.values() for name in store.secret_names if name in given]
    register_secret(list(given.values()) if is_by_store else secret)
    if not any(stores[store_id].secret_names for store_id in journal.overview.by_store() if store_id in stores):
        return {}  # no unfinished upload needs secrets: what was given is ignored
    if is_by_store:
        return {int(key): _secrets_of(stores.get(int(key)), key, options) for key, options in given.items()}
    closed = [store for store in stores.values() if store.secret_names]
    found = {store.id: {name: given[name] for name in store.secret_names} for store in closed if _fits(store, given)}
    if given and not found:
        misses = [f"store {one.id} ({one.scheme}://{one.root}) misses {', '.join(one.secret_names)}" for one in closed]
        raise ConfigError(f"the options given fit no store of this spool: {'; '.join(misses) or 'none misses any'}")
    return found


def _secrets_of(store: StoreRecord | None, number: str, options: object) -> dict[str, object]:
    """The options given for one store, which must be all those that it misses, and no others."""
    names = () if store is None else store.secret_names
    assert isinstance(options, dict)
    if set(options) != set(names):
        needs = f"it misses {', '.join(names)}" if names else "it misses no secret options"
        raise ConfigError(f"the options for store {number} do not fit: {needs}")
    return options


def _fits(store: StoreRecord, given: Mapping[str, object]) -> bool:
    """Whether `given` has all secret options of the store, and otherwise only public ones with the store's values."""
    public = {name: value for name, value in given.items() if name not in store.secret_names}
    return set(store.secret_names) <= set(given) and public.items() <= dict(store.options).items()


def retry(
    job: JobsArgument = None,
    all_: AllOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing objects: for uploads that failed because the name was taken.")
    ] = False,
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue failed uploads again.

    It starts the agent, with the keys of its environment, and does not wait.
    Uploads that wait for an operator are tried at once. An upload whose name
    has a newer one is dropped: it must not put older bytes back.
    """
    from wherry.spool.journal.jobs import JobState
    from wherry.spool.spool import Spool

    folder = spool_folder(spool)
    journal, jobs, ids = _failed(folder, job, all_)
    if dry_run:
        plan_jobs("queued", jobs, as_json=as_json)
        return
    n_queued, freed = journal.uploads.retry(ids, overwrite=overwrite)
    n_held = len([one for one in journal.queries.jobs(ids=ids) if one.state is JobState.FAILED])
    place = Spool(folder)
    place.free(freed)
    n_waiting = journal.queries.unfinished() - n_queued
    if n_queued or n_waiting:
        journal.work.resume()  # the user may have mended what the others wait for
        session = _session(place, _secrets_here(journal))
        session.call_agent()
        session.sign_off()
    journal.close()
    n_dropped = len(jobs) - n_queued - n_held
    if as_json:
        typer.echo(json.dumps({"queued": n_queued, "dropped": n_dropped, "left": n_held, "unfinished": n_waiting}))
        return
    dropped = f", {n_dropped} dropped for a newer upload of the name" if n_dropped else ""
    held = f", {n_held} left: another upload of the name is on its way" if n_held else ""
    waiting = f", {n_waiting} unfinished" if n_waiting else ""
    hint = f"; to wait for that: {command('drain', folder)}" if n_queued or n_waiting else ""
    print_done(f"{n_queued} queued again{dropped}{held}{waiting}{hint}")


def _failed(folder: Path, ids: Sequence[int] | None, all_: bool) -> tuple[Journal, list[Job], list[JobId]]:
    """The journal, and the failed uploads that the user named. ConfigError for a number that is no failed upload's."""
    from wherry.spool.journal.jobs import JobId, JobState

    if bool(ids) == all_:
        raise ConfigError("name the uploads by their numbers (wherry status shows them), or all of them with --all")
    _, journal = open_existing(folder)
    jobs = [job for job in journal.queries.jobs(states=[JobState.FAILED], checks=False) if all_ or job.id in (ids or ())]
    if unknown := set(ids or ()) - {job.id for job in jobs}:
        raise ConfigError(
            f"no failed upload has the number {min(unknown)}: {command('status', folder)} lists those that have failed"
        )
    return journal, jobs, [JobId(job.id) for job in jobs]


def agent(
    spool: SpoolOption = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="At most N worker processes.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Do not exit when there is nothing to do.")] = False,
) -> None:
    """Run the agent in the foreground, as a service.

    One agent serves all processes of a node that share a spool. It logs to
    stderr. SIGTERM and Ctrl-C end it; what is not uploaded stays queued.
    """
    import logging

    from wherry.agent.launch import LOG_FORM, run_agent
    from wherry.spool.presence import pid_of_agent
    from wherry.spool.recovery import open_journal
    from wherry.spool.spool import Spool

    place = Spool(spool_folder(spool))
    if (pid := pid_of_agent(place)) is not None:
        raise SpoolError(f"another agent, process {pid}, has the spool {place.folder}: end it first (kill {pid}), or let it be")
    open_journal(place).close()  # a damaged one is set aside, with a warning
    level = logging.ERROR if is_quiet() else logging.DEBUG if is_verbose() else logging.INFO
    log_to_stderr(level, LOG_FORM, force=True)
    settings: dict[str, object] = {} if workers is None else {"n_workers": workers}
    raise typer.Exit(run_agent(place, settings, stay=stay, environ=os.environ))
