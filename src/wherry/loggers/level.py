"""Where in the training loop a message comes from, coarse to fine: the levels of Composer's first loggers."""

from __future__ import annotations

from enum import IntEnum


class LogLevel(IntEnum):
    """A threshold keeps the levels up to it: the larger, the noisier. LogLevel("epoch") and LogLevel(2) work alike."""

    FIT = 1  #: once a run
    EPOCH = 2  #: once an epoch
    BATCH = 3  #: once a batch
    MICROBATCH = 4  #: once a part of a batch
    VERBOSE = 5  #: for debugging

    @classmethod
    def _missing_(cls, value: object) -> LogLevel | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None
