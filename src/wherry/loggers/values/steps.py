"""The step of a log call."""

from __future__ import annotations

from typing import Any, SupportsInt, cast

_MOST = 2**63 - 1


def to_step(step: object, name: str) -> int:
    """A step as an int, from an int or a whole number of numpy or torch. ValueError, which begins with `name`, for others.

    It fits into the 64 bits in which TensorBoard, MLflow and pandas store it.
    """
    try:
        number = int(cast("SupportsInt", step))
        is_whole = not isinstance(step, (str, bytes)) and bool(cast("Any", step) == number)
    except (TypeError, ValueError, OverflowError):
        is_whole, number = False, 0
    if not is_whole or not -_MOST <= number <= _MOST:
        raise ValueError(f"{name}: the step is {step!r}: it must be a whole number of at most 63 bits")
    return number
