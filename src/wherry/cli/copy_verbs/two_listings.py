"""What two places have, name by name: their listings are merged in one pass, and neither is held.

That takes listings in the order of their names. Amazon, Google, local folders and most other servers give them so. A server that
keeps its objects in a file system lists folder by folder (``a/b`` before ``a-b``): the first name out of order shows it. Then
both sides are listed once more, held in the little that is compared of each name (some 300 bytes), and sorted. To trust the
server's name in place of that would break on the next one, and to sort all of them would hold a million names of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from wherry.cli.store_verbs.patterns import Rules
from wherry.cli.store_verbs.pruned import pages_below
from wherry.cli.store_verbs.uri_pages import read_ahead

if TYPE_CHECKING:
    from wherry.uploader import Uploader

#: What a name is in the source and in the destination; None where it is not there.
Pair = tuple["Entry | None", "Entry | None"]


class Entry(NamedTuple):
    """An object or file as a listing tells it; the name is relative to the place."""

    name: str
    size_bytes: int
    modified_s: float | None
    crc32c: int | None = None
    digest: str | None = None


class UnorderedError(Exception):
    """A listing that is not in the order of its names; it never leaves pairs()."""


class Side:
    """What is below one of the two places, as far as `rules` take it, each time it is asked for.

    `is_empty`: after a pass, whether there was nothing at all. Empty objects whose name ends in a slash stand for folders, and
    are nothing.
    """

    def __init__(self, store: Uploader, rules: Rules) -> None:
        self.store = store
        self.is_empty = True
        self._rules = rules

    @property
    def base(self) -> str:
        """What all keys begin with."""
        prefix = self.store.uri.prefix
        return f"{prefix}/" if prefix else ""

    def entries(self) -> Iterator[Entry]:
        """In the store's order."""
        base, take, has_rules = self.base, self._rules.take, bool(self._rules)
        n_base = len(base)
        for page in read_ahead(pages_below(self.store, base, self._rules)):
            self.is_empty = self.is_empty and not page.folders
            for meta in page.objects:
                name, size_bytes = meta.key[n_base:], meta.size_bytes
                if not name or (size_bytes == 0 and name.endswith("/")):
                    continue
                self.is_empty = False
                if not has_rules or take(name):
                    yield Entry(name, size_bytes, meta.modified_s, meta.crc32c, meta.digest)


def pairs(source: Iterable[Entry], dest: Iterable[Entry]) -> Iterator[Pair]:
    """Every name of either side once, in order. UnorderedError, maybe late, if a side has its names in another order."""
    ours, theirs = _in_order(source), _in_order(dest)
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.name < other.name):
            yield one, None
            one = next(ours, None)
        elif one is None or other.name < one.name:
            yield None, other
            other = next(theirs, None)
        else:
            yield one, other
            one, other = next(ours, None), next(theirs, None)


def in_order(side: Side) -> list[Entry]:
    """All entries by their names, each once; what is queued for upload comes before what is stored of it."""
    by_name: dict[str, Entry] = {}
    for entry in side.entries():
        by_name.setdefault(entry.name, entry)
    return [by_name[name] for name in sorted(by_name)]


def _in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    # The order of characters is that of their UTF-8 bytes; file names that are no UTF-8 may differ, which is found out as well.
    last = ""
    for entry in entries:
        if entry.name <= last:
            raise UnorderedError
        last = entry.name
        yield entry
