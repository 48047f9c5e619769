"""The plain loop and the DDP loop of docs/attaching.md, as they are: the latter with real ranks under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from docs_programs import files_below, script_of
from servers.warm_torch import run_script, torchrun
from support import end_agent, without_waits

#: A program under torchrun, with a name for its run, then without.
_NAMES_A_RUN = """
import os
from wherry.loggers import State
print("the run is", State().run_name)
print("without a name")
del os.environ["RUN_NAME"]
print("the run is", State().run_name)
"""


def test_the_plain_loop_of_the_page_runs(tmp_path: Path) -> None:
    with end_agent(tmp_path / "spool"):
        environment = {"WHERRY_SPOOL": str(tmp_path / "spool"), "RUN_NAME": "my-run"}
        status, said = run_script(script_of("plain", tmp_path), folder=tmp_path, env=environment)
        assert (0, "") == (status, without_waits(said))
    names = (".wherry-run.json", "environment.json", "hparams.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json")
    assert {f"my-run/{name}" for name in names} | {"my-run/model.pt"} == files_below(tmp_path / "bucket")
    lines = (tmp_path / "bucket/my-run/metrics.jsonl").read_text().splitlines()
    assert list(range(100)) == [json.loads(line)["step"] for line in lines]


def test_the_ddp_loop_of_the_page_logs_on_rank_0_and_uploads_on_all(tmp_path: Path) -> None:
    import torch

    environment = {"WHERRY_SPOOL": str(tmp_path / "spool"), "RUN_NAME": "my-run"}
    with end_agent(tmp_path / "spool"), torchrun(script_of("ddp", tmp_path), env=environment) as program:
        said, _ = program.communicate(120)
        assert 0 == program.wait(0.0), said
    logged = {
        f"my-run/{name}"
        for name in (".wherry-run.json", "environment.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json")
    }
    assert logged | {"my-run/model.pt", "my-run/rng-0.pt", "my-run/rng-1.pt"} == files_below(tmp_path / "bucket")
    lines = (tmp_path / "bucket/my-run/metrics.jsonl").read_text().splitlines()
    assert list(range(20)) == [json.loads(line)["step"] for line in lines]
    assert {"weight", "bias"} == set(torch.load(tmp_path / "bucket/my-run/model.pt", weights_only=True))


def test_a_run_id_that_torchrun_does_not_keep_is_warned_of_and_run_name_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_NAMES_A_RUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--rdzv-id", "my-run", str(script)]
    environment = {**os.environ, "RUN_NAME": "my-run", "PYTHONUNBUFFERED": "1"}
    said = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=True
    ).stdout
    named, made_up = said.split("without a name")
    assert ("the run is my-run" in named, "a random id" in named) == (True, False)
    assert "a random id that torchrun sets anew at each start" in made_up
    assert "RUN_NAME=my-run torchrun" in made_up
    assert "the run is my-run" not in made_up
