"""WherryCallback, which logs, and CheckpointCallback for the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wherry.errors import MissingExtraError
from wherry.integrations.attached import Attached
from wherry.integrations.transformers_checkpoints import CheckpointCallback
from wherry.loggers import Event, Timestamp
from wherry.loggers.values.arrays import to_number

try:
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback
    from transformers.integrations import rewrite_logs
except ImportError as error:
    raise MissingExtraError("this callback is for the Hugging Face Trainer: pip install 'transformers[torch]'") from error

__all__ = ["CheckpointCallback", "WherryCallback"]

#: The trainer's hook -> the event that it runs.
_HOOKS = {
    "on_epoch_begin": Event.EPOCH_START,
    "on_step_begin": Event.BATCH_START,
    "on_step_end": Event.BATCH_END,
    "on_epoch_end": Event.EPOCH_END,
    "on_train_end": Event.FIT_END,
}


class WherryCallback(Attached, TrainerCallback):  # type: ignore[misc]  # its class is unknown where transformers is not installed
    """Logs what the trainer logs, and its arguments. Uploads each checkpoint to `remote_folder` when it is saved::

        from wherry.integrations.transformers import WherryCallback

        Trainer(model, args, callbacks=[WherryCallback(RunFolderLogger(), ObjectStoreLogger("s3://bucket/runs"))])

    Checkpoints with one file name in several folders are all kept: see `Attached.upload_checkpoint`.
    """

    _is_evaluating = False

    def _notify(self, args: Any, state: Any, event: Event, phase: str = "train") -> None:
        self._begin(args)
        self.notify(event, Timestamp(int(state.epoch or 0), state.global_step), phase)

    def _begin(self, args: Any) -> None:
        self.begin(args.process_index, args.local_process_index, args.world_size, _broadcast, args.run_name or "")

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin the run, with the arguments and the model's configuration."""
        self._begin(args)
        config = getattr(model, "config", None)
        self.logger.log_hyperparameters({**args.to_dict(), **({"model": config.to_dict()} if config is not None else {})})
        self._notify(args, state, Event.FIT_START)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Log metrics under the names that other integrations use: ``train/loss``, ``eval/loss``."""
        self._begin(args)
        metrics = {name: number for name, value in rewrite_logs(logs or {}).items() if (number := to_number(value)) is not None}
        self.logger.log_metrics(metrics, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the checkpoint, once all ranks have written theirs."""
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            self.upload_checkpoint(Path(args.output_dir, f"checkpoint-{state.global_step}"))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the evaluation at its first step."""
        if not self._is_evaluating:
            self._is_evaluating = True
            self._notify(args, state, Event.EVAL_START, "valid")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the evaluation."""
        self._is_evaluating = False
        self._notify(args, state, Event.EVAL_END)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """End the prediction, whose steps began an evaluation."""
        self.on_evaluate(args, state, control)


def _hook(event: Event) -> Callable[..., None]:
    return lambda self, args, state, control, **_: self._notify(args, state, event)


for _name, _event in _HOOKS.items():
    setattr(WherryCallback, _name, _hook(_event))


def _broadcast(text: str) -> str:
    return str(broadcast_object_list([text])[0])
