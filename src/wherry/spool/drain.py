"""Waits until uploads are finished, and shows how far they are."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from wherry.spool.journal.jobs import Counts

#: A bar for less than this would only flicker.
_BAR_AFTER_S = 0.5


class Patience:
    """Tells when to give a wait up: after `give_up_s` without progress.

    It is kept from one wait to the next, so that two waits in a row do not wait twice for a store that is gone.
    """

    def __init__(self, give_up_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.give_up_s = give_up_s
        self._now = now
        self._seen: object = None
        self._since_s = now()

    def is_over(self, seen: object) -> bool:
        """`seen` stands for the progress so far: a value that differs from the last one means that there was some."""
        if seen != self._seen:
            self._seen, self._since_s = seen, self._now()
        return self._now() - self._since_s >= self.give_up_s


def wait_until_drained(
    counts: Callable[[], Counts],
    wait: Callable[[float], object],
    *,
    timeout_s: float | None = None,
    is_stuck: Callable[[Counts], bool] = lambda counts: False,
    progress: bool = False,
) -> bool:
    """Wait until nothing is queued or leased, at most `timeout_s`, or until `is_stuck`. True if nothing is.

    `wait(s)` may return early, when some upload ended.

    With `progress` a bar of bytes is shown on stderr if that is a terminal, else one line.
    """
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # its monitor is a thread, and at interpreter exit none can be started

    started_s = time.monotonic()
    now = counts()
    total_bytes = now.bytes_queued
    bar = None
    said = False
    try:
        while now.queued + now.leased:
            passed_s = time.monotonic() - started_s
            if (timeout_s is not None and passed_s >= timeout_s) or is_stuck(now):
                return False
            if progress and bar is None and passed_s >= _BAR_AFTER_S and sys.stderr.isatty():
                size = shutil.get_terminal_size()  # tqdm shows nothing on a terminal that knows no size; this gives 80 x 24
                bar = Bar(
                    total=total_bytes,
                    initial=total_bytes - now.bytes_queued,  # else the speed is that of all of it in no time
                    unit="B",
                    unit_scale=True,
                    desc="uploading",
                    ncols=size.columns,
                    nrows=size.lines,
                    leave=False,
                )
            elif progress and not said and passed_s >= _BAR_AFTER_S and not sys.stderr.isatty():
                said = True
                sys.stderr.write(f"wherry: waiting for {now.queued + now.leased} upload(s), {now.bytes_queued} bytes\n")
            if bar is not None:
                total_bytes = max(total_bytes, now.bytes_queued)
                bar.total = total_bytes
                bar.n = total_bytes - now.bytes_queued
                bar.set_postfix_str(
                    f"{now.queued + now.leased} file(s) left" + (f", {now.retries} retries" if now.retries else "")
                )
                bar.refresh()
            left_s = 1.0 if timeout_s is None else min(1.0, max(0.0, timeout_s - passed_s))
            wait(0.05 if progress and bar is None and passed_s < _BAR_AFTER_S else left_s)
            now = counts()
        return True
    finally:
        if bar is not None:
            bar.close()
