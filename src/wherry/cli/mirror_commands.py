"""The commands of ``wherry mirror``: mirror a folder, and inspect, verify and seal mirrored prefixes."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli.arguments import (
    BudgetOption,
    CompressOption,
    DryRunOption,
    FileOption,
    JsonOption,
    LagOption,
    PairsOption,
    RuleOption,
    SealOption,
    SegmentOption,
    SpoolOption,
    Target,
    UriArgument,
    error_text,
    open_target,
    print_done,
    print_err,
    print_note,
    print_out,
    printable,
    refuse_new_folder,
    spool_folder,
)
from wherry.cli.exit_codes import Exit, exit_for
from wherry.cli.mirror_verbs.dry_runs import show_mirrored
from wherry.cli.mirror_verbs.prefix_reader import reader_of
from wherry.cli.mirror_verbs.seal_command import seal
from wherry.cli.shell.narrow_table import show_table
from wherry.cli.shell.terminal_output import is_rewritten
from wherry.cli.shell.verb_group import VerbCommand, VerbGroup
from wherry.cli.shell.verbosity import is_quiet, is_verbose
from wherry.errors import ConfigError, NotFoundError, WherryError
from wherry.posix.signal_event import SignalEvent
from wherry.quantities import age_text, count_text, size_text

if TYPE_CHECKING:
    from wherry.mirror import Mirror, MirrorConfig, MirrorReport, Rule
    from wherry.mirror.reader.verify import Finding

#: Seconds between two reports of progress: on a terminal, and with --json.
_SAY_EVERY_S = 1.0
_SAY_JSON_EVERY_S = 10.0

DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it may not exist yet.", show_default=False)]
WriterOption = Annotated[
    str,
    typer.Option(
        "--writer", metavar="NAME", help="This writer's name among all that mirror to URI; else rank<RANK>, or the host's."
    ),
]


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="Mirror while this command runs.", show_default=False),
]


class _Mirror(VerbGroup):
    """``wherry mirror DIR URI`` is ``wherry mirror start DIR URI``, unless the first word is another command."""

    default = "start"


app = typer.Typer(
    cls=_Mirror,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    subcommand_metavar="DIR URI | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def mirror() -> None:
    """Mirror a growing folder to a prefix.

    wherry mirror DIR URI runs beside any program that writes logs to DIR and
    uploads what is new; `wherry mirror start --help` has its options. A folder that
    is called like a command: wherry mirror ./status URI.
    """


class _BesideCommand(VerbCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a ``--`` with nothing behind it, as of an empty variable: that would mirror without an end."""
        if args[-1:] == ["--"]:
            raise typer.BadParameter("no command follows the --: name one, or leave the -- out to mirror until Ctrl-C")
        return super().parse_args(ctx, args)


