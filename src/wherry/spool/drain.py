"""Waits until uploads are finished, and shows how far they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from wherry.progress import BAR_AFTER_S, terminal_bar
from wherry.quantities import count_text, size_text
from wherry.spool.journal.jobs import Counts

#: How long a process that ends by an error, or without close(), waits for what other ranks save of a checkpoint set.
#: They may never do so, and whoever started the ranks waits for this one's end.
_FOR_OTHERS_S = 10.0


class Patience:
    """Tells when to give a wait up: after `give_up_s` without progress.

    It is kept from one wait to the next, so that two waits in a row do not wait twice for a store that is gone. `is_ending`: the
    process ends by an error, or without close(). `why`: what is_over() has found, in words.
    """

    def __init__(self, give_up_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.is_ending = False
        self.why = ""
        self._give_up_s = give_up_s
        self._now = now
        self._seen: object = None
        self._since_s = now()

    def is_over(self, seen: object, needs_others: Callable[[], bool] = lambda: False) -> bool:
        """`seen` stands for the progress so far: a value that differs from the last one means that there was some.

        `needs_others`: whether all that is left are sets of which other ranks save parts.
        """
        if seen != self._seen:
            self._seen, self._since_s = seen, self._now()
        limit_s, self.why = self._give_up_s, f"as nothing has got on for {self._give_up_s:g} s"
        if self.is_ending and limit_s > _FOR_OTHERS_S and needs_others():
            limit_s, self.why = _FOR_OTHERS_S, f"as other ranks have not saved their parts of a set for {_FOR_OTHERS_S:g} s"
        return self._now() - self._since_s >= limit_s


def wait_until_drained(
    counts: Callable[[], Counts],
    wait: Callable[[float], object],
    *,
    timeout_s: float | None = None,
    is_stuck: Callable[[Counts], bool] = lambda counts: False,
    progress: bool = False,
) -> bool:
    """Wait until nothing is queued or leased, at most `timeout_s`, or until `is_stuck`. True if nothing is.

    `wait` may return early, when some upload ended.

    With `progress` a bar of bytes is shown on stderr if that is a terminal, else one line.
    """
    started_s = time.monotonic()
    now = counts()
    total_bytes = now.bytes_queued
    bar = None
    is_told = not progress
    try:
        while now.queued + now.leased:
            passed_s = time.monotonic() - started_s
            if (timeout_s is not None and passed_s >= timeout_s) or is_stuck(now):
                return False
            if not is_told and passed_s >= BAR_AFTER_S:
                is_told = True
                if sys.stderr.isatty():
                    bar = terminal_bar("uploading", total_bytes, total_bytes - now.bytes_queued)
                else:
                    left = f"{count_text(now.queued + now.leased, 'upload')}, {size_text(now.bytes_queued)}"
                    sys.stderr.write(f"wherry: waiting for {left}\n")
            if bar is not None:
                bar.total = total_bytes = max(total_bytes, now.bytes_queued)
                bar.n = total_bytes - now.bytes_queued
                retries = f", {count_text(now.retries, 'retry', 'retries')}" if now.retries else ""
                # before the figures, which end where a narrow terminal does
                bar.set_description_str(f"uploading, {count_text(now.queued + now.leased, 'file')} left{retries}", refresh=False)
                bar.refresh()
            left_s = 1.0 if timeout_s is None else min(1.0, max(0.0, timeout_s - passed_s))
            wait(left_s if is_told else 0.05)
            now = counts()
        return True
    finally:
        if bar is not None:
            bar.close()
