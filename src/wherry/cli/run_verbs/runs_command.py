"""``wherry runs``: the runs below a prefix as a table."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import typer

from wherry.cli.arguments import (
    FileOption,
    JsonOption,
    PairsOption,
    print_err,
    print_out,
    printable,
)
from wherry.errors import NotFoundError


def runs(
    uris: Annotated[
        list[str], typer.Argument(metavar="URI...", help="A prefix of runs, a run, or a folder.", show_default=False)
    ],
    where: Annotated[
        str | None, typer.Option("--where", metavar="FILTER", help="Only runs such as 'lr<1e-3 and val/loss.min<2'.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="NAME", help="Sort by a column; -NAME: the greatest first.")
    ] = None,
    show: Annotated[list[str] | None, typer.Option("--show", metavar="NAME", help="One more column; may be given again.")] = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the runs below a prefix, live ones too, from their own files.

    Names are columns (state, age_s, size_bytes ...), hyperparameters
    (model.depth) and metrics: val/loss is its last number, val/loss.min its
    least. Only hyperparameters that differ are shown. Nothing is copied or
    changed; what was read is cached, 2 GiB at most, in ~/.cache/wherry.

    Example: wherry runs s3://my-bucket/runs --sort val/loss.min
    """
    from wherry.cli.run_verbs.run_options import open_runs
    from wherry.cli.run_verbs.runs_table import table_of
    from wherry.loggers.values.text import format_json
    from wherry.runs import Where, sort_rows

    passes = None if where is None else Where(where)
    n_seen, rows = 0, []
    with open_runs(uris, option, options_file)[0] as reader:
        for row in reader.rows():
            n_seen += 1
            if passes is not None and not passes(row):
                continue
            if as_json and sort is None:
                typer.echo(format_json(row.as_json(), significant_digits=None))
            else:
                rows.append(row)
    if not n_seen:
        hint = "a run is a folder with metrics.jsonl, hparams.json, logs or checkpoints: see wherry ls"
        raise NotFoundError("there are no runs here", operation="list", uri=", ".join(uris), hint=hint)
    rows = sort_rows(rows, sort or "id")
    if as_json:
        for row in rows if sort is not None else ():
            typer.echo(format_json(row.as_json(), significant_digits=None))
        return
    wanted = [*(show or ()), *([sort.removeprefix("-")] if sort else ()), *(passes.names if passes is not None else ())]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = table_of(rows, wanted, width=width)
    for line in table.lines:
        print_out(line)
    for row in rows:
        if row.trouble is not None:
            print_err(f"{printable(row.id)}: {printable(row.trouble)}")
    if table.left_out:
        print_err(f"not shown, as the terminal is too narrow: {', '.join(map(printable, table.left_out))}")
    if not rows:
        print_err(f"none of {n_seen} runs passes the filter {where!r}")
