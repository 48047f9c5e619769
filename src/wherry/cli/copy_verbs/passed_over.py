"""What a local folder has and ``wherry sync`` does not take: links to folders and to nothing, pipes, devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from wherry.cli.store_verbs.patterns import Rules
from wherry.store import TEMPORARY_MARK
from wherry.uri import StoreURI


class PassedOver(NamedTuple):
    """A name below the source, and what it is."""

    name: str
    what: str


def passed_over(source: StoreURI, rules: Rules) -> list[PassedOver]:
    """Those of a local folder that the rules take, in the order of their names; none of a store."""
    if source.scheme != "file":
        return []
    return sorted(one for one in _below(f"/{source.prefix}", "", rules) if not rules or rules.take(one.name))


def is_at_or_below(name: str, names: frozenset[str]) -> bool:
    """Whether a name is one of these, or has one of them for a folder."""
    return name in names or any(name[:at] in names for at, char in enumerate(name) if char == "/")


def _below(folder: str, base: str, rules: Rules) -> Iterator[PassedOver]:
    try:
        with os.scandir(folder) as scanned:
            entries = list(scanned)
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted meanwhile, or no folder
    for entry in entries:
        name = base + entry.name
        if TEMPORARY_MARK in entry.name:
            continue
        if entry.is_symlink():
            if what := _kind_of_link(entry.path):
                yield PassedOver(name, what)
        elif entry.is_dir(follow_symlinks=False):
            if not rules.leave_out(f"{name}/"):
                yield from _below(entry.path, f"{name}/", rules)
        elif not entry.is_file(follow_symlinks=False):
            yield PassedOver(name, "a pipe, a socket or a device")


def _kind_of_link(path: str) -> str | None:
    """What sync does not take; None for a link to a file."""
    if os.path.isdir(path):
        return "a link to a folder, which is not entered"
    if not os.path.exists(path):
        return "a link to nothing"
    return None if os.path.isfile(path) else "a link to a pipe, a socket or a device"
