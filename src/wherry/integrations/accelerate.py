"""Accelerate's save_state() and load_state(), through a set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.handle import CheckpointHandle
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import ConfigError
from wherry.integrations.shared_files import files_below, own_names
from wherry.posix.fork import temporary_folder


def save_state(
    accelerator: Any,
    checkpoints: Checkpoints,
    step: int,
    *,
    metrics: Mapping[str, float] | None = None,
    metadata: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> CheckpointHandle:
    """`accelerator.save_state()` into the set of `step`: all ranks call it, as they call that one::

        from wherry.integrations.accelerate import load_state, save_state

        save_state(accelerator, checkpoints, step, metrics={"loss": loss})

    Each rank writes into a folder of its own in the spool, and nothing is copied. It returns when all ranks have written; uploads
    and the manifest follow in the background. Of a name that several ranks write, the set takes the first rank's file.

    Raises as `Checkpoints.save`; ConfigError if Accelerate would write to another place, or the same files on each node.
    """
    project = accelerator.project_configuration
    if project.automatic_checkpoint_naming:
        raise ConfigError("automatic_checkpoint_naming=True writes to the project's folder: leave it out, the sets have names")
    if project.save_on_each_node:
        raise ConfigError("save_on_each_node=True writes the same files on each node: leave it out, a set has them once")
    saving = checkpoints.save(step, metrics=metrics, metadata=metadata, overwrite=overwrite)
    with saving as folder:
        accelerator.save_state(str(folder))
        here = files_below(folder)
        for name in set(here).difference(own_names(checkpoints.world, here)):
            (folder / name).unlink()
    handle: CheckpointHandle = saving.handle
    return handle


def load_state(accelerator: Any, checkpoints: Checkpoints, which: int | str = "latest") -> Manifest | None:
    """`accelerator.load_state()` from a set, `which` as in `Checkpoints.find`. All ranks call it, after `prepare()`.

    Returns the set, whose `step` tells where to go on; None if `which` is "latest" and the run has no complete set. Raises as
    `Checkpoints.restore`.
    """
    if which == "latest" and checkpoints.latest() is None:
        return None
    with temporary_folder("wherry-load-") as folder:
        checkpoints.restore(which, folder / "set")
        accelerator.load_state(str(folder / "set"))
    return checkpoints.find(str(checkpoints.parent))
