"""The ranks of a job: who we are, who is first on a node, and how all of them agree on something small.

Nothing here imports torch: its process group is used where the program has made one.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from wherry.checkpoints.protocol.receipt import MOST_RANKS
from wherry.errors import ConfigError, MissingExtraError, PermanentError, WherryError

_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """One rank's place among all ranks. `node_order` is the position of its node, from 0; rank 0 is on the node 0.

    `start` is what all ranks of this start of the job were told by the launcher, and no other start is; None: nothing.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    node_order: int = 0
    start: str | None = None
    #: Whether it was found out, and not given.
    is_found: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size <= MOST_RANKS:
            raise ConfigError(
                f"rank {self.rank} of {self.size}: the rank is from 0 on and below the world's size, at most {MOST_RANKS}"
            )

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str] | None = None) -> World:
        """As torch.distributed says where it is up, else as torchrun's or Slurm's variables say; else one rank.

        MissingExtraError, on every rank, where torch.distributed cannot send objects.
        """
        environ = os.environ if environ is None else environ
        if "RANK" in environ and "WORLD_SIZE" in environ:
            rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
            local_rank, node = _number(environ, "LOCAL_RANK", rank), _number(environ, "GROUP_RANK", -1)
        elif "SLURM_PROCID" in environ and (tasks := _slurm_tasks(environ)) is not None:
            rank, size = _number(environ, "SLURM_PROCID"), tasks
            local_rank, node = _number(environ, "SLURM_LOCALID", rank), _number(environ, "SLURM_NODEID", -1)
        else:
            rank, size, local_rank, node = 0, 1, 0, 0
        if (group := process_group()) is not None:
            if size == 1 < group.get_world_size():  # the ranks were told to the group alone, and nothing of their nodes
                local_rank = node = group.get_rank()
            rank, size = group.get_rank(), group.get_world_size()
            if size > 1 and importlib.util.find_spec("numpy") is None:  # torch needs it for objects; its wheels do not bring it
                raise MissingExtraError(
                    "the ranks cannot agree: torch.distributed sends objects with numpy, which is not installed: "
                    "pip install 'wherry[torch]'"
                )
        return cls(rank, size, local_rank, node if node >= 0 else rank, _start(environ), is_found=True)

    def check_still_true(self) -> None:
        """ConfigError if torch.distributed was started since this was found out, and says another rank or world."""
        if not self.is_found or (group := process_group()) is None:
            return
        now = (group.get_rank(), group.get_world_size())
        if now != (self.rank, self.size):
            raise ConfigError(
                f"this is rank {now[0]} of {now[1]} for torch.distributed, and was rank {self.rank} of {self.size} before it was "
                "started: make the Checkpoints after init_process_group()"
            )

    def agree(self, value: _T) -> _T:
        """What rank 0 gives, on every rank. Only where can_agree; all ranks call it, in the same order."""
        if self.size == 1:
            return value
        group = process_group()
        assert group is not None, "only where can_agree"
        box: list[Any] = [value if self.rank == 0 else None]
        group.broadcast_object_list(box, src=0)
        agreed: _T = box[0]
        return agreed

    def agree_on(self, find: Callable[[], _T]) -> _T:
        """What `find` gives on rank 0, on every rank; an error that it raises there is raised on every rank. As agree()."""
        found: tuple[_T | None, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                found = (find(), None)
            except (WherryError, OSError) as error:
                found = (None, portable_error(error))
        result, failure = self.agree(found)
        if failure is not None:
            raise failure
        return cast("_T", result)

    def gather(self, value: _T) -> list[_T]:
        """What each rank gives, by rank, on every rank. Only where can_agree; all ranks call it, in the same order."""
        if self.size == 1:
            return [value]
        group = process_group()
        assert group is not None, "only where can_agree"
        found: list[Any] = [None] * self.size
        group.all_gather_object(found, value)
        return found

    @property
    def can_agree(self) -> bool:
        """Whether the ranks can tell one another something: there is one only, or torch.distributed is up."""
        return self.size == 1 or process_group() is not None


def portable_error(error: Exception) -> Exception:
    """The error as it can be sent to other ranks."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  it was made here
    except Exception:  # a library's error may hold anything
        return PermanentError(f"{type(error).__name__}: {error}", operation="restore")
    return error


def process_group() -> Any:
    """The module torch.distributed, if the program has started its default group; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _start(environ: Mapping[str, str]) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id not in ("", "none"):  # torchrun's own default, which every start has
        return f"torchelastic {run_id} {environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if job_id := environ.get("SLURM_JOB_ID"):
        return f"slurm {job_id} {environ.get('SLURM_STEP_ID', '0')} {environ.get('SLURM_RESTART_COUNT', '0')}"
    return None


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """How many ranks srun has started; None in the batch script itself, which has variables of them, too, and is one process."""
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _number(environ, "SLURM_STEP_NUM_TASKS")
    return _number(environ, "SLURM_NTASKS") if "SLURM_STEP_ID" in environ and "SLURM_NTASKS" in environ else None


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}, not a whole number") from None
