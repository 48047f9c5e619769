"""For torch-checkpointing, PyTorch's asynchronous CheckpointManager: manager_config() has it save and load sets."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
import threading
import weakref
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.saving import SetPart
from wherry.errors import ConfigError, IntegrityError, MissingExtraError, NotFoundError
from wherry.integrations.folder_names import step_of

try:
    from torch_checkpointing.checkpoint_manager import CheckpointManager
    from torch_checkpointing.storage.base_storage import Storage, StorageConfig
except ImportError as error:
    raise MissingExtraError("this is for torch-checkpointing: pip install torch-checkpointing") from error

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["SetStorage", "SetStorageConfig", "manager_config"]


def manager_config(checkpoints: Checkpoints, config: Any = None, *, wait: bool = True) -> Any:
    """The configuration of a CheckpointManager whose checkpoints are sets::

        from wherry.integrations.torch_checkpointing import manager_config

        manager = manager_config(checkpoints, CheckpointManager.Config.with_async_save()).build()
        future = manager.save("step_1000", {"model": model.state_dict(), "step": 1000})

    `config` is taken as it is but for its storage, its finalize_callback and `write_to_temp_dir`; by default it saves
    asynchronously. All ranks call it at the same place, where `Checkpoints.attempt` is agreed on.

    A checkpoint's id ends in its step. Each rank writes into the spool; its part is handed over when all ranks have written. With
    `wait` save() returns, or its future is done, when the set is committed; else when it is handed over. load() takes such an id,
    "latest" or a set's name, fetches the files that this rank needs to a temporary folder and verifies them. Nothing but tensors
    and plain values is unpickled: other classes need `torch.serialization.add_safe_globals`.

    Raises what `Checkpoints.attempt` raises; ConfigError for a config that has a storage or a finalize_callback.
    """
    config = CheckpointManager.Config.with_async_save() if config is None else config
    if config.storage_config is not None or config.finalize_callback is not None:
        raise ConfigError("storage_config and finalize_callback are set here: leave them out of the configuration")
    _ = checkpoints.attempt  # the process that writes cannot ask the other ranks
    writer = replace(config.save.writer_config, write_to_temp_dir=False)
    return replace(
        config,
        save=replace(config.save, writer_config=writer),
        storage_config=SetStorageConfig(checkpoints, wait),
        finalize_callback=_finalize,
    )


def _finalize(arguments: Any) -> None:
    arguments.storage.hand_over()


@dataclass
class SetStorageConfig(StorageConfig):  # type: ignore[misc]  # its classes are unknown where it is not installed
    """Opens the storage, also in the process that writes. Its pickle has no secret."""

    checkpoints: Checkpoints
    wait: bool = True

    def create_storage(self) -> SetStorage:
        """The storage of this process."""
        return SetStorage(self.checkpoints, wait=self.wait)


class SetStorage(Storage):  # type: ignore[misc]
    """The first part of a path is a checkpoint's id, and so a set; the rest is the name of a file in it."""

    def __init__(self, checkpoints: Checkpoints, *, wait: bool = True) -> None:
        self._checkpoints = checkpoints
        self._wait = wait
        self._lock = threading.Lock()
        self._writing: tuple[str, SetPart] | None = None
        self._reading: tuple[str, _RestoredParts] | None = None

    # -- writing

    def _part(self, checkpoint_id: str) -> SetPart:
        with self._lock:
            if self._writing is not None and self._writing[0] != checkpoint_id:
                self._writing[1].give_up(f"it was not finished when {checkpoint_id} was saved")
                self._writing = None
            if self._writing is None:
                step = step_of(checkpoint_id)
                if step is None:
                    raise ConfigError(f"the checkpoint id {checkpoint_id!r} has no step: give one such as 'step_1000'")
                self._writing = (checkpoint_id, self._checkpoints.part(step, metadata={"saved_by": "torch-checkpointing"}))
            return self._writing[1]

    def stream_write(self, path: Path) -> Any:
        """A file of the set in the spool; an exception in its ``with`` block throws it away."""
        checkpoint_id, name = _split(path)
        return self._part(checkpoint_id).open(name)

    def write(self, path: Path, data: Buffer) -> None:
        """Write a file of the set."""
        with self.stream_write(path) as file:
            file.write(data)

    def hand_over(self) -> None:
        """All files of this rank are written: hand its part over, and wait for the commit, if that is wanted."""
        if self._writing is None:
            return
        (_, part), self._writing = self._writing, None
        handle = part.hand_over("folder")
        if self._wait:
            handle.wait()

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Nothing: a set has no folders."""

    def rename(self, src_path: Path, dst_path: Path, is_directory: bool = False, background_cleanup: bool = False) -> None:
        """Refuse it: a set is committed by its manifest."""
        raise OSError(f"{src_path}: a set is committed by its manifest, not by a new name: use manager_config()")

    def delete(self, path: Path) -> None:
        """Refuse it."""
        raise OSError(f"{path}: the files of a set are deleted together, by Checkpoints.delete() and prune()")

    def rmdir(self, path: Path) -> None:
        """Refuse it."""
        self.delete(path)

    # -- reading

    def _set(self, checkpoint_id: str, *, anew: bool = False) -> _RestoredParts:
        with self._lock:
            if anew or self._reading is None or self._reading[0] != checkpoint_id:
                self._reading = None
                self._reading = (checkpoint_id, _RestoredParts(self._checkpoints, self._find(checkpoint_id)))
            return self._reading[1]

    def _find(self, checkpoint_id: str) -> Manifest:
        if SetName.parse(checkpoint_id) is None and (step := step_of(checkpoint_id)) is not None:
            return self._checkpoints.find(step)
        return self._checkpoints.find(checkpoint_id)

    def exists(self, path: Path) -> bool:
        """Whether there is such a set, or such a file in it."""
        checkpoint_id, name = _split(path)
        try:
            found = self._set(checkpoint_id, anew=not name)
        except (NotFoundError, ConfigError):
            return False
        return not name or name in found.names

    def isdir(self, path: Path) -> bool:
        """Whether it is a set."""
        return not _split(path)[1] and self.exists(path)

    def ls(self, path: Path) -> list[str]:
        """The names of a set's files."""
        return sorted({name.partition("/")[0] for name in self._set(_split(path)[0]).names})

    def getsize(self, path: Path) -> int:
        """The size of a file in bytes. FileNotFoundError."""
        return self._file(path).stat().st_size

    def read(self, path: Path, read_args: Any = None) -> bytes:
        """All of a file, which is no pickle, or one of plain values. FileNotFoundError, IntegrityError."""
        content = self._file(path).read_bytes()
        if path.suffix == ".pkl":
            _check_plain(content, path)
        return content

    def stream_read(self, path: Path, read_args: Any = None) -> io.RawIOBase:
        """A file of torch.save() that holds tensors and plain values only. FileNotFoundError, IntegrityError."""
        return open(self._checked(path), "rb", buffering=0)

    def remap_path(self, path: Path) -> str:
        """Where the file is in the store."""
        checkpoint_id, name = _split(path)
        return f"{self._checkpoints.catalog.keys.data(self._set(checkpoint_id).manifest.set)}{name}"

    def _file(self, path: Path) -> Path:
        checkpoint_id, name = _split(path)
        return self._set(checkpoint_id).file(name)

    def _checked(self, path: Path) -> Path:
        """The library unpickles whatever is there: so this looks first whether torch would do so safely."""
        file = self._file(path)
        found = self._set(_split(path)[0])
        if file not in found.checked:
            try:
                if not zipfile.is_zipfile(file):
                    raise pickle.UnpicklingError("it is no file of torch.save()")
                torch.load(file, map_location="meta", weights_only=True)
            except pickle.UnpicklingError as error:
                raise _refused(path, str(error).splitlines()[0]) from error
            found.checked.add(file)
        return file


