"""The budget of requests: a bucket of tokens (https://en.wikipedia.org/wiki/Token_bucket) for all calls of a mirror."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from wherry.store import ObjectMeta, ObjectStore
from wherry.wrappers import WrappedStore

_T = TypeVar("_T")
#: This part of an hour's budget may go at once; the rest comes evenly, so that no hour ever sees more than the whole.
_BURST = 0.1
#: Stores list so many objects in one answer.
_PAGE = 1000


class Budget:
    """Calls that may be made: at most `per_hour` in any hour, as long as callers ask `has()` before they begin something.

    What is begun is always finished, so the balance may fall below nothing; then it takes longer until there is some again.
    """

    def __init__(self, per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        #: The most that `left()` ever is.
        self.most = max(1.0, per_hour * _BURST)
        self._rate = (per_hour - self.most) / 3600.0
        self._clock = clock
        self._tokens = self.most
        self._filled_s = clock()
        self._lock = threading.Lock()
        #: All calls so far.
        self.spent = 0

    def _fill(self) -> None:
        now_s = self._clock()
        self._tokens = min(self.most, self._tokens + max(0.0, now_s - self._filled_s) * self._rate)
        self._filled_s = now_s

    def spend(self, n_calls: int = 1) -> None:
        """Note calls that are made."""
        with self._lock:
            self._fill()
            self._tokens -= n_calls
            self.spent += n_calls

    def left(self) -> float:
        """How many calls may be made now."""
        with self._lock:
            self._fill()
            return self._tokens

    def wait_s(self, n_calls: float = 1.0) -> float:
        """How long until `left()` is so much; no longer than a full bucket takes."""
        with self._lock:
            self._fill()
            return max(0.0, (min(n_calls, self.most) - self._tokens) / self._rate)


class CountedStore(WrappedStore):
    """Takes every call from a budget, those that fail included. A listing counts as a call for each 1,000 entries begun."""

    def __init__(self, inner: ObjectStore, budget: Budget) -> None:
        super().__init__(inner)
        self._budget = budget

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if operation not in ("list", "list_uploads"):  # those come here once an entry
            self._budget.spend()
        return call()

    def join(
        self,
        key: str,
        sources: Sequence[str],
        *,
        size_bytes: int,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectMeta:
        """As the inner store's, which makes a request for each source, at most."""
        self._budget.spend(len(sources))
        return super().join(key, sources, size_bytes=size_bytes, crc32c=crc32c, metadata=metadata)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's."""
        self._budget.spend()
        for number, meta in enumerate(super().list(prefix), 1):
            if number % _PAGE == 0:
                self._budget.spend()
            yield meta
