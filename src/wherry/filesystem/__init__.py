"""`wherry::` for fsspec. The class is loaded at its first use: fsspec asks this package for mere names, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.filesystem.filesystem import WherryFileSystem as WherryFileSystem

__all__ = ["WherryFileSystem"]


def __getattr__(name: str) -> object:
    if name != "WherryFileSystem":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wherry.filesystem.filesystem import WherryFileSystem

    return WherryFileSystem
