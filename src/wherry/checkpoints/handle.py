"""CheckpointHandle: what save() returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from wherry.checkpoints.protocol.commit import IncompleteSetError, SetAbandonedError, SetFailedError
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.errors import NotFoundError
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobId

#: Between two looks for a manifest that another node's agent writes.
_LEAST_LOOK_S = 0.5
_MOST_LOOK_S = 30.0


class RunTakenOverError(SetAbandonedError):
    """A newer attempt of this run has begun. The set is committed, but the run is another job's now."""


@dataclass(frozen=True)
class SetLooks:
    """What a handle asks the store: what is under the manifest's key (NotFoundError: nothing yet), why the set will not be
    complete (None: no rank has said so), and which ranks have written no receipt.
    """

    manifest: Callable[[], Manifest | Tombstone]
    failure: Callable[[], str | None]
    missing: Callable[[], str]


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
        looks: SetLooks,
        note: Callable[[], str | None],
        deadline_s: float,
    ) -> None:
        """`deadline_s`: how long to wait for other ranks at most."""
        self.name = name
        self._upload = upload
        self._looks = looks
        self._note = note
        self._deadline_s = deadline_s
        self._made_s = time.monotonic()

    def __repr__(self) -> str:
        return f"<CheckpointHandle {self.name} {self._upload.state.value}>"

    @property
    def ids(self) -> tuple[JobId, ...]:
        """The jobs of this rank's receipt and, where its agent commits the set, of the manifest."""
        return self._upload.ids

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
        """Wait until the set is committed, and describe it, also when it was pruned since.

        Raises UploadFailed if an object of this rank cannot be stored, or if ranks are still missing at the deadline of the
        uploads (it names them), IncompleteSetError on a rank that does not commit the set itself; SetFailedError if another
        rank's objects cannot be stored; SetAbandonedError if a newer attempt
        gave the set up; RunTakenOverError if the set is committed, but another job has this run by now; TimeoutError after
        `timeout_s`.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._upload.result(timeout_s)
        wait_s = _LEAST_LOOK_S
        while True:
            try:
                there = self._looks.manifest()
                break
            except NotFoundError:
                if (why := self._looks.failure()) is not None:
                    raise SetFailedError(why, operation="commit", uri=str(self.name)) from None
            if time.monotonic() - self._made_s >= self._deadline_s:
                raise IncompleteSetError(
                    f"not committed {self._deadline_s:g} s after it was handed over: {self._looks.missing()}",
                    operation="commit",
                    uri=str(self.name),
                )
            left_s = wait_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the set {self.name} is not committed after {timeout_s} s; it goes on in the background")
            time.sleep(min(wait_s, left_s))
            wait_s = min(_MOST_LOOK_S, wait_s * 1.5)
        if isinstance(there, Tombstone) and there.manifest is not None:  # it was committed, and pruned since
            there = Manifest.from_bytes(there.manifest, str(self.name), self.name)
        if isinstance(there, Tombstone):
            raise SetAbandonedError(f"the set was {there.reason}", operation="commit", uri=str(self.name))
        if (note := self._note()) is not None:
            raise RunTakenOverError(note, operation="commit", uri=str(self.name))
        return there
