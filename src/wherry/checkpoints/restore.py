"""A set comes back: its objects into a folder that appears whole and verified, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checksum import crc32c_of_file, format_crc32c
from wherry.errors import IntegrityError, NotFoundError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta


class DamagedSetError(IntegrityError):
    """An object of a committed set is not there, or its bytes are not those that were saved. Names the set and the object."""


class PrunedWhileRestoringError(DamagedSetError):
    """The set was deleted while it was being restored: restore a newer one."""


def restore_objects(
    objects: Sequence[tuple[str, SetObject]],
    folder: Path,
    *,
    set_name: str,
    fetch: Callable[[str, Path], ObjectMeta],
) -> None:
    """Fetch the objects of a set, each with its key, to their names below `folder`, which must not be there yet, or be empty.

    They are fetched into a folder beside it, which takes the name at the end; a call that was killed goes on there. Raises
    FileExistsError, DamagedSetError; any other StoreError as it comes.
    """
    folder = Path(os.path.abspath(folder))
    check_restorable(folder)
    beside = folder.with_name(f".{folder.name}.{set_name}.wherry-restore")
    beside.mkdir(parents=True, exist_ok=True)

    def one(keyed: tuple[str, SetObject]) -> None:
        key, expected = keyed
        fetch_checked(key, expected, beside / expected.name, fetch)

    each_at_once(one, objects)
    _remove_strangers(beside, {expected.name for _, expected in objects})
    if folder.is_dir():
        folder.rmdir()  # it is empty: check_restorable() saw that, and rmdir() refuses otherwise
    os.rename(beside, folder)


def fetch_checked(key: str, expected: SetObject, path: Path, fetch: Callable[[str, Path], ObjectMeta]) -> None:
    """Fetch one object and compare it with its receipt: DamagedSetError if it is not what was saved."""
    if path.exists() and path.stat().st_size == expected.size_bytes and crc32c_of_file(path) == expected.crc32c:
        return  # an earlier call that was killed has it
    try:
        meta = fetch(key, path)
    except NotFoundError as error:
        raise DamagedSetError("it is not there, although the set is committed", operation="restore", uri=key) from error
    except IntegrityError as error:
        raise DamagedSetError(f"its bytes are damaged: {error}", operation="restore", uri=key) from error
    crc = meta.crc32c if meta.crc32c is not None else crc32c_of_file(path)
    if (path.stat().st_size, crc) != (expected.size_bytes, expected.crc32c):
        found = f"{path.stat().st_size} bytes with CRC32C {format_crc32c(crc)}"
        path.unlink()
        raise DamagedSetError(
            f"it has {found}, saved were {expected.size_bytes} with {format_crc32c(expected.crc32c)}",
            operation="restore",
            uri=key,
        )


def check_restorable(folder: Path) -> None:
    """FileExistsError for a folder that is there and not empty, or is no folder; before any byte moves."""
    try:
        if any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty: give a folder that is not there yet")
    except FileNotFoundError:
        if folder.is_symlink():
            raise FileExistsError(f"{folder} is a link to nothing: remove it, or give another folder") from None
    except NotADirectoryError:
        raise FileExistsError(f"{folder} is a file: give a folder that is not there yet") from None


def _remove_strangers(folder: Path, names: set[str]) -> None:
    """What an interrupted download has left beside the files is not part of the set."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in names:
            path.unlink()


def remove_restored(folder: Path) -> None:
    """Remove what restore_objects() has left of a set that is damaged."""
    shutil.rmtree(folder, ignore_errors=True)
