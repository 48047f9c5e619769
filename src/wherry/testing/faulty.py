"""A store that fails by plan, so that every case can be played again.

>>> FaultyStore(store, [Fault("put", TransientError("reset"), nth=2), Fault("complete", TransientError("lost"), after=True)])
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from wherry.store import ObjectStore
from wherry.store.wrappers import WrappedStore

_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """Fail the `nth` call (from 1) of `operation` whose key contains `key`, and `times - 1` such calls after it.

    `after` loses the answer: the call is made, and then fails. `act` is called first, from the thread of the call: to wait
    for an event, change the object, or kill the process.

    Operations: put get head list delete delete_many begin put_part list_parts complete abort list_uploads join probe. The lists
    count each step, the last one included.
    """

    operation: str
    error: Exception | None = None
    nth: int = 1
    times: int = 1
    after: bool = False
    key: str = ""
    act: Callable[[], None] | None = None


class FaultyStore(WrappedStore):
    """Forwards to `inner` and fails where the plan says so. `calls` counts the calls of each operation::

        store = FaultyStore(inner, [Fault("put", TransientError("reset"), nth=2)])  # the second put fails
        store.calls["put"]

    Each fault has its own count of matching calls, also of those that another fault made fail. Safe from several threads.
    """

    def __init__(self, inner: ObjectStore, plan: Sequence[Fault] = ()) -> None:
        super().__init__(inner)
        self.plan = list(plan)
        self.calls: Counter[str] = Counter()
        self._seen: Counter[int] = Counter()
        self._lock = threading.Lock()

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        due: list[Fault] = []
        with self._lock:
            self.calls[operation] += 1
            for place, fault in enumerate(self.plan):
                if fault.operation == operation and fault.key in key:
                    self._seen[place] += 1
                    if fault.nth <= self._seen[place] < fault.nth + fault.times:
                        due.append(fault)
        _happen(due, after=False)
        result = call()
        _happen(due, after=True)
        return result


def _happen(faults: Sequence[Fault], *, after: bool) -> None:
    for fault in faults:
        if fault.after == after:
            if fault.act is not None:
                fault.act()
            if fault.error is not None:
                raise copy.copy(fault.error)  # a copy: whoever catches it may add to it
