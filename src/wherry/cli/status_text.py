"""The status of a spool as text and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from wherry.cli.arguments import command
from wherry.cli.status import SpoolStatus, Unfinished, Waiting
from wherry.cli.words import attempts_text, word
from wherry.errors import AlreadyExistsError, JobFailure
from wherry.quantities import age_text, size_text
from wherry.spool.journal.jobs import Job, JobState
from wherry.spool.journal.overview import Reason, StoreWait

_SHOWN_FAILURES = 20
_NAMED_JOBS = 5


def status_json(status: SpoolStatus) -> str:
    """The status as one line of JSON."""
    counts = status.counts
    return json.dumps(
        {
            "spool": str(status.spool),
            "queued": counts.queued,
            "uploading": counts.leased,
            "done": counts.done,
            "failed": counts.failed,
            "replaced": counts.superseded,
            "stuck": status.n_stuck,
            "bytes_queued": counts.bytes_queued,
            "bytes_failed": counts.bytes_failed,
            "oldest_age_s": round(counts.oldest_age_s, 3),
            "retries": counts.retries,
            "agent_pid": status.agent_pid,
            "waiting_for_secrets": [
                {
                    "store_id": one.store_id,
                    "store": one.store,
                    "missing": one.missing,
                    "jobs": one.n_jobs,
                    "remedy": secrets_remedy(one, status.spool),
                }
                for one in status.waiting
            ],
            "waiting_for_operator": [
                {
                    "store_id": one.store_id,
                    "store": store,
                    "reason": one.reason.value,
                    "jobs": one.n_jobs,
                    "error": one.error,
                    "next_try_in_s": one.next_try_in_s,
                }
                for one, store in status.refusing
            ],
            "retrying": status.n_retrying,
            "waiting_for_retry": status.n_tried_in_vain,
            "unfinished": [unfinished_as_dict(one) for one in status.unfinished],
            "failures": [
                {"job": job.id, "uri": job.uri, "attempts": job.attempts, "size_bytes": job.size_bytes, "error": job.error}
                for job in status.failures
            ],
            "quarantine": [{"folder": str(q.folder), "reason": q.reason, "files": q.files} for q in status.quarantine],
            "limits": [{"store": one.store or None, "limit": one.limit, "reason": one.reason} for one in status.limits],
            "warnings": status.warnings,
        }
    )


def unfinished_as_dict(one: Unfinished) -> dict[str, object]:
    """The upload as a dict for JSON."""
    job = one.job
    return {
        "job": job.id,
        "uri": job.uri,
        "state": word(job.state),
        "size_bytes": job.size_bytes,
        "sent_bytes": one.sent_bytes,
        "attempts": job.attempts,
        "age_s": round(max(0.0, time.time() - job.created_s), 3),
        "reason": one.reason,
        "error": job.error,
        "next_try_in_s": None if one.next_try_in_s is None else round(one.next_try_in_s, 3),
    }


def status_lines(status: SpoolStatus) -> list[str]:
    """The status as lines of plain text."""
    spool, counts = status.spool, status.counts
    if not status.is_made:
        return [f"nothing was ever uploaded from here: {spool} has no journal"]
    lines = [
        f"spool    {spool}",
        f"agent    {'none' if status.agent_pid is None else f'pid {status.agent_pid}'}",
        f"uploads  {counts.queued} queued  {counts.leased} uploading  {counts.done} done  {counts.failed} failed  "
        f"{counts.superseded} replaced",
    ]
    if counts.queued + counts.leased:
        retries = f", {counts.retries} retries so far" if counts.retries else ""
        lines.append(
            f"to send  {size_text(counts.bytes_queued)}, the oldest accepted {age_text(counts.oldest_age_s)} ago{retries}"
        )
        if status.agent_pid is None and counts.queued + counts.leased > sum(one.n_jobs for one in status.waiting):
            lines.append(f"         nobody is sending it: {command('drain', spool)}")
    lines += [f"limit    {one.store or 'this node'}: {one.limit}, as {one.reason}" for one in status.limits]
    if n := status.n_retrying:
        lines += ["", f"{n} upload{'s are' if n > 1 else ' is'} being tried again:", *unfinished_lines(status.retrying)]
        if n > len(status.retrying):
            lines.append(f"  and {n - len(status.retrying)} more: {command('status', spool)} NAME tells of one")
    if n := status.n_tried_in_vain:
        lines += ["", f"{n} upload{'s wait' if n > 1 else ' waits'} for the next try:", *unfinished_lines(status.tried_in_vain)]
        if n > len(status.tried_in_vain):
            lines.append(f"  and {n - len(status.tried_in_vain)} more: {command('status', spool)} NAME tells of one")
    if status.failures:
        n = len(status.failures)
        lines += ["", f"{n} failed upload{'s' * (n > 1)}, kept in the spool ({size_text(counts.bytes_failed)}):"]
        lines += failure_lines(status.failures[:_SHOWN_FAILURES])
        if n > _SHOWN_FAILURES:
            lines.append(f"  and {n - _SHOWN_FAILURES} more: {command('status', spool)} --json lists all")
        lines += failures_remedy(status.failures, spool)
    if status.refusing:
        lines += ["", *refusing_lines(status.refusing)]
    if status.waiting:
        lines += ["", *waiting_lines(status.waiting, spool)]
    for aside in status.quarantine:
        lines += ["", f"staged files were set aside in {aside.folder}:", f"  {aside.reason}"]
        lines += [f"  {file}" for file in aside.files]
        lines.append("  Upload what is needed by hand, then remove that folder.")
    for warning in status.warnings:
        lines += ["", f"warning: {warning}"]
    return lines


def next_try_text(one: Unfinished) -> str:
    """When the upload is tried next."""
    if one.job.state is JobState.LEASED:
        return "being tried now"
    if one.next_try_in_s is None:
        return "not tried while it waits"
    return "next try now" if not one.next_try_in_s else f"next try in {age_text(one.next_try_in_s)}"


def unfinished_lines(shown: Iterable[Unfinished]) -> list[str]:
    """Two lines for each upload: what it is, and why it does not progress."""
    lines = []
    for one in shown:
        reason = one.reason if one.job.state is JobState.QUEUED else one.job.error  # the heading says that it is tried again
        lines += _job_lines(one.job, reason, f", {next_try_text(one)}")
    return lines


def failure_lines(failures: Iterable[Job]) -> list[str]:
    """Two lines for each failed upload: what it is, and why it failed."""
    return [line for job in failures for line in _job_lines(job, job.error)]


def _job_lines(job: Job, reason: str | None, more: str = "") -> list[str]:
    details = f"{size_text(job.size_bytes)}, {attempts_text(job.attempts)}{more}"
    return [f"  job {job.id}  {job.uri}  ({details})", f"      {reason}"]


def failure_remedy(job: Job, spool: Path) -> str:
    """The commands that end one failed upload."""
    give_up = f"give up: {command('discard', spool)} {job.id}"
    if job.error_kind == AlreadyExistsError.__name__:
        return f"its name is taken. To replace what has it: {command('retry', spool)} --overwrite {job.id}    {give_up}"
    return f"try again: {command('retry', spool)} {job.id}    {give_up}"


def failures_remedy(failures: Sequence[Job], spool: Path) -> list[str]:
    """The commands that end all failed uploads."""
    taken = [job for job in failures if job.error_kind == AlreadyExistsError.__name__]
    retry, discard = command("retry", spool), command("discard", spool)
    lines = []
    if len(taken) < len(failures):
        lines.append(f"  try again: {retry} --all    give up: {discard} --all")
    if taken:
        jobs = " ".join(str(job.id) for job in taken) if len(taken) <= _NAMED_JOBS else "JOB..."
        lines.append(f"  names that are taken stay so. To replace what has them: {retry} --overwrite {jobs}")
        lines.append(f"  or give up: {discard} {jobs}")
    return lines


def waiting_lines(waiting: Iterable[Waiting], spool: Path) -> list[str]:
    """Which secret options are missing, and how to supply them."""
    lines = []
    for one in waiting:
        uploads = "1 upload waits" if one.n_jobs == 1 else f"{one.n_jobs} uploads wait"
        lines += [
            f"{uploads} for secret options of {one.store} (store {one.store_id}), which are kept in memory only:",
            f"      {', '.join(one.missing)}",
            f"  {secrets_remedy(one, spool)}",
        ]
        if not one.variables:
            example = ", ".join(f'"{name}": "..."' for name in one.missing)
            lines.append(f"  where FILE holds {{{example}}}")
    return lines


def left_to_others_lines(sets: Sequence[JobFailure]) -> list[str]:
    """Which checkpoint sets lack receipts of ranks, while nothing goes on here, and what to do."""
    return [
        "only checkpoint sets that lack receipts are left, and the programs that saved them have ended; nothing goes on here:",
        *(f"  job {one.job_id}  {one.uri}: {one.error}" for one in sets),
        "  If those ranks are gone there is nothing to wait for: such a set stays uncommitted, and prune removes it.",
        "  If their nodes still upload, wait with --timeout, or leave it to them. Whoever resumes the run commits what is whole.",
    ]


def refusing_lines(refusing: Iterable[tuple[StoreWait, str]]) -> list[str]:
    """What stores wait for, and when they are tried next."""
    wanted = {
        Reason.CREDENTIALS: "new credentials: those they have are refused or expired",
        Reason.CLOCK: "this machine's clock: it differs too much from the server's (NTP)",
        Reason.DESTINATION: "the destination: it cannot be written",
    }
    lines = []
    for one, store in refusing:
        uploads = "1 upload" if one.n_jobs == 1 else f"{one.n_jobs} uploads"
        again = age_text(one.next_try_in_s or 0.0)
        lines += [
            f"{uploads} to {store} ({size_text(one.size_bytes)}), waiting for {wanted[one.reason]}:",
            f"      {one.error}",
            f"  One is tried again in {again}, and when an agent is started or is given new secrets; the rest follows.",
        ]
    return lines


def secrets_remedy(one: Waiting, spool: Path) -> str:
    """The shortest way to give the missing options again."""
    drain = command("drain", spool)
    if one.is_here:
        return f"This shell's environment has them: {drain}"
    if one.variables:
        return f"Set {', '.join(one.variables)} as before, then: {drain}"
    return f"Start a program that gives them again, or: {drain} --options-file FILE"
