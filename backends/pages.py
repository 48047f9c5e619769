"""Pages of a listing, which a server may hand out in a circle, or without an end."""

from __future__ import annotations

#: Amazon and Google may answer with a page without entries, and more to come. Nobody has seen so many of them.
_MOST_EMPTY_PAGES = 1000


class Pages:
    """Watches the marks by which a server says how a listing goes on: one that has been there before leads in a circle.

    It remembers one mark at a time (R. P. Brent, "An improved Monte Carlo factorization algorithm", 1980): a circle of n pages is
    found within 3 n more, whatever the length of the listing.
    """

    def __init__(self) -> None:
        self._remembered: object = None
        self._steps = 0
        self._power = 1
        self._empty = 0

    def is_endless(self, mark: object, n_entries: int) -> bool:
        """Take the mark that a page of `n_entries` gives for the next one, and tell whether to go on would have no end."""
        self._empty = 0 if n_entries else self._empty + 1
        if mark == self._remembered or self._empty > _MOST_EMPTY_PAGES:
            return True
        self._steps += 1
        if self._steps == self._power:
            self._remembered, self._power, self._steps = mark, 2 * self._power, 0
        return False
