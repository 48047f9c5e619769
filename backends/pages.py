"""Detects listings without an end: a faulty server may repeat their pages, or send empty pages for ever."""

from __future__ import annotations

#: Amazon and Google may answer with an empty page although more pages follow, but hardly with so many in a row.
_MOST_EMPTY_PAGES = 1000


class Pages:
    """Watches the marks by which a server says where the next page begins. If one comes again, the pages repeat.

    It remembers one mark at a time (R. P. Brent, "An improved Monte Carlo factorization algorithm", 1980): a cycle of n pages is
    found within 3 n more, whatever the length of the listing.
    """

    def __init__(self) -> None:
        self._remembered: object = None
        self._steps = 0
        self._power = 1
        self._empty = 0

    def is_endless(self, mark: object, n_entries: int) -> bool:
        """Take the mark of the next page, from a page of `n_entries`. True: the listing has no end."""
        self._empty = 0 if n_entries else self._empty + 1
        if mark == self._remembered or self._empty > _MOST_EMPTY_PAGES:
            return True
        self._steps += 1
        if self._steps == self._power:
            self._remembered, self._power, self._steps = mark, 2 * self._power, 0
        return False
