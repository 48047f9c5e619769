"""The files of a rank's part of a set, as torch's FileSystemWriter makes them: each is opened in the spool."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import BinaryIO, cast

from torch.distributed.checkpoint.filesystem import FileSystemBase

from wherry.checkpoints.saving import SetPart
from wherry.torch.summed_file import SummedFile


class PartFiles(FileSystemBase):
    """What the writer needs of a file system. Nothing is there before it is written, and nothing is renamed or removed.

    `.metadata` is written as `.metadata.tmp` by torch, which then renames it. Here it gets its name at once: nobody sees any file
    of a set before its manifest is there.
    """

    def __init__(self, part: SetPart, root: str) -> None:
        self._part = part
        self._root = root
        self._written: dict[str, SummedFile] = {}

    def crc32c_of(self, name: str, start: int, end: int) -> int:
        """The CRC32C of an item, bytes [start, end) of the file `name`."""
        return self._written[name].crc32c_of(start, end)

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        """A new file of the part; an exception in the block throws it away."""
        assert mode == "wb", "a set is read by the StorageReader"
        name = str(path).removeprefix(f"{self._root}/").removesuffix(".tmp")
        with self._part.open(name) as file:
            stream = SummedFile(cast("BinaryIO", file))
            yield stream
            self._written[name] = stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """A path below another."""
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        """The path as it is."""
        return str(path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Nothing: the file has this name already."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: a set has no folders."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether it is there: each set is new."""
        return False

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Nothing is ever removed."""
        raise FileNotFoundError(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No `checkpoint_id` stands for a part."""
        return False
