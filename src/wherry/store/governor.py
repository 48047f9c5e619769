"""One governor a node: how fast all processes of a user may talk to the stores, together.

    max_bytes_per_s        of the node, both ways: a clock says when the next part may begin
    max_requests_per_s     of each store: a clock, too
    requests in flight     at a store that throttles (429, 503, SlowDown): halved at once, then one more after each round

The clocks are the virtual scheduling of the "generic cell rate algorithm" (ITU-T I.371, annex A): whoever begins moves the clock
on by the time that his bytes may take. A large transfer waits until the time has come to the clock. A small one does not queue
behind large ones: it waits for other small ones only. Those take four fifths of the rate at most, so that none starves.

Everything here is a function of the table, the numbers given and `now`: see `NodeTable` for what is shared, and with whom.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.config import TransferConfig
from wherry.errors import ConfigError
from wherry.quantities import count_text, rate_text
from wherry.store.node_table import NodeTable, Row, node_file
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import endpoint_key, split_options
from wherry.uri import StoreURI

#: A transfer of at most so many bytes does not wait for larger ones.
SMALL_BYTES = 2**20
_SMALL_SHARE = 0.8
#: Requests that were late may catch up so much.
_CATCH_UP_S = 0.05
#: A process that has made no request for so long leaves its share of the requests in flight to the others.
_USER_S = 10.0
#: A store that has not throttled for so long is trusted again.
_FORGIVEN_S = 600.0
#: 5 GiB, the largest body of one request, at 64 KB/s.
_LONGEST_DEBT_S = 86_400.0
#: What the newest part counts in the mean of how fast parts go.
_NEWEST = 0.1
#: What `present_limits` tells of a limit that nobody has used for longer is history.
_SHOWN_S = 60.0


@dataclass(frozen=True)
class PresentLimit:
    """A limit that holds just now: of which store ("" is the whole node), in words, and why."""

    store: str
    limit: str
    reason: str


class Governor:
    """One process's part in the node's limits for one store. Safe from several threads; a forked child needs its own.

    `most_in_flight` holds for this process, the other limits for the node; None: there is none. If two processes have been
    given different rates, each counts by its own.
    """

    def __init__(
        self,
        table: NodeTable,
        address: str,
        most_in_flight: int,
        *,
        max_bytes_per_s: float | None = None,
        max_requests_per_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        process: int | None = None,
    ) -> None:
        if most_in_flight < 1:
            raise ConfigError(f"max_in_flight is {most_in_flight}: at least one call must be let through")
        self._table = table
        self._node, self._store = table.row(""), table.row(address)
        self._most = most_in_flight
        self._max_bytes_per_s = max_bytes_per_s
        self._max_requests_per_s = max_requests_per_s
        self._now = now
        self._sleep = sleep
        self._process = os.getpid() if process is None else process
        with table.locked():  # the rows are there from now on: to look for one that is not costs more than to read one
            self._node.put(used_s=now())
            self._store.put(used_s=now())

    @property
    def max_bytes_per_s(self) -> float | None:
        """The limit of bytes per second; None: there is none."""
        return self._max_bytes_per_s

    @property
    def counts_bytes(self) -> bool:
        """Whether there is a limit of bytes per second."""
        return self._max_bytes_per_s is not None

    def is_unlimited(self) -> bool:
        """Whether no rate is limited, and the store has not throttled of late."""
        return self._max_bytes_per_s is None and self._max_requests_per_s is None and not self._store.get("limit")

    def places(self) -> int:
        """How many requests this process may have in flight at the store just now, at least one."""
        limit = self._store.get("limit")
        if not limit:
            return self._most
        return min(self._most, max(1, int(limit) // max(1, len(self._users()))))

    def wait_for_bytes(self, size_bytes: int) -> None:
        """Wait until so many bytes may move. One transfer may begin while the clock is behind, however large it is."""
        if self._max_bytes_per_s is None or not size_bytes:
            return
        cost_s = size_bytes / self._max_bytes_per_s
        if size_bytes <= SMALL_BYTES:
            self._sleep_if(self._take_small(cost_s))
        else:
            while wait_s := self._take_large(cost_s):
                self._sleep(wait_s)

    def pay(self, size_bytes: int) -> None:
        """Wait as long as bytes that have moved may take, after those that were paid for before: nothing moves ahead for free."""
        if self._max_bytes_per_s is None or not size_bytes:
            return
        with self._table.locked():
            now_s = self._now()
            paid_s = max(now_s, self._clock(self._node, "large_free_s", now_s)) + size_bytes / self._max_bytes_per_s
            self._node.put(used_s=now_s, large_free_s=paid_s, max_bytes_per_s=self._max_bytes_per_s)
        self._sleep_if(paid_s - now_s)

    def wait_for_request(self) -> float:
        """Wait until another request may be made. Returns when it begins, which `note_throttled` is to be given."""
        if self._max_requests_per_s is not None:
            self._sleep_if(self._take_request(1 / self._max_requests_per_s))
        now_s = self._now()
        if self._store.get("limit") and self._process not in self._store.users(now_s - 1):
            with self._table.locked():
                self._store.note_user(self._process, now_s)
        return now_s

    def now_s(self) -> float:
        """When what needs no leave begins, as wait_for_request() tells it."""
        return self._now()

    def note_success(self) -> None:
        """A request was answered: after as many as are let through at once there is room for one more."""
        if not self._store.get("limit"):
            return
        with self._table.locked():
            limit = self._store.get("limit")
            if limit:
                limit += 1 / max(1.0, limit)
                is_over = limit >= self._most * max(1, len(self._users())) or self._now() - self._store.get("cut_s") > _FORGIVEN_S
                self._store.put(limit=0.0 if is_over else limit)

    def note_throttled(self, begun_s: float) -> None:
        """The store has asked for fewer requests: half as many from now on.

        A call that began before the last cut asks for nothing that has not been done.
        """
        with self._table.locked():
            limit = self._store.get("limit")
            if limit and self._store.get("cut_s") > begun_s:
                return
            now_s = self._now()
            self._store.note_user(self._process, now_s)
            most = self._most * len(self._users())
            n_cuts = self._store.get("n_cuts") + 1
            self._store.put(limit=max(1.0, (limit or most) / 2), cut_s=now_s, n_cuts=n_cuts)

    def part_bytes_per_s(self) -> float | None:
        """How fast one part, of several at a time, has gone to the store lately; None: no process of the node has sent one."""
        return self._store.get("part_bytes_per_s") or None

    def note_part(self, size_bytes: int, seconds: float) -> None:
        """A part was sent in that time."""
        found = size_bytes / max(seconds, 1e-6)
        with self._table.locked():
            before = self._store.get("part_bytes_per_s") or found
            self._store.put(part_bytes_per_s=before + (found - before) * _NEWEST)

    def _users(self) -> set[int]:
        return self._store.users(self._now() - _USER_S)

    def _sleep_if(self, wait_s: float) -> None:
        if wait_s > 0:
            self._sleep(wait_s)

    @staticmethod
    def _clock(row: Row, name: str, now_s: float) -> float:
        """What a clock shows; one that nobody can have moved so far is damaged, and nobody waits for it."""
        shown_s = row.get(name)
        return shown_s if shown_s - now_s < _LONGEST_DEBT_S else 0.0

    def _take_small(self, cost_s: float) -> float:
        with self._table.locked():
            now_s = self._now()
            begin_s = max(now_s, self._clock(self._node, "small_free_s", now_s))
            large_s = max(now_s, self._clock(self._node, "large_free_s", now_s))
            self._node.put(
                used_s=now_s,
                small_free_s=begin_s + cost_s / _SMALL_SHARE,
                large_free_s=large_s + cost_s,
                max_bytes_per_s=self._max_bytes_per_s or 0.0,
            )
        return begin_s - now_s

    def _take_large(self, cost_s: float) -> float:
        """0, and the bytes are taken; else how long to wait before asking again."""
        with self._table.locked():
            now_s = self._now()
            if (wait_s := self._clock(self._node, "large_free_s", now_s) - now_s) > 0:
                return wait_s
            self._node.put(used_s=now_s, large_free_s=now_s + cost_s, max_bytes_per_s=self._max_bytes_per_s or 0.0)
        return 0.0

    def _take_request(self, cost_s: float) -> float:
        with self._table.locked():
            now_s = self._now()
            begin_s = max(now_s - _CATCH_UP_S, self._clock(self._store, "request_free_s", now_s))
            self._store.put(used_s=now_s, request_free_s=begin_s + cost_s, max_requests_per_s=self._max_requests_per_s or 0.0)
        return begin_s - now_s


def address_of(scheme: str, root: str, options: Mapping[str, object], environment: Mapping[str, str]) -> str:
    """Under which name the node's processes know a store. `options` and `environment`: the public ones."""
    return f"{scheme}://{root} {endpoint_key(scheme, options, environment)}".rstrip()


