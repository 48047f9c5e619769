"""Where Ray Train keeps a run: its checkpoints are sets, all else is plain objects beside them. Without Ray itself."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec
from pyarrow.fs import FileInfo, FileSelector, FSSpecHandler

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.opening import Opening
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError, WherryError
from wherry.integrations.ray_sets import commit_folder, committed, step_and_version

log = logging.getLogger("wherry.checkpoints")

#: Sets that Ray has deleted, by the run and the attempt: they go when a newer one is committed. Ray opens its storage many times.
_leaving: dict[tuple[str, str], list[SetName]] = {}


class RayStorage(FSSpecHandler):  # type: ignore[misc]  # pyarrow ships no types
    """The file system of one run: what Ray writes to ``RUN/checkpoint_<step>/`` goes to the set of that step.

    A file is verified in the store when it is closed. commit() makes a checkpoint a set. Deleting one deletes the set when a
    newer one is committed. Every process opens it from its pickle, which has no secret.
    """

    def __init__(self, pickled: bytes) -> None:
        """`pickled`: Checkpoints of one rank, with their attempt."""
        self._pickled = pickled
        self._opening: Opening = self.checkpoints.__reduce__()[1][1]
        scheme = self._opening.uri.partition("://")[0]
        try:
            system = fsspec.filesystem(f"wherry+{scheme}", config=self._opening.config, **self._opening.storage_options)
        except ValueError as error:
            raise ConfigError(f"{self._opening.uri}: with Ray a run is kept on s3://, gs:// or in a folder") from error
        super().__init__(system)
        self.run: str = self.fs._strip_protocol(f"wherry+{self._opening.uri.rstrip('/')}/{self._opening.run_name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._pickled,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayStorage) and self._opening == other._opening

    __hash__ = None  # type: ignore[assignment]

    @property
    def checkpoints(self) -> Checkpoints:
        """Those of this process."""
        found: Checkpoints = pickle.loads(self._pickled)  # noqa: S301  it was made here
        return found

    # -- which set

    def _folder(self, path: str) -> tuple[str, str] | None:
        """The checkpoint that a path belongs to, and the name in it; None: it is of none."""
        below = path.removeprefix(f"{self.run}/")
        folder, _, name = below.partition("/")
        return None if below == path or step_and_version(folder) is None else (folder, name)

    def _own(self, folder: str) -> SetName:
        """The set that this start of the job writes for a checkpoint of this name."""
        step, version = step_and_version(folder) or (0, 1)
        return SetName(self.checkpoints.attempt.key, step, version)

    def _inner(self, path: str, *, is_new: bool = False) -> str:
        """Where a path leads: to the newest committed set of that checkpoint, else to the one of this start."""
        if (found := self._folder(path)) is None:
            return path
        folder, name = found
        of_set = self._own(folder)
        if not is_new:
            of_set = committed(self.checkpoints.catalog, folder) or of_set
        return f"{self.run}/checkpoints/data/{of_set}/{name}".rstrip("/")

    # -- what Ray calls

    def get_type_name(self) -> str:
        """The name of this kind of file system."""
        return "wherry-ray"

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """What is there under each path."""
        return [_named(super(RayStorage, self).get_file_info([self._inner(path)])[0], path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """What is in a folder; of a set its files, without the receipt."""
        inner = self._inner(selector.base_dir)
        found = super().get_file_info_selector(FileSelector(inner, selector.allow_not_found, selector.recursive))
        if inner == selector.base_dir:
            return list(found)
        below = ((one, one.path[len(inner) :]) for one in found)
        return [_named(one, selector.base_dir + name) for one, name in below if name.split("/")[1:2] != ["_ranks"]]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing: a store has no folders."""

    def open_output_stream(self, path: str, metadata: object) -> Any:
        """Open a file to write it. AlreadyExistsError if its checkpoint is a set by now."""
        if (found := self._folder(path)) is not None:
            try:
                self.checkpoints.catalog.read(self._own(found[0]))
            except NotFoundError:
                pass
            else:
                raise AlreadyExistsError(
                    f"this start of the job has saved the checkpoint {found[0]!r} already",
                    operation="save",
                    uri=path,
                    hint="give each report() a checkpoint_dir_name of its own",
                )
        return super().open_output_stream(self._inner(path, is_new=True), metadata)

    def open_input_stream(self, path: str) -> Any:
        """Open a file to read it from its beginning; its bytes are verified at its end."""
        return super().open_input_stream(self._inner(path))

    def open_input_file(self, path: str) -> Any:
        """Open a file to read anywhere in it."""
        return super().open_input_file(self._inner(path))

    def delete_dir(self, path: str) -> None:
        """Delete a folder; a set when a newer one is committed."""
        if (found := self._folder(path)) is None:
            super().delete_dir(path)
        elif (name := committed(self.checkpoints.catalog, found[0])) is not None:
            self._left.append(name)

    def delete_file(self, path: str) -> None:
        """Delete a file that is of no set."""
        if self._folder(path) is not None:
            raise ConfigError(f"{path}: the files of a set are deleted together")
        super().delete_file(path)

    def move(self, src: str, dest: str) -> None:
        """Move nothing: ConfigError."""
        raise ConfigError(f"{src}: the storage of a run moves nothing")

    # -- sets

    @property
    def _left(self) -> list[SetName]:
        return _leaving.setdefault((self.run, self.checkpoints.attempt.key), [])

    def commit(self, folder: str, metrics: Mapping[str, object]) -> Manifest:
        """Make a checkpoint of this start a set, all of whose files are stored. It may be called again."""
        parent = self.checkpoints.attempt.resumed_from
        return commit_folder(self.checkpoints.catalog, self._own(folder), folder, metrics, parent)

    def delete(self, names: Iterable[SetName] = ()) -> None:
        """Delete these sets and those that Ray has deleted, as a newer one is committed. What is in the way of one is logged."""
        self._left.extend(names)
        while self._left:
            name = self._left.pop(0)
            try:
                self.checkpoints.delete(str(name))
            except NotFoundError:
                continue
            except WherryError as error:
                log.warning("the set %s stays in the bucket, until the run begins anew: %s", name, error)


def _named(info: FileInfo, path: str) -> FileInfo:
    return FileInfo(path, info.type, size=info.size, mtime=info.mtime)
