"""Fencing: of all processes that write under one name, the last one to begin goes on, and the others stop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from wherry.errors import AlreadyExistsError, NotFoundError, WherryError
from wherry.mirror.format.layout import epoch_name, epoch_number, key_for, writer_folder
from wherry.store import TOKEN_METADATA, ObjectStore, PutOptions


class MirrorFencedError(WherryError):
    """Another process has begun to mirror under our writer's name: this one has stopped, and sends nothing more."""


class Fence:
    """Our epoch: a number that no other process has, the highest one when it was taken.

    The answer of check() counts for `counts_s`, by both clocks: a process or machine that was suspended checks anew.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        writer: str,
        scratch: Callable[[], Path],
        *,
        counts_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._writer = writer
        self._scratch = scratch
        self._counts_s = counts_s
        self._clocks = (clock, now)
        self._checked_s: tuple[float, ...] = ()
        self.epoch = 0

    def take(self) -> None:
        """Take the next number, once. A number that was taken but whose answer was lost is recognised, or left unused."""
        if self.epoch:
            return
        token = secrets.token_hex(16)
        base = key_for(self._prefix, f"{writer_folder(self._writer)}epoch-")
        number = 1 + max((epoch_number(meta.key) or 0 for meta in self._store.list(base)), default=0)
        path = self._scratch()
        path.write_text(f"{token}\n")
        try:
            while not self._create(number, path, token):
                number += 1
        finally:
            path.unlink()
        self.epoch = number

    def _create(self, number: int, path: Path, token: str) -> bool:
        key = key_for(self._prefix, epoch_name(self._writer, number))
        try:
            self._store.put_file(key, path, PutOptions(if_absent=True, metadata={TOKEN_METADATA: token}))
        except AlreadyExistsError:
            return self._store.head(key).token == token
        return True

    def check(self, *, surely: bool = False) -> None:
        """Raise MirrorFencedError if another process has begun after us.

        Epochs are taken without a gap and stay, so that the next one alone is looked for. `surely`: ask the store now.
        """
        seen_s = tuple(clock() for clock in self._clocks)
        ages_s = [now - then for now, then in zip(seen_s, self._checked_s, strict=False)]
        if ages_s and not surely and all(0 <= age_s < self._counts_s for age_s in ages_s):
            return
        try:
            self._store.head(key_for(self._prefix, epoch_name(self._writer, self.epoch + 1)))
        except NotFoundError:
            self._checked_s = seen_s
            return
        raise MirrorFencedError(
            f"another process mirrors as {self._writer!r} since (epoch {self.epoch + 1}, ours is {self.epoch}): this mirror has "
            "stopped. Two at a time need two names: Mirror(..., writer=...)"
        )
