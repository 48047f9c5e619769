"""Event: the moments of a training loop, with Composer's names."""

from __future__ import annotations

from enum import Enum

from wherry.errors import ConfigError


class Event(str, Enum):
    """One moment of a training loop. Its value is the name of the `Callback` method that is called then::

        logger.run_event(Event.EPOCH_END)  # calls epoch_end() of all callbacks and destinations

    They are listed in the order of a run: an iteration has epochs, an epoch has batches, evaluations may come between batches.
    """

    _value_: str

    def __new__(cls, name: str, doc: str = "") -> Event:
        """`doc` describes the moment, here and in the `Callback` method."""
        event = str.__new__(cls, name)
        event._value_, event.__doc__ = name, doc
        return event

    INIT = "init", "The run begins; nothing has been loaded or trained."
    BEFORE_LOAD = "before_load", "Before a checkpoint is loaded."
    AFTER_LOAD = "after_load", "After a checkpoint was loaded, or there was none."
    FIT_START = "fit_start", "Training begins."

    ITERATION_START = "iteration_start", "An iteration (a group of epochs) begins."
    EPOCH_START = "epoch_start", "An epoch begins."
    BEFORE_DATALOADER = "before_dataloader", "Before the next batch is fetched."
    AFTER_DATALOADER = "after_dataloader", "After the batch was fetched."
    BATCH_START = "batch_start", "A batch begins."
    BEFORE_TRAIN_BATCH = "before_train_batch", "Before a batch's forward and backward passes: once, also if it has microbatches."
    BEFORE_FORWARD = "before_forward", "Before the model's forward pass."
    AFTER_FORWARD = "after_forward", "After the model's forward pass."
    BEFORE_LOSS = "before_loss", "Before the loss is computed."
    AFTER_LOSS = "after_loss", "After the loss was computed."
    BEFORE_BACKWARD = "before_backward", "Before the backward pass."
    AFTER_BACKWARD = "after_backward", "After the backward pass."
    AFTER_TRAIN_BATCH = "after_train_batch", "After the forward and backward passes of a batch."
    BATCH_END = "batch_end", "A batch has ended; the timestamp already counts it."
    BATCH_CHECKPOINT = "batch_checkpoint", "After batch_end() of all callbacks: the moment to save a checkpoint."
    EPOCH_END = "epoch_end", "An epoch has ended; the timestamp already counts it."
    EPOCH_CHECKPOINT = "epoch_checkpoint", "After epoch_end() of all callbacks: the moment to save a checkpoint."
    ITERATION_END = "iteration_end", "An iteration has ended."
    ITERATION_CHECKPOINT = "iteration_checkpoint", "After iteration_end() of all callbacks: the moment to save a checkpoint."

    FIT_END = "fit_end", "Training has ended."

    EVAL_BEFORE_ALL = "eval_before_all", "Before the first of several evaluations."
    EVAL_START = "eval_start", "An evaluation begins."
    EVAL_BATCH_START = "eval_batch_start", "A batch of an evaluation begins."
    EVAL_BEFORE_FORWARD = "eval_before_forward", "Before the model's forward pass in an evaluation."
    EVAL_AFTER_FORWARD = "eval_after_forward", "After the model's forward pass in an evaluation."
    EVAL_BATCH_END = "eval_batch_end", "A batch of an evaluation has ended."
    EVAL_END = "eval_end", "An evaluation has ended."
    EVAL_AFTER_ALL = "eval_after_all", "After the last of several evaluations."
    EVAL_STANDALONE_START = "eval_standalone_start", "An evaluation outside training begins."
    EVAL_STANDALONE_END = "eval_standalone_end", "An evaluation outside training has ended."

    PREDICT_START = "predict_start", "Prediction begins."
    PREDICT_BATCH_START = "predict_batch_start", "A batch of a prediction begins."
    PREDICT_BEFORE_FORWARD = "predict_before_forward", "Before the model's forward pass in a prediction."
    PREDICT_AFTER_FORWARD = "predict_after_forward", "After the model's forward pass in a prediction."
    PREDICT_BATCH_END = "predict_batch_end", "A batch of a prediction has ended."
    PREDICT_END = "predict_end", "Prediction has ended."


def to_event(event: object) -> Event:
    """The event of that name. `event` is a text in any case, or a member of another library's enum, such as Composer's.

    ConfigError, which is a ValueError, for other names.
    """
    if isinstance(event, Event):
        return event
    name = event.value if isinstance(event, Enum) else event
    try:
        return Event(name.lower() if isinstance(name, str) else "")
    except ValueError:
        known = ", ".join(one.value for one in Event)
        raise ConfigError(f"{event!r} is no event: use one of {known}") from None
