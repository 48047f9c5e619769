"""MirrorConfig: what a mirror can be told."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field
from typing import Literal

from wherry.config import MIB, RetryConfig
from wherry.errors import ConfigError
from wherry.mirror.format.inflate import MOST_INFLATED_BYTES
from wherry.mirror.format.layout import check_writer
from wherry.mirror.format.rules import DEFAULT_RULES, Rule

Compression = Literal["gzip", "zstd"]


@dataclass(frozen=True)
class MirrorConfig:
    """How a folder is mirrored."""

    #: First match counts; put your own before `DEFAULT_RULES`. What no rule matches is sent once it is complete.
    rules: tuple[Rule, ...] = DEFAULT_RULES
    #: A segment goes at once when so much is unsent: below S3's 5 MiB for parts it could never be joined there without sending it
    #: again, and 8 MiB is where the time of a request stops to count.
    segment_bytes: int = 8 * MIB
    #: New bytes wait at most so long, within the budget. 30 s for every file of a run cost about a cent a day each.
    max_lag_s: float = 30.0
    #: A file that is sent whole is complete when it has not changed for so long. Writers that pause for longer should write under
    #: a temporary name (``*.tmp`` and the like are ignored) and rename; else an unfinished version is sent first, then the whole.
    settle_s: float = 2.0
    #: Of all files together, every request to the store, retries included. None: as many as the files that grow need, 3,600 at
    #: least (24 files at 30 s) and 36,000 at most (240 files), which at 0.005 USD for 1,000 puts are 0.43 and 4.32 USD a day.
    #: Where it is short, files wait longer. flush() and close() do not wait for it.
    max_requests_per_hour: int | None = None
    #: Segments as gzip members or zstd frames, one each, so that they may be concatenated as they are. None: as they are.
    compression: Compression | None = None
    #: Segments of a sealed file stay for so long, for readers that are in the middle of them; close() takes them at once.
    grace_s: float = 300.0
    #: close() makes plain objects of all files. Off: segments stay as they are, nothing is sent twice, readers need wherry.
    seal_on_close: bool = True
    #: Files sent side by side. Four wait for answers without taking the training loop's processor.
    sends_in_flight: int = 4
    #: Calls are made again for a short while inside a send; after that the file waits and others may go. It waits for ever.
    #: Then it is tried after a minute at most, so that a store that is back finds us a minute behind.
    retry: RetryConfig = field(default_factory=lambda: RetryConfig(call_deadline_s=10.0, longest_wait_s=4.0))
    #: close() without a time limit goes on as long as it gets on, and gives up when nothing has worked for so long: a store that
    #: is gone must not hold up the end of a job. What is left is there for the next mirror of the folder.
    give_up_s: float = 60.0
    #: SIGTERM, where nobody else handles it, ends the process as ``sys.exit(143)`` does, so that the last lines are still sent:
    #: the schedulers of clusters and clouds send it before they kill. Only for a mirror that is made in the main thread.
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


def writer_name(given: str) -> str:
    """Who we are, in the store: the given name, else ``rank<RANK>`` where a launcher says which, else the host's name."""
    if given:
        return check_writer(given)
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or ""
    return check_writer(f"rank{rank}" if rank.isdecimal() else socket.gethostname())
