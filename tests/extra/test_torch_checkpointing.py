"""manager_config() with the real torch-checkpointing: two ranks, in the program and in another process, killed and resumed."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import wherry
from docs_programs import run_program
from servers.real import S3Server
from support import end_agent
from wherry.errors import ConfigError, IntegrityError

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]  # a test starts torchrun twice

#: A script that trains 6 steps and saves every 2; sys.argv: the bucket, how to save, the step to be killed after.
SCRIPT = """
import os, signal, sys, torch, torch.distributed as dist, wherry
from torch_checkpointing import CheckpointManager
from wherry.integrations.torch_checkpointing import manager_config

def say(line):
    os.write(1, f"{line}\\n".encode())  # at once: two ranks have one pipe

def main():
    bucket, how, killed_after = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(model.weight)
    checkpoints = wherry.Checkpoints(bucket, "my-run")
    manager = manager_config(checkpoints, getattr(CheckpointManager.Config, how)()).build()
    state = {"model": model.state_dict(), "step": 0}
    if checkpoints.latest() is not None:
        state = manager.load("latest", into=state)
        model.load_state_dict(state["model"])
    future = None
    for step in range(state["step"] + 1, 7):
        with torch.no_grad(), manager.lock():
            model.weight += step * (rank + 1)
        say(f"rank {rank} step {step}")
        if step % 2 == 0:
            future = manager.save(f"step_{step}", {"model": model.state_dict(), "step": step})
        if str(step) == killed_after:
            if future is not None:
                future.result()
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    manager.close()
    say(f"rank {rank} weights {model.weight.sum().item()}")
    checkpoints.close()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def train(folder: Path, bucket: str, how: str, variables: dict[str, str], killed_after: int | None = None) -> set[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(script), bucket, how, str(killed_after)],
        cwd=folder,
        env={**os.environ, **variables, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (0 if killed_after is None else 1) == done.returncode, done.stdout + done.stderr
    return set(re.findall(r"^rank \d (?:step|weights) \S+$", done.stdout, re.MULTILINE))


@pytest.mark.parametrize(("how", "kind"), [("with_sync_save", "folder"), ("with_async_save", "s3")])
def test_a_killed_training_resumes_from_the_bucket(folder: Path, seaweedfs_server: S3Server, how: str, kind: str) -> None:
    bucket = str(folder / "bucket") if kind == "folder" else f"s3://{seaweedfs_server.bucket}/{folder.name}"
    variables = {
        "AWS_ENDPOINT_URL": seaweedfs_server.url,
        "AWS_ACCESS_KEY_ID": seaweedfs_server.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key,
        "AWS_REGION": "us-east-1",
    }
    assert {f"rank {rank} step {step}" for rank in (0, 1) for step in range(1, 6)} == train(folder, bucket, how, variables, 5)
    resumed = {f"rank {rank} step {step}" for rank in (0, 1) for step in (5, 6)}
    assert resumed | {"rank 0 weights 84.0", "rank 1 weights 168.0"} == train(folder, bucket, how, variables)
    options = seaweedfs_server.options if kind == "s3" else None
    with wherry.Checkpoints(bucket, "my-run", spool=folder / "spool", storage_options=options) as checkpoints:
        sets = checkpoints.list()
        names = [one.name for _, one in checkpoints.catalog.objects(sets[-1])]
    assert [(2, 2), (4, 2), (6, 2)] == [(one.step, one.world) for one in sets]
    assert ["model_0.pt", "model_1.pt", "step_0.pt", "step_1.pt"] == names


def test_the_program_of_the_page_runs_and_resumes(folder: Path) -> None:
    assert "sets [1, 2, 3, 4]" in run_program("torch_checkpointing", folder, page="checkpoints")
    assert "sets [1, 2, 3, 4, 5, 6, 7, 8]" in run_program("torch_checkpointing", folder, page="checkpoints")


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def managers() -> Any:
    return importlib.import_module("torch_checkpointing").CheckpointManager.Config


@pytest.mark.parametrize("form", ["torch", "plain"])
def test_a_pickle_that_runs_something_is_refused(folder: Path, managers: Any, form: str) -> None:
    manager_config = importlib.import_module("wherry.integrations.torch_checkpointing").manager_config
    (folder / "set").mkdir()
    evil = {"weight": Evil(folder / "ran")}
    if form == "torch":
        torch.save(evil, folder / "set" / "model_0.pt")
    else:
        (folder / "set" / "model_0.pt").write_bytes(pickle.dumps(evil))
    with wherry.Checkpoints(folder / "bucket", "my-run") as checkpoints:
        checkpoints.save(1, folder / "set").wait()
        manager = manager_config(checkpoints, managers.with_sync_save()).build()
        with pytest.raises(IntegrityError, match="refused"):
            manager.load("step_1", into={"model": {"weight": torch.zeros(1)}})
        manager.close()
    assert not (folder / "ran").exists()


def test_resharding_metadata_that_runs_something_is_refused(folder: Path, managers: Any) -> None:
    module = importlib.import_module("wherry.integrations.torch_checkpointing")
    (folder / "set").mkdir()
    (folder / "set" / "metadata.pkl").write_bytes(pickle.dumps(Evil(folder / "ran")))
    with wherry.Checkpoints(folder / "bucket", "my-run") as checkpoints:
        checkpoints.save(1, folder / "set").wait()
        with pytest.raises(IntegrityError, match="refused"):
            module.SetStorage(checkpoints).read(Path("step_1/metadata.pkl"))
    assert not (folder / "ran").exists()


def test_one_rank_saves_what_can_be_resharded(folder: Path, managers: Any) -> None:
    manager_config = importlib.import_module("wherry.integrations.torch_checkpointing").manager_config
    schema = importlib.import_module("torch_checkpointing.schema")
    resharder = importlib.import_module("torch_checkpointing.default_resharder").DefaultResharder
    with wherry.Checkpoints(folder / "bucket", "my-run") as checkpoints:
        config = managers.with_sync_save()
        config.items = {"model": schema.ItemSpec(resharder=resharder())}
        manager = manager_config(checkpoints, config).build()
        manager.save("step_3", {"model": {"weight": torch.arange(4.0)}})
        into = {"model": {"weight": torch.zeros(4)}}
        for name in ("latest", "step_3", str(checkpoints.list()[0].set)):
            into["model"]["weight"].zero_()
            manager.load(name, into=into)
            assert torch.equal(torch.arange(4.0), into["model"]["weight"])
        with pytest.raises(FileNotFoundError):
            manager.load("step_4", into=into)
        with pytest.raises(wherry.AlreadyExistsError):
            manager.save("step_3", {"model": {"weight": torch.arange(4.0)}})
        with pytest.raises(ConfigError, match="has no step"):
            manager.save("final", {"model": {"weight": torch.arange(4.0)}})
        manager.close()


def test_a_config_with_another_storage_is_refused(folder: Path, managers: Any) -> None:
    manager_config = importlib.import_module("wherry.integrations.torch_checkpointing").manager_config
    config = managers.with_sync_save()
    config.finalize_callback = print
    with wherry.Checkpoints(folder / "bucket", "my-run") as checkpoints, pytest.raises(ConfigError, match="leave them out"):
        manager_config(checkpoints, config)
