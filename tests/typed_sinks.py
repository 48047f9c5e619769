"""A sink for tests, which notes what it writes, and a state with a clock."""

from __future__ import annotations

from typing import Any

from wherry.loggers.run.settings import config_as_dict
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp
from wherry.loggers.typed.sink import BaseLoggerConfig, Collected, CollectingLogger

EVERY_STEP = BaseLoggerConfig("sink", write_every_n_seconds=0)


class Sink(CollectingLogger[BaseLoggerConfig]):
    """Remembers what it wrote: (phase, batch, what)."""

    def __init__(self, config: BaseLoggerConfig = EVERY_STEP) -> None:
        super().__init__(config)
        self.written: list[tuple[str, int, Collected]] = []
        self.configs: list[dict[str, Any]] = []
        self.is_closed = False

    def write(self, state: State) -> None:
        found = self.take(state.phase)
        if found != Collected():
            self.written.append((state.phase, state.timestamp.batch, found))

    def log_config(self, config: Any) -> None:
        self.configs.append(config_as_dict(config))

    def close(self) -> None:
        self.is_closed = True

    def scalars(self, name: str = "value/loss") -> list[float]:
        namespace, key = name.split("/")
        return [found.scalars[namespace, key] for _, _, found in self.written if (namespace, key) in found.scalars]


def clocked(elapsed_s: float = 0.0, phase: str = "train", batch: int = 0, world_size: int = 1) -> State:
    """A state whose clock stands still."""
    state = State("run", Timestamp(batch=batch), rank=0, world_size=world_size, phase=phase, now=lambda: 0.0)
    state.elapsed_s = elapsed_s
    return state
