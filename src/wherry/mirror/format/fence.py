"""Fencing: of all processes that write under one name, the last one to begin goes on, and the others stop."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from wherry.clock import Clock
from wherry.errors import AlreadyExistsError, NotFoundError, WherryError
from wherry.mirror.format.layout import epoch_name, epoch_number, key_for, writer_folder
from wherry.store import TOKEN_METADATA, ObjectStore, PutOptions


class MirrorFencedError(WherryError):
    """Another process has begun to mirror under our writer's name: this one has stopped, and sends nothing more."""


@dataclass(eq=False)
class Fence:
    """Our epoch: a number that no other process has, the highest one when it was taken.

    The answer of check() counts for `counts_s`, by both clocks: a process or machine that was suspended checks anew.
    A temporary file lies in `scratch`.
    """

    store: ObjectStore
    prefix: str
    writer: str
    scratch: Path
    counts_s: float = 0.0
    clock: Clock = field(default_factory=Clock)
    epoch: int = field(default=0, init=False)
    _checked_s: tuple[float, ...] = field(default=(), init=False)

    def take(self) -> None:
        """Take the next number, once. A number that was taken but whose answer was lost is recognised, or left unused."""
        if self.epoch:
            return
        token = secrets.token_hex(16)
        base = key_for(self.prefix, f"{writer_folder(self.writer)}epoch-")
        number = 1 + max((epoch_number(meta.key) or 0 for meta in self.store.list(base)), default=0)
        path = self.scratch / token
        path.write_text(f"{token}\n")
        try:
            while not self._create(number, path, token):
                number += 1
        finally:
            path.unlink()
        self.epoch = number

    def _create(self, number: int, path: Path, token: str) -> bool:
        key = key_for(self.prefix, epoch_name(self.writer, number))
        try:
            self.store.put_file(key, path, PutOptions(if_absent=True, metadata={TOKEN_METADATA: token}))
        except AlreadyExistsError:
            return self.store.head(key).token == token
        return True

    def check(self, *, surely: bool = False) -> None:
        """Raise MirrorFencedError if another process has begun after us.

        Epochs are taken without a gap and stay, so that the next one alone is looked for. `surely`: ask the store now.
        """
        seen_s = (self.clock.monotonic_s(), self.clock.wall_s())
        ages_s = [now - then for now, then in zip(seen_s, self._checked_s, strict=False)]
        if ages_s and not surely and all(0 <= age_s < self.counts_s for age_s in ages_s):
            return
        try:
            self.store.head(key_for(self.prefix, epoch_name(self.writer, self.epoch + 1)))
        except NotFoundError:
            self._checked_s = seen_s
            return
        raise MirrorFencedError(
            f"another process mirrors as {self.writer!r} since (epoch {self.epoch + 1}, ours is {self.epoch}): this mirror has "
            "stopped. Two at a time need two names: Mirror(..., writer=...)"
        )
