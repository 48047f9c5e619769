"""``wherry checkpoints`` where no run of wherry is, but checkpoints of other programs are."""

from __future__ import annotations

import json
import time
from pathlib import Path

import typer

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.foreign.finding import MOST_OBJECTS, Found, find_in, restore_from
from wherry.cli.arguments import parse_target, print_err, print_note
from wherry.cli.checkpoint_verbs.run_of_uri import tell_restored
from wherry.cli.shell.narrow_table import show_table
from wherry.errors import NotFoundError
from wherry.quantities import age_text, size_text
from wherry.uri import StoreURI


def show_foreign(run: Checkpoints, uri: str, *, as_json: bool) -> bool:
    """List the checkpoints that other programs have left below the URI; False if there are none."""
    found = _found(run, uri)
    if not found.checkpoints:
        return False
    if as_json:
        for one in found.checkpoints:
            typer.echo(json.dumps(one.as_json()))
    else:
        _show_table(found)
    for text in found.dangling:
        print_err(text)
    if found.is_cut:
        print_err(f"there are more than {MOST_OBJECTS} objects below {uri}, and the later ones were not looked at: name a folder")
    return True


def _show_table(found: Found) -> None:
    titles, rows = ("STEP", "LAYOUT", "AGE", "SIZE", "OBJECTS", "STATE", "NAME", "PROOF"), []
    for one in found.checkpoints:
        age = "" if one.modified_s is None else age_text(max(0.0, time.time() - one.modified_s))
        proof = "; ".join([one.proof, *(f"{name} leads to it" for name in one.pointers)])
        step = "" if one.step is None else str(one.step)
        rows.append((step, one.layout, age, size_text(one.size_bytes), str(len(one.objects)), one.state, one.name, proof))
    show_table(titles, rows, right=("STEP", "AGE", "SIZE", "OBJECTS"), first=("NAME", "STATE", "AGE"))


def restore_foreign(
    run: Checkpoints, uri: str, which: int | str, folder: Path, *, dry_run: bool = False, as_json: bool = False
) -> bool:
    """Restore a checkpoint of another program by its name, its step or as the latest; False where wherry's sets are, or none."""
    store, keys = run.catalog.store, run.catalog.keys
    if any(next(iter(store.list(f"{keys.base}/{part}/")), None) is not None for part in ("manifests", "attempts")):
        return False
    found = _found(run, uri)
    if not found.checkpoints:
        return False
    if (one := found.named(which)) is None:
        names = ", ".join(each.name for each in found.checkpoints[-5:])
        raise NotFoundError(f"there is no checkpoint {which!r} here, but: {names}", operation="restore", uri=uri)
    if not dry_run:
        restore_from(store, _target(uri), one, folder)
    tell_restored(one.name, one.size_bytes, folder, dry_run=dry_run, as_json=as_json)
    print_note(f"{one.name} was written by another program: {one.proof}")
    return True


def _found(run: Checkpoints, uri: str) -> Found:
    return find_in(run.catalog.store, _target(uri))


def _target(uri: str) -> StoreURI:
    return parse_target(uri.rstrip("/"))
