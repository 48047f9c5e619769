"""Sets whose files may be those of earlier sets, saved as an agent saves them: with ``dedupe=True``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from wherry.agent.comparing import Candidates
from wherry.agent.set_jobs import SetPlan, write_receipt
from wherry.checkpoints.protocol.commit import commit
from wherry.checkpoints.protocol.documents import put_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checksum import crc32c
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import ObjectStore


class SharingRank:
    """One rank's part of a set, on its way. What was decided of a file is kept, as the journal keeps it over a kill."""

    def __init__(self, keys: RunKeys, name: SetName, files: Mapping[str, bytes], *, rank: int = 0, world: int = 1) -> None:
        self.keys = keys
        self.name = name
        self.files = files
        self.decided: dict[str, SetName | None] = {}
        self._plan = SetPlan(keys.base, name, world, receipt=Receipt(name, rank, world, "folder"))

    def save(self, store: ObjectStore) -> None:
        """Send what no earlier set has, and write the receipt. It may be called again after it was killed."""
        candidates = Candidates(self._plan)
        required = []
        for name, data in self.files.items():
            key, sha256 = self.keys.data(self.name) + name, hashlib.sha256(data).hexdigest()
            if name not in self.decided:
                self.decided[name] = candidates.find(key, len(data), crc32c(data), sha256, store)
            if (source := self.decided[name]) is None:
                put_small(store, key, data, if_absent=False)
            required.append(Requirement(key, JobState.DONE, crc32c(data), len(data), None, sha256, str(source or "")))
        write_receipt(self._plan, required, store)


def save_shared(
    store: ObjectStore,
    keys: RunKeys,
    step: int,
    files: Mapping[str, bytes],
    *,
    attempt: str = "000000001",
    rank: int = 0,
    world: int = 1,
) -> SharingRank:
    """One rank's part of a set, without the commit."""
    one = SharingRank(keys, SetName(attempt, step), files, rank=rank, world=world)
    one.save(store)
    return one


def commit_shared(store: ObjectStore, keys: RunKeys, step: int, files: Mapping[str, bytes]) -> Manifest:
    """A whole set of one rank, committed."""
    return commit(store, keys, save_shared(store, keys, step, files).name).manifest
