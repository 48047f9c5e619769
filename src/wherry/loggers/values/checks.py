"""Checks of numbers: those of a destination's config, and the step of a log call."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, SupportsInt, cast

from wherry.errors import ConfigError

_MOST_STEPS = 2**63 - 1


def check_counts(config: object, least: int, *names: str) -> None:
    """ConfigError unless these fields are whole numbers of at least `least`, or None where that is the default."""
    for name in names:
        value = getattr(config, name)
        if value is None and _takes_none(config, name):
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise _wrong(config, name, f"a whole number, at least {least}")


def check_amounts(config: object, *names: str, may_be_zero: bool = False) -> None:
    """ConfigError unless these fields, sizes and times, are numbers above 0, or at least 0; infinity is accepted."""
    for name in names:
        value = getattr(config, name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not (value >= 0 if may_be_zero else value > 0):
            raise _wrong(config, name, "a number, at least 0" if may_be_zero else "a number, more than 0")


def to_step(step: object, name: str) -> int:
    """A step as an int, from an int or a whole number of numpy or torch. ValueError, which begins with `name`, for others.

    It fits into the 64 bits in which TensorBoard, MLflow and pandas store it.
    """
    try:
        number = int(cast("SupportsInt", step))
        is_whole = not isinstance(step, (str, bytes)) and bool(cast("Any", step) == number)
    except (TypeError, ValueError, OverflowError):
        is_whole, number = False, 0
    if not is_whole or not -_MOST_STEPS <= number <= _MOST_STEPS:
        raise ValueError(f"{name}: the step is {step!r}: it must be a whole number of at most 63 bits")
    return number


def _takes_none(config: object, name: str) -> bool:
    """Whether None is the field's default, which dataclasses keep as a class attribute."""
    return getattr(type(config), name) is None


def _wrong(config: object, name: str, wanted: str) -> ConfigError:
    more = ", or None" if _takes_none(config, name) else ""
    return ConfigError(f"{type(config).__name__}.{name} is {getattr(config, name)!r}: it must be {wanted}{more}")
