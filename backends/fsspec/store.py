"""Any file system that fsspec knows, as a store: ``az:// sftp:// hf:// oci:// memory://`` and third parties' own.

Object stores show only complete objects, so there the file is put under its final name. On file servers, where a half-written
file could be seen, it is put under a temporary name beside the final one and then renamed; a put that is killed may leave the
temporary file, which list() does not show. Nothing is kept beside the object: no metadata and no checksum.

`if_absent` looks and then puts, unless the table (traits.py) knows a better way: two writers may then both succeed, and
`capabilities.conditional_put` says so.
"""

from __future__ import annotations

import builtins
import functools
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec import url_to_fs

from wherry.backends.fsspec.error_table import translate, words_of
from wherry.backends.fsspec.traits import traits_of
from wherry.backends.local_file import opened_source, opened_target, write_all
from wherry.errors import (
    AlreadyExistsError,
    ConfigError,
    IntegrityError,
    MissingExtraError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
    about,
    cause_of,
)
from wherry.store import (
    TEMPORARY_MARK,
    Capabilities,
    ObjectMeta,
    ObjectStore,
    Page,
    PutOptions,
    TakeBlock,
    order_of,
    rest_after,
    start_within,
)
from wherry.uri import StoreURI

_BLOCK_BYTES = 8 * 2**20
_NAME_MAX_BYTES = 255
#: Held while an object in this process's memory is looked for and made: of two writers one wins.
_CREATING = threading.Lock()


