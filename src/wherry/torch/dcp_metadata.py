"""Read `.metadata` of torch.distributed.checkpoint: a pickle, of which only torch's descriptions of tensors are loaded."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import IO, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from wherry.errors import IntegrityError

#: Their classes hold values and do nothing.
_DESCRIPTIONS = frozenset({"torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"})
_STORAGE_INFO = "_StorageInfo"
_VALUES = (torch.dtype, torch.layout, torch.memory_format)


class _Unpickler(pickle.Unpickler):  # noqa: S301
    def find_class(self, module: str, name: str) -> Any:
        """A class that describes a tensor or its place; UnpicklingError for everything else."""
        if module in _DESCRIPTIONS and "." not in name:
            found = super().find_class(module, name)
            is_own = isinstance(found, type) and found.__module__ == module
            if is_own and (module.endswith(".metadata") or name == _STORAGE_INFO):
                return found
        elif (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        elif (module, name) == ("torch", "Size"):
            return torch.Size
        elif (module, name) == ("torch.serialization", "_get_layout"):
            return _layout_of
        elif module == "torch" and isinstance(found := getattr(torch, name, None), _VALUES):
            return found
        elif module.startswith("pathlib") and name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
            return _joined  # a folder that it was saved to, as text
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


def _layout_of(name: str) -> torch.layout:
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.layout):
        raise pickle.UnpicklingError(f"{name!r} is no layout")
    return found


def _joined(*parts: object) -> str:
    return "/".join(str(part) for part in parts)


def read_dcp_metadata(file: IO[bytes], uri: str) -> Metadata:
    """The metadata in this file. IntegrityError for a pickle that wants more than to describe tensors, or is none."""
    try:
        metadata = _Unpickler(file).load()
    except Exception as error:  # a pickle that is not ours may raise anything
        raise IntegrityError(
            f"it is refused as metadata of torch.distributed.checkpoint: {error}".splitlines()[0],
            operation="load",
            uri=uri,
            hint="restore() the set and load it with torch's FileSystemReader if you trust who wrote it",
        ) from error
    if not isinstance(metadata, Metadata):
        raise IntegrityError(f"it holds a {type(metadata).__name__}, not the metadata of a checkpoint", operation="load", uri=uri)
    return metadata
