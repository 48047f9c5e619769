"""The files of the caller that are to be uploaded: what lies in a folder, and under which names."""

from __future__ import annotations

import os
from pathlib import Path

from wherry.errors import ConfigError
from wherry.uri import check_new_name

#: A file, and the remote name that it is to have.
Source = tuple[Path, str]


def sources_of(path: Path, name: str) -> list[Source]:
    """The file `path` under `name`, or all files of the folder `path` below `name`. ConfigError for what cannot be uploaded."""
    if not path.is_dir():
        return [(path, name)]
    found: dict[str, Path] = {}
    for file, below in _files_below(path):
        new = check_new_name(f"{name}/{below}")
        if (other := found.setdefault(new, file)) is not file:  # neither is to replace the other
            raise ConfigError(f"{other} and {file} differ by their Unicode form only, and would both become {new!r}: rename one")
    return [(file, new) for new, file in found.items()]


def _files_below(folder: Path) -> list[tuple[Path, str]]:
    """All files of a folder, each with its path below it."""
    found: list[tuple[Path, str]] = []

    def stop(error: OSError) -> None:
        raise error

    for base, folders, names in os.walk(folder, onerror=stop):
        folders.sort()
        for name in folders:
            if (Path(base) / name).is_symlink():
                raise ConfigError(
                    f"{Path(base) / name} is a symbolic link to a folder: copy the folder there or upload it by itself"
                )
        at = Path(base)
        below = "" if at == folder else f"{at.relative_to(folder).as_posix()}/"
        found += [(at / name, below + name) for name in sorted(names)]
    if not found:
        raise ConfigError(f"the folder {folder} has no files: object stores keep no empty folders")
    for path, _ in found:
        if not os.path.isfile(path):
            raise ConfigError(f"{path} is no regular file: only regular files can be uploaded")
    return found
