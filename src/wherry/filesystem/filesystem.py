"""`wherry::` for fsspec: ``fsspec.open("wherry::s3://bucket/run/x.pt", "wb")`` writes into the spool, and what is read shows what
is still queued.

A ChainedFileSystem, fsspec's own mechanism for ``a::b`` URLs: the inner URL's protocol and options say where the objects are, the
connection is made by our backend. Object stores have no folders: making one does nothing, and a prefix of names is one.

Two file systems with equal options share their Uploaders, one for each bucket, which are drained at exit as any Uploader.
"""

from __future__ import annotations

import collections
import errno
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.utils import isfilelike

from wherry.errors import AlreadyExistsError, BucketNotFoundError, ConfigError, NotFoundError
from wherry.filesystem.entries import Info, describe
from wherry.filesystem.file_objects import CompressedWriter, ObjectReader, ObjectWriter, TextWriter, Version
from wherry.filesystem.store_paths import StorePaths
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.uploader import Uploader

#: Parallel deletions: each is one short request.
_DELETERS = 16
#: The errors of the local file system for an object that cannot have a file: a name too long, a file in place of a folder.
_NO_FILE_HERE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_BLOCK_BYTES = 16 * 2**20


class WherryFileSystem(StorePaths):
    """Objects behind a spool. A write returns once its upload is accepted; flush() waits until everything is in the store.

    `target_protocol` and `target_options` come from the inner URL, `spool` and `config` are those of `wherry.Uploader`:
    ``fsspec.open("wherry::s3://bucket/x", "wb", s3={"endpoint_url": ...}, wherry={"spool": ...})``.
    """

    #: Whether a write ends only when the object is in the store.
    _waits = False

    def info(self, path: str, **_: Any) -> Info:
        """Describe an object, queued or stored, or a folder: a prefix that objects have."""
        folder = self._folder(path)
        if folder.name:
            try:
                return describe(self._place, folder.uploader, folder.uploader.head(folder.name))
            except BucketNotFoundError:
                raise
            except NotFoundError:
                pass  # it may be a folder
        elif self._place.is_rooted:
            return folder.info  # the root exists, and listing all files of a machine would take long
        if next(folder.objects(), None) is None and folder.name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.unstrip_protocol(path))
        return folder.info

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is an object or a folder of that name. Raises AccessDeniedError if the store does not tell."""
        return self._kind(path) is not None

    def isdir(self, path: str) -> bool:
        """Whether objects have names below this one. Raises as exists() does."""
        return self._kind(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether there is an object of that name. Raises as exists() does."""
        return self._kind(path) == "file"

    def _kind(self, path: str) -> object:
        try:
            return self.info(path)["type"]
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> datetime:
        """When it was stored, or accepted if queued. NotImplementedError for folders, and where the store does not tell."""
        time_s = self.info(path).get("mtime")
        if not isinstance(time_s, float):
            raise NotImplementedError(f"the store does not say when {self.unstrip_protocol(path)} was stored")
        return datetime.fromtimestamp(time_s, timezone.utc)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Info] | list[str]:
        """The objects and folders directly below a folder; the object itself if it is one.

        It goes through all names below the folder: the contract of stores has no listing of one level.
        """
        found = self._folder(path).entries(1, with_folders=True)
        if not found and (one := self.info(path))["type"] == "file":
            found = {str(one["name"]): one}
        return list(found.values()) if detail else list(found)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> list[str] | dict[str, Info]:
        """All objects below a folder, in the order of their paths; the object itself if it is one. It makes one listing."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        folder = self._folder(path)
        found = folder.entries(maxdepth, with_folders=withdirs)
        if found and withdirs:
            found[str(folder.info["name"])] = folder.info
        if not found and self.isfile(path):
            found[self._strip_protocol(path)] = self.info(path)
        return dict(sorted(found.items())) if detail else sorted(found)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of an object, or those of a range given as for a Python slice. The whole is verified, as far as the store
        knows a checksum.
        """
        version = Version(*self._object(path))
        try:
            first, last, _step = slice(start, end).indices(version.meta.size_bytes)
            return version.read(first, last)
        finally:
            version.close()

    def get(self, rpath: Any, lpath: Any, *args: Any, **options: Any) -> None:
        """Download objects, and folders with `recursive`, as fsspec does.

        An object that cannot have a file here (a key that breaks the rules for names, a file where a folder has to be, a name
        that is too long) does not stop the others: when these are downloaded, ConfigError names it.
        """
        refused: dict[str, str] = {}
        super().get(rpath, lpath, *args, refused=refused, **options)
        if refused:
            folders = {path[:at] for path in refused for at, letter in enumerate(path) if letter == "/"}
            reasons = [reason for path, reason in refused.items() if path not in folders]
            raise ConfigError(
                f"{len(reasons)} of the objects cannot be files below {lpath}; all others are there: " + "; ".join(reasons[:3])
            )

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, refused: dict[str, str] | None = None, **how: Any
    ) -> list[str]:
        """The paths that a path with wildcards, or a folder, stands for. `refused` takes those that cannot be opened."""
        found: list[str] = super().expand_path(path, recursive=recursive, maxdepth=maxdepth, **how)
        return found if refused is None else [one for one in found if self._is_usable(one, refused)]

    def _is_usable(self, path: str, refused: dict[str, str]) -> bool:
        try:
            self._locate(path)
        except ConfigError as error:
            refused[path] = str(error)
            return False
        return True

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        *,
        refused: dict[str, str] | None = None,
        **_: Any,
    ) -> None:
        """Download one object to a local file, verified; the file appears whole or not at all. For a folder it makes a folder.

        `refused` takes the reason why this name cannot be a file here, which is raised otherwise.
        """
        if outfile is not None or isfilelike(lpath):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile)
            return
        try:
            uploader, name = self._object(rpath)
            size_bytes = uploader.get(name, lpath, overwrite=True, follow_symlinks=False).size_bytes
        except OSError as error:  # NotFoundError is one, too
            if isinstance(error, (NotFoundError, IsADirectoryError)) and self.isdir(rpath):
                os.makedirs(lpath, exist_ok=True)
            elif refused is not None and error.errno in _NO_FILE_HERE:
                refused[rpath] = f"{rpath}: {error.strerror}"
            else:
                raise
            return
        callback.set_size(size_bytes)
        callback.absolute_update(size_bytes)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Mapping[str, object] | None = None,
        compression: str | None = None,
        **how: Any,
    ) -> Any:
        """Open an object for reading (``r``), or a new one in the spool for writing (``w``; ``x``: only if the name is free).

        A write is accepted by close(); an exception in the ``with`` block throws the file away. `requires`: paths that must be
        in the store before this one is sent there. NotFoundError, AlreadyExistsError, ConfigError for other modes.
        """
        if not set(mode) & set("wx"):
            return super().open(path, mode, block_size, cache_options, compression, **how)
        text = {name: how.pop(name) for name in ("encoding", "errors", "newline") if name in how}
        file: ObjectWriter = super().open(path, mode.replace("t", "").replace("b", "") + "b", block_size, cache_options, **how)
        try:
            packed: ObjectWriter | CompressedWriter = file
            if (kind := get_compression(path, compression)) is not None:
                packed = CompressedWriter(file, compr[kind](file, mode="w"))
            return packed if "b" in mode else TextWriter(packed, **text)
        except BaseException:
            file.discard()
            raise

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, object] | None = None,
        cache_type: str = "readahead",
        requires: Sequence[str] = (),
        size: int | None = None,
    ) -> ObjectReader | ObjectWriter:
        """`size` comes from a reader's pickle and is ignored: the store is asked again."""
        uploader, name = self._object(path)
        if mode == "rb":
            version = Version(uploader, name)
            try:
                details = describe(self._place, uploader, version.meta)
                return ObjectReader(self, path, version, details, block_size, cache_type, cache_options)
            except BaseException:
                version.close()
                raise
        if mode.replace("+", "") not in ("wb", "xb"):
            raise ConfigError(
                f"mode {mode!r} for {self.unstrip_protocol(path)}: an object is written whole and never changed. Read it with "
                "'rb' and write it anew with 'wb' (or 'xb': only if the name is free)"
            )
        if "x" in mode:
            self._check_free(path)
        writer = uploader.open(name, "xb" if "x" in mode else "wb", requires=self._required(uploader, requires))
        return ObjectWriter(writer, path, autocommit=autocommit, waits=self._waits)

    def _check_free(self, path: str) -> None:
        """Raise early if a name is taken. The store decides again when the upload arrives."""
        uploader, name = self._object(path)
        if uploader.exists(name):
            raise AlreadyExistsError(
                "the name is taken", operation="put", uri=uploader.uri_for(name), hint="overwriting was not asked for"
            )

    def _required(self, uploader: Uploader, paths: Sequence[str]) -> list[str]:
        names = []
        for path in paths:
            other, name = self._object(path)
            if other is not uploader:
                raise ConfigError(f"{path} is required by an upload to {uploader.uri}: both must be in one bucket")
            names.append(name)
        return names

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", *, requires: Sequence[str] = (), **_: Any) -> None:
        """Write `value` as an object; returns once its upload is accepted. ``mode="create"``: only if the name is free."""
        with self.open(path, "xb" if mode == "create" else "wb", requires=requires) as file:
            file.write(value)

    def put_file(
        self,
        lpath: str | os.PathLike[str],
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        *,
        requires: Sequence[str] = (),
        **_: Any,
    ) -> None:
        """Hand a local file over, as Uploader.put(): a snapshot (reflink or copy), taken before this returns."""
        if os.path.isdir(lpath):
            return
        uploader, name = self._object(rpath)
        if mode == "create":
            self._check_free(rpath)
        size_bytes = os.stat(lpath).st_size
        callback.set_size(size_bytes)
        handle = uploader.put(lpath, name, overwrite=mode != "create", requires=self._required(uploader, requires))
        if self._waits:
            handle.result()
        callback.absolute_update(size_bytes)

    def cp_file(
        self, path1: str, path2: str, *, requires: Sequence[str] = (), plan: list[tuple[str, str]] | None = None, **_: Any
    ) -> None:
        """Copy an object through this machine: it is read into the spool, verified, and uploaded. A folder is skipped.

        With a `plan` nothing is copied; the pair of paths is added to the plan, which mv() uses.
        """
        if plan is not None:
            plan.append((self._strip_protocol(path1), self._strip_protocol(path2)))
        else:
            self._copy(path1, path2, requires)

    def _copy(self, path1: str, path2: str, requires: Sequence[str] = ()) -> bool:
        """Copy one object. False if there was nothing to copy: a folder, or the same path."""
        source, name = self._locate(path1)
        if not name or self._strip_protocol(path1) == self._strip_protocol(path2):
            return False
        try:
            version = Version(source, name)
        except NotFoundError:
            if self.isdir(path1):
                return False
            raise
        try:
            with self.open(path2, "wb", requires=requires) as copy:
                for start in range(0, version.meta.size_bytes, _BLOCK_BYTES):
                    copy.write(version.read(start, min(start + _BLOCK_BYTES, version.meta.size_bytes)))
        finally:
            version.close()
        return True

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        *,
        requires: Sequence[str] = (),
        **_: Any,
    ) -> None:
        """Copy, then delete what was copied once all copies are accepted. An object that keeps its path is not moved.

        OSError, before anything is copied, for a folder that would go into itself and for an object that would be replaced by
        another one of the same move; FileNotFoundError and IsADirectoryError as rm().
        """
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        doomed = self._objects(self.expand_path(path1), recursive, maxdepth)
        plan: list[tuple[str, str]] = []
        self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", plan=plan)
        plan = [(old, new) for old, new in plan if old != new]
        sources = {old for old, _new in plan}
        for old, new in plan:
            if new.startswith(f"{old}/") and self.isdir(old):
                raise self._unmovable("a folder cannot be moved into itself: give a name that is not below it", old, new)
            if new in sources and self.isfile(new):
                raise self._unmovable("what has this name is to be moved as well: move them one after another", old, new)
        copied = {self._locate(old) for old, new in plan if self._copy(old, new, requires)}
        self._delete({one for one in doomed if one in copied or (plan and one[1].endswith("/"))})

    def _unmovable(self, words: str, old: str, new: str) -> OSError:
        return OSError(errno.EINVAL, words, self.unstrip_protocol(old), None, self.unstrip_protocol(new))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete objects, stored and queued. FileNotFoundError for what is not there, before anything is deleted; so is
        IsADirectoryError for a folder without `recursive`.
        """
        self._delete(self._objects(self.expand_path(path), recursive, maxdepth))

    def _objects(self, paths: Sequence[str], recursive: bool = False, maxdepth: int | None = None) -> set[tuple[Uploader, str]]:
        """The objects at these paths and, if `recursive`, those below them, with the markers of folders. Raises as rm()."""
        found: set[tuple[Uploader, str]] = set()
        for one in paths:
            uploader, name = self._locate(one)
            if self.info(one)["type"] == "file":
                found.add((uploader, name))
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, "is a folder: say recursive=True", self.unstrip_protocol(one))
            if recursive:
                depth = name.count("/") + (1 if name else 0) + (maxdepth or 0)
                keys = (meta.key for meta in self._folder(one).objects())
                found |= {(uploader, key) for key in keys if maxdepth is None or key.rstrip("/").count("/") < depth}
        return found

    def _delete(self, doomed: set[tuple[Uploader, str]]) -> None:
        for uploader, name in doomed:
            if not name.endswith("/"):  # a folder's marker is never queued
                uploader.withdraw(name)
        with DaemonThreadPool(_DELETERS, "wherry-rm") as pool:
            deleted = pool.map(lambda each: each[0].view().delete(each[0].uri.key_for(each[1])), doomed)
            collections.deque(deleted, maxlen=0)  # raises the first error

    def rm_file(self, path: str) -> None:
        """Delete one object, stored and queued; FileNotFoundError if there is none."""
        self._delete(self._objects([path]))

    _rm = rm_file

    def rmdir(self, path: str) -> None:
        """Do nothing: a folder is its objects. OSError if it has any."""
        if self.isdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self.unstrip_protocol(path))
