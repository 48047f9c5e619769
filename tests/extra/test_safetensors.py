"""The library safetensors and wherry read what the other has written."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from wherry.checkpoints.safetensors_file import read_safetensors, write_safetensors

pytestmark = pytest.mark.extra


@pytest.fixture
def library() -> Any:
    return importlib.import_module("safetensors.torch")


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
    return {"none": torch.zeros(0, 3), "one": torch.tensor(5)} | {f"{kind} ä": torch.arange(7).to(kind) for kind in kinds}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert (tensor.dtype, tensor.shape) == (second[name].dtype, second[name].shape)
        assert torch.equal(tensor, second[name])


def test_the_library_reads_ours(library: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with open(tmp_path / "state.safetensors", "wb") as file:
        write_safetensors(state, file)
    same(state, library.load_file(tmp_path / "state.safetensors"))


def test_ours_reads_the_librarys(library: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    library.save_file(state, tmp_path / "state.safetensors")
    same(state, read_safetensors(tmp_path / "state.safetensors"))
