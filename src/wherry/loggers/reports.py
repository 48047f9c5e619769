"""Troubles that are said once, and not at every batch."""

from __future__ import annotations

import logging
from collections.abc import Hashable

log = logging.getLogger("wherry")


class Reports:
    """Writes to the log "wherry" what was not said before. Safe from several threads."""

    def __init__(self) -> None:
        self._said: dict[Hashable, object] = {}

    def once(self, key: Hashable, text: str, error: BaseException | None = None) -> None:
        """Warn with `text`, and the traceback of `error`, the first time that `key` is given."""
        mine = object()
        if self._said.setdefault(key, mine) is mine:  # atomic: of several threads one speaks
            self.each(text, error)

    def each(self, text: str, error: BaseException | None = None) -> None:
        """Warn every time."""
        log.warning("%s", text, exc_info=error)
