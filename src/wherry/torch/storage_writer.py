"""StorageWriter: torch.distributed.checkpoint saves a set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.handle import CheckpointHandle
from wherry.checkpoints.saving import SetPart
from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError
from wherry.torch.part_files import PartFiles

#: The sets that were begun in this process, by their URI: a writer that was pickled twice would begin one twice.
_begun: set[str] = set()


class StorageWriter(FileSystemWriter):
    """Saves the set of `step` by torch.distributed.checkpoint: a writer for each set, made by all ranks::

        writer = wherry.torch.StorageWriter(checkpoints, step=1000, metrics={"loss": loss})
        dcp.save(state, storage_writer=writer)  # or dcp.async_save(...), also with the process executor
        writer.handle.wait()  # True: the set is committed

    Each rank's shards are written straight into the spool, with a CRC32C of each item in `.metadata`, which is put after them.
    dcp.save() returns when all ranks have written; uploads, receipts and the manifest follow in the background. The objects of
    the set are those that FileSystemWriter makes: a restored set can be read with torch alone.

    `step`, `metrics`, `metadata` and `overwrite` are those of `Checkpoints.save`, and what it raises is raised here, before torch
    begins. Where no attempt is agreed on yet, all ranks make their first writer at the same place of their programs. The ranks
    that save are those of `Checkpoints.world`, all of them. `thread_count`, `single_file_per_rank` and `per_thread_copy_ahead`
    are those of FileSystemWriter. It can be pickled where `Checkpoints` can be.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, object] | None = None,
        overwrite: bool = False,
        thread_count: int = 1,
        single_file_per_rank: bool = True,
        per_thread_copy_ahead: int = 10_000_000,
    ) -> None:
        part = checkpoints.part(step, metrics=metrics, metadata=metadata, overwrite=overwrite)
        super().__init__(
            part.uri,
            single_file_per_rank=single_file_per_rank,
            sync_files=False,  # the spool syncs each file that is handed over, if its durability says so
            thread_count=thread_count,
            per_thread_copy_ahead=per_thread_copy_ahead,
        )
        self._checkpoints = checkpoints
        self._finishes = True
        self._use(part)

    def _use(self, part: SetPart) -> None:
        self._part = part
        self._files = PartFiles(part, part.uri)
        self.fs = self._files  # type: ignore[assignment]  # torch declares its own local one
        self.path = part.uri

    def __repr__(self) -> str:
        return f"<StorageWriter {self._part.uri}>"

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"fs", "_files", "_part", "state_dict_cache"}
        return {"receipt": self._part.receipt, "fields": {k: v for k, v in self.__dict__.items() if k not in left_out}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["fields"], state_dict_cache=None)
        self._use(self._checkpoints.part_of(state["receipt"]))

    @property
    def handle(self) -> CheckpointHandle:
        """The set's: `wait()` and `result()` are those of its manifest. If another process saves, it only looks in the store."""
        return self._part.handle

    # -- what torch calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse a `checkpoint_id`: the step names the set."""
        if checkpoint_id is not None:
            raise ConfigError(f"checkpoint_id={str(checkpoint_id)!r}: leave it out, the step of the StorageWriter names the set")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin this rank's part. AlreadyExistsError if it was begun before, ConfigError if another rank coordinates."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        world = self._checkpoints.world
        if is_coordinator != (world.rank == 0):
            who = "coordinates" if is_coordinator else "does not coordinate"
            raise ConfigError(
                f"rank {world.rank} of {world.size} {who} this save: give dcp the process group of all ranks, or Checkpoints the "
                "world= of the ranks that save"
            )
        self._finishes = is_coordinator or not self.use_collectives
        if self._part.uri in _begun:
            raise AlreadyExistsError(
                "this writer has saved, or was sent to another process twice",
                operation="save",
                uri=self._part.uri,
                hint="make a new StorageWriter for each save",
            )
        _begun.add(self._part.uri)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items into the spool, and hand the part over, unless `.metadata` follows."""
        with self._part.giving_up():
            written = super().write_data(plan, planner)
            results = written.value()
            if len(results) != len(plan.items):  # torch loses the error of a thread of its own
                raise IntegrityError(
                    f"{len(results)} of {len(plan.items)} items were written", operation="save", uri=self._part.uri
                )
            for result in results:
                info = result.storage_data
                info.wherry_crc32c = self._files.crc32c_of(info.relative_path, info.offset, info.offset + info.length)
            if not self._finishes:
                self._part.hand_over("dcp")
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `.metadata`, and hand the part over."""
        with self._part.giving_up():
            super().finish(metadata, results)
            self._part.hand_over("dcp")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether torch may choose this class by a `checkpoint_id`: no."""
        return False
