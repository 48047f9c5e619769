"""What several test files need: scripts in processes of their own, jobs for a journal, files with known bytes."""

from __future__ import annotations

import functools
import os
import random
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from gate import wait_until
from wherry.config import AgentConfig, Config, RetryConfig, SpoolConfig, TransferConfig
from wherry.posix.locks import is_free
from wherry.spool.journal.jobs import Job, JobKind, job_sent_at_once
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

__all__ = [
    "CALLER",
    "IMPATIENT",
    "SETTINGS",
    "agent_gone",
    "caller",
    "damage_journal",
    "end_agent",
    "environment_with_tests",
    "file_of",
    "leased_job",
    "new_job",
    "open_files",
    "own_mounts",
    "run_script",
    "spool_texts",
    "stopped_agent",
    "store_id",
    "submit_many",
    "wait_until",
    "without_waits",
]

#: The shortest retries that are still retries.
IMPATIENT = RetryConfig(job_deadline_s=60.0, call_deadline_s=0.05, first_wait_s=0.001, longest_wait_s=0.01)
#: A store's settings as the journal keeps them.
SETTINGS: dict[str, dict[str, float]] = {
    "retry": {"job_deadline_s": 60.0, "call_deadline_s": 0.05, "first_wait_s": 0.001, "longest_wait_s": 0.01},
    "transfer": {
        "multipart_threshold_bytes": 2**20,
        "part_size_bytes": 2**20,
        "parts_in_flight": 4,
        "range_size_bytes": 2**20,
        "ranges_in_flight": 4,
    },
}


def caller(
    spool: SpoolConfig | None = None,
    *,
    on_failure: str = "warn",
    retry: RetryConfig = IMPATIENT,
    transfer: TransferConfig | None = None,
) -> Config:
    """Uploads are made inside the call, so that a test sees their end without waiting."""
    return Config(
        retry=retry,
        transfer=transfer or TransferConfig(),
        spool=spool or SpoolConfig(),
        agent=AgentConfig(run_in="caller"),
        on_failure=on_failure,  # type: ignore[arg-type]  # Config checks it
    )


CALLER = caller()


def file_of(path: Path, size_bytes: int, seed: int = 0) -> Path:
    """Write a file of bytes that no other seed gives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(f"{seed} {size_bytes}").randbytes(size_bytes))
    return path


def let_others_in(folder: Path) -> None:
    """Let other users reach the folder: pytest closes its own folders to them. What they may do already stays as it is."""
    for one in (folder, *folder.parents):
        if one.owner() == folder.owner() and one.stat().st_mode & 0o001 == 0:
            one.chmod(one.stat().st_mode | 0o055)


def environment_without(site: Path, *modules: str) -> dict[str, str]:
    """The environment of processes that do not find these modules, by a hook in the folder `site`."""
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find_spec = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, package=None: None if name in {modules!r} else find_spec(name, package)\n"
    )
    return {**os.environ, "PYTHONPATH": str(site)}


def environment_with_tests(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process and `env`, for a process that imports this module or `servers`."""
    environment = {**os.environ, **(env or {})}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]))
    return environment


def run_script(
    text: str,
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    prefix: tuple[str, ...] = (),
    expected: int = 0,
) -> str:
    """Run a user's script in a process of its own and return what it printed, on both streams.

    It can import this module. `env` is added to the environment; `prefix` runs the interpreter (``unshare ...``).
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(text), *(os.fspath(argument) for argument in arguments)],
        env=environment_with_tests(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    said: str = done.stdout
    assert expected == done.returncode, said
    return said


def without_waits(said: str) -> str:
    """What a program printed, but for the line about an upload of more than half a second, which a busy machine may need."""
    return re.sub(
        r"^wherry: (waiting for \d+ uploads?, [\d.]+ [KMG]?i?B|copying into the spool, [\d.]+ [KMG]?i?B)\n", "", said, flags=re.M
    )


def open_files() -> set[tuple[str, str]]:
    """The descriptors of this process with what they lead to.

    Compare them with what was open before, and by themselves, not by their number: what earlier tests have left is closed at any
    moment, by the garbage collector and by threads that end.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


