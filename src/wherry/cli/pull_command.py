"""``wherry pull``: copy a mirrored prefix to a local folder, once or while it grows."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    PairsOption,
    UriArgument,
    open_target,
    print_done,
    print_err,
)
from wherry.cli.exit_codes import Exit
from wherry.cli.mirror_verbs.dry_runs import show_pulled
from wherry.cli.shell.terminal_output import is_rewritten
from wherry.cli.shell.verbosity import is_quiet
from wherry.cli.store_verbs.outcome import effort_text
from wherry.quantities import age_text, count_text, size_text, time_text

if TYPE_CHECKING:
    from wherry.mirror.reader.pull import PullReport


def pull(
    uri: UriArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The local copy; made if it does not exist.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run is sealed, or Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", min=0.1, help="With --follow: take a snapshot every S seconds.")
    ] = 10.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite/--no-overwrite", help="Replace files in DIR that no earlier pull made, too.")
    ] = False,
    dry_run: DryRunOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a mirrored folder to this machine, verified.

    Files that grow are appended to in place, so that tail -f and TensorBoard
    see a live run in DIR. What was pulled before is not fetched again, also
    after an interruption. Nothing is deleted in DIR.
    """
    from wherry.mirror.reader.pull import pull as pulled

    if dry_run:
        show_pulled(uri, folder, option, options_file, as_json=as_json)
        return
    from wherry.store.retry import retries

    begun_s, retries_before = time.monotonic(), retries()
    _, options = open_target(uri, option, options_file)
    shows_progress = follow and not is_quiet() and not as_json and is_rewritten(sys.stderr)

    def tell(report: PullReport) -> None:
        if as_json:
            typer.echo(json.dumps({**asdict(report), "folder": str(report.folder)}))
            sys.stdout.flush()
        elif shows_progress:
            sys.stderr.write(f"\r\033[K{time_text(time.time())} {line(report)}")
            sys.stderr.flush()

    try:
        try:
            report = pulled(
                uri, folder, follow=follow, interval_s=interval, overwrite=overwrite, storage_options=options, on_report=tell
            )
        finally:
            if shows_progress:
                sys.stderr.write("\n")
    except KeyboardInterrupt:
        print_err(f"interrupted; what is in {folder} is right as far as it goes, and the same command goes on")
        raise typer.Exit(Exit.INTERRUPTED) from None
    if not as_json:
        print_done(f"{line(report)} in {effort_text(time.monotonic() - begun_s, retries() - retries_before)}")


def line(report: PullReport) -> str:
    """A report in one line."""
    state = {"none": "no mirror", "unknown": "no manifest"}.get(report.state, report.state)
    words = f"{state}: {count_text(report.n_files, 'file')}, {size_text(report.n_bytes)} new"
    if report.heard_s is not None:
        words += f"; the writer was heard of {age_text(max(0.0, report.heard_s))} ago, {age_text(report.lag_s or 0.0)} late then"
    if report.trouble:
        words += f"; {len(report.trouble)} not up to date"
    return f"{words}; {report.n_requests} requests"
