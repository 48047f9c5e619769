"""What ``wherry sync`` is going to do: what is new, what is replaced, what is deleted, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from wherry.cli.copy_verbs.in_the_way import refusals
from wherry.cli.copy_verbs.passed_over import is_at_or_below
from wherry.cli.copy_verbs.same_bytes import compare_bytes
from wherry.cli.copy_verbs.two_listings import Entry, Pair, Side, UnorderedError, in_order, pairs
from wherry.errors import WherryError
from wherry.posix.thread_pool import each_at_once

#: A time that went through a float of seconds may have lost so much.
_TIME_ERROR_S = 1e-6
#: Objects whose bytes are compared side by side.
_COMPARED_AT_ONCE = 256


class Change(NamedTuple):
    """A name that is copied."""

    name: str
    size_bytes: int
    #: The destination has another version of it.
    replaces: bool


@dataclass
class Tally:
    """So many names, of so many bytes."""

    n_files: int = 0
    n_bytes: int = 0

    def add(self, size_bytes: int, n_files: int = 1) -> None:
        """Count one more."""
        self.n_files += n_files
        self.n_bytes += max(0, size_bytes)


@dataclass
class Plan:
    """Changes, in the order of their names. `extra`: what only the destination has, with its sizes; kept unless it is deleted."""

    changes: list[Change] = field(default_factory=list)
    extra: list[tuple[str, int]] = field(default_factory=list)
    unchanged: Tally = field(default_factory=Tally)
    #: Names that cannot be copied, each with the reason.
    refused: list[tuple[str, BaseException]] = field(default_factory=list)
    #: What was read to compare checksums.
    read_bytes: int = 0
    #: Names of the source that were taken.
    n_sources: int = 0

    def keep(self, names: Iterable[str]) -> None:
        """Take what has one of these names, or has one for a folder, out of `extra`."""
        kept = frozenset(names)
        self.extra = [one for one in self.extra if not is_at_or_below(one[0], kept)]

    def tally(self, *, replaces: bool) -> Tally:
        """What is replaced, or is new."""
        found = [change.size_bytes for change in self.changes if change.replaces == replaces]
        return Tally(len(found), sum(max(0, size) for size in found))

    @property
    def extras(self) -> Tally:
        """What only the destination has."""
        return Tally(len(self.extra), sum(max(0, size) for _, size in self.extra))


class _Verdict(Enum):
    SAME = 1
    DIFFERENT = 2
    UNSURE = 3


def make_plan(source: Side, dest: Side, *, by_checksum: bool) -> Plan:
    """Compare the two places; nothing is changed. Raises what listing them raises."""
    try:
        plan, unsure = _joined(pairs(source.entries(), dest.entries()), by_checksum=by_checksum)
    except UnorderedError:
        plan, unsure = _joined(pairs(in_order(source), in_order(dest)), by_checksum=by_checksum)
    if unsure:
        _settle(plan, unsure, source, dest)
        plan.changes.sort()
    refused = refusals(dest.store.uri, [(change.name, change.replaces) for change in plan.changes])
    plan.refused += refused.items()
    plan.changes = [change for change in plan.changes if change.name not in refused]
    return plan


def _joined(found: Iterable[Pair], *, by_checksum: bool) -> tuple[Plan, list[Entry]]:
    plan, unsure = Plan(), list[Entry]()
    for one, other in found:
        if one is None:
            assert other is not None, "a pair has one side at least"
            plan.extra.append((other.name, other.size_bytes))
            continue
        plan.n_sources += 1
        if other is None:
            plan.changes.append(Change(one.name, one.size_bytes, False))
        elif (verdict := _compare(one, other, by_checksum=by_checksum)) is _Verdict.SAME:
            plan.unchanged.n_files += 1
            plan.unchanged.n_bytes += one.size_bytes
        elif verdict is _Verdict.DIFFERENT:
            plan.changes.append(Change(one.name, one.size_bytes, True))
        else:
            unsure.append(one)
    return plan, unsure


def _compare(source: Entry, dest: Entry, *, by_checksum: bool) -> _Verdict:
    """By what the listings say: the size, a checksum that both have, else whether the source was written later."""
    if source.size_bytes != dest.size_bytes or source.size_bytes < 0:
        return _Verdict.DIFFERENT
    if source.crc32c is not None and dest.crc32c is not None:
        return _Verdict.SAME if source.crc32c == dest.crc32c else _Verdict.DIFFERENT
    if by_checksum or source.modified_s is None or dest.modified_s is None:
        return _Verdict.UNSURE
    later_s = source.modified_s - dest.modified_s
    if later_s <= _TIME_ERROR_S:
        return _Verdict.SAME
    # Most services tell whole seconds: the copy of a file that was made in the same second seems to be older than the file.
    return _Verdict.UNSURE if later_s < 1 and dest.modified_s.is_integer() else _Verdict.DIFFERENT


def _settle(plan: Plan, unsure: list[Entry], source: Side, dest: Side) -> None:
    """Compare the bytes of those that are still in doubt."""

    def settle(entry: Entry) -> Callable[[], None]:
        try:
            compared = compare_bytes(source.store, source.base + entry.name, dest.store, dest.base + entry.name)
        except (WherryError, OSError) as error:
            failed = error
            return lambda: plan.refused.append((entry.name, failed))

        def note() -> None:
            plan.read_bytes += compared.read_bytes
            if compared.are_same:
                plan.unchanged.add(entry.size_bytes)
            else:
                plan.changes.append(Change(entry.name, entry.size_bytes, True))

        return note

    for at in range(0, len(unsure), _COMPARED_AT_ONCE):
        for note in each_at_once(settle, unsure[at : at + _COMPARED_AT_ONCE]):
            note()
