"""WarnOnce: warnings that are logged once, and not at every batch."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from wherry.errors import ConfigError
from wherry.loggers.capture.terminal import printable

log = logging.getLogger("wherry")

#: Of one log call so many different errors are reported.
_MOST_ERRORS = 10


class WarnOnce:
    """Writes a warning to the log "wherry" if it was not written before. Threads may share it."""

    def __init__(self) -> None:
        self._said: dict[Hashable, object] = {}
        self._words: dict[Hashable, set[str]] = {}

    def once(self, key: Hashable, text: str, error: BaseException | None = None) -> None:
        """Warn with `text`, and the traceback of `error`, the first time that `key` is given."""
        mine = object()
        if self._said.setdefault(key, mine) is mine:  # setdefault is atomic: one thread warns
            self.each(text, error)

    def once_each(self, where: Hashable, words: str, text: str, error: BaseException | None = None) -> None:
        """Warn with `text` for each new `words` of one place, as each error there may be about another table or image.

        After ten it stops: errors with a changing number in them must not fill the log.
        """
        said = self._words.setdefault(where, set())
        if words not in said and len(said) < _MOST_ERRORS:
            said.add(words)
            more = "" if len(said) < _MOST_ERRORS else " (further ones of this call are not reported)"
            self.once((where, words), text + more, error)

    def each(self, text: str, error: BaseException | None = None) -> None:
        """Warn every time. A ConfigError, which names what the user has to change, is written without its traceback."""
        log.warning("%s", printable(text), exc_info=None if isinstance(error, ConfigError) else error)
