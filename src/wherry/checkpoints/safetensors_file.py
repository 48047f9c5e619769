"""The format safetensors: a header of JSON, then the bytes of the tensors, and no pickle.

Written here and not by the library of that name, which makes the file in memory first. Here tensors go into the spool one by one,
and come back as a mapping of the file. https://huggingface.co/docs/safetensors describes the format.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from wherry.errors import ConfigError, IntegrityError

#: No header is larger: the library refuses it, too.
_MOST_HEADER_BYTES = 100_000_000
_ALIGNMENT_BYTES = 8
_METADATA = "__metadata__"
#: Names in the file, and in torch.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
#: Values in one element of torch, where that is not one: the shape in the file counts values.
_VALUES_AN_ELEMENT = {"F4": 2}


def write_safetensors(state: Mapping[str, object], file: IO[bytes]) -> None:
    """Write a flat state dict of tensors. ConfigError for whatever the format does not hold, before a byte is written."""
    import torch

    names = {getattr(torch, dtype): name for name, dtype in _DTYPES.items() if hasattr(torch, dtype)}
    tensors = {name: _checked(name, value, torch, names) for name, value in state.items()}
    _refuse_shared(tensors)
    # The widest first: each then begins at a multiple of its own size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {_METADATA: {"format": "pt"}}
    at = 0
    for name in order:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        dtype = names[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": _shape_in_the_file(name, dtype, tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if len(text) > _MOST_HEADER_BYTES:
        raise ConfigError(
            f"the names and sizes of {len(tensors)} tensors take more than {_MOST_HEADER_BYTES} bytes in safetensors"
        )
    file.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        if tensors[name].numel():
            one = tensors[name].detach().cpu().contiguous()  # one at a time: a copy of all would double the memory
            file.write(memoryview(one.reshape(-1).view(torch.uint8).numpy()))


def _shape_in_the_file(name: str, dtype: str, shape: Sequence[int]) -> list[int]:
    n_values = _VALUES_AN_ELEMENT.get(dtype, 1)
    if n_values > 1 and not shape:
        raise ConfigError(f"{name!r} is one element of {n_values} values: {_otherwise('give it a dimension')}")
    return [*shape[:-1], shape[-1] * n_values] if shape else []


def _checked(name: object, value: object, torch: Any, names: Mapping[Any, str]) -> Any:
    if not isinstance(name, str) or name == _METADATA:
        raise ConfigError(f"{name!r} is no name of a tensor in safetensors: {_otherwise('give a text')}")
    if not isinstance(value, torch.Tensor):
        what = "a dict of its own" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise ConfigError(f"{name!r} is {what}: safetensors holds one flat dict of tensors; {_otherwise('leave it out')}")
    if type(value).__name__ == "DTensor":
        raise ConfigError(f"{name!r} is sharded over several ranks: save it by wherry.torch.StorageWriter")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise ConfigError(
            f"{name!r} is sparse, quantized or without data: safetensors does not hold that; {_otherwise('convert it')}"
        )
    if value.dtype not in names:
        raise ConfigError(f"{name!r} has the type {value.dtype}, which safetensors does not know; {_otherwise('convert it')}")
    return value


def _otherwise(remedy: str) -> str:
    return f"{remedy}, or save with format='torch'"


def _refuse_shared(tensors: Mapping[str, Any]) -> None:
    """The format has no word for it: loaded again, tied weights would be two."""
    extents: dict[tuple[Any, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            storage = tensor.untyped_storage()
            start = tensor.storage_offset() * tensor.element_size()
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            extent = (start, start + (last + 1) * tensor.element_size(), name)
            extents.setdefault((storage.device, storage.data_ptr()), []).append(extent)
    for found in extents.values():
        found.sort()
        for (_, end, first), (start, _, second) in pairwise(found):
            if start < end:
                raise ConfigError(
                    f"{first!r} and {second!r} share memory (tied weights), which safetensors does not hold; "
                    f"{_otherwise('leave one of them out')}"
                )


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: Path, map_location: object = None) -> dict[str, Any]:
    """The tensors of a file, mapped into memory; writing to them changes no file. IntegrityError for a file that is not sound."""
    import torch

    if map_location is not None and not isinstance(map_location, (str, int, torch.device)):
        raise ConfigError(f"map_location={map_location!r}: a safetensors file is loaded to one device, such as 'cpu' or 'cuda:0'")
    size_bytes = path.stat().st_size
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0] if size_bytes >= 8 else 0
        if not 2 <= length <= min(_MOST_HEADER_BYTES, size_bytes - 8):
            raise _unsound(path, f"it has {size_bytes} bytes, its header {length}")
        entries = _entries(path, file.read(length), size_bytes - 8 - length)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    state: dict[str, Any] = {}
    for entry in entries:
        dtype = getattr(torch, _DTYPES[entry.dtype], None)
        if dtype is None:
            raise ConfigError(
                f"{entry.name!r} has the type {_DTYPES[entry.dtype]}, which torch {torch.__version__} does not have"
            )
        at, count = 8 + length + entry.start, entry.end - entry.start
        width = torch.empty(0, dtype=dtype).element_size()
        n_elements = 1
        for size in entry.shape:
            n_elements *= size
        if n_elements * width != count:
            raise _unsound(path, f"{entry.name!r} has {count} bytes, its shape needs {n_elements * width}")
        if not count:
            state[entry.name] = torch.empty(entry.shape, dtype=dtype)
            continue
        plain = torch.frombuffer(mapped, dtype=torch.uint8, count=count, offset=at)
        plain = plain.clone() if plain.data_ptr() % width else plain
        state[entry.name] = plain.view(dtype).reshape(entry.shape)
    return state if map_location is None else {name: tensor.to(map_location) for name, tensor in state.items()}


def _entries(path: Path, text: bytes, data_bytes: int) -> list[_Entry]:
    """What the header says, in the order of the bytes: they lie one behind the other, and nothing lies between them."""
    try:
        header = json.loads(text)
        found = [_entry(name, value) for name, value in header.items() if name != _METADATA]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise _unsound(path, f"its header cannot be read ({error})") from error
    found.sort(key=lambda entry: (entry.start, entry.end))
    at = 0
    for entry in found:
        if entry.start != at or entry.end < at:
            raise _unsound(path, f"{entry.name!r} does not begin where the one before it ends")
        at = entry.end
    if at != data_bytes:
        raise _unsound(path, f"it has {data_bytes} bytes of tensors, its header speaks of {at}")
    return found


def _entry(name: str, value: Mapping[str, Any]) -> _Entry:
    start, end = value["data_offsets"]
    numbers = [start, end, *value["shape"]]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"the numbers of {name!r} are {numbers[:8]}")
    if value["dtype"] not in _DTYPES:
        raise ValueError(f"{name!r} has the type {value['dtype']!r}, which is not known")
    shape, n_values = list(value["shape"]), _VALUES_AN_ELEMENT.get(value["dtype"], 1)
    if n_values > 1:
        shape[-1], rest = divmod(shape[-1], n_values)
        if rest:
            raise ValueError(f"the last dimension of {name!r} is no multiple of {n_values}")
    return _Entry(name, value["dtype"], tuple(shape), start, end)


def _unsound(path: Path, why: str) -> IntegrityError:
    return IntegrityError(f"{path.name} is no sound safetensors file: {why}", operation="load")