@functools.lru_cache
def own_mounts() -> tuple[str, ...]:
    """A command before which a program may mount: as root at once, as any other user with a user namespace."""
    said = []
    for prefix in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
        probe = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return prefix
        said.append(done.stderr.strip())
    raise AssertionError(f"no disk of our own can be made here: {'; '.join(said)}")


def agent_gone(spool: Path) -> bool:
    """Whether the agent and all of its workers are gone, and their memory with them."""
    lock = spool / "agent.lock"
    return not lock.exists() or is_free(lock)


@contextmanager
def end_agent(spool: Path) -> Iterator[Path]:
    """End the agent of the spool after the block, and wait until it is gone: an idle one would stay for seconds."""
    try:
        yield spool
    finally:
        if spool.is_dir() and (pid := pid_of_agent(Spool(spool))) is not None:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: agent_gone(spool), what="the agent to leave")


@contextmanager
def stopped_agent(spool: Path) -> Iterator[None]:
    """The agent of the spool and its workers are stopped inside the block, as on a frozen machine."""
    pid = pid_of_agent(Spool(spool))
    assert pid is not None
    stopped: list[psutil.Process] = []
    # None of them may be stopped in the middle of writing: it would keep the journal locked for all. So we write meanwhile.
    journal = sqlite3.connect(spool / "journal.db", timeout=30, isolation_level=None)
    try:
        journal.execute("BEGIN IMMEDIATE")
        _stop(psutil.Process(pid), stopped)  # from here on it has no new workers
        for worker in stopped[0].children(recursive=True):
            _stop(worker, stopped)
        journal.execute("ROLLBACK")
        yield
    finally:
        journal.close()
        for process in stopped:
            process.resume()


def _stop(process: psutil.Process, stopped: list[psutil.Process]) -> None:
    """Stop it, and wait until it has stopped."""
    stopped.append(process)
    process.suspend()
    wait_until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), what="a process to stop")


def damage_journal(path: Path) -> None:
    """Overwrite every page of a journal, so that also those who have it open read the damage."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE stores SET scheme = scheme")  # a change, after which nobody trusts the pages that he remembers
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size_bytes = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"\xff" * size_bytes)
    db.close()


def spool_texts(spool: Path) -> dict[str, bytes]:
    """The bytes of every file of a spool, the journal's included; an agent that is there may remove some meanwhile."""
    found = {}
    for path in sorted(spool.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(spool))] = path.read_bytes()
    return found


def store_id(journal: Journal, root: str = "bucket", scheme: str = "s3", secret_names: tuple[str, ...] = ()) -> int:
    """The id of a store's record."""
    return journal.uploads.store_id(scheme, root, {}, secret_names, SETTINGS)


def new_job(
    name: str,
    *,
    object_id: str = "",
    size_bytes: int = 10,
    overwrite: bool = True,
    kind: JobKind = JobKind.PUT,
    requires: tuple[str, ...] = (),
    root: str = "s3://bucket",
    only_if_free: bool = False,
) -> NewJob:
    """An upload as the uploader hands it to the journal."""
    wanted = tuple((f"{root}/{key}", key) for key in requires)
    return NewJob(
        kind,
        f"{root}/{name}",
        name,
        object_id or secrets.token_hex(8),
        size_bytes,
        overwrite,
        secrets.token_hex(16),
        wanted,
        only_if_free=only_if_free,
    )


def leased_job(key: str, size_bytes: int, *, overwrite: bool = True, attempts: int = 1, root: str = "s3://bucket") -> Job:
    """A job as a worker has it, known to no journal."""
    job = job_sent_at_once(f"{root}/{key}", key, size_bytes, owner="owner", overwrite=overwrite)
    return replace(job, store_id=1, attempts=attempts)


def submit_many(path: Path, owner: str, n: int) -> None:
    """Submit n jobs, one by one, with a connection of one's own: the body of a process."""
    journal = Journal(path)
    store = store_id(journal)
    for i in range(n):
        journal.uploads.submit(owner, store, [new_job(f"{owner}/{i}")])
    journal.close()


def called_in(work: Callable[[], object]) -> set[str]:
    """The names of all Python functions that `work` calls, in this thread."""
    names: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: names.add(frame.f_code.co_name) if event == "call" else None)
    try:
        work()
    finally:
        sys.setprofile(before)
    return names
