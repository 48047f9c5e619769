"""Objects as files of a folder: ``file:///folder`` or a plain path. A key is the file's absolute path without its first slash.

A file appears under its name only when it is whole: it is linked (from a frozen source on the same file system), or written to
an inode without a name (O_TMPFILE, open(2)) or with a temporary one, and then linked or renamed into place. A killed put
therefore leaves nothing behind, except on file systems without O_TMPFILE (NFS): there one file with TEMPORARY_MARK in its name,
which list_uploads() shows, and which the next put with the same token takes away. A large file may be written in parts
(uploads.py), by several processes at once.

Metadata and CRC32C are kept in one extended attribute, ``user.wherry``, with the size and time of the file that they
belong to: a record that does not fit its file any more is ignored. File systems without such attributes keep none, which is
why `capabilities.metadata` is False.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from wherry.backends.local.copy import BLOCK_BYTES, clone, clone_range, copy_and_sum, copy_range, sum_of
from wherry.backends.local.files import (
    ABSENT,
    Record,
    describe,
    etag,
    make_folders,
    mark_for,
    open_temporary,
    publish,
    sync_folder,
    taken,
    translate,
    umask,
    unlink,
)
from wherry.backends.local.folders import level, walk
from wherry.backends.local.options import LocalOptions
from wherry.backends.local.root import Root
from wherry.backends.local.uploads import LocalUploads
from wherry.backends.local_file import opened_source, opened_target
from wherry.errors import ConfigError, IntegrityError, PermanentError, StoreError, TransientError, about
from wherry.store import (
    Capabilities,
    MultipartStore,
    ObjectMeta,
    Page,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
    start_within,
)
from wherry.uri import StoreURI

#: Why a file that could be opened cannot be linked; ENOENT: its name was deleted since. A copy needs no link to it.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT})
#: What is cloned to find out whether the file system can: a multiple of any block's size.
_TRIED_BYTES = 2**16


_LINKS = "remove the link, or allow it by the storage option links_within='/' (or the folder that it leads to)"


class LocalStore(MultipartStore):
    """A folder tree as a store. What an option means stands in `LocalOptions`.

    Links are followed as long as they stay in the URI's folder; others are refused, and list() leaves them out. Keys outside of
    that folder are refused, too.
    A key and a longer one below it (``a`` and ``a/b``) cannot both be there. Parent folders are made and never removed.
    """

    capabilities = Capabilities(
        conditional_put=True,
        conditional_complete=True,
        multipart=True,
        checks_crc32c=False,
        ranged_get=True,
        atomic_replace=True,
        metadata=False,
        min_part_size_bytes=1,
        max_part_size_bytes=2**63 - 1,
    )

    #: The flag that opens a file without a name; 0 where there is none, or no /proc, through which it would get its name.
    _o_tmpfile = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        checked = LocalOptions.read(options)
        if uri.root:
            raise ConfigError(f"{uri} names the host {uri.root!r}: a local folder is written file:///folder")
        self._uri = uri
        self._fsync = checked.fsync
        self._root = Root(checked.links_within or f"/{uri.prefix}", _LINKS)
        self._uploads = LocalUploads(checked.fsync)

    def can_share(self, key: str, path: Path) -> bool:
        """As the contract says: on the same file system, our files with at most one name are linked, others maybe cloned."""
        with self._translated("can_share", key):
            folder = next(above for above in self._path(key).parents if above.is_dir())
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_dev != os.stat(folder).st_dev:
                return False
            if status.st_nlink <= 1 and status.st_uid == os.geteuid():
                return True
            return status.st_size >= _TRIED_BYTES and self._can_clone(path, folder)
        except OSError:  # then there is nothing to predict: the put will say why
            return False

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. What is stored are the bytes up to the size that `path` has at the start of the call.

        A frozen file becomes the object itself where that is possible: its mode is then set as for any new file (umask). With
        `if_absent`, a name that already is this very file counts as stored: an earlier attempt, whose answer was lost, did it.
        """
        with ExitStack() as stack, self._translated("put", key, writing=True):
            target = self._path(key)
            source = stack.enter_context(opened_source(path))
            mark = mark_for(put.metadata)
            self._uploads.abort(target, mark)  # what an earlier attempt of this upload has left, which was killed
            if (earlier := _look_at(target, key, source, put.if_absent)) is not None:
                return earlier
            made = make_folders(target.parent)
            if put.frozen and self._link(path, source, target, put, mark):
                stored, shared = source, True
            else:
                stored, shared = self._copy(path, source, target, put, mark)
                stack.callback(os.close, stored)
            if self._fsync:
                for folder in (target.parent, *(folder.parent for folder in made)):
                    sync_folder(folder)
            return replace(describe(key, stored), crc32c=None, is_shared=put.frozen and shared)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        crc = None
        with (
            self._opened_range(key, start, end, if_match) as (source, stop),
            opened_target(path) as target,
            self._translated("get", key, writing=True),
        ):
            if not clone_range(source, target, start, stop):
                copied, crc = copy_and_sum(source, target, start, stop)
                if copied < stop - start:
                    raise _cut(copied, stop - start)
        return crc

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says."""
        with self._opened_range(key, start, end, if_match) as (source, stop):
            at = start
            while at < stop:
                block = os.pread(source, min(BLOCK_BYTES, stop - at), at)
                if not block:
                    raise _cut(at - start, stop - start)
                take(block, at)
                at += len(block)

    @contextmanager
    def _opened_range(self, key: str, start: int, end: int | None, if_match: str | None) -> Iterator[tuple[int, int]]:
        """Open the object and check the range: (its descriptor, the range's end). Its version is compared before and after."""
        with self._translated("get", key), self._opened(key) as source:
            before = os.fstat(source)
            _check_etag(before, if_match)
            end = before.st_size if end is None else end
            if not 0 <= start <= end <= before.st_size:
                raise IntegrityError(f"bytes {start} to {end} were asked for, the object has {before.st_size}")
            yield source, end
            _check_etag(os.fstat(source), if_match)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says; a folder, socket or device is no object. `crc32c` is the one that the put was given."""
        with self._translated("head", key), self._opened(key) as fd:
            return describe(key, fd)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the contract says. Links to files of the store count as files; folders behind links are not entered.

        A folder that may not be read is an AccessDeniedError, not a gap. Folders before `start_after` are not entered.
        """
        folder, _, start = prefix.rpartition("/")
        if f"{self._root.key}/".startswith(prefix):  # all of the store, and nothing beside it
            folder, start = self._root.key, ""
        with self._translated("list", prefix):
            self._root.require(Path("/", folder, "*"))
            base = f"{folder}/" if folder else ""
            if (after := start_within(base, start_after)) is not None:
                yield from walk(folder, self._root, os.fsencode(start), os.fsencode(after.removeprefix(base)))

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the contract says; one level takes one look at the folder."""
        if not one_level:
            yield from super().pages(prefix, mark=mark)
            return
        with self._translated("list", prefix):
            yield from level(prefix, self._root, mark)

    def delete(self, key: str) -> None:
        """As the contract says. Folders stay, also when they are empty now."""
        with self._translated("delete", key):
            try:
                os.unlink(self._path(key))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the contract says; a name that is taken already is told at once."""
        with self._translated("begin", key, writing=True):
            target = self._path(key)
            _look_at(target, key, None, put.if_absent)
            return self._uploads.begin(key, target, size_bytes, put.metadata)

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says. Several processes may write parts of one upload at once."""
        with self._translated("put_part", key, writing=True):
            return self._uploads.put_part(self._path(key), upload_id, path, part)

    def list_parts(self, key: str, upload_id: str) -> builtins.list[StoredPart]:
        """As the contract says; after a power cut, without `fsync`, none are held."""
        with self._translated("list_parts", key):
            return self._uploads.list_parts(self._path(key), upload_id)

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says, at no cost for the size. NotFoundError also if a part was sent again since."""
        with self._translated("complete", key, writing=True):
            return self._uploads.complete(key, self._path(key), upload_id, parts, put)

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        with self._translated("abort", key):
            self._uploads.abort(self._path(key), upload_id)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says; what a killed put has left is shown as well, and abort() removes it."""
        with self._translated("list_uploads", prefix):
            yield from self._uploads.list_uploads(prefix)

    def _can_clone(self, path: Path, folder: Path) -> bool:
        """Find out, on a file without a name."""
        if not self._o_tmpfile:
            return False
        with ExitStack() as stack:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, source)
            target = os.open(folder, self._o_tmpfile | os.O_RDWR | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, target)
            return clone_range(source, target, 0, _TRIED_BYTES)

    def _path(self, key: str) -> Path:
        if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise PermanentError("a key of a local folder has no empty part, '.', '..' or NUL")
        path = Path("/", key)
        self._root.require(path)
        return path

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """The file of an object, open for reading; IsADirectoryError for whatever is no regular file."""
        path = self._path(key)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe would wait for a writer
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._root.require_open(fd, path)
            yield fd
        finally:
            os.close(fd)

    def _link(self, path: Path, source: int, target: Path, put: PutOptions, mark: str) -> bool:
        """Give the frozen file itself the object's name; False where that cannot be."""
        before = os.fstat(source)
        try:
            # One inode has one mode and one record: a file that has a second name already would carry the wrong ones there.
            # The lock keeps two puts of one file, under two keys, from both finding a single name.
            fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(source).st_nlink > 1 or before.st_dev != os.stat(target.parent).st_dev:
                return False
            os.fchmod(source, 0o666 & ~umask())
        except OSError:  # not our file, or a file system without locks: a copy needs neither
            return False
        Record(put.crc32c, put.metadata).write(source)
        if self._fsync:
            os.fsync(source)
        try:
            publish(path, target, put.if_absent, mark)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def _copy(self, path: Path, source: int, target: Path, put: PutOptions, mark: str) -> tuple[int, bool]:
        """Copy the file and publish the copy; return it, open, and whether it shares the source's blocks.

        Somebody may be writing to a file that is not frozen: a copy whose CRC32C is not `put.crc32c` is not published.
        """
        size = os.fstat(source).st_size
        fd, name = open_temporary(target, self._o_tmpfile, mark)
        try:
            if shared := clone(source, fd):
                os.ftruncate(fd, size)  # the source may have grown since
            elif (copied := copy_range(source, fd, 0, size)) < size:
                raise IntegrityError(f"{path} had {size} bytes and became shorter while it was copied: {copied} came")
            else:
                os.ftruncate(fd, size)  # a hole at the end was not written
            if put.crc32c is not None and not put.frozen and sum_of(fd, size) != put.crc32c:
                raise IntegrityError(f"{path} changed while it was copied: its checksum is not the one that was given")
            Record(put.crc32c, put.metadata).write(fd)
            if self._fsync:
                os.fsync(fd)
            if name is not None and not put.if_absent:
                os.replace(name, target)
            else:
                publish(name or Path(f"/proc/self/fd/{fd}"), target, put.if_absent, mark)
        except BaseException:
            os.close(fd)
            raise
        finally:
            if name is not None:
                unlink(name)
        return fd, shared

    @contextmanager
    def _translated(self, operation: str, key: str, *, writing: bool = False) -> Iterator[None]:
        with about(operation, self._uri.uri_for(key)):
            try:
                yield
            except StoreError:
                raise
            except OSError as error:
                raise translate(error, writing) from error


def _look_at(target: Path, key: str, source: int | None, if_absent: bool) -> ObjectMeta | None:
    """Look at what has the name already, before any byte is written: our own earlier attempt is returned."""
    try:
        there = os.stat(target)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(there.st_mode):
        raise PermanentError("a folder has this name, and a local folder cannot hold both")
    if not if_absent:
        return None
    if source is not None and os.path.samestat(there, os.fstat(source)):
        return replace(describe(key, source), crc32c=None, is_shared=True)
    raise taken()


def _check_etag(status: os.stat_result, if_match: str | None) -> None:
    if if_match is not None and (found := etag(status)) != if_match:
        raise IntegrityError(f"the file was replaced: its etag is {found}, not {if_match}")


def _cut(n_bytes: int, wanted: int) -> TransientError:
    return TransientError(f"the file became shorter while it was read: {n_bytes} of {wanted} bytes came")
