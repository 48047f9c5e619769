"""Which step a log call is for."""

from __future__ import annotations

from typing import Any, SupportsInt, cast

_MOST = 2**63 - 1


def to_step(step: object, name: str) -> int:
    """A step as an int: of an int, or a number of numpy or torch that is whole. ValueError that begins with `name` for others.

    It fits the 64 bits that TensorBoard, MLflow and pandas have for it.
    """
    try:
        number = int(cast("SupportsInt", step))
        is_whole = not isinstance(step, (str, bytes)) and bool(cast("Any", step) == number)
    except (TypeError, ValueError, OverflowError):
        is_whole, number = False, 0
    if not is_whole or not -_MOST <= number <= _MOST:
        raise ValueError(f"{name}: the step is {step!r}: it must be a whole number of at most 63 bits")
    return number
