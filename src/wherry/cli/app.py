"""The command ``wherry``. Its commands are in the modules beside this one, one group a module; its exit codes in `exit_codes.py`.

Each command imports what it needs when it runs, so that ``wherry --help`` and ``wherry status`` start fast and load no cloud
library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    PairsOption,
    SpoolOption,
    error_text,
    open_target,
    print_err,
    printable,
    spool_folder,
)
from wherry.cli.exit_codes import Exit, exit_for
from wherry.cli.shell.closed_pipe import fill_standard_files, is_closed_pipe, write_nowhere
from wherry.cli.shell.verb_group import Verb, VerbGroup
from wherry.errors import ConfigError, WherryError
from wherry.redact import log_to_stderr, redact

if TYPE_CHECKING:
    from wherry.cli.doctor import Finding


#: The verbs, in the order of the list. A test compares each line with the first one of the verb's help.
VERBS = {
    "put": Verb("store_commands", "put", "Upload files or folders."),
    "get": Verb("store_verbs.get_command", "get", "Download objects, verified."),
    "ls": Verb("store_verbs.ls_command", "ls", "List objects and folders: size, date, name."),
    "du": Verb("store_verbs.du_command", "du", "Show how much room folders take: size, objects, name; the largest first."),
    "cat": Verb("store_verbs.cat_command", "cat", "Write objects to standard output, one after another, verified."),
    "cp": Verb("copy_verbs.copy_command", "cp", "Copy objects or files from any place to any other, verified."),
    "mv": Verb("copy_verbs.mv_command", "mv", "Move objects or files from any place to any other, verified."),
    "sync": Verb("copy_verbs.sync_command", "sync", "Copy what is new or changed below SRC to the same names below DST."),
    "rm": Verb("store_verbs.rm_command", "rm", "Delete objects, or all below a prefix."),
    "status": Verb("spool_commands", "status", "Show queued, running and failed uploads."),
    "drain": Verb("spool_commands", "drain", "Wait until everything in the spool is uploaded."),
    "retry": Verb("spool_commands", "retry", "Queue failed uploads again."),
    "discard": Verb("spool_verbs.discard_command", "discard", "Give up uploads: failed, queued or running ones."),
    "agent": Verb("spool_commands", "agent", "Run the agent in the foreground, as a service."),
    "pull": Verb("pull_command", "pull", "Copy a mirrored folder to this machine, verified."),
    "runs": Verb("run_verbs.runs_command", "runs", "Show the runs below a prefix, live ones too, from their own files."),
    "plot": Verb(
        "run_verbs.plot_command", "plot", "Draw metrics in the terminal: one chart for each, the runs over one another."
    ),
    "report": Verb("run_verbs.report_command", "report", "Write runs into one HTML file: charts, tables, alerts, environment."),
    "ui": Verb("run_verbs.ui_command", "ui", "Look at runs in a page: curves, media, logs, checkpoints, uploads."),
    "mirror": Verb("mirror_commands", "app", "Mirror a growing folder to a prefix."),
    "checkpoints": Verb("checkpoint_commands", "app", "Show, restore and prune the checkpoint sets of a run."),
    "doctor": Verb("app", "doctor", "Examine a store, or the spool, and say what to mend."),
    "demo": Verb("app", "demo", "Show on this machine that a killed run loses nothing."),
}


class _Verbs(VerbGroup):
    """Turns the error of a command into one message on stderr and an exit code."""

    verbs = VERBS

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _errors_said(ctx):  # --help prints
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        with _errors_said(ctx):
            return super().invoke(ctx)


@contextmanager
def _errors_said(ctx: Any) -> Iterator[None]:
    try:
        yield
    except (WherryError, OSError, KeyboardInterrupt) as error:
        if is_closed_pipe(error):
            write_nowhere()
            raise typer.Exit(Exit.OK) from None
        if ctx.params.get("debug"):
            _show_traceback(error)
        print_err("interrupted" if isinstance(error, KeyboardInterrupt) else error_text(error))
        raise typer.Exit(exit_for(error)) from None
    except SystemExit as error:  # rich ends the process itself, with 1
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        raise typer.Exit(Exit.OK) from None


app = typer.Typer(
    name="wherry",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich alone takes twice as long to load as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes:\n\n\b\n" + "\n".join(f"{code.value:>3}  {code.meaning}" for code in Exit),
)


def main() -> None:
    """Run the command line of this process."""
    fill_standard_files()
    try:
        app(prog_name="wherry")
    except Exception as error:  # a bug in wherry: its maintainers need the traceback
        _show_traceback(error)
        sys.exit(Exit.FAILED)


def _show_traceback(error: BaseException) -> None:
    """Write the traceback to stderr, without secrets and control characters: names of objects may hold any."""
    import traceback

    lines = redact("".join(traceback.format_exception(error))).splitlines()
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))


def _show_version(is_asked: bool) -> None:
    if is_asked:
        import wherry

        typer.echo(f"wherry {wherry.__version__}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's whole traceback.")] = False,
) -> None:
    """Ferry files between this machine and an object store: whole, verified, once.

    A background process makes the uploads: they continue when this terminal is closed.
    """
    import logging

    log_to_stderr(logging.WARNING, "wherry: %(message)s")


def doctor(
    uri: Annotated[str | None, typer.Argument(metavar="URI", help="The store to examine; without it, the spool.")] = None,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Examine nothing; remove what broken uploads and downloads of wherry left.")
    ] = False,
    older_than_days: Annotated[
        float, typer.Option("--older-than-days", metavar="D", min=0.0, help="With --clean: keep what is newer than D days.")
    ] = 7.0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Examine a store, or the spool, and say what to mend.

    Small objects are written, read, listed and deleted at the URI. Each step
    shows how long it took, what the endpoint can do and what it answered.

    With --clean, old multipart uploads that wherry began and nobody completes
    are aborted, and stale downloads are removed; never those of others.
    """
    import json

    from wherry.cli.doctor import Level, examine_spool
    from wherry.cli.doctor_clean import clean_spool, clean_store
    from wherry.cli.doctor_store import examine_store

    if dry_run and not clean:
        raise ConfigError("--dry-run goes with --clean: an examination keeps nothing of what it writes")
    folder, older_than_s = spool_folder(spool), older_than_days * 86_400
    if uri is None:
        examination = clean_spool(folder, older_than_s, dry_run=dry_run) if clean else examine_spool(folder)
    else:
        target, options = open_target(uri, option, options_file)
        cleaning = clean_store(target, options, folder, older_than_s, dry_run=dry_run)
        examination = cleaning if clean else examine_store(target, options)
    findings = []
    with closing(examination):
        for finding in examination:
            findings.append(finding)
            if not as_json:
                _show_finding(finding)
    if as_json:
        shown = [
            {"what": f.what, "level": f.level.value, "text": f.text, "remedy": f.remedy, "took_ms": f.took_ms} for f in findings
        ]
        healthy = all(finding.level is not Level.BAD for finding in findings)
        typer.echo(redact(json.dumps({"healthy": healthy, "findings": shown})))
    raise typer.Exit(next((finding.exit for finding in findings if finding.level is Level.BAD), Exit.OK))


