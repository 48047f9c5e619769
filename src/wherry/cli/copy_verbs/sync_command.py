"""``wherry sync``: make one place have what another has, by what differs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    MaxBytesOption,
    PairsOption,
    SpoolOption,
    YesOption,
    bucket_hint,
    confirm,
    pace_of,
    parse_target,
    print_note,
    print_out,
    refuse_new_folder,
    spool_folder,
)
from wherry.cli.copy_verbs.extra_objects import delete_extra
from wherry.cli.copy_verbs.overlaps import refuse_overlap
from wherry.cli.copy_verbs.passed_over import PassedOver, passed_over
from wherry.cli.copy_verbs.sides import SourceFileOption, SourcePairsOption, open_sides
from wherry.cli.copy_verbs.sync_plan import Change, Plan, Tally, make_plan
from wherry.cli.copy_verbs.transfers import Place, Transfers, set_time, tracked
from wherry.cli.copy_verbs.two_listings import Side
from wherry.cli.shell.verbosity import is_quiet
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules, is_pattern
from wherry.cli.store_verbs.selection import Source
from wherry.errors import ConfigError, NotFoundError
from wherry.quantities import count_text, size_text

#: Of what is passed over, so many are named.
_MOST_NAMED = 20
SourceArgument = Annotated[
    str, typer.Argument(metavar="SRC", help="A prefix or folder: s3://bucket/name, gs://..., a path.", show_default=False)
]
DestArgument = Annotated[
    str, typer.Argument(metavar="DST", help="The one that gets what is below SRC, below itself.", show_default=False)
]


def sync(
    source: SourceArgument,
    dest: DestArgument,
    delete: Annotated[bool, typer.Option("--delete", help="Delete at last what DST has and SRC has not.")] = False,
    checksum: Annotated[bool, typer.Option("--checksum", help="Compare checksums, not times; what has none is read.")] = False,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    include_from: IncludeFileOption = None,
    exclude_from: ExcludeFileOption = None,
    max_bytes_per_s: MaxBytesOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    source_option: SourcePairsOption = None,
    source_options_file: SourceFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy what is new or changed below SRC to the same names below DST.

    A file is copied if DST has none of its name, one of another size, or an
    older one. The plan is shown first. Each copy is verified, as by wherry cp.
    A local file that sync writes gets the time of its source. --delete asks
    first, works when all is copied, and keeps what --exclude leaves out.
    Links to files are followed, those to folders are named and passed over.
    """
    rules, folder = Rules(include, exclude, include_from, exclude_from), spool_folder(spool)
    places, pace = [source, dest], pace_of(max_bytes_per_s)
    with open_sides(places, option, options_file, source_option, source_options_file, folder, pace) as sides:
        source_uri, dest_uri = parse_target(source), parse_target(dest)
        outcome = Outcome("copied", as_json=as_json, dry_run=dry_run)
        refuse_overlap(sides, source_uri, dest_uri, f"sync {source} {dest}")
        if dest_uri.scheme == "file" and os.path.lexists(path := f"/{dest_uri.prefix}") and not os.path.isdir(path):
            raise ConfigError(f"{dest!r} is a file, and sync fills a folder: name another one, or use wherry cp")
        ours, theirs = Side(sides.sources.open(source_uri), rules), Side(sides.dests.open(dest_uri), rules)
        plan = make_plan(ours, theirs, by_checksum=checksum)
        passed = passed_over(source_uri, rules)
        if delete and passed:  # a link whose disk is not mounted is no reason to delete what it led to
            plan.keep([one.name for one in passed])
        _refuse_nothing(source, ours, plan, passed, deletes=delete, dest=dest)
        if source_uri.scheme == "file":
            refuse_new_folder(dest)
        if theirs.is_empty:
            _refuse_object(theirs, dest)
        _name(passed)
        _show(plan, deletes=delete, as_json=as_json, dry_run=dry_run)
        if delete and plan.extra and not dry_run:
            confirm(f"Delete {_text(plan.extras)} that only {dest} has?", yes=yes)
        for name, error in plan.refused:
            outcome.fail(ours.store.uri.uri_for(ours.base + name), error)
        with Transfers(sides, len(plan.changes)) as transfers:
            if plan.changes and not dry_run:
                transfers.prepare([theirs.store])

            def ends(change: Change) -> tuple[Source, Place]:
                return Source(ours.store, change.name, change.name, change.size_bytes), Place(theirs.store, change.name)

            def copy(change: Change) -> Callable[[], None]:
                origin, place = ends(change)
                size_bytes = change.size_bytes
                if not dry_run:
                    made = transfers.copy(origin, place, overwrite=change.replaces)
                    size_bytes = made.size_bytes
                    if place.path is not None:
                        set_time(place.path, made.modified_s)
                return lambda: outcome.add(origin.uri, size_bytes, place.shown, "replaced" if change.replaces else None)

            outcome.each_shown(
                copy,
                plan.changes,
                lambda change: ours.store.uri.uri_for(ours.base + change.name),
                sides.dests.bar,
                lambda change: tracked(*ends(change)),
            )
        if delete and plan.extra:
            if outcome.is_clean:
                delete_extra(theirs, plan.extra, outcome, dry_run=dry_run)
            else:
                print_note(f"nothing was deleted below {dest}, as not all was copied: mend that, and sync again")
    raise typer.Exit(outcome.end())


