"""A bar of bytes, for people who wait. In binary units, as `quantities.py` writes sizes."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Any

from wherry.quantities import size_text

#: What a terminal of fewer columns than the second one shows.
_NARROW, _NARROW_BELOW = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining}]", 80
#: A bar for less than this would only flicker.
BAR_AFTER_S = 0.5


def terminal_bar(what: str, total_bytes: int, done_bytes: int) -> Any:
    """A tqdm on stderr that begins at `done_bytes`: its speed is that of the rest."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # its monitor is a thread, and at interpreter exit none can be started

    size = shutil.get_terminal_size()  # tqdm shows nothing on a terminal that knows no size; this gives 80 x 24
    return Bar(
        total=total_bytes,
        initial=done_bytes,
        unit="iB",
        unit_scale=True,
        unit_divisor=1024,
        desc=what,
        ncols=size.columns,
        nrows=size.lines,
        bar_format=_NARROW if size.columns < _NARROW_BELOW else None,
        leave=False,
    )


class ByteBar:
    """Shows on stderr how much of `total_bytes` is done: a bar on a terminal, else one line. Nothing in the first half second."""

    def __init__(self, what: str, total_bytes: int, *, shown: bool = True, after_s: float = BAR_AFTER_S) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._shown = shown and sys.stderr is not None
        self._from_s = time.monotonic() + after_s
        self._bar: Any = None

    def advance(self, n_bytes: int) -> None:
        """So many bytes more are done."""
        self._done_bytes += n_bytes
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.update(n_bytes)
        elif time.monotonic() >= self._from_s:
            self._begin()

    def clear(self) -> None:
        """Take the bar from its line; the next bytes draw it again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _begin(self) -> None:
        if not sys.stderr.isatty():
            self._shown = False
            sys.stderr.write(f"wherry: {self._what}, {size_text(self._total_bytes)}\n")
            return
        self._bar = terminal_bar(self._what, self._total_bytes, self._done_bytes)

    def __enter__(self) -> ByteBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
