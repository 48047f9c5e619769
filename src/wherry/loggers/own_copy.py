"""Copies of logged data that nobody else can change."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from wherry.loggers.arrays import is_tensor

_T = TypeVar("_T")
_NEVER_CHANGE = frozenset({type(None), bool, int, float, complex, str, bytes})


def own_copy(value: _T) -> _T:
    """A deep copy of `value`: later changes of one are not seen in the other.

    Tensors are detached and cloned on their device, so that no autograd graph is kept alive. What cannot be copied (a lock,
    a generator, an open file) stays the very object that was given; the containers around it are copied all the same.
    """
    copied: _T = _copied(value, {})  # type: ignore[assignment]
    return copied


def _copied(value: object, memo: dict[int, object]) -> object:
    """`memo`, id -> copy, is deepcopy's: what is held twice is copied once, and a container may hold itself."""
    kind = type(value)
    if kind in _NEVER_CHANGE:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, dict) and kind is dict:
        mapping: dict[object, object] = {}
        memo[id(value)] = mapping
        for key, item in value.items():  # most items are numbers; the test here spares each of them a call
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
        if is_tensor(value):
            return value.detach().clone()
        return copy.deepcopy(value, memo)
    except Exception:  # of somebody else's __deepcopy__: anything; a log call must not fail for it
        return {key: _copied(item, memo) for key, item in value.items()} if isinstance(value, Mapping) else value
