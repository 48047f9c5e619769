"""What ``cp`` and ``mv`` are told to do: which sources become what, and what of that is refused before anything moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wherry.cli.arguments import is_folder_like, parse_target, refuse_new_folder, split_target
from wherry.cli.copy_verbs.overlaps import are_on_one_server, holds
from wherry.cli.copy_verbs.sides import Sides
from wherry.cli.copy_verbs.transfers import Place, key_of, refuse_itself
from wherry.cli.store_verbs.get_command import refuse_clashes
from wherry.cli.store_verbs.patterns import Rules
from wherry.cli.store_verbs.selection import Source, choose, is_many
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError
from wherry.posix.thread_pool import each_at_once
from wherry.uri import StoreURI


@dataclass(frozen=True)
class Step:
    """One source, and where it goes."""

    source: Source
    place: Place


def planned(
    sides: Sides, sources: Sequence[str], dest: str, rules: Rules, *, recursive: bool, overwrite: bool, verb: str
) -> list[Step]:
    """The steps of the command line; raises, before anything moves, for what cannot be meant.

    ConfigError for two sources of one name, a source inside of its own destination and names that cannot be there;
    AlreadyExistsError or FileExistsError for names that are taken, unless `overwrite`.
    """
    is_folder = is_folder_like(dest)
    if not is_folder and len(sources) > 1:
        raise ConfigError(f"{len(sources)} sources cannot all become {dest!r}: end it with '/' to put them below it")
    target = parse_target(dest)
    is_one = {uri: are_on_one_server(sides, parse_target(uri), target) for uri in sources}
    for uri in sources:
        if recursive and is_one[uri]:
            into = target if not is_folder or is_many(uri, recursive=True) else _below(target, split_target(uri)[1])
            refuse_nested(parse_target(uri), into, f"{verb} -r {uri} {dest}")
    chosen = _steps(sides, sources, dest, rules, recursive=recursive, is_folder=is_folder, verb=verb)
    steps = list({(step.source.uri, step.place.shown): step for step in chosen}.values())  # what is named twice is copied once
    for step in steps:
        if any(is_one.values()):
            refuse_itself(step.source, step.place)
    if all(step.source.store.uri.scheme == "file" for step in steps):  # what comes from a store may go to a new folder
        refuse_new_folder(dest)
    if steps and (local := [(step.source, path) for step in steps if (path := step.place.path) is not None]):
        refuse_clashes(local, overwrite=overwrite)
    else:
        _refuse_twice(steps)
        if not overwrite and len(steps) > 1:  # of one, the copy finds out by itself
            refuse_taken(steps)
    return steps


def refuse_nested(source: StoreURI, dest: StoreURI, shown: str) -> None:
    """ConfigError for a folder that would go into itself: what is copied would be copied again."""
    if holds(source, dest) and not holds(dest, source):
        raise ConfigError(f"{shown}: the destination is inside of the source: choose one beside it")


def _below(folder: StoreURI, name: str) -> StoreURI:
    return replace(folder, prefix=f"{folder.prefix}/{name}" if folder.prefix else name)


def _steps(
    sides: Sides, sources: Sequence[str], dest: str, rules: Rules, *, recursive: bool, is_folder: bool, verb: str
) -> Iterator[Step]:
    for uri in sources:
        for source in choose(sides.sources, uri, rules, recursive=recursive, verb=verb):
            if is_folder or is_many(uri, recursive=recursive):
                folder, name = parse_target(dest), source.relative
            else:
                folder, name = split_target(dest)
                below = source.relative.partition("/")[2]
                name = f"{name}/{below}" if below else name
            key_of(folder, name)
            yield Step(source, Place(sides.dests.open(folder), name))


def _refuse_twice(steps: Sequence[Step]) -> None:
    by_place: dict[str, str] = {}
    for step in steps:
        if (other := by_place.setdefault(step.place.shown, step.source.uri)) != step.source.uri:
            raise ConfigError(f"{other} and {step.source.uri} would both become {step.place.shown}: copy them one by one")


def refuse_taken(steps: Sequence[Step]) -> None:
    """AlreadyExistsError if one of the names in a store is taken; nothing was copied then."""

    def look(step: Step) -> bool:
        try:
            step.place.store.view().head(step.place.key)
        except NotFoundError:
            return False
        return True

    for step, is_taken in zip(steps, each_at_once(look, steps), strict=True):
        if is_taken:
            raise AlreadyExistsError(
                "there is an object of this name already, and nothing was copied",
                operation="copy",
                uri=step.place.shown,
                hint="give --overwrite to replace it, or another name",
            )
