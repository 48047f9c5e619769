"""For Lightning, the package ``lightning`` or ``pytorch_lightning``: WherryCallback logs, WherryCheckpointIO saves sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from wherry.errors import ConfigError, MissingExtraError
from wherry.integrations.attached import Attached
from wherry.integrations.lightning_checkpoints import WherryCheckpointIO, WherryModelCheckpoint
from wherry.loggers import Event, Timestamp

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger as LightningLogger
except ImportError:
    try:
        from pytorch_lightning import Callback
        from pytorch_lightning.loggers import Logger as LightningLogger
    except ImportError as error:
        raise MissingExtraError("this callback is for Lightning, which is not installed: pip install lightning") from error

__all__ = ["WherryCallback", "WherryCheckpointIO", "WherryModelCheckpoint"]

#: Lightning's hook -> the event that it runs, and the phase.
_HOOKS = {
    "on_fit_start": (Event.FIT_START, "train"),
    "on_train_epoch_start": (Event.EPOCH_START, "train"),
    "on_train_batch_start": (Event.BATCH_START, "train"),
    "on_train_batch_end": (Event.BATCH_END, "train"),
    "on_train_epoch_end": (Event.EPOCH_END, "train"),
    "on_validation_start": (Event.EVAL_START, "valid"),
    "on_validation_end": (Event.EVAL_END, "train"),
    "on_test_start": (Event.EVAL_STANDALONE_START, "test"),
    "on_test_end": (Event.EVAL_STANDALONE_END, "train"),
    "on_predict_start": (Event.PREDICT_START, "test"),
    "on_predict_end": (Event.PREDICT_END, "train"),
    "on_fit_end": (Event.FIT_END, "train"),
}


class WherryCallback(Attached, Callback):  # type: ignore[misc]  # Lightning's classes are unknown where it is not installed
    """Logs what ``self.log`` logs, and hyperparameters. Uploads each checkpoint to `remote_folder` when it is saved::

        from wherry.integrations.lightning import WherryCallback

        Trainer(callbacks=[WherryCallback(RunFolderLogger(), ObjectStoreLogger("s3://bucket/runs"))])

    Checkpoints with one file name in several folders are all kept: see `Attached.upload_checkpoint`. A link that
    ``save_last="link"`` makes is uploaded at the next hook, as the file that it leads to.
    """

    error: BaseException | None = None
    _trainers: tuple[Any, ...] = ()
    _links: Mapping[str, tuple[int, int]] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the run."""
        if "AsyncCheckpointIO" in repr(trainer.strategy.checkpoint_io):
            raise ConfigError("AsyncCheckpointIO does not report when a checkpoint is written: leave it out")
        self.begin(trainer.global_rank, trainer.local_rank, trainer.world_size, trainer.strategy.broadcast)
        if trainer not in self._trainers:  # there is no hook for a checkpoint that was written, so the method is wrapped
            self._trainers += (trainer,)
            trainer.save_checkpoint = self._uploading(trainer, trainer.save_checkpoint)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep the exception. Other callbacks save checkpoints at this hook, so close() comes later."""
        self.error = exception

    def _uploading(self, trainer: Any, save: Callable[..., None]) -> Callable[..., None]:
        def save_checkpoint(filepath: Any, *arguments: Any, **options: Any) -> None:
            save(filepath, *arguments, **options)
            if trainer.is_global_zero:
                self.upload_checkpoint(filepath)

        return save_checkpoint

    def upload_links(self, trainer: Any) -> None:
        """Upload the links of ``save_last="link"`` that were made since the last call. There is no hook for them."""
        for path in {getattr(one, "last_model_path", "") for one in trainer.checkpoint_callbacks}:
            if trainer.is_global_zero and os.path.islink(path):
                about = os.lstat(path)
                made = about.st_ino, about.st_mtime_ns
                if self._links.get(path) != made:
                    self._links = {**self._links, path: made}
                    self.upload_checkpoint(path)

    def _notify(self, trainer: Any, pl_module: Any, event: Event, phase: str) -> None:
        if not any(isinstance(logger, _Bridge) and logger.callback is self for logger in trainer.loggers):
            trainer.loggers = [*trainer.loggers, _Bridge(self, trainer)]
            for one in (trainer.datamodule, pl_module):
                if hyperparameters := getattr(one, "hparams", None):
                    self.logger.log_hyperparameters(hyperparameters)
        self.upload_links(trainer)
        if not trainer.sanity_checking:
            epoch = trainer.current_epoch + (event is Event.EPOCH_END)
            n_batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            self.notify(event, Timestamp(epoch, trainer.global_step, batch_in_epoch=n_batches), phase)


def _hook(event: Event, phase: str) -> Callable[..., None]:
    return lambda self, trainer, pl_module, *_, **__: self._notify(trainer, pl_module, event, phase)


for _name, _event_and_phase in _HOOKS.items():
    setattr(WherryCallback, _name, _hook(*_event_and_phase))


class _Bridge(LightningLogger):  # type: ignore[misc]
    """Receives what Lightning passes to loggers. It is added late, so that it does not change where checkpoints are saved."""

    name = "wherry"
    version = ""

    def __init__(self, callback: WherryCallback, trainer: Any) -> None:
        super().__init__()
        self.callback = callback
        self.trainer = trainer

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.callback.logger.log_metrics(metrics, step)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.callback.logger.log_hyperparameters(params)

    def finalize(self, status: str) -> None:
        if status == "failed":
            self.callback.upload_links(self.trainer)
            self.callback.close(self.callback.error)
