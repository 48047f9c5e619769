"""Run by tests/extra/test_composer_cases.py, with Composer and an S3 server: each finds what the other wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from composer.loggers import RemoteUploaderDownloader as Theirs
from composer.utils import get_file

from composer_trials.parts import trainer
from wherry.integrations.composer import ComposerLogger, RemoteUploaderDownloader as Ours, wherry_composer
from wherry.loggers import ObjectStoreLogger

BUCKET = os.environ["WHERRY_TEST_BUCKET"]
LATEST = "checkpoints/latest-rank0.pt"


def saved(log: Any, run_name: str) -> dict[str, torch.Tensor]:
    """Train with a logger that uploads, and return the weights."""
    one = trainer(log, run_name=run_name, save_folder="{run_name}/checkpoints", save_interval="1ep", autoresume=True)
    one.fit()
    one.close()
    return {name: value.clone() for name, value in one.state.model.state_dict().items()}


def loaded(**options: Any) -> dict[str, torch.Tensor]:
    one = trainer(run_name="loads", **options)
    assert 8 == int(one.state.timestamp.batch)
    return dict(one.state.model.state_dict())


def ours() -> ComposerLogger:
    return wherry_composer(ObjectStoreLogger(f"s3://{BUCKET}"))


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def test_composer_finds_what_we_wrote(tmp_path: Path) -> None:
    weights = saved(ours(), "by-us")
    assert is_equal(weights, loaded(load_path=f"s3://{BUCKET}/by-us/{LATEST}.symlink"))
    assert is_equal(weights, loaded(load_path=f"s3://{BUCKET}/by-us/checkpoints/ep2-ba8-rank0.pt"))
    get_file(f"by-us/{LATEST}", str(tmp_path / "theirs"), Theirs(f"s3://{BUCKET}", use_procs=False))


def test_we_find_what_composer_wrote(tmp_path: Path) -> None:
    weights = saved(Theirs(f"s3://{BUCKET}", use_procs=False), "by-composer")
    for name in (LATEST, f"{LATEST}.symlink", "checkpoints/ep2-ba8-rank0.pt"):
        assert is_equal(weights, loaded(load_path=f"by-composer/{name}", load_object_store=ours())), name


def test_the_drop_in_uploads_what_composers_own_does_and_autoresumes() -> None:
    weights = saved(Ours(f"s3://{BUCKET}", use_procs=False, num_attempts=1), "drop-in")
    assert is_equal(weights, loaded(load_path=f"s3://{BUCKET}/drop-in/{LATEST}.symlink"))
    again = trainer(
        Ours(f"s3://{BUCKET}"), run_name="drop-in", save_folder="elsewhere/{run_name}", autoresume=True, load_path=None
    )
    again.close()
    resumed = trainer(Ours(f"s3://{BUCKET}"), run_name="drop-in", save_folder="{run_name}/checkpoints", autoresume=True)
    assert 8 == int(resumed.state.timestamp.batch)
    resumed.close()
