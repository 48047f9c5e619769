"""Stores around stores: behaviour that fits every backend, each in its own wrapper.

A worker uses ``RetryStore(LimitStore(backend))``: a retry gives its place back while it waits, and the limit sees every
throttled answer. A wrapper is always a MultipartStore; its `capabilities` are the inner store's and say whether parts work.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from wherry.config import RetryConfig
from wherry.errors import PermanentError, ThrottledError, TransientError
from wherry.posix.thread_pool import wait_for
from wherry.store import (
    Capabilities,
    MultipartStore,
    ObjectMeta,
    ObjectStore,
    Page,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
    order_of,
)
from wherry.store.governor import Governor
from wherry.store.node_table import NodeTable
from wherry.store.retry import call_with_retry

_T = TypeVar("_T")
#: S3 and GCS give so many entries of a listing for one request.
_ENTRIES_A_PAGE = 1000


class WrappedStore(MultipartStore):
    """Forwards every call to `inner`, unchanged, through `_call`: a wrapper overrides that one method.

    list() goes through it step by step, so that nothing is held while the caller works on an entry.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # read each time: a backend may learn its own late
        """The inner store's."""
        return self.inner.capabilities

    @property
    def endpoint(self) -> str | None:  # type: ignore[override]  # the inner store's, whatever that is
        """The inner store's."""
        return self.inner.endpoint

    @property
    def n_requests(self) -> int | None:
        """The inner store's."""
        return self.inner.n_requests

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        """As the inner store's."""
        return self._call("probe", key_prefix, lambda: self.inner.probe(key_prefix))

    def assume(self, findings: Mapping[str, bool]) -> None:
        """As the inner store's."""
        self.inner.assume(findings)

    def can_share(self, key: str, path: Path) -> bool:
        """As the inner store's."""
        return self.inner.can_share(key, path)

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        """Make one call to the inner store. `operation` is the contract's verb: put, get, head, list ..."""
        return call()

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        return self._call("put", key, lambda: self.inner.put_file(key, path, put))

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the inner store's."""
        return self._steps("put_many", puts[0][0] if puts else "", lambda: self.inner.put_many(puts, most))

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's."""
        return self._call("get", key, lambda: self.inner.get_file(key, path, start=start, end=end, if_match=if_match))

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the inner store's."""
        self._call("get", key, lambda: self.inner.read(key, take, start=start, end=end, if_match=if_match))

    def head(self, key: str) -> ObjectMeta:
        """As the inner store's."""
        return self._call("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's."""
        return self._steps("list", prefix, lambda: self.inner.list(prefix, start_after=start_after))

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the inner store's."""
        return self._steps("list", prefix, lambda: self.inner.pages(prefix, one_level=one_level, mark=mark))

    def delete(self, key: str) -> None:
        """As the inner store's."""
        self._call("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        """As the inner store's."""
        if keys:
            self._call("delete_many", keys[0], lambda: self.inner.delete_many(keys))

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        return self._call("join", key, lambda: self.inner.join(key, sources, size_bytes, put))

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        """As the inner store's."""
        return self._call("copy", key, lambda: self.inner.copy(key, source, root, if_absent=if_absent))

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the inner store's."""
        return self._call("begin", key, lambda: self._parts("begin", key).begin(key, size_bytes, put))

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the inner store's."""
        return self._call("put_part", key, lambda: self._parts("put_part", key).put_part(key, upload_id, path, part))

    def list_parts(self, key: str, upload_id: str) -> list[StoredPart]:  # type: ignore[valid-type]  # the builtin list
        """As the inner store's."""
        return self._call("list_parts", key, lambda: self._parts("list_parts", key).list_parts(key, upload_id))

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        return self._call("complete", key, lambda: self._parts("complete", key).complete(key, upload_id, parts, put))

    def abort(self, key: str, upload_id: str) -> None:
        """As the inner store's."""
        self._call("abort", key, lambda: self._parts("abort", key).abort(key, upload_id))

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the inner store's."""
        return self._steps("list_uploads", prefix, lambda: self._parts("list_uploads", prefix).list_uploads(prefix))

    def _steps(self, operation: str, prefix: str, begin: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        entries = begin()
        while (entry := self._call(operation, prefix, lambda: next(entries, None))) is not None:
            yield entry

    def _parts(self, operation: str, key: str) -> MultipartStore:
        if isinstance(self.inner, MultipartStore):
            return self.inner
        raise PermanentError(
            f"{type(self.inner).__name__} takes no parts",
            operation=operation,
            uri=key,
            hint="read capabilities.multipart first, and use put_file()",
        )


class RetryStore(WrappedStore):
    """Makes each call but begin() again after a TransientError, as `call_with_retry` does; `deadline_s` is for each call alone.

    A call whose answer was lost may have worked: then the next attempt of a put or complete() with `if_absent` raises
    AlreadyExistsError, and that of complete() NotFoundError, about our own object. The caller tells by the token in its metadata.

    `on_retry(key, error, attempts, wait_s)` may be called from several threads at once.
    """

    def __init__(
        self,
        inner: ObjectStore,
        config: RetryConfig | None = None,
        *,
        deadline_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        on_retry: Callable[[str, TransientError, int, float], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self._config = config or RetryConfig()
        self._deadline_s = deadline_s
        self._sleep = sleep
        self._rng = rng
        self._on_retry = on_retry

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        return call_with_retry(
            call,
            config=self._config,
            deadline_s=self._deadline_s,
            sleep=self._sleep,
            rng=self._rng,
            on_retry=None if self._on_retry is None else functools.partial(self._on_retry, key),
        )

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the inner store's, and once only: what it leaves out is put by put_file()."""
        return self.inner.put_many(puts, most)

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the inner store's, and once only: an answer that is lost leaves an upload, so the caller notes each attempt."""
        return self._parts("begin", key).begin(key, size_bytes, put)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's, each key once; after an error it is begun again after the last key that was given out."""
        last = start_after

        def begin() -> Iterator[ObjectMeta]:
            return self.inner.list(prefix, start_after=last)

        for meta in self._steps("list", prefix, begin):
            if order_of(meta.key) > order_of(last):  # else a server gives a key again, at the end of a page and on the next
                last = meta.key
                yield meta

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the inner store's; after an error it goes on after the last page that was given out."""
        after = mark

        def begin() -> Iterator[Page]:
            return self.inner.pages(prefix, one_level=one_level, mark=after)

        for page in self._steps("list", prefix, begin):
            yield page
            if (after := page.mark) is None:
                return

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the inner store's; after an error it is begun again and leaves out what was given out."""
        given: set[tuple[str, str]] = set()

        def begin() -> Iterator[PendingUpload]:
            uploads = self._parts("list_uploads", prefix).list_uploads(prefix)
            return (upload for upload in uploads if (upload.key, upload.upload_id) not in given)

        for upload in self._steps("list_uploads", prefix, begin):
            given.add((upload.key, upload.upload_id))
            yield upload

    def _steps(self, operation: str, prefix: str, begin: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        entries: Iterator[_T] | None = None

        def step() -> _T | None:
            nonlocal entries
            try:
                entries = begin() if entries is None else entries
                return next(entries, None)
            except TransientError:
                entries = None
                raise

        while (entry := self._call(operation, prefix, step)) is not None:
            yield entry


class LimitStore(WrappedStore):
    """Lets at most `max_in_flight` calls through at once; the others wait. Throttled answers lower that for a while.

    Additive increase, multiplicative decrease (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for
    Congestion Avoidance", 1989): a ThrottledError halves the limit, at most once for the calls that were under way together,
    and as many successes as the limit has places raise it by one. It is never below one. With a `governor`,
    which then has `max_in_flight`, the lower limit and rates are shared with the node's other processes.
    """

    def __init__(self, inner: ObjectStore, max_in_flight: int, governor: Governor | None = None) -> None:
        super().__init__(inner)
        self._governor = governor or Governor(NodeTable(), "this process", max_in_flight)
        self._in_flight = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """How many calls are let through at once just now."""
        return self._governor.places()

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        return self._let_through(call)

    def _steps(self, operation: str, prefix: str, begin: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        entries = begin()
        for n in itertools.count():
            is_request = n % _ENTRIES_A_PAGE == 0
            if (entry := self._let_through(lambda: next(entries, None), is_request=is_request)) is None:
                return
            yield entry

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the inner store's: each page is a request."""
        entries = self.inner.pages(prefix, one_level=one_level, mark=mark)
        while (page := self._let_through(lambda: next(entries, None))) is not None:
            yield page

    def _let_through(self, call: Callable[[], _T], *, is_request: bool = True) -> _T:
        with self._changed:  # the end of a call of ours wakes us, and there is one while there is no place
            if self._in_flight >= self.limit:
                wait_for(self._changed, lambda: self._in_flight < self.limit)
            self._in_flight += 1
        try:
            begun_s = self._governor.wait_for_request() if is_request else self._governor.now_s()
            try:
                result = call()
            except ThrottledError:
                self._governor.note_throttled(begun_s)
                raise
            if is_request:
                self._governor.note_success()
            return result
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's, when its bytes may move."""
        if self._governor.counts_bytes and not (put.frozen and self.inner.can_share(key, path)):
            with suppress(FileNotFoundError):  # the inner store says it
                self._governor.wait_for_bytes(os.stat(path).st_size)
        return super().put_file(key, path, put)

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the inner store's, in the places that are free just now; while a rate is limited it leaves out all."""
        with self._changed:
            n_places = min(most, self.limit - self._in_flight) if self._governor.is_unlimited() else 0
            self._in_flight += max(0, n_places)
        if n_places <= 0:
            return
        try:
            yield from self.inner.put_many(puts, n_places)
        finally:
            with self._changed:
                self._in_flight -= n_places
                self._changed.notify_all()

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the inner store's, when its bytes may move."""
        size_bytes = part.end - part.start

        def put() -> StoredPart:
            begun_s = time.monotonic()
            stored = self._parts("put_part", key).put_part(key, upload_id, path, part)
            self._governor.note_part(size_bytes, time.monotonic() - begun_s)
            return stored

        self._governor.wait_for_bytes(size_bytes)
        return self._call("put_part", key, put)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's, when its bytes may move; without `end` nobody knows how many these are, and they do not count."""
        self._governor.wait_for_bytes(0 if end is None else end - start)
        return super().get_file(key, path, start=start, end=end, if_match=if_match)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the inner store's, when its bytes may move; without `end`, block by block."""

        def paced(block: bytes | memoryview, at: int) -> None:
            take(block, at)
            self._governor.wait_for_bytes(len(block))

        self._governor.wait_for_bytes(0 if end is None else end - start)
        super().read(key, paced if end is None else take, start=start, end=end, if_match=if_match)