@app.command(cls=_BesideCommand)
def start(
    folder: DirArgument,
    uri: UriArgument,
    command: CommandArgument = None,
    rule: RuleOption = None,
    segment_bytes: SegmentOption = None,
    max_lag: LagOption = None,
    budget: BudgetOption = None,
    compress: CompressOption = None,
    seal: SealOption = True,
    writer: WriterOption = "",
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mirror DIR to URI until SIGTERM or Ctrl-C (may be left out).

    Then the rest is sent, and each growing file becomes one plain object.
    A second Ctrl-C ends at once; `wherry mirror resume` continues.

    With -- COMMAND ... it mirrors while the command runs, passes SIGINT, SIGTERM
    and SIGHUP on to it, and ends with its exit code; 128 + n for a signal.
    """
    given = {"segment_bytes": segment_bytes, "max_lag_s": max_lag, "max_requests_per_hour": budget, "compression": compress}
    config = _config(rule, seal, given)
    refuse_new_folder(uri)
    target = open_target(uri, option, options_file)
    if dry_run:
        show_mirrored(folder, target[0], writer, config.rules, as_json=as_json)
        return
    if command:
        raise typer.Exit(_mirror_beside(command, lambda: _open(folder, target, writer, spool, config), as_json=as_json))
    with _signals() as ended:
        mirror = _open(folder, target, writer, spool, config)
        if not as_json:
            print_note(_plan(mirror))
        is_shown = is_rewritten(sys.stderr) and not as_json and not is_quiet()
        wait_s = _SAY_JSON_EVERY_S if as_json else _SAY_EVERY_S
        while not ended.wait(wait_s) and mirror.is_running:
            if as_json:
                typer.echo(json.dumps(asdict(mirror.report)))
            elif is_shown:
                sys.stderr.write(f"\r\033[K{printable(_line(mirror.report))}")
                sys.stderr.flush()
        if is_shown:
            sys.stderr.write("\r\033[K")
        if ended.is_set():
            print_note("sending what is left; Ctrl-C, or SIGTERM, once more ends at once")
        _close(mirror, as_json=as_json)


def _mirror_beside(command: list[str], open_mirror: Callable[[], Mirror], *, as_json: bool) -> int:
    """Mirror while the command runs. Its exit code, or the mirror's if that is 0. Standard output is the command's alone."""
    from wherry.cli.shell.child_command import CANNOT_RUN, ChildCommand

    child = ChildCommand(command)
    if child.problem is not None:
        print_err(child.problem[1])
        return child.problem[0]
    with child.signals():
        mirror = open_mirror()
        print_note(f"mirroring {mirror.folder} to {mirror.uri} as {mirror.writer} while {command[0]} runs")
        try:
            code = child.run()
        except OSError as error:
            print_err(f"{command[0]}: cannot be run: {error.strerror or error}")
            code = CANNOT_RUN
        try:
            own, said = _ended(mirror)
        except (WherryError, OSError) as error:
            own, said = exit_for(error), f"the mirror has failed: {error_text(error)}"
        if as_json:
            sys.stderr.write(json.dumps(asdict(mirror.report)) + "\n")
        elif said:
            print_note(said)
        if own:
            print_err(f"not all is stored. To send the rest: wherry mirror resume {_folder_and_uri(mirror)}")
    return code or own


def _folder_and_uri(mirror: Mirror) -> str:
    """The arguments that name this mirror to `wherry mirror resume`."""
    return shlex.join([str(mirror.folder), str(mirror.uri), "--writer", mirror.writer])


@app.command(cls=VerbCommand)
def resume(
    folder: DirArgument,
    uri: UriArgument,
    rule: RuleOption = None,
    compress: CompressOption = None,
    seal: SealOption = True,
    writer: WriterOption = "",
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send what a killed mirror has not sent, and end.

    Give the same rules and the same name. What was sent is not sent again.
    """
    folder.stat()
    config = _config(rule, seal, {"compression": compress})
    target = open_target(uri, option, options_file)
    if dry_run:
        show_mirrored(folder, target[0], writer, config.rules, as_json=as_json)
        return
    with _signals() as ended:
        mirror = _open(folder, target, writer, spool, config)
        _close(mirror, as_json=as_json)
    if ended.is_set():
        raise typer.Exit(Exit.INTERRUPTED)


#: Of `wherry mirror status`: when a writer was heard of, how late it was then, what is in segments.
_WRITERS = ("STATE", "HEARD", "LATE", "SEGMENTS", "SIZE", "WRITER")


@app.command(cls=VerbCommand)
def status(uri: UriArgument, option: PairsOption = None, options_file: FileOption = None, as_json: JsonOption = False) -> None:
    """Show who mirrors to URI, whether it is alive and how late it is.

    One line for each writer: open, sealed, incomplete (closed before all was
    stored), or lost (no heartbeat for long).
    """
    from wherry.mirror.report import first_few, printable as shown_name

    with reader_of(uri, option, options_file) as (reader, target, _):
        found = reader.snapshot()
        now_s = time.time()
        if not found.is_mirror:
            raise NotFoundError("nobody has mirrored to here", operation="read", uri=str(target))
        rows = []
        for name in sorted({*found.manifests, *found.writers}):
            manifest = found.manifests.get(name)
            segments = [one for f in found.files.values() for one in f.segments if one.writer == name]
            state = manifest.state_at(now_s) if manifest is not None else "lost"
            live_bytes = sum(one.size_bytes for one in segments)
            shown = {
                "writer": name,
                "state": state,
                "heard_s": None if manifest is None else now_s - manifest.heartbeat_s,
                "lag_s": None if manifest is None else manifest.lag_s,
                "unsent_bytes": None if manifest is None else manifest.unsent_bytes,
                "n_files": 0 if manifest is None else manifest.n_files,
                "n_segments": len(segments),
                "segment_bytes": live_bytes,
                "epoch": 0 if manifest is None else manifest.epoch,
            }
            if as_json:
                typer.echo(json.dumps(shown))
                continue
            heard = "never" if manifest is None else f"{age_text(now_s - manifest.heartbeat_s)} ago"
            late = "" if manifest is None or state == "sealed" else age_text(manifest.lag_s)
            rows.append((state, heard, late, str(len(segments)), size_text(live_bytes), shown_name(name)))
        if rows:
            show_table(_WRITERS, rows, right=("HEARD", "LATE", "SEGMENTS", "SIZE"), first=("STATE", "HEARD", "LATE"))
        for path, reason in found.trouble.items():
            print_err(f"{shown_name(path)}: {reason}")
        if found.unknown:
            print_err(
                f"{target} has names that this wherry does not understand, perhaps a newer one's: {first_few(found.unknown)}"
            )
        if found.trouble:
            raise typer.Exit(Exit.INTEGRITY)


@app.command(cls=VerbCommand)
def verify(
    uri: UriArgument,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder to compare with.", show_default=False)
    ] = None,
    read: Annotated[bool, typer.Option("--read", help="Fetch every byte; do not rely on the store's checksums.")] = False,
    rule: RuleOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what is at URI with its manifests, and with DIR.

    It checks gaps, sizes and checksums of every file. Exit code 7: something is
    wrong. Bytes that only DIR has are no error while the run is live.
    """
    from wherry.mirror.format.rules import DEFAULT_RULES, Rules
    from wherry.mirror.reader.verify import summary, verify as verified
    from wherry.mirror.report import printable as shown_name

    findings: list[Finding] = []
    with reader_of(uri, option, options_file) as (reader, _, _):
        for one in verified(reader, folder, Rules((*_rules(rule), *DEFAULT_RULES)), by_reading=read):
            findings.append(one)
            if as_json:
                typer.echo(json.dumps(asdict(one)))
            elif one.verdict != "right":
                print_out(f"{one.verdict:<6}  {shown_name(one.path)}: {one.text}")
    counts = summary(findings)
    if not as_json:
        typer.echo(", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n) or "there are no files")
    if counts["wrong"]:
        raise typer.Exit(Exit.INTEGRITY)


app.command(cls=VerbCommand)(seal)


def _rules(given: list[str] | None) -> tuple[Rule, ...]:
    from wherry.mirror import Rule

    rules = []
    for text in given or ():
        pattern, is_pair, kind = text.rpartition("=")
        if not is_pair:
            raise ConfigError(f"--rule {text!r}: write PATTERN=KIND, such as '*.out=append'")
        rules.append(Rule(pattern, kind))  # type: ignore[arg-type]  # Rule checks it
    return tuple(rules)


def _config(rule: list[str] | None, seal: bool, given: Mapping[str, object]) -> MirrorConfig:
    from wherry.mirror import DEFAULT_RULES, MirrorConfig

    return MirrorConfig(
        rules=(*_rules(rule), *DEFAULT_RULES),
        seal_on_close=seal,
        exit_on_sigterm=False,  # _signals() handles it
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def _open(folder: Path, target: Target, writer: str, spool: Path | None, config: MirrorConfig) -> Mirror:
    from wherry.mirror import Mirror

    if not (is_quiet() or is_verbose()):
        logging.getLogger("wherry.mirror").setLevel(logging.INFO)
    uri, options = target
    return Mirror(folder, str(uri), storage_options=options, spool=spool_folder(spool), writer=writer, config=config)


def _plan(mirror: Mirror) -> str:
    config = mirror.config
    most = config.max_requests_per_hour
    budget = "3,600 to 36,000 requests an hour, by the number of files" if most is None else f"{most:,} requests an hour"
    end = ", makes one object of each file, and ends" if config.seal_on_close else " and ends; growing files stay in segments"
    return (
        f"mirroring {mirror.folder} to {mirror.uri} as {mirror.writer}: what is new goes after {config.max_lag_s:g} s, with "
        f"at most {budget}; Ctrl-C or SIGTERM sends the rest{end}"
    )


def _close(mirror: Mirror, *, as_json: bool) -> None:
    code, said = _ended(mirror)
    if as_json:
        typer.echo(json.dumps(asdict(mirror.report)))
    elif said:
        print_done(said)
    if code:
        raise typer.Exit(code)


def _ended(mirror: Mirror) -> tuple[Exit, str]:
    """Send what is left. The exit code, and a line about what was sent if that was all."""
    mirror.close()  # it prints what it could not send
    report = mirror.report
    if mirror.fenced is not None:  # it printed this when it found out
        return exit_for(mirror.fenced), ""
    if not report.is_complete:
        return Exit.TIMED_OUT, ""
    return Exit.OK, f"complete  {_files(report)}, {size_text(report.sent_bytes)} sent  {report.uri}"


@contextmanager
def _signals() -> Iterator[SignalEvent]:
    """SIGTERM and Ctrl-C set the event. A second one ends the process at once; a mirror can be resumed after that."""
    ended = SignalEvent()

    def end(number: int, frame: object) -> None:
        if ended.is_set():
            os.write(2, b"\nwherry: interrupted; what is not sent stays in the folder: wherry mirror resume\n")
            os._exit(Exit.INTERRUPTED)
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(report: MirrorReport) -> str:

    waiting = f"{size_text(report.unsent_bytes)} unsent, {age_text(report.lag_s)} late" if report.unsent_files else "up to date"
    trouble = f"; {report.trouble[0]}" if report.trouble else ""
    return f"{_files(report)}, {size_text(report.sent_bytes)} sent, {waiting}{trouble}"[: _columns() - 1]


def _files(report: MirrorReport) -> str:
    return count_text(report.n_files, "file")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80
