"""Names that cannot be made at a destination, found before anything is copied: by their form, or by what has their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wherry.cli.copy_verbs.transfers import key_of
from wherry.cli.store_verbs.get_command import ignores_case
from wherry.errors import ConfigError
from wherry.uri import StoreURI

#: A name, and whether the destination has a file of that name, which it is going to replace.
_Copied = tuple[str, bool]
_LEAVE_OUT = "leave one out with --exclude"


def refusals(
    dest: StoreURI, names: Sequence[_Copied], *, is_blind: Callable[[Path], bool] = ignores_case
) -> dict[str, BaseException]:
    """Which of the names cannot be made below `dest`, each with the reason. `is_blind` tells whether a folder ignores case."""
    folder = _Folder(Path("/", dest.prefix), names, is_blind) if dest.scheme == "file" else None
    found: dict[str, BaseException] = {}
    for name, replaces in names:
        try:
            key_of(dest, name)
            if folder is not None:
                folder.check(name, replaces=replaces)
        except (ConfigError, OSError) as error:  # noqa: PERF203  each has its own reason
            found[name] = error
    return found


class _Folder:
    """What a local folder cannot have side by side, or has already."""

    def __init__(self, folder: Path, names: Sequence[_Copied], is_blind: Callable[[Path], bool]) -> None:
        self._folder = folder
        self._is_there = folder.is_dir()
        self._names = {name for name, _ in names}
        self._by_folded: dict[str, str] = {}
        self._is_blind = is_blind
        self._ignores_case: bool | None = None

    def check(self, name: str, *, replaces: bool) -> None:
        """ConfigError for a name that is in the way of another, or has something in its way."""
        if above := next((each for each in _above(name) if each in self._names), None):
            raise ConfigError(
                f"{above} is a file and a folder in the source, and cannot be both below {self._folder}: {_LEAVE_OUT}"
            )
        for each in (name, *_above(name)):
            other = self._by_folded.setdefault(each.casefold(), each)
            if other != each and self._tells_no_case():
                raise ConfigError(
                    f"{each} and {other} differ in case only, and {self._folder} does not tell them apart: {_LEAVE_OUT}"
                )
        if self._is_there and not replaces:
            if link := next((each for each in _above(name) if os.path.islink(self._folder / each)), None):
                raise ConfigError(
                    f"{self._folder / link} is a link to a folder, which sync does not write through: "
                    f"move it away, or {_LEAVE_OUT}"
                )
            _require_room(f"{self._folder}/{name}")

    def _tells_no_case(self) -> bool:
        if self._ignores_case is None:
            self._ignores_case = self._is_blind(self._folder)
        return self._ignores_case


def _require_room(path: str) -> None:
    """ConfigError if something that no listing shows has the place of a new name."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigError(f"{path}: a file has the name of one of its folders: move it away, or {_LEAVE_OUT}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a folder, and a file in the source: move it away, or {_LEAVE_OUT}")
    if stat.S_ISREG(mode):
        raise ConfigError(f"{path}: a name that differs in case only is there already: rename it, or {_LEAVE_OUT}")
    raise ConfigError(f"{path} is there, and is no file that sync replaces, but a link or a device: {_LEAVE_OUT}")


def _above(name: str) -> Iterator[str]:
    """The folders that a name is in."""
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)
