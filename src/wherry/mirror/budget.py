"""The budget of requests: a bucket of tokens (https://en.wikipedia.org/wiki/Token_bucket) for all requests of a mirror."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from wherry.store import ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore

_T = TypeVar("_T")
#: A budget that follows the files is never less than this: 24 files that each send a segment every 30 s.
LEAST_PER_HOUR = 3600
#: And never more: 240 such files. At 0.005 USD for 1,000 puts this costs 4.32 USD a day.
MOST_PER_HOUR = 36_000
#: What the files need is allowed with this much to spare, for manifests, checks of the epoch, and retries.
_SPARE = 1.25
#: This part of an hour's budget may go at once.
_BURST = 0.1
#: But always one send and the check of the epoch before it.
_LEAST_BURST = 8.0
#: The rest comes evenly, all but this part: what is begun is finished, also where it takes more requests than was expected.
_MARGIN = 0.04
#: Kept for the check of the epoch that comes before a batch.
_FENCE_REQUESTS = 2.0
#: How many requests a send takes is measured over so many sends, and is taken to be no more than this.
_MEASURED_SENDS = 20.0
_MOST_REQUESTS_A_SEND = 6.0
#: Stores list so many objects in one answer.
_PAGE = 1000


class Budget:
    """Requests that may be made: at most `per_hour` in any hour, as long as callers ask before they begin something.

    What is begun is always finished, so the balance may become negative; then it takes longer until requests may be made again.
    Without a `per_hour` it follows the number of files: see fit_to().
    """

    def __init__(self, per_hour: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fits = per_hour is None
        self._clock = clock
        self._lock = threading.Lock()
        #: All requests so far.
        self.spent = 0
        self._set(per_hour or LEAST_PER_HOUR)
        self._tokens = self.burst
        self._filled_s = clock()
        #: How many requests a send has taken lately, all that is made beside it included; 0: not known yet.
        self.requests_a_send = 0.0
        self._spent_before = 0

    def _set(self, per_hour: int) -> None:
        #: Requests in any hour.
        self.per_hour = per_hour
        #: The most that `left()` ever is.
        self.burst = max(_LEAST_BURST, per_hour * _BURST)
        self._rate = max(per_hour * (1.0 - _MARGIN) - self.burst, 1.0) / 3600.0

    def fit_to(self, n_files: int, every_s: float) -> None:
        """Set the budget for `n_files` files that each send a segment `every_s`, unless it is fixed."""
        if not self._fits:
            return
        wanted = _SPARE * max(1.0, self.requests_a_send) * n_files * 3600.0 / max(1.0, every_s)
        per_hour = int(min(max(wanted, LEAST_PER_HOUR), MOST_PER_HOUR))
        with self._lock:
            self._fill()
            self._set(per_hour)

    def _fill(self) -> None:
        now_s = self._clock()
        self._tokens = min(self.burst, self._tokens + max(0.0, now_s - self._filled_s) * self._rate)
        self._filled_s = now_s

    def spend(self, n_requests: int = 1) -> None:
        """Note requests that are made."""
        with self._lock:
            self._fill()
            self._tokens -= n_requests
            self.spent += n_requests

    def measure(self) -> None:
        """Begin to measure how many requests a send takes; earlier requests are not counted for it."""
        with self._lock:
            self._spent_before = self.spent

    def ended(self, n_sends: int) -> None:
        """Note that `n_sends` sends have ended, to learn how many requests one takes."""
        if not n_sends:
            return
        with self._lock:
            found = min((self.spent - self._spent_before) / n_sends, _MOST_REQUESTS_A_SEND)
            self._spent_before = self.spent
            weight = 1.0 if not self.requests_a_send else min(1.0, n_sends / _MEASURED_SENDS)
            self.requests_a_send += weight * (found - self.requests_a_send)

    def sends_left(self) -> int:
        """How many sends may be begun now, with a check of the epoch before them; at most 4 until it is known what one takes."""
        left = int((self.left() - _FENCE_REQUESTS) / max(1.0, self.requests_a_send))
        return left if self.requests_a_send else min(left, 4)

    def left(self) -> float:
        """How many requests may be made now."""
        with self._lock:
            self._fill()
            return self._tokens


class CountedStore(WrappedStore):
    """Takes every request from a budget, those that fail included.

    If the store counts its requests, its count is used. For others a call counts as one request, and a listing as one for
    each 1,000 entries begun.
    """

    def __init__(self, inner: ObjectStore, budget: Budget) -> None:
        super().__init__(inner)
        self._budget = budget
        self._lock = threading.Lock()
        self._seen = inner.n_requests

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if self._seen is None:
            if operation not in ("list", "list_uploads"):  # those come here once an entry
                self._budget.spend()
            return call()
        try:
            return call()
        finally:  # what the store has counted since the last call; requests of concurrent calls may be among them
            with self._lock:
                seen, now = self._seen, self.inner.n_requests or 0
                self._seen = now
            if now > seen:
                self._budget.spend(now - seen)

    def delete_many(self, keys: Sequence[str]) -> None:
        """As the inner store's."""
        if self._seen is None:
            self._budget.spend(max(0, -(-len(keys) // self.capabilities.deleted_at_once) - 1))
        super().delete_many(keys)

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's, which makes a request for each source, at most."""
        if self._seen is None:
            self._budget.spend(len(sources))
        return super().join(key, sources, size_bytes, put)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's."""
        if self._seen is None:
            self._budget.spend()
        for number, meta in enumerate(super().list(prefix, start_after=start_after), 1):
            if self._seen is None and number % _PAGE == 0:
                self._budget.spend()
            yield meta
