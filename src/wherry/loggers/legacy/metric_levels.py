"""The nested data of `Logger.metric`, sorted for the log methods of today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from wherry.loggers.values.arrays import to_number


class Leaves(NamedTuple):
    """The leaves of nested data by path, ``loss/train``: numbers, texts, and other objects."""

    metrics: dict[str, float]
    texts: dict[str, str]
    others: dict[str, object]


def sort_leaves(data: Mapping[str, object]) -> Leaves:
    """Sort the leaves of `data`. The path of a leaf joins the keys of mappings and the positions in lists and tuples by "/".

    Array scalars and one-element tensors are numbers. A larger array is one leaf, among the other objects.
    """
    found = Leaves({}, {}, {})
    for path, leaf in _leaves(data, ""):
        if isinstance(leaf, str):
            found.texts[path] = leaf
        elif (number := to_number(leaf)) is not None:
            found.metrics[path] = number
        else:
            found.others[path] = leaf
    return found


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    below = f"{path}/" if path else ""
    if isinstance(value, (int, float, str)):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{below}{key}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{below}{position}")
    else:
        yield path, value
