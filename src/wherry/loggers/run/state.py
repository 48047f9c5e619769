"""State: the run's name, the rank of this process, and the progress of the run, which a training loop gives to its loggers."""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

from wherry.errors import ConfigError
from wherry.loggers.run.timestamp import Timestamp
from wherry.store.name_templates import format_name

log = logging.getLogger("wherry")

PHASES = ("train", "valid", "test")
_RUN_NAME_VARIABLES = ("RUN_NAME", "COMPOSER_RUN_NAME", "TORCHELASTIC_RUN_ID")
#: torchrun sets TORCHELASTIC_RUN_ID to this when no --rdzv-id was given: equal for all jobs, so it names none of them.
_NO_RUN_ID = "none"
#: With one node and neither --rdzv-endpoint nor --master-port, torchrun sets it to a random UUID, in torch 2.13 even if --rdzv-id
#: was given (torch/distributed/run.py, run()).
_RANDOM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_QUALITIES = ("amber", "brisk", "calm", "deep", "early", "fair", "green", "keen", "light", "merry", "quiet", "swift")
_WATERS = ("bay", "brook", "creek", "delta", "fjord", "harbor", "inlet", "lagoon", "mere", "reach", "sound", "strait")


def _from_variables(*names: str, default: int, least: int = 0) -> int:
    for name in names:
        if (text := os.environ.get(name)) is None:
            continue
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(f"the environment variable {name} is {text!r}: it must be a whole number, at least {least}")
        return value
    return default


@dataclass
class State:
    """The state of a run. The training loop sets `timestamp` as it goes on::

        state = State()  # in "RUN_NAME=my-run torchrun train.py": my-run, with the rank that torchrun sets
        state.timestamp = state.timestamp.to_next_batch(samples=32)
        state.fill("{run_name}/ep{epoch}-ba{batch}.pt")  # "my-run/ep0-ba1.pt"

    Fields that are not given are read from the environment, as torchrun sets it: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
    and GROUP_RANK or NODE_RANK. `run_name` is the first of RUN_NAME, COMPOSER_RUN_NAME and TORCHELASTIC_RUN_ID, which are the
    same on every rank. Without them a single process invents a name from the time and two words. Several ranks would each
    invent another, so their run has no name, "", and a template with ``{run_name}`` is an error: set RUN_NAME. A random id that
    torchrun sets at each start is used as the name, with a warning in the log "wherry".
    """

    run_name: str = ""
    timestamp: Timestamp = field(default_factory=Timestamp)
    rank: int = field(default_factory=lambda: _from_variables("RANK", default=0))
    local_rank: int = field(default_factory=lambda: _from_variables("LOCAL_RANK", default=0))
    world_size: int = field(default_factory=lambda: _from_variables("WORLD_SIZE", default=1, least=1))
    local_world_size: int = field(default_factory=lambda: _from_variables("LOCAL_WORLD_SIZE", default=1, least=1))
    node_rank: int = field(default_factory=lambda: _from_variables("GROUP_RANK", "NODE_RANK", default=0))
    #: What the loop is doing: "train", "valid" or "test". ConfigError for anything else, also when it is set later.
    phase: str = "train"
    #: How many seconds the run took before this process resumed it: `elapsed_s` when the loop saved its checkpoint.
    elapsed_before_s: float = 0.0
    #: Whether the loop goes on where an earlier attempt of this run stopped. What that has left under a name, such as a
    #: checkpoint that no pointer names yet, is then replaced by an upload without `overwrite`; the objects of others are kept.
    is_resumed: bool = False
    #: How many batches the current epoch, evaluation or prediction has, if the loop knows: the totals of progress bars.
    n_batches: int | None = None
    #: The clock of `elapsed_s`, in seconds from any start.
    now: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is not one of 0 to {self.world_size - 1}, as world_size is {self.world_size}: "
                "set both RANK and WORLD_SIZE, as torchrun does"
            )
        self.run_name = self.run_name or self._default_run_name()
        self._started_s = self.now()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "phase" and value not in PHASES:
            raise ConfigError(f"State.phase is {value!r}: use one of {', '.join(PHASES)}")
        super().__setattr__(name, value)

    @property
    def elapsed_s(self) -> float:
        """How many seconds the run has taken, over all restarts. When a run is resumed, set it to the value in the checkpoint."""
        return self.elapsed_before_s + self.now() - self._started_s

    @elapsed_s.setter
    def elapsed_s(self, elapsed_s: float) -> None:
        self.elapsed_before_s, self._started_s = elapsed_s, self.now()

    def _default_run_name(self) -> str:
        for variable in _RUN_NAME_VARIABLES:
            name = os.environ.get(variable, "").strip()
            if name and not (variable == "TORCHELASTIC_RUN_ID" and name == _NO_RUN_ID):
                if variable == "TORCHELASTIC_RUN_ID" and _RANDOM_ID.fullmatch(name) and self.rank == 0:
                    _warn_of_random_name(name)
                return name
        return generate_run_name() if self.world_size == 1 else ""

    def name_fields(self) -> dict[str, str | int]:
        """The fields of name templates: ``{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt``."""
        own = ("run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank")
        return {**{name: getattr(self, name) for name in own}, **vars(self.timestamp)}  # asdict() takes ten times as long

    def fill(self, template: str, **more: str) -> str:
        """Fill a template with the name fields and `more`. ConfigError for an unknown field, or for a run without a name."""
        if not self.run_name and needs_run_name(template):
            raise ConfigError(
                f"{template!r} needs a run name, and the {self.world_size} ranks have none that they share: set the environment "
                "variable RUN_NAME, or give State(run_name=...)"
            )
        return format_name(template, {**self.name_fields(), **more})


