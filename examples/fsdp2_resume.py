"""FSDP2 that survives `kill -9`: start it again, on as many ranks as you like, and it goes on from the bucket.

    torchrun --nproc-per-node 2 examples/fsdp2_resume.py /tmp/bucket my-run   # or s3://my-bucket/prefix, gs://my-bucket/prefix

A small network, sharded over the ranks, learns on a CPU with gloo; a real job differs in the model and in "nccl". Needs
``pip install 'wherry[torch]'``. Every 10 steps all ranks save one checkpoint set by torch.distributed.checkpoint: each rank
its own shards. The next start takes the newest set that is complete, and each rank fetches the shards that it needs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wherry
from wherry.torch import StorageReader, StorageWriter


def train(options: argparse.Namespace, checkpoints: wherry.Checkpoints) -> None:
    """The loop of one rank, from the newest set on, if there is one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    first_step = 0
    if (newest := checkpoints.latest()) is not None:  # all ranks find the same one
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, storage_reader=StorageReader(checkpoints, str(newest.set)))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        first_step = newest.step
        if rank == 0:
            print(f"goes on from step {first_step}", flush=True)

    saving: Any = None
    group_of_saves = dist.new_group(backend="gloo")  # a save agrees in a thread while the training uses the default group
    for step in range(first_step + 1, options.steps + 1):
        generator = torch.Generator().manual_seed(step * world_size + rank)  # the data of a step depends on the step alone
        inputs = torch.randn(32, 16, generator=generator)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_s)
        if step % 10 == 0:
            if rank == 0:
                print(f"step {step}: loss {loss.item():.9f}", flush=True)
            if saving is not None:
                saving.result()  # torch makes one save at a time
            weights, moments = get_state_dict(model, optimizer)
            writer = StorageWriter(checkpoints, step, metrics={"loss": loss.item()})
            state = {"model": weights, "optimizer": moments}
            saving = dcp.async_save(state, storage_writer=writer, process_group=group_of_saves)
    if saving is not None:
        saving.result()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bucket", help="a folder, s3://bucket/prefix, gs://bucket/prefix ...")
    parser.add_argument("run_name", help="the same at each start: the sets are found by it")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds to sleep in each step, as a real step takes longer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with wherry.Checkpoints(options.bucket, options.run_name) as checkpoints:  # its end waits until all sets are committed
        train(options, checkpoints)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
