"""For Ray Train: run_config() keeps a run's checkpoints as sets."""

from __future__ import annotations

import logging
import pickle
from pathlib import PurePosixPath
from typing import Any

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.errors import ConfigError, MissingExtraError, WherryError

try:
    from pyarrow.fs import PyFileSystem
    from ray.train import RunConfig, UserCallback

    from wherry.integrations.ray_sets import not_recorded, take_up
    from wherry.integrations.ray_storage import RayStorage
except ImportError as error:
    raise MissingExtraError("this is for Ray Train, which is not installed: pip install 'ray[train]'") from error

__all__ = ["CheckpointCallback", "run_config"]

log = logging.getLogger("wherry.checkpoints")


def run_config(checkpoints: Checkpoints, **options: Any) -> RunConfig:
    """Ray's RunConfig for a run whose checkpoints are sets::

        from wherry.integrations.ray import run_config

        config = run_config(wherry.Checkpoints("s3://my-bucket/project", "my-run"), failure_config=FailureConfig(max_failures=3))
        TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()

    `options` are those of RunConfig, but for `name`, `storage_path` and `storage_filesystem`, which are the run's. The workers
    report checkpoints, and get them, as with any storage. Each file is verified in the store when a worker has sent it; when all
    have reported, the checkpoint is committed as one set, with the numbers among rank 0's metrics. Its step is the number at the
    end of its `checkpoint_dir_name`; without one, the time, as Ray names it. What `num_to_keep` removes is deleted when a newer
    set is committed. The same program started again goes on from Ray's latest checkpoint, on an empty disk, too.

    It begins a new attempt: call it once in each start, in the program that calls fit(). Secrets among the storage options have
    to be in the environment of all nodes. Raises what `Checkpoints.attempt` raises; ConfigError for another store than
    ``s3://``, ``gs://`` or a folder.
    """
    if taken := {"name", "storage_path", "storage_filesystem"}.intersection(options):
        raise ConfigError(f"{', '.join(sorted(taken))}: leave it out, the Checkpoints say where the run is kept")
    with checkpoints.alone() as alone:
        recorded = take_up(alone.catalog)
        _ = alone.attempt  # which the processes of Ray get with the pickle
        storage = RayStorage(pickle.dumps(alone))
        if recorded is not None:  # what an earlier start was killed before it deleted
            storage.delete(not_recorded(alone.catalog, recorded))
    callbacks = [CheckpointCallback(), *(options.pop("callbacks", None) or [])]
    where = PurePosixPath(storage.run)
    options = {"name": where.name, "storage_path": str(where.parent), **options}
    return RunConfig(storage_filesystem=PyFileSystem(storage), callbacks=callbacks, **options)


class CheckpointCallback(UserCallback):  # type: ignore[misc]  # Ray's classes are unknown where it is not installed
    """Commits each checkpoint as a set when all workers have reported it; run_config() adds it. Ray calls it in its controller.

    A set that cannot be committed is reported in the log, and tried again at the next report and at the next start of the run.
    Ray goes on: it finds the files in any case.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Any]] = {}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Commit the checkpoint, and delete what Ray has deleted."""
        storage = getattr(getattr(checkpoint, "filesystem", None), "handler", None)
        if not isinstance(storage, RayStorage):
            return
        self._waiting[PurePosixPath(checkpoint.path).name] = metrics[0]
        try:
            for folder in list(self._waiting):
                storage.commit(folder, self._waiting[folder])
                del self._waiting[folder]
            storage.delete()
        except WherryError as error:
            log.error("the checkpoint %s is no set yet: %s", checkpoint.path, error)
