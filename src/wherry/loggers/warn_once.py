"""Troubles that are said once, and not at every batch."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from wherry.errors import ConfigError
from wherry.loggers.capture.terminal import printable

log = logging.getLogger("wherry")

#: So many different errors of one log call are said.
_MOST_WORDS = 10


class WarnOnce:
    """Writes to the log "wherry" what was not said before. Safe from several threads."""

    def __init__(self) -> None:
        self._said: dict[Hashable, object] = {}
        self._words: dict[Hashable, set[str]] = {}

    def once(self, key: Hashable, text: str, error: BaseException | None = None) -> None:
        """Warn with `text`, and the traceback of `error`, the first time that `key` is given."""
        mine = object()
        if self._said.setdefault(key, mine) is mine:  # atomic: of several threads one speaks
            self.each(text, error)

    def once_each(self, where: Hashable, words: str, text: str, error: BaseException | None = None) -> None:
        """Warn with `text` for each new `words` of one place: another table, another image, each is a loss of its own.

        Not without end: words with a number in them must not fill the log.
        """
        said = self._words.setdefault(where, set())
        if words not in said and len(said) < _MOST_WORDS:
            said.add(words)
            more = "" if len(said) < _MOST_WORDS else " (others of this call are not said any more)"
            self.once((where, words), text + more, error)

    def each(self, text: str, error: BaseException | None = None) -> None:
        """Warn every time. What the user has to mend, such as a library to install, is said without a traceback."""
        log.warning("%s", printable(text), exc_info=None if isinstance(error, ConfigError) else error)
