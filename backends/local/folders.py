"""What the folders of a store have, in the order of keys."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from wherry.backends.local.files import describe_status
from wherry.backends.local.root import Root
from wherry.errors import AccessDeniedError
from wherry.store import PAGE_ENTRIES, TEMPORARY_MARK, ObjectMeta, Page, rest_after


def walk(folder: str, root: Root, start: bytes = b"", after: bytes = b"") -> Iterator[ObjectMeta]:
    """The files below `folder` (a key) whose first name starts with `start`, in the order of their keys' bytes.

    ``a-b`` comes before ``a/b``: a folder is sorted with the slash that follows it in the keys. Files up to the key `after`,
    seen from the folder, are left out.
    """
    for sort_name, entry in _entries(folder, start):
        if (rest := rest_after(sort_name, after)) is None:
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        if sort_name.endswith(b"/"):
            yield from walk(key, root, after=rest)
        elif (meta := _described(key, entry, root)) is not None:
            yield meta


def level(prefix: str, root: Root, mark: str | None) -> Iterator[Page]:
    """The files and folders whose key goes on without a slash after `prefix`; those up to the key `mark` are left out."""
    own = f"{root.key}/" if root.key else ""
    if own.startswith(prefix) and own != prefix:  # above the store: nothing but the way to it
        way = own[: own.index("/", len(prefix)) + 1]
        if os.path.isdir(f"/{own}"):
            yield Page([], [way])
        return
    folder, slash, start = prefix.rpartition("/")
    root.require(Path("/", folder, "*"))
    after = os.fsencode((mark or "")[len(folder + slash) :])
    entries = [pair for pair in _entries(folder, os.fsencode(start)) if pair[0] > after]
    for at in range(0, len(entries), PAGE_ENTRIES):
        some = entries[at : at + PAGE_ENTRIES]
        found = [(f"{folder}{slash}{entry.name}", sort_name, entry) for sort_name, entry in some]
        described = (_described(key, entry, root) for key, sort_name, entry in found if not sort_name.endswith(b"/"))
        folders = [f"{key}/" for key, sort_name, _ in found if sort_name.endswith(b"/")]
        last = folder + slash + os.fsdecode(some[-1][0])
        is_last = at + PAGE_ENTRIES >= len(entries)
        yield Page([meta for meta in described if meta is not None], folders, None if is_last else last)


def _entries(folder: str, start: bytes) -> list[tuple[bytes, os.DirEntry[str]]]:
    """What is in a folder and starts so, by the name that it is sorted by: of folders, with a slash."""
    try:
        with os.scandir(f"/{folder}") as entries:
            found = [(os.fsencode(entry.name) + b"/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise _closed(folder, error) from error
    shown = (pair for pair in found if pair[0].startswith(start) and TEMPORARY_MARK not in pair[1].name)
    return sorted(shown, key=lambda pair: pair[0])


def _described(key: str, entry: os.DirEntry[str], root: Root) -> ObjectMeta | None:
    """The object that a file is; None where there is none: a link out of the store, a device, or it was deleted meanwhile."""
    if entry.is_symlink() and not root.holds(entry.path):
        return None
    try:
        status = entry.stat()
    except PermissionError as error:  # of a folder whose names may be read, and not its files
        if entry.is_symlink():
            return None  # or of the one that the link leads to
        raise _closed(key.rpartition("/")[0], error) from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # or a link to nothing, or to itself
            return None
        raise
    return describe_status(key, status) if stat.S_ISREG(status.st_mode) else None


def _closed(folder: str, error: PermissionError) -> AccessDeniedError:
    """The error for a folder that may not be read; it may lie deep below the one that is listed."""
    return AccessDeniedError(str(error.strerror), operation="list", uri=f"file:///{folder}/")
