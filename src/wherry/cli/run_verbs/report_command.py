"""``wherry report``: runs in one HTML file, for this machine or for the bucket beside the run."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    OverwriteOption,
    SpoolOption,
    is_folder_like,
    parse_target,
    print_done,
    refuse_new_folder,
    split_target,
    storage_options,
    tell,
)
from wherry.cli.exit_codes import Exit
from wherry.cli.run_verbs.run_options import (
    AlsoOption,
    ChoiceOption,
    ClipOption,
    FromOption,
    GroupOption,
    LogOption,
    LogXOption,
    RunsUri,
    SmoothOption,
    ToOption,
    XAxis,
    XOption,
    check_part,
    need_extra,
    open_runs,
)
from wherry.errors import ConfigError
from wherry.quantities import size_text
from wherry.uri import StoreURI

_NAME = "report.html"


def report(
    uri: RunsUri,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE|URI", help="Where to; a folder, or a URI that ends in /, gets report.html; - is stdout."
        ),
    ] = _NAME,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="KEY", help="Only this metric, or those that match; may be given again.")
    ] = None,
    runs: ChoiceOption = None,
    also: AlsoOption = None,
    x: XOption = XAxis.STEP,
    smooth: SmoothOption = 0.0,
    log: LogOption = False,
    log_x: LogXOption = False,
    clip: ClipOption = False,
    low: FromOption = None,
    high: ToOption = None,
    group: GroupOption = "",
    baseline: Annotated[str, typer.Option("--baseline", metavar="RUN", help="Draw this run bold.")] = "",
    diff: Annotated[
        bool, typer.Option("--diff", help="Put the changes of the code into it, too: who gets it can read them.")
    ] = False,
    overwrite: OverwriteOption = False,
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="A storage option that is no secret; may be given again."),
    ] = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write runs into one HTML file: charts, tables, alerts, environment.

    The file loads nothing and can be sent: it has the charts of wherry ui with
    a part of the points (it says how many), and its numbers can be read
    without scripts. -o s3://... puts it into the bucket, beside the run; -o -
    writes it to standard output.
    Without --overwrite a name that is taken is refused, and nothing is done.
    Needs pip install 'wherry[ui]'.
    """
    need_extra("report", "numpy", "jinja2", "starlette", "tsdownsample")
    import wherry
    from wherry.web.drawing.chosen_runs import choose
    from wherry.web.drawing.curves import Wanted
    from wherry.web.report.html_report import ReportView, html_report

    check_part(low, high)
    if out == "-" and (dry_run or as_json):
        raise ConfigError("--dry-run and --json write to standard output, as -o - does: leave them out, or name a file")
    folder, name = _place(out)
    wanted = Wanted(x.axis, half_life_steps=smooth, low=low, high=high, log_y=log)
    view = ReportView(wanted, log_x, clip, group, baseline, diff)
    reader, options = open_runs([uri, *(also or ())], option, options_file)
    with reader:
        if folder is not None:
            out_options = options if folder.scheme == parse_target(uri).scheme else storage_options(folder.scheme, None, None)
            _check_free(folder, name, out_options, overwrite=overwrite)
        chosen = choose(reader, runs or (), keys or ())
        if baseline:
            chosen.row(baseline)
        if folder is not None and dry_run:
            where = str(Path("/", folder.prefix, name)) if folder.scheme == "file" else folder.uri_for(folder.key_for(name))
            planned = {"uri": where, "n_runs": len(chosen.rows), "n_metrics": len(chosen.keys)}
            text = f"{where}: {_counted(len(chosen.rows), len(chosen.keys))}"
            tell("written", planned, text, as_json=as_json, dry_run=True)
            return
        chosen.read()
        data = html_report(chosen, view, now_s=time.time(), version=wherry.__version__).encode("utf-8", "backslashreplace")
    if folder is None:
        sys.stdout.buffer.write(data)
        return
    words = f"{size_text(len(data))}, {_counted(len(chosen.rows), len(chosen.keys))}"
    if folder.scheme == "file":
        path = Path("/", folder.prefix, name)
        _write(path, data, overwrite=overwrite)
        if as_json:
            shown = {"uri": str(path), "size_bytes": len(data), "n_runs": len(chosen.rows), "n_metrics": len(chosen.keys)}
            typer.echo(json.dumps(shown))
        else:
            print_done(f"{path}: {words}")
        return
    code = _put(folder, name, data, out_options, overwrite=overwrite, spool=spool, as_json=as_json)
    if code is Exit.OK and not as_json:
        print_done(words)
    raise typer.Exit(code)


def _place(out: str) -> tuple[StoreURI | None, str]:
    """The folder of the report and its name there; None for standard output."""
    if out == "-":
        return None, ""
    refuse_new_folder(out)
    return (parse_target(out), _NAME) if is_folder_like(out) else split_target(out)


def _counted(n_runs: int, n_metrics: int) -> str:
    counts = ((n_runs, "run"), (n_metrics, "metric"))
    return ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts)


def _check_free(folder: StoreURI, name: str, options: Mapping[str, object], *, overwrite: bool) -> None:
    """Refuse a name that is taken before anything is read, as `wherry put` does."""
    from wherry.cli.taken_names import refuse_taken

    if overwrite:
        return
    if folder.scheme == "file":
        path = Path("/", folder.prefix, name)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists already: give --overwrite or another name", str(path))
    else:
        refuse_taken(folder, options, [(Path(name), name)])


def _write(path: Path, data: bytes, *, overwrite: bool) -> None:
    from wherry.posix.atomic_write import write_atomically

    if overwrite:
        write_atomically(path, data)
        return
    with TemporaryDirectory(dir=path.parent, prefix=".wherry-report-") as scratch:
        whole = Path(scratch, path.name)
        whole.write_bytes(data)
        os.link(whole, path)  # refuses a name that another process has taken by now


def _put(
    folder: StoreURI, name: str, data: bytes, options: Mapping[str, object], *, overwrite: bool, spool: Path | None, as_json: bool
) -> Exit:
    from wherry.cli.store_commands import put_files

    with TemporaryDirectory(prefix="wherry-report-") as scratch:
        path = Path(scratch, name)
        path.write_bytes(data)
        return put_files([path], folder, [name], options, overwrite=overwrite, spool=spool, as_json=as_json)
