"""The findings of ``wherry doctor``, and the examination of a spool. `doctor_store.py` examines a store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.agent.wakeup import Listener, notify
from wherry.cli.exit_codes import Exit
from wherry.errors import SpoolError, WherryError
from wherry.quantities import count_text, size_text
from wherry.spool.file_system import file_system, file_system_warnings
from wherry.spool.journal.jobs import Counts
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

_LITTLE_ROOM_BYTES = 2 * 10**9
_NO_ROOM_BYTES = 10**8
_SAMPLE_BYTES = 64 * 1024


class Level(str, Enum):
    """ok: as it should be. warn: works, with a drawback. bad: uploads will not work."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """What was examined, the result in words, and the remedy. `exit` is the command's exit code if this finding is bad."""

    what: str
    level: Level
    text: str
    remedy: str = ""
    took_ms: float | None = None
    exit: Exit = Exit.OK


def examine_spool(folder: Path) -> Generator[Finding, None, None]:
    """Examine a spool's folder, which need not exist yet, its journal and its agent. The spool is not changed."""
    is_made = (folder / "journal.db").exists()
    place = folder
    while not place.exists():
        place = place.parent
    try:
        with TemporaryDirectory(prefix="doctor-", dir=place) as scratch:
            yield from _examine_place(folder, Path(scratch), is_made)
    except (OSError, WherryError) as error:
        text = f"{place} cannot hold a spool: {error.strerror or error if isinstance(error, OSError) else error}"
        remedy = "name a folder of your own on a local disk with --spool or $WHERRY_SPOOL"
        yield Finding("place", Level.BAD, text, remedy, exit=Exit.SPOOL)
        return
    if is_made:
        yield from _examine_journal(folder)
    else:
        yield Finding("journal", Level.OK, "none yet: nothing was ever uploaded from here")


def _examine_place(folder: Path, scratch: Path, is_made: bool) -> Iterator[Finding]:
    trial = Spool(scratch / "spool")  # on the same file system, and made in the same way as the real one
    kind = file_system(trial) or "an unknown file system"
    yield Finding("place", Level.OK, f"{folder} on {kind}{'' if is_made else ', made with the first upload'}")
    for warning in file_system_warnings(trial):
        yield Finding("file system", Level.WARN, warning.replace(str(trial.folder), str(folder)))
    free_bytes = trial.free_bytes()
    text = f"{size_text(free_bytes)} free"
    if free_bytes < _LITTLE_ROOM_BYTES:
        level = Level.BAD if free_bytes < _NO_ROOM_BYTES else Level.WARN
        remedy = "free some space, or put the spool on a larger disk (--spool, $WHERRY_SPOOL)"
        yield Finding("space", level, f"only {text}: staged files take as much room as they have bytes", remedy, exit=Exit.SPOOL)
    else:
        yield Finding("space", Level.OK, text)
    sample = scratch / "sample"
    sample.write_bytes(secrets.token_bytes(_SAMPLE_BYTES))
    if stage(trial, sample, "doctor").method == "reflink":
        yield Finding("snapshots", Level.OK, "shared blocks (reflink): files on this file system are staged without copying")
    else:
        text = "copies: this file system shares no blocks (no reflink), so staging reads and writes every byte"
        remedy = "where that is too slow: move=True or open(), or a spool on XFS or Btrfs beside the checkpoints"
        yield Finding("snapshots", Level.OK, text, remedy)
    with closing(Listener(trial.inside("bell"))) as listener:
        heard = notify(listener.path) and listener.wait(1.0)
    if not heard:
        yield Finding("wakeup", Level.BAD, "sockets do not work here", "put the spool on a local disk", exit=Exit.SPOOL)


def _examine_journal(folder: Path) -> Iterator[Finding]:
    spool = Spool(folder)
    started_s = time.monotonic()
    try:
        with closing(Journal(spool.held_journal())) as journal:
            journal.check()
            counts = journal.queries.counts()
    except SpoolError as error:
        remedy = "the next upload, or wherry drain, puts it aside with its files and begins a new one"
        yield Finding("journal", Level.BAD, str(error), remedy, exit=Exit.SPOOL)
        return
    open_jobs = counts.queued + counts.leased
    text = f"whole: {open_jobs} to send, {counts.done} done, {counts.failed} failed"
    yield Finding("journal", Level.OK, text, took_ms=ms_since(started_s))
    if counts.failed:
        yield Finding(
            "failed", Level.WARN, f"{count_text(counts.failed, 'upload')} failed, their files are kept", "wherry status says why"
        )
    if asides := sorted((folder / "quarantine").glob("*")):
        text = f"{count_text(len(asides), 'time')} staged files were set aside, which may not be uploaded"
        yield Finding("quarantine", Level.WARN, text, "wherry status lists the files")
    yield _examine_agent(spool, counts)


def _examine_agent(spool: Spool, counts: Counts) -> Finding:
    pid = pid_of_agent(spool)
    if pid is None:
        if counts.queued + counts.leased:
            return Finding("agent", Level.WARN, "none, though uploads are left", "wherry drain")
        return Finding("agent", Level.OK, "none, and none is needed: it starts with the first upload")
    if notify(spool.inside("bell")):
        return Finding("agent", Level.OK, f"process {pid} is listening")
    return Finding("agent", Level.WARN, f"process {pid} is starting, leaving or stuck", f"see {spool.folder / 'agent.log'}")


def ms_since(started_s: float) -> float:
    """Milliseconds since `started_s` of the monotonic clock."""
    return (time.monotonic() - started_s) * 1000
