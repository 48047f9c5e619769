"""torch.distributed.checkpoint with several processes: 2 ranks save, 3 and 1 load, by torchrun and gloo.

The ranks and the states are those of checkpoint_sets/dcp_program.py, which the tests import: it imports torch.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import wherry
from checkpoint_sets.ranks import run_ranks
from servers.real import S3Server
from servers.warm_torch import DISTRIBUTED, TorchProgram
from wherry.torch import StorageReader

pytestmark = [
    pytest.mark.large,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

#: Torchrun's launcher with two ranks, which it forks: each need not import torch.
TORCHRUN = """
from checkpoint_sets.dcp_program import main
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=0, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
elastic_launch(config, main)()
"""


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
    with TorchProgram(TORCHRUN, folder / "bucket", folder / "spool", uri, env=environ, imports=DISTRIBUTED) as launcher:
        output, _ = launcher.communicate(timeout=350)
    assert all((folder / f"spool-{rank}-has-saved").exists() for rank in range(2)), output
    assert launcher.returncode != 0
    assert "SIGKILL" in output, output
    return Saved(folder / "bucket", uri, output)


@pytest.fixture(scope="module")
def program() -> Any:
    from checkpoint_sets import dcp_program

    return dcp_program


@pytest.fixture(scope="module")
def bucket(saved: Saved) -> Path:
    return saved.bucket


def test_three_ranks_load_what_two_have_saved(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    text = """
        from checkpoint_sets.dcp_program import load_all

        with wherry.Checkpoints(arguments[0], "run1", spool=arguments[1]) as checkpoints:
            load_all(checkpoints)
        print("loaded")
    """
    for said in run_ranks(3, tmp_path, text, bucket, spool_folder, imports=DISTRIBUTED, timeout_s=350):
        assert said.endswith("loaded\n"), said


@pytest.mark.parametrize("name", ["FSDP", "THREAD", "PROCESS"])
def test_one_process_loads_what_two_ranks_have_saved(program: Any, bucket: Path, spool_folder: Path, name: str) -> None:
    step = getattr(program, name)
    expected = program.plain(step)
    found = program.zeros(expected)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        program.load(found, storage_reader=StorageReader(checkpoints, step))
    program.compare(expected, found)


def test_what_ddp_has_saved_is_there_once(program: Any, bucket: Path, spool_folder: Path) -> None:
    model = program.model_of(program.DDP)
    program.train(model)
    found = {"model": program.zeros(model.state_dict()), "seed": 0}
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        program.load(found, storage_reader=StorageReader(checkpoints, program.DDP))
    program.compare({"model": model.state_dict(), "seed": program.DDP}, found)


def test_a_group_of_ranks_saves_what_it_calls_its_world(program: Any, bucket: Path, spool_folder: Path) -> None:
    found = {"weight": program.torch.zeros(5)}
    with wherry.Checkpoints(bucket, "run2", spool=spool_folder) as checkpoints:
        program.load(found, storage_reader=StorageReader(checkpoints))
    assert program.torch.equal(program.torch.ones(5), found["weight"])


def test_torch_itself_reads_a_restored_set(program: Any, bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    expected = program.plain(program.FSDP)
    found = program.zeros(expected)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        program.load(found, checkpoint_id=checkpoints.restore(program.FSDP, tmp_path / "restored"))
    program.compare(expected, found)
    assert program.torch.is_tensor(found["model"]["0.weight"])


def test_what_was_handed_over_before_a_kill_is_committed_and_no_half_set_is(
    program: Any, saved: Saved, seaweedfs_server: S3Server, tmp_path: Path
) -> None:
    options = seaweedfs_server.options
    with wherry.Checkpoints(saved.uri, "run1", spool=tmp_path / "reader", storage_options=options) as checkpoints:
        until_s = time.monotonic() + 150
        while [program.FSDP, program.PROCESS] != [one.step for one in checkpoints.list()] and time.monotonic() < until_s:
            time.sleep(0.5)  # the agent of the ranks has outlived them
        assert [program.FSDP, program.PROCESS] == [one.step for one in checkpoints.list()], saved.said
        expected = program.plain(program.PROCESS)
        found = program.zeros(expected)
        program.load(found, storage_reader=StorageReader(checkpoints))
        program.compare(expected, found)
