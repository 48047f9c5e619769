"""Event: the moments of a training loop, with Composer's names."""

from __future__ import annotations

from enum import Enum

from wherry.errors import ConfigError


class Event(str, Enum):
    """One moment of a training loop. Its value is the name of the `Callback` method that is called then::

        logger.run_event(Event.EPOCH_END)  # calls epoch_end() of all callbacks and destinations

    They are listed in the order of a run: an iteration has epochs, an epoch has batches, evaluations may come between batches.
    """

    INIT = "init"
    BEFORE_LOAD = "before_load"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"

    ITERATION_START = "iteration_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"
    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"
    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    ITERATION_END = "iteration_end"
    ITERATION_CHECKPOINT = "iteration_checkpoint"

    FIT_END = "fit_end"

    EVAL_BEFORE_ALL = "eval_before_all"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    EVAL_AFTER_FORWARD = "eval_after_forward"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"
    EVAL_AFTER_ALL = "eval_after_all"
    EVAL_STANDALONE_START = "eval_standalone_start"
    EVAL_STANDALONE_END = "eval_standalone_end"

    PREDICT_START = "predict_start"
    PREDICT_BATCH_START = "predict_batch_start"
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    PREDICT_BATCH_END = "predict_batch_end"
    PREDICT_END = "predict_end"


def to_event(event: object) -> Event:
    """The event of that name. `event` is a text in any case, or a member of another library's enum, such as Composer's.

    ConfigError, which is a ValueError, for other names.
    """
    if isinstance(event, Event):
        return event
    name = event.value if isinstance(event, Enum) else event
    try:
        return Event(name.lower() if isinstance(name, str) else name)
    except ValueError:
        known = ", ".join(one.value for one in Event)
        raise ConfigError(f"{event!r} is no event: use one of {known}") from None
