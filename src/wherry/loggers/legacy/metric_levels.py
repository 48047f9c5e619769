"""The nested data of `Logger.metric`, sorted for the log methods of today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wherry.loggers.values.arrays import to_number


def sort_leaves(data: Mapping[str, object]) -> tuple[dict[str, float], dict[str, str], dict[str, object]]:
    """The leaves of nested data by path, ``loss/train``: (numbers, texts, other objects).

    The path of a leaf joins the keys of mappings and the positions in lists and tuples by "/". Array scalars and one-element
    tensors are numbers. A larger array is one leaf, among the other objects.
    """
    metrics: dict[str, float] = {}
    texts: dict[str, str] = {}
    others: dict[str, object] = {}
    for path, leaf in _leaves(data, ""):
        if isinstance(leaf, str):
            texts[path] = leaf
        elif (number := to_number(leaf)) is not None:
            metrics[path] = number
        else:
            others[path] = leaf
    return metrics, texts, others


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    below = f"{path}/" if path else ""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{below}{key}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{below}{position}")
    else:
        yield path, value
