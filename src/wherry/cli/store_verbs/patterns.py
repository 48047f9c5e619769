"""Which objects a command takes: the glob language of URIs, and the gitignore rules of --include and --exclude.

Globs: ``*`` is any run of characters but ``/``, ``?`` one of them, ``[abc]`` and ``[!abc]`` one of a set, and a part that is
``**`` any number of whole parts. A leading dot is a character like any other. ``[*]`` is a plain ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.errors import ConfigError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IncludeOption = Annotated[
    list[str] | None, typer.Option("--include", metavar="RULE", help="Only what a gitignore rule matches; may be given again.")
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="RULE", help="Not what a gitignore rule matches; may be given again.")
]
IncludeFileOption = Annotated[
    Path | None, typer.Option("--include-from", metavar="FILE", help="Rules of --include, line by line.")
]
ExcludeFileOption = Annotated[
    Path | None, typer.Option("--exclude-from", metavar="FILE", help="Rules of --exclude, line by line.")
]

_MAGIC = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Whether a path has a character that stands for others."""
    return _MAGIC.search(text) is not None


def literal_start(pattern: str) -> str:
    """What every match begins with: the text before the first character that stands for others."""
    return _MAGIC.split(pattern, maxsplit=1)[0]


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name is of the pattern."""
    return _match(pattern.split("/"), name.split("/"))


def _match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        rest = pattern[1:]
        while rest and rest[0] == "**":  # ** after ** says nothing more, and would be tried again and again
            rest = rest[1:]
        return any(_match(rest, parts[n:]) for n in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(pattern[1:], parts[1:])


def matches_folder_of(pattern: str, name: str) -> bool:
    """Whether the name, or a folder that it lies in, is of the pattern."""
    parts = name.split("/")
    return any(_match(pattern.split("/"), parts[:n]) for n in range(1, len(parts) + 1))


class Rules:
    """--include and --exclude, by the rules of gitignore: a later rule overrides earlier ones, and ``!`` turns one around.

    A name is taken if --include matches it, or none is given, and --exclude does not.
    """

    def __init__(
        self,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        include_from: Path | None = None,
        exclude_from: Path | None = None,
    ) -> None:
        self._include = _spec("--include", _lines("--include", include, include_from))
        lines = _lines("--exclude", exclude, exclude_from)
        self._exclude = _spec("--exclude", lines)
        #: What is excluded for good: no rule after these takes anything back.
        n_undone = max((at for at, rule in enumerate(lines or (), 1) if rule.startswith("!")), default=0)
        self._exclude_last = _spec("--exclude", (lines or [])[n_undone:] or None) if n_undone else self._exclude

    def __bool__(self) -> bool:
        return self._include is not None or self._exclude is not None

    def take(self, name: str) -> bool:
        """Whether a command takes the object of this name, which is relative to the folder that was named."""
        is_in = self._include is None or self._include.match_file(name)
        if not is_in or self._exclude is None:
            return is_in
        # pathspec has an earlier `!*.pt` win over a later `/logs/`; git does not, nor does a walk that never enters the folder
        return not (self._exclude.match_file(name) or (self._exclude_last is not self._exclude and self.leave_out(name)))

    @property
    def may_leave_out(self) -> bool:
        """Whether there may be folders that leave_out() is true of."""
        return self._exclude_last is not None

    def leave_out(self, name: str) -> bool:
        """Whether the name is excluded for good; that of a folder, which ends in a slash, with all that is below it."""
        return self._exclude_last is not None and self._exclude_last.match_file(name)


def _lines(option: str, rules: Iterable[str] | None, file: Path | None) -> list[str] | None:
    if rules is None and file is None:
        return None
    lines = list(rules or ())
    if file is not None:
        try:
            lines = [*file.read_text(encoding="utf-8").splitlines(), *lines]  # the command line comes last: it overrides
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{option}-from {file}: byte {error.start} is no UTF-8: give a text file with a rule on each line"
            ) from None
    return lines


def _spec(option: str, lines: Iterable[str] | None) -> GitIgnoreSpec | None:
    if lines is None:
        return None
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}: write a gitignore rule, such as '*.pt' or '/logs/'") from None