def sample_state() -> State:
    """A state with a run name, to find a bad template when it is given, and not after the first epoch."""
    return State("run", rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)


def check_name_format(argument: str, name_format: object) -> None:
    """ConfigError, which names the argument, unless this is a template that gives each file a name of its own."""
    if not isinstance(name_format, str):
        raise ConfigError(f"{argument} is {name_format!r}: give a text with {{remote_file_name}}")
    try:
        names = {sample_state().fill(name_format, remote_file_name=name) for name in ("one", "other")}
    except ConfigError as error:
        raise ConfigError(f"{argument}: {error}") from None
    if len(names) == 1:
        raise ConfigError(f"{argument} {name_format!r} gives every file the same name: it must hold {{remote_file_name}}")


def escaped(name: str) -> str:
    """The template that `State.fill` makes `name` of."""
    return name.replace("{", "{{").replace("}", "}}")


@cache  # one warning, however many states are made
def _warn_of_random_name(name: str) -> None:
    log.warning(
        "the run is called %s, a random id that torchrun sets anew at each start: a restart will find neither "
        "this run's files nor its checkpoints. Give it a name in the environment: RUN_NAME=my-run torchrun ... "
        "(on one node torchrun ignores --rdzv-id, unless --rdzv-endpoint is given, too)",
        name,
    )


def needs_run_name(template: str) -> bool:
    """Whether the template has the field ``{run_name}``."""
    return "{run_name" in template.replace("{{", "")


def check_run_name(state: State, templates: Iterable[str]) -> None:
    """ConfigError, with the remedy, if the run has no name and a template needs one."""
    if not state.run_name:
        for template in filter(needs_run_name, templates):
            state.fill(template)


def generate_run_name(now_s: float | None = None, rng: random.Random | None = None) -> str:
    """A name that sorts by time (UTC) and is easy to pronounce: ``20260401-120000-swift-harbor``."""
    rng = rng or random.Random()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    return f"{stamp}-{rng.choice(_QUALITIES)}-{rng.choice(_WATERS)}"
