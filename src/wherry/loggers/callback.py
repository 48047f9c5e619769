"""Callback: one method for each event of a training loop, and two that close."""

from __future__ import annotations

from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event, to_event
from wherry.loggers.run.state import State


class Callback:
    """Acts at events of a training loop. Override the methods of those events; the others do nothing::

        class Checkpoints(Callback):
            def epoch_end(self, state: State, logger: Logger) -> None:
                torch.save(model.state_dict(), "last.pt")
                logger.upload_file("{run_name}/ep{epoch}.pt", "last.pt")

        logger = Logger(State(), [ObjectStoreLogger("s3://bucket/runs")], [Checkpoints()])

    At the end the `Logger` calls close() of all callbacks and destinations, then post_close() of those whose close() did not
    raise. So a destination still sends in its post_close() what another hands over in its close().
    """

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Call the method of `event`."""
        getattr(self, to_event(event).value)(state, logger)

    def _overrides(self, method: str) -> bool:
        """Whether the class or the object has a `method` of its own in place of the default."""
        return overrides(self, method, Callback)

    def close(self, state: State, logger: Logger) -> None:
        """Finish writing. Other callbacks and destinations can still be used. May be called again."""

    def post_close(self) -> None:
        """Release all resources. No other method is called afterwards."""

    def init(self, state: State, logger: Logger) -> None:
        """The run begins; nothing has been loaded or trained."""

    def before_load(self, state: State, logger: Logger) -> None:
        """Before a checkpoint is loaded."""

    def after_load(self, state: State, logger: Logger) -> None:
        """After a checkpoint was loaded, or there was none."""

    def fit_start(self, state: State, logger: Logger) -> None:
        """Training begins."""

    def iteration_start(self, state: State, logger: Logger) -> None:
        """An iteration (a group of epochs) begins."""

    def epoch_start(self, state: State, logger: Logger) -> None:
        """An epoch begins."""

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Before the next batch is fetched."""

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """After the batch was fetched."""

    def batch_start(self, state: State, logger: Logger) -> None:
        """A batch begins."""

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Before the forward and backward passes of a batch: once a batch, also when it is split into microbatches."""

    def before_forward(self, state: State, logger: Logger) -> None:
        """Before the model's forward pass."""

    def after_forward(self, state: State, logger: Logger) -> None:
        """After the model's forward pass."""

    def before_loss(self, state: State, logger: Logger) -> None:
        """Before the loss is computed."""

    def after_loss(self, state: State, logger: Logger) -> None:
        """After the loss was computed."""

    def before_backward(self, state: State, logger: Logger) -> None:
        """Before the backward pass."""

    def after_backward(self, state: State, logger: Logger) -> None:
        """After the backward pass."""

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """After the forward and backward passes of a batch."""

    def batch_end(self, state: State, logger: Logger) -> None:
        """A batch has ended; the timestamp already counts it."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """After batch_end() of all callbacks: the moment to save a checkpoint."""

    def epoch_end(self, state: State, logger: Logger) -> None:
        """An epoch has ended; the timestamp already counts it."""

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """After epoch_end() of all callbacks: the moment to save a checkpoint."""

    def iteration_end(self, state: State, logger: Logger) -> None:
        """An iteration has ended."""

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """After iteration_end() of all callbacks: the moment to save a checkpoint."""

    def fit_end(self, state: State, logger: Logger) -> None:
        """Training has ended."""

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Before the first of several evaluations."""

    def eval_start(self, state: State, logger: Logger) -> None:
        """An evaluation begins."""

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """A batch of an evaluation begins."""

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """Before the model's forward pass in an evaluation."""

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """After the model's forward pass in an evaluation."""

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """A batch of an evaluation has ended."""

    def eval_end(self, state: State, logger: Logger) -> None:
        """An evaluation has ended."""

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """After the last of several evaluations."""

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """An evaluation outside training begins."""

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """An evaluation outside training has ended."""

    def predict_start(self, state: State, logger: Logger) -> None:
        """Prediction begins."""

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """A batch of a prediction begins."""

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        """Before the model's forward pass in a prediction."""

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        """After the model's forward pass in a prediction."""

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """A batch of a prediction has ended."""

    def predict_end(self, state: State, logger: Logger) -> None:
        """Prediction has ended."""


def overrides(who: object, name: str, base: type) -> bool:
    """Whether the class of `who`, or the object itself, has another attribute `name` than the class `base`."""
    return name in vars(who) or getattr(type(who), name, None) is not getattr(base, name)
