"""The commands of ``wherry checkpoints``: show, restore, verify, prune, pin and delete the checkpoint sets of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    PairsOption,
    UriArgument,
    YesOption,
    confirm,
    print_done,
    print_err,
    print_note,
    print_out,
    tell,
)
from wherry.cli.checkpoint_verbs.run_of_uri import check_run, manifest_of, named, no_sets, opened, which_set
from wherry.cli.exit_codes import Exit
from wherry.cli.shell.verb_group import VerbCommand, VerbGroup
from wherry.cli.shell.verbosity import is_quiet
from wherry.errors import ConfigError

if TYPE_CHECKING:
    from wherry.checkpoints.keep import Keep
    from wherry.checkpoints.protocol.deletion import PruneDelays
    from wherry.checkpoints.prune import PruneReport

_DAY_S = 86_400.0

StepOption = Annotated[int | None, typer.Option("--step", metavar="N", min=0, help="The set of this step.")]
WhichOption = Annotated[
    str | None, typer.Option("--which", metavar="SET", help="latest, best:METRIC, best:METRIC:max, or a set's name.")
]


class _Checkpoints(VerbGroup):
    """``wherry checkpoints URI`` is ``wherry checkpoints list URI``, unless the first word is another command."""

    default = "list"


app = typer.Typer(
    cls=_Checkpoints,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    subcommand_metavar="URI | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def checkpoints() -> None:
    """Show, restore and prune the checkpoint sets of a run.

    URI is that of the store and the name of the run: s3://my-bucket/project/run1.
    wherry checkpoints URI lists the sets.
    """


@app.command("list", cls=VerbCommand)
def list_sets(uri: UriArgument, option: PairsOption = None, options_file: FileOption = None, as_json: JsonOption = False) -> None:
    """List the sets of a run, from the oldest to the newest (may be left out).

    Each with its step, attempt, age, size (what a restore takes), objects,
    ranks, state, the metrics that say most (a loss, a score: the best set is
    marked), when its bytes were verified (since it was stored: by the verb
    verify), and the proof of its state. A set that is not complete is shown as
    that, with the ranks that are missing.
    """
    from wherry.checkpoints.survey import survey
    from wherry.cli.checkpoint_verbs.sets_table import show_sets

    with opened(uri, option, options_file) as run:
        found = survey(run.catalog.store, run.catalog.keys)
        if not found:
            from wherry.cli.checkpoint_verbs.foreign_checkpoints import show_foreign

            if show_foreign(run, uri, as_json=as_json):
                return
            raise no_sets(run, uri)
    if as_json:
        for one in found:
            typer.echo(json.dumps(one.as_json()))
        return
    show_sets(found, time.time())


@app.command(cls=VerbCommand)
def latest(uri: UriArgument, option: PairsOption = None, options_file: FileOption = None, as_json: JsonOption = False) -> None:
    """Print the name of the newest set that is proven complete.

    It is what a restart restores. Exit code 3: there is none.
    """
    with opened(uri, option, options_file) as run:
        if (found := run.catalog.newest()) is None:
            raise no_sets(run, uri)
    if as_json:
        shown = {"set": str(found.set), "step": found.step, "attempt": found.set.attempt, "size_bytes": found.size_bytes}
        typer.echo(json.dumps({**shown, "n_objects": found.n_objects, "n_ranks": found.world, "metrics": dict(found.metrics)}))
    else:
        print_out(str(found.set))


@app.command(cls=VerbCommand)
def restore(
    uri: UriArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.", show_default=False)],
    step: StepOption = None,
    which: WhichOption = None,
    dry_run: DryRunOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a set, the newest complete one by default, verified.

    DIR appears whole or not at all. If the newest set turns out to be damaged,
    the one before it is restored, and the message says so.
    """
    from wherry.cli.checkpoint_verbs.foreign_checkpoints import restore_foreign
    from wherry.cli.checkpoint_verbs.run_of_uri import tell_restored
    from wherry.store.retry import retries

    begun_s, retries_before = time.monotonic(), retries()
    with opened(uri, option, options_file) as run:
        wanted = "latest" if (given := which_set(step, which)) is None else given
        if restore_foreign(run, uri, wanted, folder, dry_run=dry_run, as_json=as_json):
            if not (dry_run or as_json):
                _summary(folder, begun_s, retries_before)
            return
        found = manifest_of(run, wanted, uri)
        if dry_run:
            tell_restored(str(found.set), found.size_bytes, folder, dry_run=True, as_json=as_json)
            return
        # Of the name "latest" it falls back to an older set.
        run.restore("latest" if wanted == "latest" else str(found.set), folder, progress_bar=not is_quiet())
        restored = run.parent
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tell_restored(str(restored), size, folder, dry_run=False, as_json=as_json)
    if not as_json:
        _summary(folder, begun_s, retries_before)


def _summary(folder: Path, begun_s: float, retries_before: int) -> None:
    from wherry.cli.store_verbs.outcome import summary_text
    from wherry.store.retry import retries

    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    n_retries = retries() - retries_before
    print_done(summary_text("restored", len(sizes), sum(sizes), time.monotonic() - begun_s, n_retries))


