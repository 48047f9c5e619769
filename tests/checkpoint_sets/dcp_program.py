"""The ranks of tests/checkpoints/test_dcp_ranks.py, and what they save and load.

``main()`` is the program of those who save; its arguments are BUCKET SPOOL URI. The states are made of seeds, so any
number of ranks knows what has to come back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import wherry
from wherry.checkpoints.world import World
from wherry.torch import StorageReader, StorageWriter

DDP, FSDP, THREAD, PROCESS, ALONE, KILLED = 1, 2, 3, 4, 5, 6


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(37, 50), nn.ReLU(), nn.Linear(50, 5))


def train(model: nn.Module) -> torch.optim.Optimizer:
    """Two steps, equal on all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.ones(4, 37)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def sharded(seed: int, *, trained: bool = True) -> dict[str, Any]:
    """FSDP2's model and optimizer over all ranks, as DTensors."""
    model = model_of(seed)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = train(model)
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "seed": seed}
    return state if trained else zeros(state)


def plain(seed: int) -> dict[str, Any]:
    """The same, trained in this process alone."""
    model = model_of(seed)
    optimizer = train(model)
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "seed": seed}


def zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: zeros(each) for name, each in value.items()}
    if isinstance(value, list):
        return [zeros(each) for each in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: whole(each) for name, each in value.items()}
    return value.full_tensor() if isinstance(value, DTensor) else value


def compare(expected: Any, actual: Any, name: str = "") -> None:
    if isinstance(expected, Mapping):
        assert set(expected) == set(actual), f"{name}: {sorted(expected)} {sorted(actual)}"
        for each in expected:
            compare(expected[each], actual[each], f"{name}.{each}")
    elif isinstance(expected, torch.Tensor):
        assert torch.allclose(expected, actual, atol=1e-6), name
    else:
        assert expected == actual, f"{name}: {expected!r} {actual!r}"


def save_all(checkpoints: wherry.Checkpoints) -> None:
    writers = []

    def writer(step: int) -> StorageWriter:
        writers.append(StorageWriter(checkpoints, step, metrics={"step": step}))
        return writers[-1]

    replicated = DistributedDataParallel(model_of(DDP))
    train(replicated)
    save({"model": replicated.module.state_dict(), "seed": DDP}, storage_writer=writer(DDP))
    save(sharded(FSDP), storage_writer=writer(FSDP))
    async_save(sharded(THREAD), storage_writer=writer(THREAD)).result()  # type: ignore[union-attr]
    how = AsyncCheckpointerType.PROCESS
    async_save(sharded(PROCESS), storage_writer=writer(PROCESS), async_checkpointer_type=how).result()  # type: ignore[union-attr]
    save(sharded(ALONE), storage_writer=writer(ALONE), use_collectives=False)
    for each in writers:
        assert each.handle.wait(100), each
        assert each.handle.result().world == distributed.get_world_size()
    state = sharded(ALONE, trained=False)
    load(state, storage_reader=StorageReader(checkpoints, ALONE))
    compare(plain(ALONE), whole(state))


def save_in_a_group(bucket: str, spool: str) -> None:
    """Rank 0 alone saves another run, while the others do nothing."""
    group = distributed.new_group([0])
    if distributed.get_rank() == 0:
        with wherry.Checkpoints(bucket, "run2", spool=spool, world=World()) as alone:
            writer = StorageWriter(alone, 1)
            save({"weight": torch.ones(5)}, storage_writer=writer, process_group=group)
            assert writer.handle.wait(100)


def load_all(checkpoints: wherry.Checkpoints) -> None:
    for seed in (FSDP, THREAD, PROCESS):
        state = sharded(seed, trained=False)
        load(state, storage_reader=StorageReader(checkpoints, seed))
        compare(plain(seed), whole(state))


def save_and_die(checkpoints: wherry.Checkpoints) -> None:
    """Hand two sets over, and wait for neither; then rank 1 is killed while it writes the third."""
    save(sharded(FSDP), storage_writer=StorageWriter(checkpoints, FSDP))
    how = AsyncCheckpointerType.PROCESS
    async_save(sharded(PROCESS), storage_writer=StorageWriter(checkpoints, PROCESS), async_checkpointer_type=how).result()  # type: ignore[union-attr]
    save(sharded(KILLED), storage_writer=StorageWriter(checkpoints, KILLED), planner=Deadly())


class Deadly(DefaultSavePlanner):
    """Ends rank 1 at its third item."""

    n_items = 0

    def resolve_data(self, write_item: WriteItem) -> Any:
        self.n_items += 1
        if distributed.get_rank() == 1 and self.n_items == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def main() -> None:
    """Save all to the bucket; then save to the URI until rank 1 is killed."""
    bucket, spool, uri = sys.argv[1:]
    distributed.init_process_group("gloo")
    with wherry.Checkpoints(bucket, "run1", spool=spool) as checkpoints:
        save_all(checkpoints)
    save_in_a_group(bucket, spool)
    Path(f"{spool}-{distributed.get_rank()}-has-saved").touch()
    with wherry.Checkpoints(uri, "run1", spool=f"{spool}-killed") as checkpoints:
        save_and_die(checkpoints)
