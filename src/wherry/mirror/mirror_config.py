"""MirrorConfig: the settings of a mirror."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wherry.config import MIB, RetryConfig
from wherry.errors import ConfigError
from wherry.mirror.format.inflate import MOST_INFLATED_BYTES
from wherry.mirror.format.layout import check_writer
from wherry.mirror.format.rules import DEFAULT_RULES, Rule

Compression = Literal["gzip", "zstd"]


@dataclass(frozen=True)
class MirrorConfig:
    """How a folder is mirrored.

    Example: files that end in ``.trace`` grow, and may be ten seconds late::

        config = MirrorConfig(rules=(Rule("*.trace", "append"), *DEFAULT_RULES), max_lag_s=10)
        with Mirror("runs/7", "s3://my-bucket/runs/7", config=config):
            train()
    """

    #: The first match counts; put your own before `DEFAULT_RULES`. A file that no rule matches is sent once it is complete.
    rules: tuple[Rule, ...] = DEFAULT_RULES
    #: So many unsent bytes of a file are sent at once, as a segment. S3 joins no objects below 5 MiB, and from 8 MiB on the time
    #: of a request is small compared with that of its bytes.
    segment_bytes: int = 8 * MIB
    #: New bytes wait at most this long, if the budget of requests allows. At 30 s a file costs about a cent a day.
    max_lag_s: float = 30.0
    #: A file that is sent whole is complete when it has not changed for this long. Writers that pause for longer should write
    #: under a temporary name (``*.tmp`` and the like are ignored) and rename; otherwise an unfinished version is sent first.
    settle_s: float = 2.0
    #: Requests to the store for all files together, retries included. None: as many as the growing files need, from 3,600 (24
    #: files at 30 s) to 36,000 (240 files), which at 0.005 USD for 1,000 puts are 0.43 and 4.32 USD a day. Where the budget is
    #: short, files wait longer. flush() and close() do not wait for it.
    max_requests_per_hour: int | None = None
    #: Each segment as one gzip member or zstd frame; concatenated they are a valid file. None: not compressed.
    compression: Compression | None = None
    #: Segments of a sealed file are kept this long, for readers that have begun with them; close() deletes them at once.
    grace_s: float = 300.0
    #: close() makes a plain object of each file. False: segments stay, nothing is sent twice, and readers need wherry.
    seal_on_close: bool = True
    #: Files sent at the same time. Four senders wait for answers most of the time and take little of the training loop's CPU.
    sends_in_flight: int = 4
    #: A call is retried for a short while. Then the file waits, others may be sent, and it is tried again, without a limit, at
    #: least once a minute: so a mirror is at most a minute late when the store is back.
    retry: RetryConfig = field(default_factory=lambda: RetryConfig(call_deadline_s=10.0, longest_wait_s=4.0))
    #: close() without a time limit goes on as long as it makes progress, and gives up when nothing has worked for this long: an
    #: unreachable store must not hold up the end of a job. The next mirror of the folder sends what is left.
    give_up_s: float = 60.0
    #: SIGTERM, unless the program handles it, ends the process as ``sys.exit(143)`` does, so that the last lines are still sent:
    #: schedulers of clusters and clouds send it before they kill. Only for a mirror that is made in the main thread.
    exit_on_sigterm: bool = True

    def __post_init__(self) -> None:
        for name, least in (("segment_bytes", 1), ("max_requests_per_hour", 10), ("sends_in_flight", 1)):
            value = getattr(self, name)
            if value is None and name == "max_requests_per_hour":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"MirrorConfig.{name} is {value!r}: it must be a whole number, at least {least}")
        for name in ("max_lag_s", "settle_s", "grace_s", "give_up_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"MirrorConfig.{name} is {value!r}: it must be a number of seconds, at least 0")
        if self.compression not in (None, "gzip", "zstd"):
            raise ConfigError(f"MirrorConfig.compression is {self.compression!r}: use None, 'gzip' or 'zstd'")
        if self.compression and self.segment_bytes > MOST_INFLATED_BYTES:
            raise ConfigError(
                f"MirrorConfig.segment_bytes is {self.segment_bytes}: with compression it is at most {MOST_INFLATED_BYTES}, as "
                "readers decompress no more of one segment"
            )
        if not isinstance(self.retry, RetryConfig):
            raise ConfigError(f"MirrorConfig.retry is {type(self.retry).__name__}: give a RetryConfig")
        if not isinstance(self.rules, tuple) or not all(isinstance(rule, Rule) for rule in self.rules):
            raise ConfigError("MirrorConfig.rules must be a tuple of Rule, such as (Rule('*.out', 'append'), *DEFAULT_RULES)")


def lie_in_one_another(one: Path, other: Path) -> bool:
    """Whether one folder is the other, or is in it: such two cannot be kept equal."""
    one, other = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return one.is_relative_to(other) or other.is_relative_to(one)


def writer_name(given: str) -> str:
    """The writer's name in the store: the given one, else ``rank<RANK>`` where a launcher sets it, else the host's name."""
    if given:
        return check_writer(given)
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or ""
    return check_writer(f"rank{rank}" if rank.isdecimal() else socket.gethostname())
