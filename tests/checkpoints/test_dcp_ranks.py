"""torch.distributed.checkpoint with several processes: 2 ranks save, 3 and 1 load, by torchrun and gloo.

``main()`` is the program of those who save; its arguments are BUCKET SPOOL URI. The states are made of seeds, so any
number of ranks knows what has to come back.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
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
from checkpoint_sets.ranks import run_ranks
from servers.warm_torch import TorchProgram
from wherry.checkpoints.world import World
from wherry.torch import StorageReader, StorageWriter

if TYPE_CHECKING:
    from servers.real import S3Server  # a rank does not need it

pytestmark = [
    pytest.mark.large,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


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


#: Torchrun's launcher with two ranks, which it forks: each need not import torch.
TORCHRUN = """
from test_dcp_ranks import main
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=0, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
elastic_launch(config, main)()
"""
IMPORTS = f"import sys; sys.path.insert(1, {str(Path(__file__).parent)!r}); import test_dcp_ranks"


@dataclass(frozen=True)
class Saved:
    """What two ranks have left."""

    #: DDP, FSDP2, asynchronously by a thread and by a process, and without collective calls.
    bucket: Path
    #: Where they were saving when one was killed.
    uri: str
    said: str


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, seaweedfs_server: S3Server) -> Saved:
    """The second half on S3, where the process executor finds the keys in its environment."""
    folder = tmp_path_factory.mktemp("dcp")
    uri = f"s3://{seaweedfs_server.bucket}/{uuid.uuid4()}"
    environ = {
        "AWS_ACCESS_KEY_ID": seaweedfs_server.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key,
        "AWS_ENDPOINT_URL": seaweedfs_server.url,
        "AWS_REGION": "us-east-1",
    }
    with TorchProgram(TORCHRUN, folder / "bucket", folder / "spool", uri, env=environ, imports=IMPORTS) as launcher:
        output, _ = launcher.communicate(timeout=350)
    assert all((folder / f"spool-{rank}-has-saved").exists() for rank in range(2)), output
    assert launcher.returncode != 0
    assert "SIGKILL" in output, output
    return Saved(folder / "bucket", uri, output)


@pytest.fixture(scope="module")
def bucket(saved: Saved) -> Path:
    return saved.bucket


def test_three_ranks_load_what_two_have_saved(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    text = """
        from test_dcp_ranks import load_all

        with wherry.Checkpoints(arguments[0], "run1", spool=arguments[1]) as checkpoints:
            load_all(checkpoints)
        print("loaded")
    """
    for said in run_ranks(3, tmp_path, text, bucket, spool_folder, imports=IMPORTS, timeout_s=350):
        assert said.endswith("loaded\n"), said


@pytest.mark.parametrize("step", [FSDP, THREAD, PROCESS])
def test_one_process_loads_what_two_ranks_have_saved(bucket: Path, spool_folder: Path, step: int) -> None:
    expected = plain(step)
    found = zeros(expected)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        load(found, storage_reader=StorageReader(checkpoints, step))
    compare(expected, found)


def test_what_ddp_has_saved_is_there_once(bucket: Path, spool_folder: Path) -> None:
    model = model_of(DDP)
    train(model)
    found = {"model": zeros(model.state_dict()), "seed": 0}
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        load(found, storage_reader=StorageReader(checkpoints, DDP))
    compare({"model": model.state_dict(), "seed": DDP}, found)


def test_a_group_of_ranks_saves_what_it_calls_its_world(bucket: Path, spool_folder: Path) -> None:
    found = {"weight": torch.zeros(5)}
    with wherry.Checkpoints(bucket, "run2", spool=spool_folder) as checkpoints:
        load(found, storage_reader=StorageReader(checkpoints))
    assert torch.equal(torch.ones(5), found["weight"])


def test_torch_itself_reads_a_restored_set(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    expected = plain(FSDP)
    found = zeros(expected)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        load(found, checkpoint_id=checkpoints.restore(FSDP, tmp_path / "restored"))
    compare(expected, found)
    assert torch.is_tensor(found["model"]["0.weight"])


def test_what_was_handed_over_before_a_kill_is_committed_and_no_half_set_is(
    saved: Saved, seaweedfs_server: S3Server, tmp_path: Path
) -> None:
    options = seaweedfs_server.options
    with wherry.Checkpoints(saved.uri, "run1", spool=tmp_path / "reader", storage_options=options) as checkpoints:
        until_s = time.monotonic() + 150
        while [FSDP, PROCESS] != [one.step for one in checkpoints.list()] and time.monotonic() < until_s:
            time.sleep(0.5)  # the agent of the ranks has outlived them
        assert [FSDP, PROCESS] == [one.step for one in checkpoints.list()], saved.said
        expected = plain(PROCESS)
        found = zeros(expected)
        load(found, storage_reader=StorageReader(checkpoints))
        compare(expected, found)
