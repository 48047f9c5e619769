"""``wherry mirror seal``: plain objects of what a writer that is gone has sent."""

from __future__ import annotations

import json
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
    tell,
)
from wherry.cli.exit_codes import exit_for
from wherry.cli.mirror_verbs.prefix_reader import reader_of
from wherry.errors import ConfigError, NotFoundError
from wherry.quantities import size_text

if TYPE_CHECKING:
    from wherry.mirror.reader.snapshot import Snapshot


def seal(
    uri: UriArgument,
    writer: Annotated[str, typer.Option("--writer", metavar="NAME", help="The writer; needed if there are several.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Also seal a writer that is still alive: it is stopped.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make plain objects of the segments of a writer that is gone.

    It uses what is in the store only. If the folder still exists, run
    `wherry mirror resume`, which also sends the rest. A writer that comes back
    stops by itself. A log that was rotated or begun anew after the writer's last
    manifest is kept, as train.log.generation-0001. A file that cannot be sealed
    is named, and its segments stay; the others are sealed.
    """
    from wherry.mirror.reader.seal_remote import Unsealed, check_writer, seal as sealed, writers
    from wherry.mirror.report import printable as shown_name

    with reader_of(uri, option, options_file) as (reader, target, store):
        look = reader.snapshot()
        known = writers(look)
        if not writer:
            if not known:
                raise NotFoundError("nothing is unsealed here", operation="seal", uri=str(target))
            if len(known) > 1:
                raise ConfigError(f"there are several writers, {', '.join(sorted(known))}: name one with --writer")
            writer = min(known)
        if dry_run:
            check_writer(look, target, writer, even_if_open=force)
            _show_plan(look, writer, as_json=as_json)
            return
        confirm(f"Seal what {writer} has sent to {target}? Whatever he has not sent stays behind.", yes=yes)
        assert reader.scratch is not None
        n_sealed = 0
        failed: list[Unsealed] = []
        for one in sealed(store, target, writer, reader.scratch, even_if_open=force):
            if isinstance(one, Unsealed):
                failed.append(one)
                print_err(f"not sealed: {shown_name(one.path)}: {one.reason}")
                if as_json:
                    typer.echo(json.dumps({"name": shown_name(one.path), "state": "failed", "error": one.reason}))
                continue
            note = f"  ({one.note})" if one.note else ""
            what = {"name": shown_name(one.name), "size_bytes": one.size_bytes, "note": one.note}
            tell("sealed", what, f"{size_text(one.size_bytes):>10}  {shown_name(one.name)}{note}", as_json=as_json)
            n_sealed += 1
        if not n_sealed and not failed and not as_json:
            print_done(f"nothing of {writer} was in segments")
        if failed:
            raise typer.Exit(exit_for(failed[0].error))


def _show_plan(look: Snapshot, writer: str, *, as_json: bool) -> None:
    """Say which files have segments of the writer."""
    from wherry.mirror.report import printable as shown_name

    for path, file in sorted(look.files.items()):
        if segments := [one for one in file.segments if one.writer == writer]:
            size_bytes, name = sum(one.size_bytes for one in segments), shown_name(path)
            what = {"name": name, "segment_bytes": size_bytes}
            tell("sealed", what, f"{size_text(size_bytes):>10}  {name}", as_json=as_json, dry_run=True)