def node_governor(
    uri: StoreURI, options: Mapping[str, object], environment: Mapping[str, str], transfer: TransferConfig
) -> Governor:
    """The governor of this node for a store, as this process's configuration says."""
    return Governor(
        NodeTable(node_file()),
        address_of(uri.scheme, uri.root, split_options(uri.scheme, options)[0], environment),
        MOST_IN_FLIGHT,
        max_bytes_per_s=transfer.max_bytes_per_s,
        max_requests_per_s=transfer.max_requests_per_s,
    )


def present_limits(path: Path | None = None, now_s: float | None = None) -> list[PresentLimit]:
    """The limits that hold on this node just now, and why. Nothing is made where no governor has been."""
    path = path or node_file()
    if not path.exists():
        return []
    table, now_s = NodeTable(path), time.monotonic() if now_s is None else now_s
    found = []
    for address in table.addresses():
        row = table.row(address)
        is_used = now_s - row.get("used_s") < _SHOWN_S
        if is_used and (rate := row.get("max_bytes_per_s")):
            found.append(PresentLimit(address, rate_text(rate), "max_bytes_per_s"))
        if is_used and (rate := row.get("max_requests_per_s")):
            found.append(PresentLimit(address, f"{rate:g} requests/s", "max_requests_per_s"))
        if (limit := row.get("limit")) and (ago_s := now_s - row.get("cut_s")) < _FORGIVEN_S:
            reason = f"it has throttled {count_text(int(row.get('n_cuts')), 'time')}, the last one {ago_s:.0f} s ago"
            found.append(PresentLimit(address, f"{int(limit)} requests at once", reason))
    return found
