"""``wherry mv``: copies, and deletes each source when its copy is verified."""

from __future__ import annotations

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
from wherry.cli.copy_verbs.copy_command import DestArgument, SourcesArgument, copy_all
from wherry.cli.copy_verbs.sides import SourceFileOption, SourcePairsOption, open_sides
from wherry.cli.store_verbs.get_command import RecursiveOption
from wherry.cli.store_verbs.outcome import Outcome
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules


def mv(
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
    """Move objects or files from any place to any other, verified.

    Each is copied as by wherry cp, and its source is deleted when the copy is
    verified, if the source is still what was copied. What could not be copied
    stays where it is. Folders stay, empty ones too.
    """
    rules, folder = Rules(include, exclude, include_from, exclude_from), spool_folder(spool)
    places, pace = [*sources, dest], pace_of(max_bytes_per_s)
    with open_sides(places, option, options_file, source_option, source_options_file, folder, pace) as sides:
        outcome = Outcome("moved", as_json=as_json, dry_run=dry_run)
        copy_all(sides, sources, dest, rules, outcome, recursive=recursive, overwrite=overwrite, dry_run=dry_run, moves=True)
    raise typer.Exit(outcome.end())
