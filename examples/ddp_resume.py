"""DistributedDataParallel that survives `kill -9`: start it again, on this machine or another, and it goes on from the bucket.

    torchrun --nproc-per-node 2 examples/ddp_resume.py /tmp/bucket my-run     # or s3://my-bucket/prefix, gs://my-bucket/prefix

A small network learns on a CPU, with gloo; a real job differs in the model and in "nccl". Needs ``pip install 'wherry[torch]'``.
Every 10 steps all ranks save one checkpoint set: rank 0 the training's state, each rank its own random numbers. Saving waits for
no upload. The next start takes the newest set that is complete, so it computes what the killed start would have computed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wherry


def train(options: argparse.Namespace, checkpoints: wherry.Checkpoints) -> None:
    """The loop of one rank, from the newest set on, if there is one."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    first_step = 0
    if checkpoints.latest() is not None:  # all ranks find the same one
        with tempfile.TemporaryDirectory() as scratch:
            folder = checkpoints.restore("latest", Path(scratch) / "set")
            state = torch.load(folder / "training.pt", weights_only=True)
            model.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first_step = state["step"]
            numbers = folder / f"random-{rank}.pt"
            if numbers.exists():  # not where there are more ranks now than there were
                torch.set_rng_state(torch.load(numbers, weights_only=True))
        if rank == 0:
            print(f"goes on from step {first_step}", flush=True)

    for step in range(first_step + 1, options.steps + 1):
        inputs = torch.randn(32, 16)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_s)
        if step % 10 == 0:
            if rank == 0:
                print(f"step {step}: loss {loss.item():.9f}", flush=True)
            with checkpoints.save(step, metrics={"loss": loss.item()}) as folder:  # what is written to it is not copied
                if rank == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, folder / "training.pt")
                torch.save(torch.get_rng_state(), folder / f"random-{rank}.pt")


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
