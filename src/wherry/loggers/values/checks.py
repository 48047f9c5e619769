"""Checks of numbers in a destination's config: ConfigError that names the field."""

from __future__ import annotations

from numbers import Integral, Real

from wherry.errors import ConfigError


def check_counts(config: object, least: int, *names: str) -> None:
    """These fields must be whole numbers of at least `least`, or None where that is the default."""
    for name in names:
        value = getattr(config, name)
        if value is None and _takes_none(config, name):
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise _wrong(config, name, f"a whole number, at least {least}")


def check_amounts(config: object, *names: str, may_be_zero: bool = False) -> None:
    """These fields, sizes and times, must be numbers above 0, or at least 0; infinity is accepted."""
    for name in names:
        value = getattr(config, name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not (value >= 0 if may_be_zero else value > 0):
            raise _wrong(config, name, "a number, at least 0" if may_be_zero else "a number, more than 0")


def _takes_none(config: object, name: str) -> bool:
    """Whether None is the field's default, which dataclasses keep as a class attribute."""
    return getattr(type(config), name) is None


def _wrong(config: object, name: str, wanted: str) -> ConfigError:
    more = ", or None" if _takes_none(config, name) else ""
    return ConfigError(f"{type(config).__name__}.{name} is {getattr(config, name)!r}: it must be {wanted}{more}")
