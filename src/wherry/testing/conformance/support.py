"""What the laws share: files with known bytes, parts of them, calls at one moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from wherry.checksum import crc32c
from wherry.errors import PermanentError
from wherry.store import MultipartStore, ObjectStore, Part, PutOptions

_A = TypeVar("_A")
_R = TypeVar("_R")

KIB = 1024


def some_bytes(size: int) -> bytes:
    """Bytes that depend on the size only."""
    return random.Random(size).randbytes(size)


def same(one: bytes, other: bytes) -> bool:
    """Whether they are equal. pytest would compare them line by line if not, which takes hours for a megabyte."""
    return one == other


def new_file(folder: Path, data: bytes, name: str = "source") -> Path:
    """A new file (a new inode) with these bytes."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def get(store: ObjectStore, key: str, folder: Path, name: str = "got") -> bytes:
    """The bytes of an object."""
    path = new_file(folder, b"", name)
    store.get_file(key, path)
    return path.read_bytes()


def checks_crc32c(store: ObjectStore, key: str, folder: Path) -> bool:
    """The capability, asked after a first put: a store may learn only from an answer that its server ignores checksums."""
    data = b"the first object"
    store.put_file(key, new_file(folder, data, "first"), PutOptions(crc32c=crc32c(data)))
    return store.capabilities.checks_crc32c


def parts_of(store: ObjectStore, key: str) -> MultipartStore | None:
    """The store as one that takes parts. If its capabilities deny them: None, after a check that it refuses them."""
    if not store.capabilities.multipart:
        if isinstance(store, MultipartStore):  # a wrapper
            with pytest.raises(PermanentError):
                store.begin(key, 1)
        return None
    assert isinstance(store, MultipartStore)
    return store


def joins(store: ObjectStore, key: str) -> int | None:
    """The smallest size of a source. If the capabilities deny joins: None, after a check that it refuses join()."""
    if store.capabilities.min_joined_bytes is None:
        with pytest.raises(PermanentError, match="min_joined_bytes"):
            store.join(key, [f"{key}-source"], 1)
    return store.capabilities.min_joined_bytes


def large_file(store: ObjectStore, folder: Path) -> tuple[Path, bytes]:
    """A file that makes two full parts and a bit."""
    data = some_bytes(2 * part_size(store) + 1_001)
    return new_file(folder, data, "large"), data


def part_size(store: ObjectStore) -> int:
    """In bytes: the smallest that the store takes, at least 64 KiB."""
    return max(store.capabilities.min_part_size_bytes, 64 * KIB)


def split(store: ObjectStore, data: bytes) -> list[Part]:
    """The parts that make up `data`."""
    size = part_size(store)
    starts = range(0, len(data), size)
    return [Part(n, at, min(at + size, len(data)), crc32c(data[at : at + size])) for n, at in enumerate(starts, 1)]


def at_once(call: Callable[[_A], _R], arguments: Sequence[_A]) -> list[_R]:
    """Call with each argument in a thread of its own, all starting together; the results, in order."""
    start = threading.Barrier(len(arguments))

    def run(argument: _A) -> _R:
        start.wait(30)
        return call(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))
