"""``wherry cp``: objects and files from any place to any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from wherry.cli.copy_verbs.planning import Step, planned
from wherry.cli.copy_verbs.sides import Sides, SourceFileOption, SourcePairsOption, open_sides
from wherry.cli.copy_verbs.transfers import Transfers, tracked
from wherry.cli.store_verbs.get_command import RecursiveOption
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules
from wherry.cli.store_verbs.selection import or_folder

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC",
        help="Objects or files: s3://bucket/name, gs://..., a path; * ? [ab] ** stand for others.",
        show_default=False,
    ),
]
DestArgument = Annotated[
    str, typer.Argument(metavar="DST", help="A name, or a folder (with a / at its end) for all of them.", show_default=False)
]


def cp(
    sources: SourcesArgument,
    dest: DestArgument,
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
    source_option: SourcePairsOption = None,
    source_options_file: SourceFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy objects or files from any place to any other, verified.

    Inside one S3 or GCS server the server copies: no byte comes here. Else
    the bytes go through this machine's memory. Metadata and content type go
    along between stores. Names are made as by wherry get. Links to files are
    followed, folders behind links are not entered. When it ends, all is
    copied and verified, or named: nothing goes on in the background.
    """
    rules, folder = Rules(include, exclude, include_from, exclude_from), spool_folder(spool)
    places, pace = [*sources, dest], pace_of(max_bytes_per_s)
    with open_sides(places, option, options_file, source_option, source_options_file, folder, pace) as sides:
        outcome = Outcome("copied", as_json=as_json, dry_run=dry_run)
        copy_all(sides, sources, dest, rules, outcome, recursive=recursive, overwrite=overwrite, dry_run=dry_run)
    raise typer.Exit(outcome.end())


def copy_all(
    sides: Sides,
    sources: Sequence[str],
    dest: str,
    rules: Rules,
    outcome: Outcome,
    *,
    recursive: bool,
    overwrite: bool,
    dry_run: bool,
    moves: bool = False,
) -> None:
    """Copy what the command line names; with `moves`, each source is deleted when its copy is verified."""
    verb = "move" if moves else "copy"
    steps = planned(sides, sources, dest, rules, recursive=recursive, overwrite=overwrite, verb=verb)
    with Transfers(sides, len(steps)) as transfers:
        if not dry_run:
            transfers.prepare(step.place.store for step in steps)

        def copy(step: Step) -> Callable[[], None]:
            source, place = step.source, step.place
            with or_folder(source, verb):
                if moves:
                    transfers.refuse_queued_source(source)
                if dry_run:
                    size_bytes = source.head().size_bytes if source.size_bytes < 0 else source.size_bytes
                else:
                    made = transfers.copy(source, place, overwrite=overwrite)
                    size_bytes = made.size_bytes
                    if moves:
                        transfers.delete_source(source, made)
            return lambda: outcome.add(source.uri, size_bytes, place.shown)

        counted = {step: tracked(step.source, step.place) for step in steps}
        outcome.each_shown(
            copy, steps, lambda step: step.source.uri, sides.dests.bar, counted.__getitem__, is_raised=len(steps) == 1
        )
