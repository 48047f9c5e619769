"""The two rounds in which callbacks and destinations are closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Closing:
    """What is closed. `failed` gets the name and the error of a call that raises."""

    close: Callable[[], object]
    post_close: Callable[[], object]
    failed: Callable[[str, Exception], object]


def close_in_rounds(callbacks: Sequence[Closing], replay: Callable[[], object], destinations: Sequence[Closing]) -> None:
    """Close the callbacks, replay the log calls that were kept, close the destinations; then call post_close() of each.

    post_close() is called for those whose close() did not raise. A KeyboardInterrupt ends the call that it meets, and is raised
    when all other calls were made.
    """
    closed: list[Closing] = []
    with ExitStack() as calls:  # makes all of its calls, also after a KeyboardInterrupt, the last that was added first
        for one in reversed((*callbacks, *destinations)):
            calls.callback(_post_close, one, closed)
        for one in reversed(destinations):
            calls.callback(_close, one, closed)
        calls.callback(replay)
        for one in reversed(callbacks):
            calls.callback(_close, one, closed)


def _close(one: Closing, closed: list[Closing]) -> None:
    try:
        one.close()
        closed.append(one)
    except Exception as error:
        one.failed("close", error)


def _post_close(one: Closing, closed: list[Closing]) -> None:
    if one in closed:
        try:
            one.post_close()
        except Exception as error:
            one.failed("post_close", error)
