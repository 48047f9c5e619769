"""The library safetensors and wherry read what the other has written."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from wherry.checkpoints.safetensors_file import read_safetensors, write_safetensors
from wherry.errors import ConfigError

pytestmark = pytest.mark.extra


@pytest.fixture
def library() -> Any:
    return importlib.import_module("safetensors.torch")


@pytest.fixture
def state(library: Any) -> dict[str, torch.Tensor]:
    """Tensors of each type that the library writes, by its own table, of any bytes: numbers that are none (NaN) among them."""
    dtypes: dict[torch.dtype, int] = library._SIZE
    anything = torch.arange(48 * 8, dtype=torch.int64).to(torch.uint8)
    found = {f"{dtype} \u00e4": anything[: 48 * dtype.itemsize].clone().view(dtype).reshape(2, 3, 8) for dtype in dtypes}
    found[f"{torch.bool} \u00e4"] = torch.arange(48).reshape(2, 3, 8) % 2 == 0  # a byte that is neither 0 nor 1 is no truth
    return found | {"none": torch.zeros(0, 3), "one": torch.tensor(5), "turned": torch.arange(6).reshape(2, 3).T}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> None:
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert (name, tensor.dtype, tensor.shape) == (name, second[name].dtype, second[name].shape)
        assert bytes_of(tensor) == bytes_of(second[name])


def entries(path: Path) -> dict[str, tuple[str, list[int]]]:
    """What the header says of each tensor, but for its place."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def test_the_library_reads_ours(library: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with open(tmp_path / "state.safetensors", "wb") as file:
        write_safetensors(state, file)
    same(state, library.load_file(tmp_path / "state.safetensors"))


def test_ours_reads_the_librarys(library: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    library.save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "state.safetensors")
    same(state, read_safetensors(tmp_path / "state.safetensors"))


def test_both_call_types_and_shapes_the_same(library: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    library.save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "theirs.safetensors")
    with open(tmp_path / "ours.safetensors", "wb") as file:
        write_safetensors(state, file)
    assert entries(tmp_path / "theirs.safetensors") == entries(tmp_path / "ours.safetensors")


def test_two_numbers_in_one_element_need_a_dimension(tmp_path: Path) -> None:
    one = torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[0]
    with open(tmp_path / "state.safetensors", "wb") as file, pytest.raises(ConfigError, match="give it a dimension"):
        write_safetensors({"one": one}, file)
