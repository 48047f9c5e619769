"""Questions about arrays and tensors, answered without importing their libraries."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard


def is_tensor(value: object) -> TypeGuard[Any]:
    """Whether it is a torch tensor. False if nothing has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def n_elements(value: object) -> int | None:
    """The number of elements of an array, tensor or array scalar (numpy, torch, jax ...); None for anything else."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(value, "item"):
        return None
    return math.prod(shape)


def to_number(value: object) -> int | float | None:
    """The Python number in a number, an array scalar or an array or tensor of one element; None for anything else."""
    if isinstance(value, (int, float)):
        return value
    if n_elements(value) != 1:
        return None
    item = value.item()  # type: ignore[attr-defined]
    return item if isinstance(item, (int, float)) else None


def to_float(number: int | float) -> float:
    """The number as a float; an infinity for an int that no float can hold."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
