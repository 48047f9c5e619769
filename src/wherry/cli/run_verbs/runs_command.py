"""``wherry runs``: the runs below a prefix as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    FileOption,
    JsonOption,
    PairsOption,
    print_err,
    print_note,
    print_out,
    printable,
)
from wherry.cli.shell.narrow_table import note_left_out
from wherry.cli.shell.terminal_output import columns
from wherry.errors import ConfigError, NotFoundError, WherryError
from wherry.quantities import count_text

if TYPE_CHECKING:
    from wherry.runs import Run, RunRow


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
    environment: Annotated[
        bool, typer.Option("--environment", help="With --json: git commit, command line, host of each run.")
    ] = False,
) -> None:
    """Show the runs below a prefix, live ones too, from their own files.

    Names are columns (state, age_s, size_bytes ...), hyperparameters
    (model.depth) and metrics: val/loss is its last number, val/loss.min its
    least. Only hyperparameters that differ are shown. Nothing is copied or
    changed; what was read is cached, 2 GiB at most, in ~/.cache/wherry.
    """
    from wherry.cli.run_verbs.run_options import open_runs
    from wherry.cli.run_verbs.runs_table import table_of
    from wherry.runs import Where, sort_rows
    from wherry.runs.filters import notes_of

    if environment and not as_json:
        raise ConfigError("--environment is for --json: a table has no room for it")
    passes = None if where is None else Where(where)
    seen: list[RunRow] = []
    rows: list[RunRow] = []
    documents: dict[str, str] = {}
    with open_runs(uris, option, options_file)[0] as reader:
        for row in reader.rows():
            seen.append(row)
            if passes is not None and not passes(row):
                continue
            rows.append(row)
            if as_json:
                documents[row.id] = _document(row, reader.run(row.id) if environment else None)
                if sort is None:
                    typer.echo(documents[row.id])
    if not seen:
        hint = "a run is a folder with metrics.jsonl, hparams.json, logs or checkpoints: see wherry ls"
        raise NotFoundError("there are no runs here", operation="list", uri=", ".join(uris), hint=hint)
    rows = sort_rows(rows, sort or "id")
    wanted = [*(show or ()), *([sort.removeprefix("-")] if sort else ()), *(passes.names if passes is not None else ())]
    for note in notes_of(seen, wanted):
        print_err(printable(note))
    if as_json:
        for row in rows if sort is not None else ():
            typer.echo(documents[row.id])
        return
    table = table_of(rows, wanted, width=columns())
    for line in table.lines:
        print_out(line)
    for row in rows:
        if row.trouble is not None:
            print_err(f"{printable(row.id)}: {printable(row.trouble)}")
    note_left_out([printable(name) for name in table.left_out])
    if not rows:
        print_note(f"none of {count_text(len(seen), 'run')} passes the filter {where!r}")


def _document(row: RunRow, run: Run | None) -> str:
    """The row as JSON; of the run, if it is given, what its last start was made of. Where that cannot be read it is null."""
    from wherry.loggers.values.text import format_json

    found = row.as_json()
    if run is not None:
        try:
            environment = next(reversed(run.environments()), None)
        except WherryError:
            environment = None
        found["environment"] = None if environment is None else asdict(environment)
    return format_json(found, significant_digits=None)
