"""A copy inside a server is judged by what the server says of both, where that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from wherry.backends.memory import MemoryStore
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import IntegrityError
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.store import Capabilities, ObjectMeta
from wherry.transfer.copying import Copier, Target
from wherry.uri import StoreURI

SOURCE = ObjectMeta("source", 3, crc32c=None, digest="crc32:352441c2")


class _Copies(MemoryStore):
    """Answers a copy with what `answer` makes of its source."""

    def __init__(self, answer: Callable[[ObjectMeta], ObjectMeta]) -> None:
        super().__init__(StoreURI("memory", "copies"), {})
        self._answer = answer

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # as its parent's, and copy()
        return replace(MemoryStore.capabilities, copies=True)

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        return self._answer(source)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ({}, True),
        ({"digest": None}, True),
        ({"digest": "md5:900150983cd24fb0d6963f7d28e17f72"}, True),  # another kind says nothing
        ({"digest": "crc32:00000000"}, False),
        ({"size_bytes": 4}, False),
    ],
)
def test_only_digests_of_one_kind_are_compared(answer: dict[str, object], is_right: bool) -> None:
    store = _Copies(lambda source: replace(source, **answer))  # type: ignore[arg-type]  # fields of ObjectMeta
    with DaemonThreadPool(1, "test") as pool:
        copier = Copier(pool, TransferConfig(), RetryConfig())
        target = Target(store, "target", "memory://copies/target", overwrite=True)
        if is_right:
            assert 3 == getattr(copier.inside(SOURCE, "copies", target), "size_bytes", None)
            return
        with pytest.raises(IntegrityError, match="the server's copy"):
            copier.inside(SOURCE, "copies", target)
