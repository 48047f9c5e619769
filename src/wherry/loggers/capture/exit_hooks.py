"""What has to be done before the program ends, also in a child of multiprocessing.

Before Python 3.13 no function of atexit is called there.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: multiprocessing calls those with the highest number first; a `Mirror` has 10, and has to come later.
_PRIORITY = 20


def before_exit(call: Callable[[BaseException | None], object]) -> Callable[[], object]:
    """Have `call` called when this process ends, with the exception that ends it, or None. Returns what undoes this.

    The last one that was registered comes first, here and among the functions of atexit. An error in it is shown, and stops
    nothing. Not in a forked child, and not after a signal that kills or ``os._exit``.

    From Python 3.13 on a child of multiprocessing has shown the exception that ends it, and forgotten it, by then: it is None
    there.
    """
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            call(_error_at_the_end())

    # From Python 3.13 on such children call the functions of atexit as well, and before multiprocessing's own.
    if sys.version_info < (3, 13) and "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            return util.Finalize(None, end, exitpriority=_PRIORITY).cancel
    atexit.register(end)
    return lambda: atexit.unregister(end)


def before_exit_while_alive(owner: _T, call: Callable[[_T, BaseException | None], object]) -> Callable[[], object]:
    """before_exit() for a method of an object, which is kept alive by others only. Nothing is called once it is gone."""
    alive = weakref.ref(owner)

    def end(error: BaseException | None) -> None:
        if (found := alive()) is not None:
            call(found, error)

    forget = before_exit(end)
    weakref.finalize(owner, forget).atexit = False
    return forget


def _error_at_the_end() -> BaseException | None:
    """The exception that nobody caught: on its way in a child of multiprocessing, else the one whose traceback was shown."""
    if (error := sys.exc_info()[1]) is not None:
        return error
    if hasattr(sys, "ps1"):  # a prompt: the session went on after it
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # the first one is of Python 3.12