class FsspecStore(ObjectStore):
    """A store on the fsspec file system of the URI's scheme; the options are that file system's own (storage_options).

    A synchronous file system has one connection, which takes one call at a time: each call that is under way has an
    instance of its own, and those are kept for the next calls.
    """

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        self._uri = uri
        self._options = dict(options)
        if uri.scheme == "memory" and options:  # fsspec takes whatever it is given there
            raise ConfigError(f"storage option {min(options)!r} is unknown to memory://: it takes none")
        self._idle: list[Any] = []
        fs, path = self._connect()
        self._root = path.rstrip("/")
        self._idle.append(fs)
        self._how = traits_of(uri.scheme, fs)
        self._shared = bool(fs.async_impl) if self._how.shared is None else self._how.shared
        self.capabilities = Capabilities(
            conditional_put=self._how.creates or self._how.rename_if_absent is not None,
            conditional_complete=False,
            multipart=False,
            checks_crc32c=False,
            ranged_get=True,
            atomic_replace=self._how.atomic,
            metadata=False,
            process_local=self._how.process_local,
        )

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. `crc32c` and `metadata` are not kept. The size that arrived is compared before it counts."""
        with about("put", self._uri.uri_for(key)), opened_source(path) as source:
            size = os.fstat(source).st_size
        with self._filesystem("put", key) as fs:
            target = self._path(fs, key)
            if (there := _info(fs, target)) is not None:
                if there["type"] == "directory" and (self._how.rename is not None or self._how.in_one_piece):
                    raise PermanentError("a folder has this name")
                if put.if_absent and there["type"] != "directory":
                    raise _taken()
            try:
                if self._how.rename is not None:
                    self._put_and_rename(fs, path, size, target, put.if_absent)
                else:
                    self._put(fs, path, size, target, create=put.if_absent and self._how.creates)
            except FileExistsError as error:
                if put.if_absent and (found := _info(fs, target)) is not None and found["type"] != "directory":
                    raise _taken() from error
                raise
            return _head(fs, key, target)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says, but `if_match` is compared before and after the reading, not by the server."""
        with about("get", self._uri.uri_for(key)), opened_target(path) as target:
            self.read(key, functools.partial(write_all, target), start=start, end=end, if_match=if_match)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As get_file()."""
        with self._filesystem("get", key) as fs:
            source = self._path(fs, key)
            meta = _head(fs, key, source, if_match)
            end = meta.size_bytes if end is None else end
            if not 0 <= start <= end <= meta.size_bytes:
                raise IntegrityError(f"bytes {start} to {end} were asked for, the object has {meta.size_bytes}")
            for at in range(start, end, _BLOCK_BYTES):
                wanted = min(_BLOCK_BYTES, end - at)
                block = fs.cat_file(source, start=at, end=at + wanted)
                if len(block) != wanted:
                    raise TransientError(f"{len(block)} bytes came, {wanted} were asked for")
                take(block, at)
            if if_match is not None:
                _head(fs, key, source, if_match)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says. There is an `etag` only if the file system tells apart two versions made in one second."""
        with self._filesystem("head", key) as fs:
            return _head(fs, key, self._path(fs, key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the contract says, folder by folder; those before `start_after` are not entered."""
        folder, slash, start = prefix.rpartition("/")
        if (after := start_within(folder + slash, start_after)) is None:
            return
        with self._filesystem("list", prefix) as fs:
            path = f"{self._root}/{folder}" if folder else self._root
            yield from self._walk(fs, path, start, order_of(after.removeprefix(folder + slash)))

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the contract says; one level takes one look at the folder, and is one page."""
        if not one_level:
            yield from super().pages(prefix, mark=mark)
            return
        folder, _, start = prefix.rpartition("/")
        with self._filesystem("list", prefix) as fs:
            found = self._entries(fs, f"{self._root}/{folder}" if folder else self._root, start)
            keyed = [(path.removeprefix(f"{self._root}/"), name.endswith(b"/"), entry) for name, path, entry in found]
            objects = [_describe(key, entry) for key, is_folder, entry in keyed if not is_folder]
            yield Page(objects, [f"{key}/" for key, is_folder, _ in keyed if is_folder])

    def delete(self, key: str) -> None:
        """As the contract says. Folders stay."""
        with self._filesystem("delete", key) as fs:
            path = self._path(fs, key)
            if (there := _info(fs, path)) is not None and there["type"] != "directory":
                with suppress(FileNotFoundError):
                    fs.rm_file(path)

    def close(self) -> None:
        """Free the connections."""
        while self._idle:
            _disconnect(self._idle.pop())

    def _connect(self) -> tuple[Any, str]:
        try:
            return url_to_fs(f"{self._uri.store}/", skip_instance_cache=True, **self._options)  # type: ignore[no-any-return]
        except ImportError as error:
            raise MissingExtraError(f"{self._uri.scheme}:// needs another library: {error}") from error
        except (TypeError, ValueError) as error:
            given = ", ".join(sorted(self._options)) or "none"
            raise ConfigError(
                f"{self._uri.store} cannot be opened with these storage options ({given}): {words_of(error)}"
            ) from cause_of(error)
        except Exception as error:  # any library's error: the table sorts it
            with about("open", self._uri.store):
                raise translate(error, self._uri.scheme) from cause_of(error)

    @contextmanager
    def _filesystem(self, operation: str, key: str) -> Iterator[Any]:
        """Lend a file system for one call, and translate its errors."""
        try:
            fs = self._idle[0] if self._shared else self._idle.pop()
        except IndexError:
            fs, _ = self._connect()
        usable = True
        with about(operation, self._uri.uri_for(key)):
            try:
                fs.invalidate_cache()  # listings are cached, also what others have changed since
                yield fs
            except StoreError:
                raise
            except Exception as error:  # any library's error: the table sorts it
                translated = translate(error, self._uri.scheme)
                usable = not isinstance(translated, TransientError)
                raise translated from cause_of(error)
            finally:
                if not self._shared:
                    if usable:
                        self._idle.append(fs)
                    else:
                        _disconnect(fs)

    def _path(self, fs: Any, key: str) -> str:
        path = f"{self._root}/{key}"
        # Some file systems read a path as a URL and would cut it at "?", or take ".." as a step up.
        if any(part in ("", ".", "..") for part in key.split("/")) or fs._strip_protocol(path).lstrip("/") != path.lstrip("/"):
            raise PermanentError(f"{self._uri.scheme}:// cannot hold a key like this one", hint="use another name")
        return path

    def _put_and_rename(self, fs: Any, path: Path, size: int, target: str, if_absent: bool) -> None:
        folder, _, name = target.rpartition("/")
        ending = TEMPORARY_MARK + secrets.token_hex(8)
        start = name.encode()[: _NAME_MAX_BYTES - len(ending) - 1].decode(errors="ignore")
        temporary = f"{folder}/.{start}{ending}"
        try:
            _make_folder(fs, folder)
            self._put(fs, path, size, temporary)
            fs.invalidate_cache()
            rename = (self._how.rename_if_absent if if_absent else None) or self._how.rename
            assert rename is not None, "the caller looked"
            rename(fs, temporary, target)
        except BaseException:
            # The first error is the one to tell. A connection that is lost takes the chance to clean up with it.
            with suppress(Exception):
                fs.rm_file(temporary)
            raise

    def _put(self, fs: Any, path: Path, size: int, target: str, *, create: bool = False) -> None:
        if self._how.in_one_piece:
            data = path.read_bytes()
            with _CREATING:
                if create and fs.exists(target):
                    raise FileExistsError(target)
                fs.pipe_file(target, data)
        elif create:
            fs.put_file(str(path), target, mode="create")
        else:
            fs.put_file(str(path), target)
        fs.invalidate_cache()
        if (arrived := fs.info(target)["size"]) != size:
            raise TransientError(f"{size} bytes were sent, {arrived} arrived")

    def _walk(self, fs: Any, folder: str, start: str = "", after: bytes = b"") -> Iterator[ObjectMeta]:
        """The files below `folder` in the order of their keys' bytes: a folder is sorted with the slash that follows it.

        Files up to the key `after`, seen from the folder, are left out.
        """
        for sort_name, path, entry in self._entries(fs, folder, start):
            if (rest := rest_after(sort_name, after)) is None:
                continue
            if sort_name.endswith(b"/"):
                yield from self._walk(fs, path, after=rest)
            else:
                yield _describe(path.removeprefix(f"{self._root}/"), entry)

    def _entries(self, fs: Any, folder: str, start: str) -> builtins.list[tuple[bytes, str, Any]]:
        """What is in a folder and starts so: the name to sort it by, of folders with a slash, its path, its description."""
        try:
            entries = fs.ls(folder or fs.root_marker, detail=True)
        except FileNotFoundError:
            return []
        except OSError:
            if fs.isfile(folder):  # SFTP answers only "failure" for a file
                return []
            raise
        found = []
        for entry in entries:
            path = "/" * folder.startswith("/") + str(entry["name"]).strip("/")
            name = path.removeprefix(f"{folder}/")
            if path == name or not name.startswith(start) or TEMPORARY_MARK in name:
                continue  # the folder itself, or not ours to show
            if entry["type"] not in ("file", "directory"):
                entry = _info(fs, path) or {"type": "gone"}  # a link: what it leads to
                if entry["type"] != "file":
                    continue
            found.append((order_of(name + "/" * (entry["type"] == "directory")), path, entry))
        return sorted(found, key=lambda each: each[0])


def _taken() -> AlreadyExistsError:
    return AlreadyExistsError("the file is there already", hint="choose another name or allow overwriting")


def _head(fs: Any, key: str, path: str, if_match: str | None = None) -> ObjectMeta:
    fs.invalidate_cache()
    if (info := _info(fs, path)) is None or info["type"] == "directory":
        raise NotFoundError("there is no such file")
    meta = _describe(key, info)
    if if_match not in (None, meta.etag):
        raise IntegrityError(f"the file was replaced: its etag is {meta.etag}, not {if_match}")
    return meta


def _info(fs: Any, path: str) -> Mapping[str, Any] | None:
    try:
        return fs.info(path)  # type: ignore[no-any-return]
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_folder(fs: Any, folder: str) -> None:
    if not folder:
        return
    # Another writer may make one of the folders between a look and a mkdir, which not every file system takes for success;
    # that can happen once a level.
    for attempts_left in reversed(range(folder.count("/") + 1)):
        try:
            fs.makedirs(folder, exist_ok=True)
        except Exception:  # noqa: PERF203  once a level
            fs.invalidate_cache()
            if fs.isdir(folder):
                return
            if not attempts_left:
                raise
        else:
            return


def _disconnect(fs: Any) -> None:
    """Close the connection of a synchronous file system; fsspec has no method for all. Asynchronous ones close themselves."""
    for name in ("client", "ftp"):  # sftp, ftp
        with suppress(Exception):  # it is thrown away in any case
            getattr(fs, name).close()


def _describe(key: str, info: Mapping[str, Any]) -> ObjectMeta:
    size = _size(info.get("size"))
    modified = _seconds(_first(info, "mtime", "last_modified", "LastModified", "modified", "created"))
    tag = _first(info, "etag", "ETag", "e_tag")
    if tag is None and modified is not None and modified % 1:  # finer than seconds, or no two versions could be told apart
        tag = f"{info.get('ino', 0):x}-{size:x}-{modified!r}"
    return ObjectMeta(key, size, etag=None if tag is None else str(tag), modified_s=modified)


def _size(size: Any) -> int:
    try:
        return int(size)
    except (TypeError, ValueError, OverflowError):  # none, a text, infinity
        return -1


def _first(info: Mapping[str, Any], *names: str) -> Any:
    return next((info[name] for name in names if info.get(name) is not None), None)


def _seconds(when: Any) -> float | None:
    if isinstance(when, datetime):
        try:
            return when.timestamp()
        except (ValueError, OverflowError):  # of the years 1 and 9999, without a time zone
            return None
    return float(when) if isinstance(when, (int, float)) else None
