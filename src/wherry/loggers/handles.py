"""UploadHandles: one file's uploads to several destinations, as one handle."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wherry.spool.handle import UploadHandle, least_finished
from wherry.spool.journal.jobs import JobState
from wherry.store import ObjectMeta


class UploadHandles:
    """What `Logger.upload_file` returns when several destinations took the file. It has the calls of `UploadHandle`::

        logger.upload_file("model.pt", "model.pt").wait(timeout_s=60.0)  # True: verified in every store

    `handles`: each destination's own, in the order of the destinations.
    """

    def __init__(self, handles: Sequence[UploadHandle]) -> None:
        self.handles = tuple(handles)

    def __repr__(self) -> str:
        return f"<UploadHandles {', '.join(one.uri for one in self.handles)} {self.state.value}>"

    @property
    def uris(self) -> tuple[str, ...]:
        """Where the file goes."""
        return tuple(one.uri for one in self.handles)

    @property
    def state(self) -> JobState:
        """The state of the upload that is least finished."""
        return least_finished(one.state for one in self.handles)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the file is verified in every store; False if it is not yet after `timeout_s` seconds, all together.

        Raises UploadFailed as `UploadHandle.wait` does.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        return all(one.wait(None if until_s is None else max(0.0, until_s - time.monotonic())) for one in self.handles)

    def results(self, timeout_s: float | None = None) -> tuple[ObjectMeta, ...]:
        """Wait, and describe the verified objects. Raises UploadFailed and TimeoutError as `UploadHandle.result` does."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        return tuple(one.result(None if until_s is None else max(0.0, until_s - time.monotonic())) for one in self.handles)


def handle_of(returned: Sequence[object]) -> UploadHandle | UploadHandles | None:
    """One handle for what the destinations returned; None if none of that is a handle."""
    handles = [one for one in returned if isinstance(one, UploadHandle)]
    return UploadHandles(handles) if len(handles) > 1 else next(iter(handles), None)