class _RestoredParts:
    """A set, of which the parts of those ranks whose files are asked for are restored to a temporary folder."""

    def __init__(self, checkpoints: Checkpoints, manifest: Manifest) -> None:
        self.manifest = manifest
        self.checked: set[Path] = set()
        self._checkpoints = checkpoints
        self._folder = Path(tempfile.mkdtemp(prefix="wherry-load-"))
        weakref.finalize(self, _remove, self._folder, os.getpid())
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> dict[str, int]:
        """All files, with the rank that has saved each."""
        if not self._names:
            for rank in range(self.manifest.world):
                objects = self._checkpoints.catalog.objects_of(self.manifest, rank)
                self._names.update((one.name, rank) for _, one in objects)
        return self._names

    def file(self, name: str) -> Path:
        """A verified file on this disk. FileNotFoundError."""
        if name not in self.names:
            raise FileNotFoundError(f"the set {self.manifest.set} has no file {name!r}")
        rank = self.names[name]
        folder = self._folder / str(rank)
        with self._lock:
            if not folder.exists():
                self._checkpoints.restore(str(self.manifest.set), folder, ranks=[rank], together=False)
        return folder / name


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(folder, ignore_errors=True)


class _PlainUnpickler(pickle.Unpickler):  # noqa: S301  it loads no class
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants {module}.{name}")


def _check_plain(content: bytes, path: Path) -> None:
    try:
        _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # whatever a pickle that is none raises
        raise _refused(path, str(error)) from error


def _refused(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        f"{path} is refused: it holds more than tensors and plain values ({why})",
        operation="load",
        hint="allow its class by torch.serialization.add_safe_globals if you trust who wrote it",
    )


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    parts = Path(path).parts
    if not parts or Path(path).is_absolute():
        raise ConfigError(f"the checkpoint id {str(path)!r} is no name: give one such as 'step_1000', the run is known already")
    return parts[0], "/".join(parts[1:])
