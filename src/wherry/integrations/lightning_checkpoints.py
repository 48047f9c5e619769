"""Lightning's checkpoints as sets: a plugin that saves and loads them, and a ModelCheckpoint that finds them on an empty disk."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.handle import CheckpointHandle
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.world import World
from wherry.errors import ConfigError, MissingExtraError, NotFoundError, UploadFailed, WherryError
from wherry.posix.thread_pool import wait_for_end


def _lightning() -> tuple[Any, Any]:
    """TorchCheckpointIO and ModelCheckpoint of the package that the program uses.

    `pytorch_lightning` if the program has imported that one: the Trainer of either package accepts its own classes only.
    """
    packages = [
        ("lightning", "lightning.fabric", "lightning.pytorch"),
        ("pytorch_lightning", "lightning_fabric", "pytorch_lightning"),
    ]
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        packages.reverse()
    for package, fabric, trainer in packages:
        if find_spec(package) is not None:
            return import_module(f"{fabric}.plugins.io").TorchCheckpointIO, import_module(f"{trainer}.callbacks").ModelCheckpoint
    raise MissingExtraError("this plugin is for Lightning, which is not installed: pip install lightning")


TorchCheckpointIO: Any
ModelCheckpoint: Any
TorchCheckpointIO, ModelCheckpoint = _lightning()

log = logging.getLogger("wherry.checkpoints")

#: Stands on the local disk for the newest set: Lightning believes only in paths that exist.
_NEWEST = "newest-set-in-the-bucket.ckpt"


class WherryCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]  # Lightning's classes are unknown where it is not installed
    """Saves each checkpoint of the Trainer as a set, and loads sets; nothing is written beside the spool::

        io = WherryCheckpointIO(wherry.Checkpoints("s3://my-bucket/project", "my-run"))
        trainer = Trainer(plugins=[io], callbacks=[WherryModelCheckpoint(monitor="val/loss", save_top_k=3)])
        trainer.fit(model, data, ckpt_path="last")

    Saving returns when the checkpoint is written to the spool. The set's step is `global_step`, its metric what ModelCheckpoint
    monitors. What the Trainer removes, as `save_top_k` says, or writes again is deleted in the bucket when the next set is
    committed, in the background. The end of fit() waits for both, and raises what `Checkpoints.flush` raises.

    For strategies that save on rank 0: one device, DDP. Those that save shards (FSDP, DeepSpeed) do not use a plugin.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._opened: Checkpoints | None = None
        self._handles: dict[str, CheckpointHandle] = {}
        #: What is to be deleted; of this start with its handle, as one set may be committed before an earlier one is.
        self._leaving: list[tuple[SetName, CheckpointHandle | None]] = []
        self._of_earlier_starts: dict[str, list[SetName]] | None = None
        self._newest: CheckpointHandle | None = None
        self._thread: threading.Thread | None = None

    @property
    def _alone(self) -> Checkpoints:
        """Rank 0 saves for all ranks, whoever started them: so a set has one part. Opened in the process that needs it."""
        if self._opened is None:
            self._opened = self.checkpoints.alone()
        return self._opened

    # -- what Lightning calls

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Hand the checkpoint over as a set. Raises as `Checkpoints.save`."""
        if storage_options is not None:
            raise ConfigError("storage_options belong to the Checkpoints of this plugin, not to save_checkpoint()")
        key = str(path)
        handle: CheckpointHandle = self._alone.save(
            int(checkpoint.get("global_step", 0)),
            checkpoint,
            metrics=_monitored(checkpoint, key),
            metadata={"saved_by": "lightning", "path": key},
            overwrite=True,
        )
        self._newest = handle  # before what it replaces leaves: whoever sees that waits for this
        if (replaced := self._handles.get(key)) is not None:
            self._leaving.append((replaced.name, replaced))
        self._handles[key] = handle
        self._delete_in_background()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The checkpoint that was saved under this path by any start of the run; of "latest", "best:METRIC" and a set's name that
        set. A local file is loaded as Lightning does.

        All ranks load the same set. Nothing but tensors and plain values is unpickled: ConfigError for `weights_only=False`.
        """
        key = _NEWEST if os.path.basename(path) == _NEWEST else str(path)
        if key != _NEWEST and key not in self._handles and os.path.exists(path):
            local: dict[str, Any] = super().load_checkpoint(path, map_location or "cpu", weights_only)
            return local
        if weights_only is False:
            raise ConfigError(
                "weights_only=False would run what is in the bucket: allow the classes by torch.serialization.add_safe_globals, "
                "or restore() the set and load it yourself"
            )
        return self._alone.load(self._agreed("latest" if key == _NEWEST else key), map_location or "cpu")

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete the set that was saved under this path, in the background, when the newest set is committed."""
        if os.path.exists(path):
            super().remove_checkpoint(path)
        handle = self._handles.pop(str(path), None)
        name = handle.name if handle is not None else self._saved_as(str(path))
        if name is not None:
            self._leaving.append((name, handle))
            self._delete_in_background()

    def teardown(self) -> None:
        """Wait until all sets are committed, and those that the Trainer has removed are deleted."""
        if self._opened is not None and self._newest is not None:
            self._opened.flush()
            if self._thread is not None:
                wait_for_end(self._thread)
            self._delete()

    # -- which set

    def last(self) -> str | None:
        """What to give to fit(ckpt_path=...) for the newest set: "latest", or None if the run has none yet."""
        return None if self._alone.latest() is None else "latest"

    def _agreed(self, which: str) -> str:
        """The set that all ranks load, found by rank 0. One rank alone is left to `Checkpoints`, which falls back if need be."""
        world = World.of_this_process()
        if world.size == 1 or not world.can_agree:
            return which if which == "latest" else self._find(which)
        found: tuple[str | None, str] = (None, "")
        if world.rank == 0:
            try:
                found = (self._find(which), "")
            except WherryError as error:
                found = (None, str(error))
        name, why = world.agree(found)
        if name is None:
            raise NotFoundError(why, operation="load")
        return name

    def _find(self, which: str) -> str:
        handle = self._handles.get(which)
        if (name := handle.name if handle is not None else self._saved_as(which)) is not None:
            return str(name)
        try:
            return str(self._alone.find(which).set)
        except ConfigError as error:
            raise NotFoundError(f"neither a file nor a set of this run: {error}", operation="load", uri=which) from error

    def _saved_as(self, path: str) -> SetName | None:
        """The newest set that any start of the run has saved under this path."""
        sets = [one.set for one in self._alone.list() if one.metadata.get("path") == path]
        return sets[-1] if sets else None

    # -- deleting

    def _delete_in_background(self) -> None:
        if not self._leaving or (self._thread is not None and self._thread.is_alive()):
            return  # the next save, or the end, deletes these
        self._thread = threading.Thread(target=self._delete, daemon=True, name="wherry-lightning-delete")
        self._thread.start()

    def _delete(self) -> None:
        """Delete what has been removed by now, once the set that was saved last, and each that goes, is committed."""
        leaving = list(self._leaving)
        n_removed = len(leaving)
        try:
            if self._newest is not None:
                self._newest.result()
                leaving += [(name, None) for name in self._replaced_of_earlier_starts(self._newest.name.attempt)]
        except (WherryError, UploadFailed) as error:
            log.warning("sets that stay in the bucket: %d, as the newest is not committed: %s", len(leaving), error)
            return
        del self._leaving[:n_removed]  # Lightning's thread appends meanwhile
        for name, handle in leaving:
            if name in (self._alone.parent, self._alone.attempt.resumed_from):
                continue  # it stays while this start may be started again from it: the next start deletes it
            try:
                if handle is not None:
                    handle.result()
                self._alone.delete(str(name))
            except NotFoundError:
                continue
            except (WherryError, UploadFailed) as error:
                log.warning("the set %s stays in the bucket: %s", name, error)

    def _replaced_of_earlier_starts(self, attempt: str) -> list[SetName]:
        """The sets that earlier starts have saved under paths that this one has written again. The run is listed once."""
        if self._of_earlier_starts is None:
            self._of_earlier_starts = {}
            for one in self._alone.list():
                if one.set.attempt < attempt and isinstance(path := one.metadata.get("path"), str):
                    self._of_earlier_starts.setdefault(path, []).append(one.set)
        written = self._of_earlier_starts.keys() & self._handles.keys()
        return [name for path in sorted(written) for name in self._of_earlier_starts.pop(path)]


class WherryModelCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """ModelCheckpoint whose `ckpt_path="last"` and `"best"` are the newest and the best set of the bucket, on an empty disk, too.

    It takes the arguments of ModelCheckpoint, and needs WherryCheckpointIO among the Trainer's plugins. "last" starts anew if the
    run has no set; if it gets its first one while the ranks look, setup() ends all of them with a ConfigError. "best" needs
    `monitor`; after fit() it is the best of that fit, as with ModelCheckpoint.
    """

    _best = ""
    #: Whether this rank has found a set for "last"; None: it was not asked.
    _has_last: bool | None = None

    @property
    def best_model_path(self) -> str:
        """The path of the best checkpoint; before any was saved, what names the best set of the run."""
        if self._best or self.monitor is None:
            return self._best
        return f"best:{self.monitor}:{self.mode}"

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._best = path

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a strategy that loads without the plugin: it writes shards itself, which would stay on this disk.

        And ranks of which some would resume and others start anew: each looks for "last" before torch.distributed is up.
        """
        kind = type(trainer.strategy)
        if not kind.load_checkpoint.__module__.endswith("strategies.strategy"):
            raise ConfigError(
                f"{kind.__name__} writes its shards itself, and nothing of them to the bucket: use wherry.torch.StorageWriter"
            )
        world = World.of_this_process()
        if self._has_last is not None and world.can_agree and len(set(world.gather(self._has_last))) > 1:
            raise ConfigError('the run got its first set while the ranks looked for "last", and not all saw it: start them again')
        super().setup(trainer, pl_module, stage)

    def _find_last_checkpoints(self, trainer: Any) -> set[str]:
        """Lightning asks this for `ckpt_path="last"`, and takes the one that was modified last."""
        io = trainer.strategy.checkpoint_io
        io = getattr(io, "checkpoint_io", None) or io  # AsyncCheckpointIO wraps another
        if not isinstance(io, WherryCheckpointIO):
            raise ConfigError("WherryModelCheckpoint needs Trainer(plugins=[WherryCheckpointIO(checkpoints)])")
        self._has_last = io.last() is not None
        if not self._has_last:
            return set()
        marker = Path(trainer.default_root_dir, _NEWEST)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(f"{io.checkpoints!r}\n")
        return {str(marker)}


def _monitored(checkpoint: Mapping[str, Any], path: str) -> dict[str, float]:
    """The score that ModelCheckpoint gives this checkpoint, under the name of what it monitors."""
    found: dict[str, float] = {}
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, Mapping) and state.get("monitor") and path in (state.get("best_k_models") or {}):
            found[str(state["monitor"])] = float(state["best_k_models"][path])
    return {name: score for name, score in found.items() if math.isfinite(score)}
