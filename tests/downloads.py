"""What the tests of downloads share."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wherry.checksum import crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError
from wherry.store import ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.testing.faulty import Fault, FaultyStore
from wherry.transfer.download import download

KEY = "run/ep0.pt"
DATA = random.Random(1).randbytes(100_000)
RANGES = TransferConfig(range_size_bytes=16_384, ranges_in_flight=3)
ONE_BY_ONE = replace(RANGES, ranges_in_flight=1)
QUICK = RetryConfig(call_deadline_s=30, first_wait_s=0.001, longest_wait_s=0.001)


def put(store: ObjectStore, folder: Path, data: bytes = DATA, key: str = KEY) -> None:
    source = folder / f"source-{uuid.uuid4().hex}"
    source.write_bytes(data)
    store.put_file(key, source, PutOptions(crc32c=crc32c(data)))
    source.unlink()


def fetch(
    store: ObjectStore,
    destination: Path,
    *,
    key: str = KEY,
    overwrite: bool = False,
    transfer: TransferConfig = RANGES,
    retry: RetryConfig = QUICK,
) -> ObjectMeta:
    return download(store, key, destination, uri=f"memory://{key}", overwrite=overwrite, transfer=transfer, retry=retry)


class DamagingStore(WrappedStore):
    """Flips a byte of `times` ranges that it delivers, from the one on that is the `first`, counted from 1."""

    def __init__(self, inner: ObjectStore, times: int, first: int = 1) -> None:
        super().__init__(inner)
        self.bad = range(first, first + times)
        self.calls = itertools.count(1)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        super().get_file(key, path, start=start, end=end, if_match=if_match)
        if next(self.calls) in self.bad:
            flip(path, start)


class LyingStore(WrappedStore):
    """Says other things of its objects than the inner store."""

    def __init__(self, inner: ObjectStore, **says: Any) -> None:
        super().__init__(inner)
        self.says = says

    def head(self, key: str) -> ObjectMeta:
        return replace(super().head(key), **self.says)


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def break_off(store: ObjectStore, destination: Path, n_ranges: int, *, transfer: TransferConfig | None = None) -> None:
    """Download until so many ranges are there."""
    with pytest.raises(AccessDeniedError):
        fetch(
            FaultyStore(store, [Fault("get", AccessDeniedError("revoked"), nth=n_ranges + 1, times=100)]),
            destination,
            transfer=transfer or RANGES,
        )
