"""Configuration: one frozen dataclass a concern, each default with its reason, checked when it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from wherry.errors import ConfigError
from wherry.uri import absolute_path

MIB = 2**20

Durability = Literal["process", "power"]
WhenFull = Literal["block", "raise", "direct"]
OnFailure = Literal["warn", "raise"]
RunIn = Literal["agent", "caller"]
#: setpriority(2): there is no more.
_NICEST = 19


def _one_of(what: object, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(what, name)
    if value not in allowed:
        raise ConfigError(f"{type(what).__name__}.{name} is {value!r}: use one of {', '.join(map(repr, allowed))}")


def _at_least(what: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(what, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least):
            raise ConfigError(f"{type(what).__name__}.{name} is {value!r}: it must be a number, at least {least}")


@dataclass(frozen=True)
class RetryConfig:
    """How long failed uploads and calls are tried again, in seconds::

    Config(retry=RetryConfig(job_deadline_s=7 * 86_400.0))  # for a store that may be gone over a weekend
    """

    #: A job that still fails this long after it was accepted has failed for good. A day outlives most outages.
    job_deadline_s: float = 86_400.0
    #: One call to the store is tried again for this long inside a worker; then the job gives its place to another.
    call_deadline_s: float = 30.0
    #: Waits are drawn from [0, w] with w doubling from first_wait_s to longest_wait_s (full jitter).
    first_wait_s: float = 0.25
    longest_wait_s: float = 20.0

    def __post_init__(self) -> None:
        _at_least(self, 0, "job_deadline_s", "call_deadline_s", "first_wait_s", "longest_wait_s")

    @property
    def longest_job_wait_s(self) -> float:
        """What the waits of a job between its attempts grow to: five minutes with the defaults."""
        return 15 * self.longest_wait_s


#: For a command that only looks: somebody waits for it.
TERMINAL_RETRY = RetryConfig(call_deadline_s=4.0, first_wait_s=0.2, longest_wait_s=1.0)
#: For a pull that follows a mirror: when the store is back, it goes on within a minute. (A mirror has its own: MirrorConfig.)
FOLLOW_RETRY = RetryConfig(longest_wait_s=4.0)


@dataclass(frozen=True)
class TransferConfig:
    """The pieces in which large objects go, and how many at once. Measured: more than the defaults is no faster::

    Config(transfer=TransferConfig(parts_in_flight=2, ranges_in_flight=2))  # leaves room on a slow line for other programs
    """

    #: Objects of at least this size go in parts: below it one request costs less than three.
    multipart_threshold_bytes: int = 64 * MIB
    #: The least: for large files parts grow to 1/512 of the file or, where the speed is known, to what goes in a quarter of a
    #: second, up to 64 MiB, and beyond that where a store's limit of parts (10,000) asks for it. Small parts are little to send
    #: again when a worker is killed.
    part_size_bytes: int = 8 * MIB
    #: Of one file, all workers together.
    parts_in_flight: int = 8
    range_size_bytes: int = 16 * MIB
    ranges_in_flight: int = 8
    #: A part or a range of which no byte has moved for this long is cut, and sent again: a dead connection tells nobody.
    stall_timeout_s: float = 60.0
    #: Bytes that all processes of this user on this node move together, uploads and downloads; None: as many as can be.
    max_bytes_per_s: float | None = None
    #: Requests that they make together to one store.
    max_requests_per_s: float | None = None

    def __post_init__(self) -> None:
        _at_least(self, 1, *(f.name for f in fields(self) if f.name not in ("stall_timeout_s", "max_requests_per_s")))
        _at_least(self, 0.01, "max_requests_per_s")
        _at_least(self, 0.01, "stall_timeout_s")


@dataclass(frozen=True)
class SpoolConfig:
    """How the spool keeps its files::

    Config(spool=SpoolConfig(durability="power", max_spool_bytes=50 * 2**30))
    """

    #: "process" survives SIGKILL of everything. "power" also survives a power cut: fsync of file, folder and journal.
    durability: Durability = "process"
    #: The staged files may take this much; None: as much as the disk has.
    max_spool_bytes: int | None = None
    #: What upload_file does when they take more: wait for room, raise SpoolError, or upload in the caller, unstaged.
    when_full: WhenFull = "block"

    def __post_init__(self) -> None:
        _one_of(self, "durability", ("process", "power"))
        _one_of(self, "when_full", ("block", "raise", "direct"))
        _at_least(self, 0, "max_spool_bytes")


@dataclass(frozen=True)
class AgentConfig:
    """The process that uploads. The first user of a spool decides; a running agent keeps its settings::

    Config(agent=AgentConfig(n_workers=4))  # for more than 2 GB/s
    """

    #: "agent": a process of its own, which outlives the caller. "caller": upload inside the call (notebooks without
    #: processes, tests); forced for stores that only this process can see, such as ``memory://``.
    run_in: RunIn = "agent"
    #: Worker processes, for each environment of the programs that share the spool. Two are enough for 1 to 2 GB/s; more for fast
    #: networks.
    n_workers: int = 2
    #: Jobs that one worker has in flight: small files wait for answers, not for the processor.
    jobs_in_flight: int = 8
    #: With work left and no training process alive, go on this long, then leave the rest in the journal.
    linger_s: float = 86_400.0
    #: A worker without work leaves after this long, and its memory with it.
    worker_idle_s: float = 20.0
    #: Of agent and workers, 0 to 19: how much others go before them on a busy processor. Beside a training that uses all cores 10
    #: leaves them a tenth of each, and 19 a seventieth: an upload takes longer then, but goes on. What is idle they may use.
    nice: int = 10
    #: Also wait with the disk until nobody else uses it (Linux, BFQ). Staged files are mostly still in memory.
    idle_io: bool = False

    def __post_init__(self) -> None:
        _one_of(self, "run_in", ("agent", "caller"))
        _at_least(self, 1, "n_workers", "jobs_in_flight")
        _at_least(self, 0, "linger_s", "worker_idle_s", "nice")
        if self.nice > _NICEST or not isinstance(self.nice, int):
            raise ConfigError(f"AgentConfig.nice is {self.nice!r}: it must be a whole number from 0 to {_NICEST}")


@dataclass(frozen=True)
class Config:
    """The settings of an Uploader::

    config = Config(spool=SpoolConfig(max_spool_bytes=50 * 2**30), on_failure="raise")
    Uploader("s3://my-bucket/run1", config=config)
    """

    retry: RetryConfig = field(default_factory=RetryConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    #: A job that failed for good is logged at the next call ("warn") or raised there ("raise"); flush() and close() raise always.
    on_failure: OnFailure = "warn"
    #: What has no limit of its own (the end of a ``with`` block, close(), the interpreter's exit, the end of a fit) waits this
    #: long for this uploader's jobs. None: as long as they make progress. 0: do not wait.
    drain_at_exit_s: float | None = None
    #: The wait above ends when no upload and no part of one has ended for this long. Most outages are shorter, and a job whose
    #: store is gone must not hold a machine forever. What is left stays in the spool, and the agent goes on with it.
    give_up_s: float = 1800.0

    def __post_init__(self) -> None:
        _one_of(self, "on_failure", ("warn", "raise"))
        _at_least(self, 0, "drain_at_exit_s", "give_up_s")
        for part, kind in (("retry", RetryConfig), ("transfer", TransferConfig), ("spool", SpoolConfig), ("agent", AgentConfig)):
            if not isinstance(getattr(self, part), kind):
                raise ConfigError(f"Config.{part} is {type(getattr(self, part)).__name__}: give a {kind.__name__}")


def default_spool_folder() -> Path:
    """``$WHERRY_SPOOL``, else ``/var/tmp/wherry-<uid>`` (on disk, kept over a reboot), else the same in the temp folder."""
    if chosen := os.environ.get("WHERRY_SPOOL"):
        return absolute_path(chosen)
    name = f"wherry-{os.getuid()}"
    kept = Path("/var/tmp")  # noqa: S108  the folder made there is private, 0700, and checked to be ours
    if os.access(kept, os.W_OK | os.X_OK):
        return kept / name
    import tempfile  # late: it loads compression libraries

    return Path(tempfile.gettempdir()) / name
