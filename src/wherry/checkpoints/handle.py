"""CheckpointHandle: what save() returns."""

from __future__ import annotations

import time
from collections.abc import Callable

from wherry.checkpoints.protocol.commit import SetAbandonedError, SetFailedError
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.errors import NotFoundError
from wherry.spool.handle import UploadHandle

#: Between two looks for a manifest that another node's agent writes.
_LEAST_LOOK_S = 0.5
_MOST_LOOK_S = 30.0


class RunTakenOverError(SetAbandonedError):
    """A newer attempt of this run has begun. The set is committed, but the run is another job's now."""


class CheckpointHandle:
    """A set that was handed over on this rank::

        handle = checkpoints.save(1000, model.state_dict())
        handle.wait(timeout_s=600.0)  # True: all ranks' objects are stored, and the set is committed
        print(handle.result().size_bytes)

    Reading it never starts anything, and dropping it cancels nothing. On a rank whose node does not commit the set, waiting asks
    the store for the manifest, after 0.5 s, then ever more rarely, to 30 s.
    """

    def __init__(
        self,
        name: SetName,
        upload: UploadHandle,
        look: Callable[[], Manifest | Tombstone],
        failed: Callable[[], str | None],
        note: Callable[[], str | None],
    ) -> None:
        self.name = name
        self._upload = upload
        self._look = look
        self._failed = failed
        self._note = note

    def __repr__(self) -> str:
        return f"<CheckpointHandle {self.name} {self._upload.state.value}>"

    def told(self) -> str | None:
        """What the user has to be told of a set that is committed: that another job has this run by now."""
        return self._note()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the set is committed. True: it is. False: it is not after `timeout_s`, and goes on in the background.

        Raises as result() does.
        """
        try:
            self.result(timeout_s)
        except TimeoutError:
            return False
        return True

    def result(self, timeout_s: float | None = None) -> Manifest:
        """Wait until the set is committed, and describe it.

        Raises UploadFailed if an object of this rank cannot be stored, or if ranks are still missing at the deadline of the
        uploads (it names them); SetFailedError if another rank's objects cannot be stored; SetAbandonedError if a newer attempt
        gave the set up; RunTakenOverError if the set is committed, but another job has this run by now; TimeoutError after
        `timeout_s`.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._upload.result(timeout_s)
        wait_s = _LEAST_LOOK_S
        while True:
            try:
                there = self._look()
                break
            except NotFoundError:
                if (why := self._failed()) is not None:
                    raise SetFailedError(why, operation="commit", uri=str(self.name)) from None
            left_s = wait_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the set {self.name} is not committed after {timeout_s} s; it goes on in the background")
            time.sleep(min(wait_s, left_s))
            wait_s = min(_MOST_LOOK_S, wait_s * 1.5)
        if isinstance(there, Tombstone):
            raise SetAbandonedError(f"the set was {there.reason}", operation="commit", uri=str(self.name))
        if (note := self._note()) is not None:
            raise RunTakenOverError(note, operation="commit", uri=str(self.name))
        return there