def _show_finding(finding: Finding) -> None:
    from textwrap import TextWrapper

    from rich.console import Console
    from rich.text import Text

    style = {"ok": "green", "warn": "yellow", "bad": "bold red"}[finding.level.value]
    took = "" if finding.took_ms is None else f"{finding.took_ms:.0f} ms"
    head = f"{finding.level.value:<4} {finding.what:<12} {took:>8} "
    console = Console(highlight=False)
    text = [finding.text] + ([f"-> {finding.remedy}"] if finding.remedy else [])
    # Lines break between words only, so that a URL, a path or an option can be copied whole.
    wrap = TextWrapper(max(20, console.width - len(head)), break_long_words=False, break_on_hyphens=False).wrap
    lines = [line for part in text for line in wrap(printable(redact(part)))]
    shown = Text(head + f"\n{' ' * len(head)}".join(lines))
    shown.stylize(style, 0, len(finding.level.value))
    console.print(shown, soft_wrap=True)


def demo(
    uri: Annotated[str | None, typer.Option("--uri", metavar="URI", help="Where to upload; by default a local folder.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's folder and objects.")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="End in the page of the demo's own run, until Ctrl-C.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --ui: do not open a browser.")] = False,
) -> None:
    """Show on this machine that a killed run loses nothing.

    A model trains, its trainer is killed, its uploads finish nevertheless,
    and a second run restores the checkpoint and completes. With --ui, which
    needs pip install 'wherry[ui]', both are shown as one run in a page.
    """
    from functools import partial

    from wherry.cli.run_verbs.run_options import need_extra
    from wherry.demo.demo import run

    if ui:  # before the demo, not behind it
        need_extra("demo --ui", "numpy", "jinja2", "starlette", "tsdownsample", "uvicorn")
    from wherry.cli.run_verbs import ui_command

    show = partial(ui_command.show_run, no_open=no_open) if ui else None
    raise typer.Exit(run([] if uri is None else [(uri, {})], keep=keep, show=show))
