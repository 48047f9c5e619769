"""StorageReader: torch.distributed.checkpoint loads a set, each rank only the items that it needs."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as StorageReaderOfTorch
from torch.futures import Future

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.reading import reading, told_if_pruned
from wherry.checkpoints.restore import DamagedSetError
from wherry.checkpoints.state_dicts import refused_by
from wherry.errors import ConfigError, IntegrityError, NotFoundError
from wherry.torch.dcp_metadata import read_dcp_metadata
from wherry.torch.verified_ranges import Range, VerifiedRanges, View

_METADATA = ".metadata"


@dataclass(frozen=True)
class _Item:
    """Where one saved tensor or value lies: bytes [offset, offset + length) of the range that is verified as a whole."""

    range: Range
    offset: int
    length: int


class StorageReader(StorageReaderOfTorch):
    """Loads a set by torch.distributed.checkpoint, also on another number of ranks than have saved it::

        reader = wherry.torch.StorageReader(checkpoints, "latest")
        dcp.load(state, storage_reader=reader)

    `which` is as in `Checkpoints.find`, and the set is found here: NotFoundError if there is none. With several ranks "latest" is
    the same set on all of them, so all make their reader at the same place of their programs. Each rank fetches only the items
    of its plan, in requests of at most 16 MiB, and compares each with the CRC32C that was saved with it; of a set that torch's
    own writer has made, whole files, with those of their receipts. Meanwhile prune leaves the set. DamagedSetError names the set
    and the object; PrunedWhileRestoringError, which is one, a set that was deleted.

    Nothing but tensors and plain values is unpickled: other classes need `torch.serialization.add_safe_globals`.
    """

    def __init__(self, checkpoints: Checkpoints, which: int | str = "latest") -> None:
        super().__init__()
        self.manifest = checkpoints.find(which)
        self._checkpoints = checkpoints
        self._catalog = checkpoints.catalog
        self._ranges = VerifiedRanges(self._catalog.store)
        self._infos: dict[Any, Any] = {}
        self._objects: dict[str, tuple[str, SetObject]] | None = None

    def __repr__(self) -> str:
        return f"<StorageReader {self.checkpoint_id}>"

    @property
    def checkpoint_id(self) -> str:
        """Where the set's objects are, without the store."""
        return self._catalog.keys.data(self.manifest.set).rstrip("/")

    # -- what torch calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse a `checkpoint_id`: the reader has found its set."""
        if checkpoint_id is not None:
            raise ConfigError(
                f"checkpoint_id={str(checkpoint_id)!r}: leave it out, StorageReader(checkpoints, which) names the set"
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of all ranks; of `rank` alone, of a set that was saved without collective calls."""
        rank = kwargs.get("rank")
        with told_if_pruned(self._catalog.store, self._catalog.keys, self.manifest.set):
            return self._read_metadata(*((_METADATA, 0) if rank is None else (f"__{rank}{_METADATA}", rank)))

    def _read_metadata(self, name: str, saved_by: int) -> Metadata:
        with self._naming_damage():
            objects = self._catalog.objects_of(self.manifest, saved_by) if saved_by < self.manifest.world else []
        found = next(((key, one) for key, one in objects if one.name == name), None)
        if found is None:
            found = self._all_objects().get(name)  # saved as a folder, perhaps by another rank
        if found is None:
            raise NotFoundError(
                f"the set {self.manifest.set} has no {name}: it was not saved by torch.distributed.checkpoint",
                operation="load",
                uri=self.checkpoint_id,
            )
        for _, view in self._fetch([_whole(*found)]):
            metadata = read_dcp_metadata(io.BufferedReader(view), found[0])
        if not isinstance(metadata.storage_data, dict):
            raise IntegrityError("it does not say where the tensors lie", operation="load", uri=found[0])
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take over where the items lie."""
        self._infos = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fetch, verify and load the items of the plan."""
        wanted: dict[Range, list[tuple[_Item, ReadItem]]] = {}
        for request in plan.items:
            item = self._item(request)
            wanted.setdefault(item.range, []).append((item, request))
        with reading(self._catalog.store, self._catalog.keys, self.manifest.set):
            for found, view in self._fetch(list(wanted)):
                for item, request in wanted[found]:
                    _load(view.part(item.offset, item.length), request, planner, found.key)
        self._checkpoints.parent = self.manifest.set
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether torch may choose this class by a `checkpoint_id`: no."""
        return False

    # -- where things are

    def _item(self, request: ReadItem) -> _Item:
        try:
            info = self._infos[request.storage_index]
            name, offset, length = info.relative_path, info.offset, info.length
            crc = getattr(info, "wherry_crc32c", None)
            is_sound = isinstance(name, str) and type(offset) is type(length) is int and offset >= 0 and length >= 0
            is_sound = is_sound and (crc is None or type(crc) is int) and offset + length <= self.manifest.size_bytes
        except (KeyError, AttributeError, TypeError):
            is_sound = False
        if not is_sound:
            raise self._damaged(f"{_METADATA} does not say where {request.storage_index.fqn} lies")
        if getattr(info, "transform_descriptors", None):
            raise ConfigError(
                f"{request.storage_index.fqn} was saved through an extension of torch: restore() the set, load it there"
            )
        if crc is not None and not self.manifest.references and not {"", ".", ".."}.intersection(name.split("/")):
            return _Item(Range(self._catalog.keys.data(self.manifest.set) + name, offset, offset + length, crc), 0, length)
        if name not in self._all_objects():
            raise self._damaged(f"{_METADATA} names {name!r}, which is no object of the set")
        key, one = self._all_objects()[name]
        if offset + length > one.size_bytes:
            raise self._damaged(f"{_METADATA} says that {request.storage_index.fqn} lies behind the end of {name}")
        if crc is None:
            return _Item(_whole(key, one), offset, length)
        return _Item(Range(key, offset, offset + length, crc), 0, length)

    def _all_objects(self) -> dict[str, tuple[str, SetObject]]:
        if self._objects is None:
            with self._naming_damage():
                self._objects = {one.name: (key, one) for key, one in self._catalog.objects(self.manifest)}
        return self._objects

    def _damaged(self, why: str) -> DamagedSetError:
        return DamagedSetError(f"the set {self.manifest.set} is damaged: {why}", operation="load", uri=self.checkpoint_id)

    def _fetch(self, wanted: Sequence[Range]) -> Iterator[tuple[Range, View]]:
        with self._naming_damage():
            yield from self._ranges.fetch(wanted)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """What is missing or wrong in the store, as a DamagedSetError that names the set."""
        try:
            yield
        except NotFoundError as error:
            raise self._damaged(f"an object is not there ({error})") from error
        except IntegrityError as error:
            raise self._damaged(str(error)) from error


def _whole(key: str, one: SetObject) -> Range:
    return Range(key, 0, one.size_bytes, one.crc32c)


def _load(file: IO[bytes], request: ReadItem, planner: LoadPlanner, key: str) -> None:
    """Load one item into the place that the planner has for it."""
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise IntegrityError(
            f"{request.storage_index.fqn} is refused: it holds more than tensors and plain values ({refused_by(error)})",
            operation="load",
            uri=key,
            hint="allow its class by torch.serialization.add_safe_globals if you trust who wrote it",
        ) from error
    if request.type is LoadItemType.BYTE_IO:
        # torch's planners unpickle without weights_only: so they are given what was loaded safely, pickled anew.
        plain = io.BytesIO()
        torch.save(loaded, plain)
        plain.seek(0)
        planner.load_bytes(request, plain)
        return
    if not isinstance(loaded, torch.Tensor):
        raise IntegrityError(f"{request.storage_index.fqn} is a {type(loaded).__name__}, not a tensor", operation="load", uri=key)
    tensor = loaded
    for dimension, (start, length) in enumerate(zip(request.storage_offsets, request.lengths, strict=True)):
        tensor = tensor.narrow(dimension, start, length)
    target = planner.resolve_tensor(request).detach()
    if target.size() != tensor.size():
        raise ConfigError(
            f"{request.storage_index.fqn} has the size {tuple(target.size())} here, saved was {tuple(tensor.size())}"
        )
    target.copy_(tensor)
    planner.commit_tensor(request, target)