def _refuse_nothing(uri: str, source: Side, plan: Plan, passed: Sequence[PassedOver], *, deletes: bool, dest: str) -> None:
    """Raise for a source that is no folder, is not there, has nothing that is taken, or has nothing while DST would lose all."""
    if plan.n_sources:
        return
    if not source.is_empty:
        raise NotFoundError("nothing is taken by --include and --exclude", operation="sync", uri=uri)
    target = parse_target(uri)
    if target.scheme == "file" and os.path.isfile(f"/{target.prefix}"):
        raise ConfigError(f"{uri!r} is a file, and sync takes a folder: use wherry cp")
    _refuse_object(source, uri)
    is_there = os.path.isdir(f"/{target.prefix}") if target.scheme == "file" else not target.prefix
    if not is_there:
        hint = (
            "SRC is no pattern: name the folder above it, and give --include" if is_pattern(target.prefix) else bucket_hint(uri)
        )
        raise NotFoundError("no object or folder is here or below", operation="sync", uri=uri, hint=hint)
    if passed:
        more = f", and {len(passed) - 1} more are passed over" if passed[1:] else ""
        raise NotFoundError(f"nothing here is copied: {passed[0].name} is {passed[0].what}{more}", operation="sync", uri=uri)
    if deletes and plan.extra:
        raise ConfigError(
            f"{uri!r} is empty, and --delete would delete all that {dest} has, {_text(plan.extras)}: "
            f"name another source, or delete it by wherry rm -r {dest}"
        )


def _refuse_object(side: Side, uri: str) -> None:
    """ConfigError if the store has an object of the very name of a prefix below which nothing is."""
    target = side.store.uri
    if target.scheme == "file" or not target.prefix:
        return
    try:
        side.store.view().head(target.prefix)
    except NotFoundError:
        return
    raise ConfigError(f"{uri!r} is an object, and sync is for prefixes and folders: use wherry cp, or end the prefix otherwise")


def _name(passed: Sequence[PassedOver]) -> None:
    for one in passed[:_MOST_NAMED]:
        print_note(f"{one.name} is passed over: {one.what}")
    if len(passed) > _MOST_NAMED:
        print_note(f"{len(passed) - _MOST_NAMED} more links and the like are passed over")


def _show(plan: Plan, *, deletes: bool, as_json: bool, dry_run: bool) -> None:
    tallies = {"new": plan.tally(replaces=False), "replace": plan.tally(replaces=True)}
    tallies |= {"delete": plan.extras if deletes else Tally(), "unchanged": plan.unchanged}
    if as_json:
        shown: dict[str, object] = {what: {"files": each.n_files, "bytes": each.n_bytes} for what, each in tallies.items()}
        shown |= {"only_in_dest": len(plan.extra), "refused": len(plan.refused), "read_bytes": plan.read_bytes}
        print_out(json.dumps({"plan": shown}))
    elif dry_run or not is_quiet():
        words = {"new": "new", "replace": "to replace", "delete": "to delete", "unchanged": "unchanged"}
        parts = [f"{_text(each)} {words[what]}" for what, each in tallies.items() if each.n_files or what != "delete" or deletes]
        parts += [f"{len(plan.refused)} cannot be copied"] if plan.refused else []
        parts += [f"{size_text(plan.read_bytes)} read to compare"] if plan.read_bytes else []
        parts += [f"{_text(plan.extras)} only in DST are kept"] if plan.extra and not deletes else []
        print_out(f"plan: {'; '.join(parts)}")


def _text(tally: Tally) -> str:
    return f"{count_text(tally.n_files, 'file')} ({size_text(tally.n_bytes)})"
