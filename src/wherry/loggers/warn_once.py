"""WarnOnce: warnings that are logged once, and not at every batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable

from wherry.errors import ConfigError
from wherry.loggers.capture.terminal import printable

log = logging.getLogger("wherry")

#: Of one log call so many different errors are reported.
_MOST_ERRORS = 10
#: What differs from batch to batch in a text that says the same: numbers and addresses in memory.
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*(?:e[-+]?[0-9]+)?")


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

        Words that differ in their numbers only, such as the batch, are the same. The first has its traceback, and
        after ten it stops: errors that come with every batch must not fill the log.
        """
        said, kind = self._words.setdefault(where, set()), _NUMBER.sub("0", words)
        if kind not in said and len(said) < _MOST_ERRORS:
            is_first = not said
            said.add(kind)
            more = "" if len(said) < _MOST_ERRORS else " (further ones of this call are not reported)"
            self.once((where, kind), text + more, error if is_first else None)

    def each(self, text: str, error: BaseException | None = None) -> None:
        """Warn every time. A ConfigError, which names what the user has to change, is written without its traceback."""
        log.warning("%s", printable(text), exc_info=None if isinstance(error, ConfigError) else error)
