"""``wherry rm``: objects out of their stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    PairsOption,
    SpoolOption,
    YesOption,
    confirm,
    parse_target,
    spool_folder,
)
from wherry.cli.store_verbs.get_command import RecursiveOption, UrisArgument
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.patterns import (
    ExcludeFileOption,
    ExcludeOption,
    IncludeFileOption,
    IncludeOption,
    Rules,
    is_pattern,
)
from wherry.cli.store_verbs.selection import Source, Stores, choose, or_folder
from wherry.errors import ConfigError

if TYPE_CHECKING:
    from wherry.uploader import Uploader


def rm(
    uris: UrisArgument,
    recursive: RecursiveOption = False,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    include_from: IncludeFileOption = None,
    exclude_from: ExcludeFileOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete objects, or all below a prefix.

    Uploads of these names that are queued on this machine are cancelled.
    -r deletes all objects at and below the URI. It asks first for -r and for
    patterns (see wherry get --help), unless --yes is given.
    """
    from wherry.quantities import count_text, size_text

    for uri in uris:
        if not parse_target(uri).prefix:
            raise ConfigError(f"{uri!r} names a whole store: name a prefix, or delete the bucket with its provider's own tools")
    rules = Rules(include, exclude, include_from, exclude_from)
    with Stores(option, options_file, spool_folder(spool)) as stores, ExitStack() as opened:
        found = {source.uri: source for uri in uris for source in choose(stores, uri, rules, recursive=recursive, verb="delete")}
        sources = [_described(source) for source in found.values()]
        if (recursive or any(is_pattern(parse_target(uri).prefix) for uri in uris)) and not dry_run:
            size = size_text(sum(source.size_bytes for source in sources))
            confirm(f"Delete {count_text(len(sources), 'object')}, {size}, {' and '.join(uris)}?", yes=yes)
        outcome = Outcome("deleted", as_json=as_json, dry_run=dry_run)
        deleters: dict[Uploader, Uploader] = {}
        for source in sources:
            if source.store not in deleters and not dry_run:
                deleters[source.store] = _deleter(source.store, stores, opened)

        def delete(source: Source) -> Callable[[], None]:
            if not dry_run:
                if source.is_foreign:
                    source.store.store.delete(source.key)
                else:
                    deleters[source.store].delete(source.name)
            return lambda: outcome.add(source.uri, source.size_bytes)

        outcome.each(delete, sources, lambda source: source.uri)
    raise typer.Exit(outcome.end())


def _described(source: Source) -> Source:
    """The source with its size; it is there."""
    if source.size_bytes >= 0:
        return source
    with or_folder(source, "delete"):
        return replace(source, size_bytes=source.head().size_bytes)


def _deleter(store: Uploader, stores: Stores, opened: ExitStack) -> Uploader:
    """What deletes: an upload that is under way must end first, and if its agent has died, another must finish it."""
    from wherry.uploader import Uploader

    if not store.view().queued_under(store.uri.prefix):
        return store
    return opened.enter_context(
        Uploader(str(store.uri), storage_options=stores.options(store.uri.scheme), spool=store.spool.folder)
    )
