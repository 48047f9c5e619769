"""Deep copies of logged data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from wherry.loggers.values.arrays import is_tensor
from wherry.loggers.values.size_limits import MAX_BYTES, bytes_of

_T = TypeVar("_T")
_NEVER_CHANGE = frozenset({type(None), bool, int, float, complex, str, bytes})


def deep_copy(value: _T) -> _T:
    """A deep copy of `value`, so that later changes of one do not change the other.

    Tensors are detached and cloned on their device, so that no autograd graph is kept alive. An object that cannot be copied (a
    lock, a generator, an open file) is kept as it is; the containers around it are copied. If an array repeats its elements by
    broadcasting, and would take more than MAX_BYTES otherwise, so does its copy, which is read-only.
    """
    copied: _T = _copied(value, {})  # type: ignore[assignment]
    return copied


def _copied(value: object, memo: dict[int, object]) -> object:
    """`memo`, id -> copy, is that of copy.deepcopy: an object that is held twice is copied once, and may hold itself."""
    kind = type(value)
    if kind in _NEVER_CHANGE:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, dict) and kind is dict:
        mapping: dict[object, object] = {}
        memo[id(value)] = mapping
        for key, item in value.items():  # most items are numbers, for which this test saves a call
            mapping[key] = item if type(item) in _NEVER_CHANGE else _copied(item, memo)
        return mapping
    if isinstance(value, list) and kind is list:
        items: list[object] = []
        memo[id(value)] = items
        items.extend(_copied(item, memo) for item in value)
        return items
    if isinstance(value, tuple) and kind is tuple:
        return tuple(_copied(item, memo) for item in value)
    made = _leaf(value, memo)
    memo[id(value)] = made
    return made


def _leaf(value: object, memo: dict[int, object]) -> object:
    try:
        if bytes_of(value) > MAX_BYTES and (compact := _compact(value)) is not None:
            return compact
        if is_tensor(value):
            return value.detach().clone()
        return copy.deepcopy(value, memo)
    except Exception:  # a __deepcopy__ may raise anything; a log call must not fail for that
        return {key: _copied(item, memo) for key, item in value.items()} if isinstance(value, Mapping) else value


def _compact(value: Any) -> object:
    """A copy of an array or tensor that repeats its elements by broadcasting, as the copy does; None for other arrays."""
    if isinstance(value, (list, tuple)):
        return None
    strides = value.stride() if is_tensor(value) else value.strides
    if 0 not in strides:
        return None
    once = value[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    if is_tensor(value):
        return once.detach().clone().expand(value.shape)
    import numpy as np

    return np.broadcast_to(once.copy(), value.shape)
