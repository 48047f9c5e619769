"""Nodes that restore the same set: each fetches another part of it, and they pass the parts on over torch.distributed.

The first rank of each node takes part. Objects are cut into pieces. The nodes fetch them by turns, and each sends its own to all
others. What comes is written where a broken download would have left it (wherry.transfer.resume). Then each node's own
download finds it there, sums and judges it as if it had come from the store, and fetches what is missing or wrong. So an exchange
that fails, in whatever way and however far it came, costs time and bytes, and nothing else.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.restore import FolderRestore, Keyed, fetch_checked, is_there
from wherry.checkpoints.restoring.together import Together
from wherry.checkpoints.world import process_group
from wherry.checksum import crc32c, crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import WherryError
from wherry.posix.atomic_write import write_atomically
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.retry import call_with_retry
from wherry.transfer.resume import Partial, Version, kept_partial

log = logging.getLogger("wherry.checkpoints")

#: Below this the exchange saves less than it costs.
LEAST_BYTES = 64 * 2**20
#: A node that has not fetched a piece by then sends no more: the others fetch its pieces themselves.
_PIECE_S = 120.0
#: A node that has said nothing for so long is given up, and the exchange with it.
_SILENCE = timedelta(minutes=5)
#: Large objects whose files are open at a time.
_LARGE_AT_ONCE = 32


@dataclass(frozen=True)
class Bucket:
    """Where objects come from. `fetch` downloads one, verified."""

    store: ObjectStore
    uri_for: Callable[[str], str]
    transfer: TransferConfig
    retry: RetryConfig
    fetch: Callable[[str, Path], ObjectMeta]


@dataclass(frozen=True)
class Segment:
    """Bytes [start, end) of the object of this number."""

    number: int
    start: int
    end: int


def cut(objects: Sequence[Keyed], piece_bytes: int) -> list[tuple[Segment, ...]]:
    """The pieces of a set: the ranges of large objects, and small ones together, up to `piece_bytes`."""
    pieces: list[tuple[Segment, ...]] = []
    together: list[Segment] = []
    n_bytes = 0
    for number, (_, expected) in enumerate(objects):
        if expected.size_bytes > piece_bytes:
            starts = range(0, expected.size_bytes, piece_bytes)
            pieces.extend((Segment(number, start, min(start + piece_bytes, expected.size_bytes)),) for start in starts)
            continue
        if n_bytes + expected.size_bytes > piece_bytes:
            pieces.append(tuple(together))
            together, n_bytes = [], 0
        together.append(Segment(number, 0, expected.size_bytes))
        n_bytes += expected.size_bytes
    return [*pieces, tuple(together)] if together else pieces


@dataclass
class _SmallFile:
    """An object of one piece, which is judged by its receipt."""

    key: str
    expected: SetObject
    path: Path
    bucket: Bucket

    def fetch(self, start: int) -> None:
        fetch_checked(self.key, self.expected, self.path, self.bucket.fetch)

    def read(self, start: int, end: int) -> bytes:
        return self.path.read_bytes()

    def write(self, start: int, data: bytes) -> None:
        if not is_there(self.path, self.expected) and crc32c(data) == self.expected.crc32c:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, data)


@dataclass
class _LargeFile:
    """An object of several pieces, in the file of a download that is not finished."""

    key: str
    partial: Partial
    bucket: Bucket
    have: set[int] = field(default_factory=set)

    def _holds(self, number: int) -> bool:
        crc = self.partial.recorded.get(number)
        if number not in self.have and crc is not None:
            if crc != crc32c_of_file(self.partial.path, *self.partial.version.range(number)):
                return False
            self.have.add(number)
        return number in self.have

    def fetch(self, start: int) -> None:
        version, path = self.partial.version, self.partial.path
        number = start // version.range_size_bytes
        if self._holds(number):
            return
        first, end = version.range(number)

        def get() -> int | None:
            return self.bucket.store.get_file(self.key, path, start=first, end=end, if_match=version.etag)

        crc = call_with_retry(get, config=self.bucket.retry)
        self.partial.note(number, crc32c_of_file(path, first, end) if crc is None else crc)
        self.have.add(number)

    def read(self, start: int, end: int) -> bytes:
        with open(self.partial.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def write(self, start: int, data: bytes) -> None:
        number = start // self.partial.version.range_size_bytes
        if self._holds(number):
            return
        with open(self.partial.path, "r+b", buffering=0) as file:
            at = start
            while data:
                written = os.pwrite(file.fileno(), data, at)
                at, data = at + written, data[written:]
        self.partial.note(number, crc32c_of_file(self.partial.path, start, at))
        self.have.add(number)


@dataclass
class _WholeFile:
    """An object that an earlier call has fetched and verified."""

    path: Path

    def fetch(self, start: int) -> None:
        """It is there."""

    def read(self, start: int, end: int) -> bytes:
        with open(self.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def write(self, start: int, data: bytes) -> None:
        """It is there."""


_File = _SmallFile | _LargeFile | _WholeFile


class _Exchange:
    """Some objects of a set on their way between the nodes. `leads`: the ranks that take part, in `group`."""

    def __init__(
        self, objects: Sequence[Keyed], staging: Path, bucket: Bucket, group: Any, leads: Sequence[int], rank: int
    ) -> None:
        self._objects = objects
        self._staging = staging
        self._bucket = bucket
        self._group = group
        self._leads = leads
        self._rank = rank
        self._files: list[_File | None] = []
        self._sends = self._keeps = True

    def run(self) -> None:
        """Exchange all pieces. RuntimeError of torch.distributed when a node is gone, or silent."""
        pieces = cut(self._objects, self._bucket.transfer.range_size_bytes)
        with ExitStack() as stack:
            self._files = [self._file_or_none(stack, keyed) for keyed in self._objects]
            pool = DaemonThreadPool(self._bucket.transfer.ranges_in_flight, "wherry-exchange")
            stack.callback(pool.shutdown, cancel_futures=True)  # before the files are closed
            owners = [self._leads[number % len(self._leads)] for number in range(len(pieces))]
            own = {number: pool.submit(self._fetch, pieces[number]) for number, who in enumerate(owners) if who == self._rank}
            for number, piece in enumerate(pieces):
                if number in own:
                    self._send(piece, own.pop(number))
                else:
                    self._receive(piece, owners[number])

    def _file_or_none(self, stack: ExitStack, keyed: Keyed) -> _File | None:
        key, expected = keyed
        path, range_bytes = self._staging / expected.name, self._bucket.transfer.range_size_bytes
        if expected.size_bytes <= range_bytes:
            return _SmallFile(key, expected, path, self._bucket)
        try:
            if is_there(path, expected):
                return _WholeFile(path)
            meta = call_with_retry(lambda: self._bucket.store.head(key), config=self._bucket.retry)
            version = Version(self._bucket.uri_for(key), meta.etag, expected.size_bytes, range_bytes)
            partial = stack.enter_context(kept_partial(path, version))
        except (WherryError, OSError) as error:  # our own download will say so, if it is still true then
            log.info("%s is not exchanged: %s", key, error)
            return None
        return _LargeFile(key, partial, self._bucket) if partial is not None and partial.version == version else None

    def _fetch(self, piece: Sequence[Segment]) -> bytes | None:
        """Have the piece here; None if it cannot be exchanged."""
        for one in piece:
            if (file := self._files[one.number]) is None:
                return None
            file.fetch(one.start)
        return b""

    def _send(self, piece: Sequence[Segment], fetched: Future[bytes | None]) -> None:
        data = self._read(piece, fetched) if self._sends else None
        self._broadcast([0 if data is None else 1, 0 if data is None else crc32c(data)], self._rank)
        if data:
            self._broadcast_bytes(bytearray(data), self._rank)

    def _read(self, piece: Sequence[Segment], fetched: Future[bytes | None]) -> bytes | None:
        try:
            if fetched.result(_PIECE_S) is None:
                return None
            data = b"".join(file.read(one.start, one.end) for one in piece if (file := self._files[one.number]) is not None)
        except FutureTimeout:
            log.warning("this node has fetched nothing for %g s, the others fetch its parts of the set themselves", _PIECE_S)
            self._sends = False
            return None
        except (WherryError, OSError) as error:  # our own download will say so, if it is still true then
            log.info("a part of the set is not exchanged: %s", error)
            return None
        return data if len(data) == _size_of(piece) else None

    def _receive(self, piece: Sequence[Segment], owner: int) -> None:
        is_sent, crc = self._broadcast([0, 0], owner)
        if not is_sent:
            return
        data = bytearray(_size_of(piece))
        if data:
            self._broadcast_bytes(data, owner)
        if crc32c(memoryview(data)) != crc:
            log.warning("rank %d has sent %d bytes that came with another CRC32C: they are fetched", owner, len(data))
            return
        at = 0
        for one in piece:
            self._keep(one, bytes(memoryview(data)[at : at + one.end - one.start]))
            at += one.end - one.start

    def _keep(self, one: Segment, data: bytes) -> None:
        file = self._files[one.number]
        if file is None or not self._keeps:
            return
        try:
            file.write(one.start, data)
        except OSError as error:  # a full disk, as a rule: the other nodes go on, and our own download will say it
            log.warning("what the other nodes send cannot be kept: %s", error)
            self._keeps = False

    def _broadcast(self, numbers: list[int], owner: int) -> list[int]:
        import torch

        tensor = torch.tensor(numbers, dtype=torch.int64)
        process_group().broadcast(tensor, src=owner, group=self._group)
        return [int(number) for number in tensor.tolist()]

    def _broadcast_bytes(self, data: bytearray, owner: int) -> None:
        import torch

        process_group().broadcast(torch.frombuffer(data, dtype=torch.uint8), src=owner, group=self._group)


def _size_of(piece: Sequence[Segment]) -> int:
    return sum(one.end - one.start for one in piece)


def _batches(objects: Sequence[Keyed], range_bytes: int) -> Iterator[list[Keyed]]:
    """Objects in their order, with few large ones at a time."""
    batch: list[Keyed] = []
    n_large = 0
    for keyed in objects:
        batch.append(keyed)
        n_large += keyed[1].size_bytes > range_bytes
        if n_large == _LARGE_AT_ONCE:
            yield batch
            batch, n_large = [], 0
    if batch:
        yield batch


def exchange_between_nodes(others: Together, leads: Sequence[int], restore: FolderRestore, bucket: Bucket) -> None:
    """Have the parts of a set that other nodes have fetched. All ranks call it, before restore.run(), which fetches the rest.

    It is given up where a node has the set already, where another process restores there, and when a node is gone or silent.
    """
    is_lead = others.rank in leads
    if not all(others.each(_is_ready(restore) if is_lead else True)):
        return
    distributed = process_group()
    try:
        group = distributed.new_group(list(leads), backend="gloo", timeout=_SILENCE)
        if not is_lead:
            return
        try:
            for batch in _batches(restore.objects, bucket.transfer.range_size_bytes):
                _Exchange(batch, restore.staging, bucket, group, leads, others.rank).run()
        finally:
            distributed.destroy_process_group(group)
    except RuntimeError as error:
        log.warning("the nodes cannot pass on what they fetch, so each of them fetches all: %s", error)


def _is_ready(restore: FolderRestore) -> bool:
    try:
        return restore.begin(wait=False)
    except (WherryError, OSError):  # run() will raise it again
        restore.close()
        return False


def node_of(spool_folder: Path) -> str:
    """What is equal for the processes that share one spool on one machine, and for no others."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        machine = socket.gethostname()
    found = spool_folder.stat()
    return f"{machine} {found.st_dev} {found.st_ino}"
