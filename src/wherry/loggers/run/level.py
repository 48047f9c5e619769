"""LogLevel: from which level of the training loop a message comes, as in Composer's first loggers."""

from __future__ import annotations

from enum import EnumMeta, IntEnum
from typing import Any

from wherry.errors import ConfigError


class _NoBooleans(EnumMeta):
    """Looks members up by value, but not by True, which equals 1."""

    def __call__(cls, value: object, *more: Any, **options: Any) -> Any:
        if isinstance(value, bool):
            return cls._missing_(value)  # type: ignore[attr-defined]  # of an Enum; it raises
        return super().__call__(value, *more, **options)


class LogLevel(IntEnum, metaclass=_NoBooleans):
    """How often something is logged, from rare to frequent. A threshold keeps the levels up to its own::

        logger.metric(LogLevel.EPOCH, {"accuracy": 0.9})

    LogLevel("epoch"), LogLevel("EPOCH") and LogLevel(2) are the same. ConfigError, a ValueError, for anything else.
    """

    FIT = 1  #: once a run
    EPOCH = 2  #: once an epoch
    BATCH = 3  #: once a batch
    MICROBATCH = 4  #: once a part of a batch
    VERBOSE = 5  #: for debugging

    @classmethod
    def _missing_(cls, value: object) -> LogLevel:
        member = cls.__members__.get(value.upper()) if isinstance(value, str) else None
        if member is None:
            known = ", ".join(f"{level.name} ({level.value})" for level in cls)
            raise ConfigError(f"{value!r} is no log level: use one of {known}, by name in any case or by number")
        return member


#: The common spellings, for calls that are made at each batch: the lookup of the enum itself takes microseconds.
_KNOWN: dict[object, LogLevel] = {
    spelling: level for level in LogLevel for spelling in (level.value, level.name, level.name.lower())
}


def to_level(value: str | int | LogLevel) -> LogLevel:
    """LogLevel(value), without its cost."""
    if isinstance(value, LogLevel):
        return value
    is_spelling = isinstance(value, (str, int)) and not isinstance(value, bool)
    return (_KNOWN.get(value) if is_spelling else None) or LogLevel._missing_(value)
