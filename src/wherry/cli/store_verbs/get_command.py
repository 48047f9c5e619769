"""``wherry get``: objects from stores to files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    MaxBytesOption,
    OverwriteOption,
    PairsOption,
    SpoolOption,
    pace_of,
    spool_folder,
)
from wherry.cli.shell.verbosity import is_quiet
from wherry.cli.store_verbs.bar import Tracked
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules
from wherry.cli.store_verbs.selection import Source, Stores, choose, is_many, or_folder
from wherry.cli.store_verbs.stdout import write_all
from wherry.errors import ConfigError, NotFoundError
from wherry.uri import TEMPORARY_MARK, check_name

#: An object, and the file that it becomes.
_Copy = tuple[Source, Path]

UrisArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="URI", help="Objects: s3://bucket/name, gs://..., a path; * ? [ab] ** stand for others.", show_default=False
    ),
]
RecursiveOption = Annotated[bool, typer.Option("--recursive", "-r", help="All objects below a prefix.")]


def get(
    uris: UrisArgument,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A file, a folder for it, or - for stdout.", show_default=False)],
    recursive: RecursiveOption = False,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    include_from: IncludeFileOption = None,
    exclude_from: ExcludeFileOption = None,
    overwrite: OverwriteOption = False,
    max_bytes_per_s: MaxBytesOption = None,
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download objects, verified.

    Each file appears whole or not at all. What is still queued for upload on
    this machine comes from the spool. A pointer (NAME.symlink) is followed.
    -r gets a whole prefix: run1 becomes DEST/run1, and what is below run1/
    goes into DEST itself. In a pattern, * and ? stand for all but /, ** for
    any folders; names keep their folders from the first pattern on. To - each
    is written when all of it is verified, as wherry cat does it.
    """
    if dest == "-":
        if dry_run or as_json:
            raise ConfigError(
                "--dry-run and --json write where the objects go, to standard output: leave them out, or name a file"
            )
        with Stores(option, options_file, spool_folder(spool), pace_of(max_bytes_per_s)) as stores:
            write_all(stores, uris, Rules(include, exclude, include_from, exclude_from), recursive=recursive, verb="get")
        return
    rules = Rules(include, exclude, include_from, exclude_from)
    is_folder = dest.endswith("/") or os.path.isdir(dest)
    if not is_folder and len(uris) > 1:
        raise ConfigError(f"{len(uris)} URIs cannot all become {dest!r}: end it with '/' to put them below it")
    with Stores(option, options_file, spool_folder(spool), pace_of(max_bytes_per_s)) as stores:
        chosen = [
            (source, _path_for(source, uri, Path(dest), is_folder=is_folder, recursive=recursive))
            for uri in uris
            for source in choose(stores, uri, rules, recursive=recursive, verb="get")
        ]
        copies = list({(source.uri, path): (source, path) for source, path in chosen}.values())  # what is named twice comes once
        refuse_clashes(copies, overwrite=overwrite)
        outcome = Outcome("got", as_json=as_json, dry_run=dry_run)
        work = _look if dry_run else _get
        if len(copies) == 1:  # whose error is the command's, and which shows its bar
            work(copies[0], outcome, overwrite=overwrite, progress_bar=not is_quiet())()
        else:
            outcome.each_shown(
                lambda copy: work(copy, outcome, overwrite=overwrite),
                copies,
                lambda copy: copy[0].uri,
                stores.bar,
                lambda copy: Tracked(copy[0].uri, copy[0].size_bytes),
            )
    raise typer.Exit(outcome.end())


def _path_for(source: Source, uri: str, dest: Path, *, is_folder: bool, recursive: bool) -> Path:
    """Where a source goes. ConfigError for a name that no file below DEST can have, such as ../x."""
    if is_folder or is_many(uri, recursive=recursive):
        check_name(source.relative)
        return dest / source.relative
    below = source.relative.partition("/")[2]
    if not below:
        return dest
    check_name(source.relative)
    return dest / below


def ignores_case(folder: Path) -> bool:
    """Whether a folder takes names that differ in case for one: found out by a file that is made there for a moment."""
    while not folder.is_dir():
        folder = folder.parent
    with NamedTemporaryFile(prefix=f"{TEMPORARY_MARK}case-", dir=folder) as file:
        return os.path.lexists(Path(file.name).with_name(Path(file.name).name.swapcase()))


def refuse_clashes(copies: Sequence[_Copy], *, overwrite: bool, is_blind: Callable[[Path], bool] = ignores_case) -> None:
    """Raise, before anything is fetched, for files that are there, and for names that cannot be side by side in a folder."""
    by_path: dict[Path, str] = {}
    by_folded: dict[str, Path] = {}
    tells_no_case = cache(is_blind)
    for source, path in copies:
        if path in by_path:
            raise ConfigError(f"{by_path[path]} and {source.uri} would both become {path}: get them one by one")
        by_path[path] = source.uri
        for each in (path, *path.parents):
            other = by_folded.setdefault(str(each).casefold(), each)
            if other != each and tells_no_case(each.parent):
                raise ConfigError(
                    f"{other} and {each} differ in case only, and that folder does not tell them apart: "
                    "leave one out with --exclude"
                )
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists already: give --overwrite or another name", str(path))
    for path, uri in by_path.items():
        if above := next((folder for folder in path.parents if folder in by_path), None):
            raise ConfigError(
                f"{by_path[above]} is an object and a folder of {uri}, and {above} cannot be both: leave one out with --exclude"
            )


def _get(copy: _Copy, outcome: Outcome, *, overwrite: bool, progress_bar: bool = False) -> Callable[[], None]:
    source, path = copy
    with or_folder(source, "get"):
        meta = source.fetch(path, overwrite=overwrite, progress_bar=progress_bar)
    return lambda: outcome.add(source.uri, meta.size_bytes, str(path))


def _look(copy: _Copy, outcome: Outcome, *, overwrite: bool, progress_bar: bool = False) -> Callable[[], None]:
    """The dry run of _get()."""
    from wherry.transfer.symlinks import SYMLINK_SUFFIX

    source, path = copy
    size_bytes = source.size_bytes
    if size_bytes < 0:
        with or_folder(source, "get"):
            try:
                size_bytes = source.head().size_bytes
            except NotFoundError:
                if not source.store.exists(f"{source.name}{SYMLINK_SUFFIX}"):
                    raise
    return lambda: outcome.add(source.uri, size_bytes, str(path))