@app.command(cls=VerbCommand)
def verify(
    uri: UriArgument,
    step: StepOption = None,
    which: WhichOption = None,
    every: Annotated[bool, typer.Option("--all", help="All committed sets, from the newest.")] = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte of a set, the newest by default, and compare.

    Sizes and checksums are compared with the receipts of its ranks. Exit code 7:
    something is wrong; each object that is, is named. The list shows the outcome
    and its age, if it could be written down beside the set.
    """
    from wherry.checkpoints.survey import verify_set
    from wherry.quantities import size_text

    if every and (step is not None or which is not None):
        raise ConfigError("--all means every set: leave --step and --which out")
    n_wrong, wanted = 0, which_set(step, which)
    with opened(uri, option, options_file) as run:
        names = run.catalog.names()[::-1] if every else [manifest_of(run, "latest" if wanted is None else wanted, uri).set]
        n_checked = 0
        for name in names:
            if (one := verify_set(run.catalog, name)) is None:  # it is deleted
                continue
            n_checked, n_wrong = n_checked + 1, n_wrong + bool(one.damage)
            if as_json:
                typer.echo(json.dumps(one.as_json()))
                continue
            shown = f"{size_text(one.size_bytes):>10}  {one.n_objects} objects"
            print_out(f"{'wrong' if one.damage else 'right'}  {shown}  {one.name}")
            for each in one.damage:
                print_err(f"{one.name}: {each.name}: {each.text}")
        if not n_checked:
            raise no_sets(run, uri)
    if n_wrong:
        raise typer.Exit(Exit.INTEGRITY)


@app.command(cls=VerbCommand)
def prune(
    uri: UriArgument,
    dry_run: DryRunOption = False,
    keep_last: Annotated[int | None, typer.Option("--keep-last", metavar="N", min=1, help="Keep the newest N sets.")] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="K", min=1, help="Keep steps that are a multiple of K.")
    ] = None,
    keep_best: Annotated[int | None, typer.Option("--keep-best", metavar="N", min=1, help="Keep the best N by --metric.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", metavar="NAME", help="The metric of --keep-best.")] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="min|max", help="Which value of the metric is the best.")] = "min",
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", metavar="D", min=0.0, help="Keep sets that are younger than D days.")
    ] = None,
    grace_hours: Annotated[
        float, typer.Option("--grace-hours", metavar="H", min=0.0, help="Objects go H hours after their set was deleted.")
    ] = 6.0,
    abandon_days: Annotated[
        float, typer.Option("--abandon-days", metavar="D", min=0.0, help="Give up sets that got no object for D days.")
    ] = 2.0,
    yes: YesOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the sets that no --keep rule keeps; without a rule, none.

    Also commits sets whose ranks have all written their receipts, gives up those
    that were begun and never completed, and deletes the objects of sets that
    were deleted --grace-hours ago. The newest complete set stays, and those that
    are pinned, being restored, or were resumed from.
    """
    from wherry.quantities import count_text

    keep = _keep(keep_last, keep_every, keep_best, metric, mode, keep_days)
    delays = _delays(grace_hours, abandon_days)
    with opened(uri, option, options_file) as run:
        check_run(run, uri)
        if not dry_run and not yes:
            plan = run.prune(keep=keep, delays=delays, dry_run=True)
            if leaving := {*plan.pruned, *plan.abandoned, *plan.removed}:
                confirm(f"Delete {count_text(len(leaving), 'set')} of {uri}, which --dry-run lists?", yes=False)
        report = run.prune(keep=keep, delays=delays, dry_run=dry_run)
    _show_report(report, as_json=as_json)


def _keep(
    last: int | None, every: int | None, best: int | None, metric: str | None, mode: str, days: float | None
) -> Keep | None:
    from wherry.checkpoints.keep import Keep

    if all(rule is None for rule in (last, every, best, metric, days)):
        return None
    age_s = None if days is None else days * _DAY_S
    return Keep(last, every, best, metric, mode, age_s)  # type: ignore[arg-type]  # Keep checks the mode


def _delays(grace_hours: float, abandon_days: float) -> PruneDelays:
    from wherry.checkpoints.protocol.deletion import PruneDelays

    return PruneDelays(abandon_after_s=abandon_days * _DAY_S, grace_s=grace_hours * 3600.0)


def _show_report(report: PruneReport, *, as_json: bool) -> None:
    from wherry.quantities import size_text

    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        for word, name, why in report.lines() if report.dry_run or not is_quiet() else ():
            print_out(f"{word:<10}  {name}  {why}".rstrip())
        if report.freed_bytes:
            print_done(f"freed       {size_text(report.freed_bytes)}")
        if report.dry_run:
            print_note("this was a dry run: nothing was done")
    if report.stopped is not None:
        print_err(f"nothing more was deleted: {report.stopped}")
        raise typer.Exit(Exit.FAILED)


@app.command(cls=VerbCommand)
def pin(
    uri: UriArgument,
    step: StepOption = None,
    which: WhichOption = None,
    dry_run: DryRunOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a set, whatever the rules say, until it is unpinned."""
    with opened(uri, option, options_file) as run:
        name = named(run, step, which, uri)
        if not dry_run:
            run.pin(name)
    tell("pinned", {"set": name}, name, as_json=as_json, dry_run=dry_run)


@app.command(cls=VerbCommand)
def unpin(
    uri: UriArgument,
    step: StepOption = None,
    which: WhichOption = None,
    dry_run: DryRunOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let prune delete a pinned set again."""
    with opened(uri, option, options_file) as run:
        name = named(run, step, which, uri)
        if not dry_run:
            run.unpin(name)
    tell("unpinned", {"set": name}, name, as_json=as_json, dry_run=dry_run)


@app.command(cls=VerbCommand)
def delete(
    uri: UriArgument,
    step: StepOption = None,
    which: WhichOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete one set. Its objects go at the first prune six hours later.

    Refused: a set that is pinned, is being restored, is the one that the newest
    attempt was resumed from, or is the only complete one.
    """
    with opened(uri, option, options_file) as run:
        name = named(run, step, which, uri)
        if not dry_run:
            confirm(f"Delete the set {name} of {uri}?", yes=yes)
        run.delete(name, dry_run=dry_run)
    tell("deleted", {"set": name}, name, as_json=as_json, dry_run=dry_run)
