"""The run that the commands of ``wherry checkpoints`` are about, and the set of it that they are given."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from wherry.cli.arguments import open_target, parse_target, print_note, tell
from wherry.cli.shell.verbosity import log_only_errors
from wherry.errors import ConfigError, NotFoundError, StoreError
from wherry.quantities import size_text

if TYPE_CHECKING:
    from wherry.checkpoints.checkpoints import Checkpoints
    from wherry.checkpoints.protocol.set_manifest import Manifest


@contextmanager
def opened(uri: str, option: list[str] | None, options_file: str | None) -> Iterator[Checkpoints]:
    """The sets of the run at `uri`. Opening starts no agent, and makes no spool but a temporary one."""
    from wherry.checkpoints.checkpoints import Checkpoints
    from wherry.checkpoints.world import World
    from wherry.config import AgentConfig, Config
    from wherry.uri import StoreURI

    parse_target(uri)  # before its slashes go: s3:// names no bucket
    text = uri.rstrip("/").removesuffix("/checkpoints")
    if not parse_target(text).prefix:
        raise ConfigError(f"{uri!r} names no run: add its name, {text}/RUN")
    target, options = open_target(text, option, options_file)
    above, _, run_name = target.prefix.rpartition("/")
    parent = StoreURI(target.scheme, target.root, above)
    log_only_errors("wherry.spool")
    with (
        _each_warning_once(),
        TemporaryDirectory(prefix="wherry-") as spool,
        Checkpoints(
            str(parent),
            run_name,
            world=World(),
            storage_options=options,
            spool=spool,
            config=Config(agent=AgentConfig(run_in="caller")),
        ) as run,
    ):
        try:
            yield run
        except StoreError as error:
            if error.uri.startswith(f"{run.catalog.keys.base}/"):  # a key, of what was read and could not be used
                error.uri = target.uri_for(error.uri)
            raise


@contextmanager
def _each_warning_once() -> Iterator[None]:
    """A command looks at a set several times, each time with the same warning: it is shown once."""
    shown: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text, n_shown = record.getMessage(), len(shown)
        shown.add(text)
        return len(shown) > n_shown

    log = logging.getLogger("wherry.checkpoints")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def which_set(step: int | None, which: str | None) -> int | str | None:
    """The set that --step or --which names; None: neither was given."""
    if step is not None and which is not None:
        raise ConfigError("--step and --which both name a set: give one of them")
    return which if step is None else step


def named(run: Checkpoints, step: int | None, which: str | None, uri: str) -> str:
    """The full name of the set that --step or --which names, one of which must be given."""
    wanted = which_set(step, which)
    if wanted is None:
        raise ConfigError("name the set with --step N, or with --which")
    return str(manifest_of(run, wanted, uri).set)


def manifest_of(run: Checkpoints, which: int | str, uri: str) -> Manifest:
    """The set, as Checkpoints.find() finds it; a number is a step. NotFoundError that names the runs below a URI that is none."""
    try:
        return run.find(int(which) if isinstance(which, str) and which.isdecimal() else which)
    except NotFoundError:
        check_run(run, uri)
        raise


def check_run(run: Checkpoints, uri: str) -> None:
    """NotFoundError that names the runs below the URI, if it is none itself."""
    if next(iter(run.catalog.store.list(f"{run.catalog.keys.base}/")), None) is None:
        raise no_sets(run, uri)


def no_sets(run: Checkpoints, uri: str) -> NotFoundError:
    """The error for a URI where no complete set is: it says what is there."""
    from wherry.checkpoints.survey import runs_below

    keys, given = run.catalog.keys, uri.rstrip("/")
    if next(iter(run.catalog.store.list(f"{keys.base}/")), None) is not None:
        hint = f"wherry checkpoints {shlex.quote(given)} shows what there is"
        return NotFoundError("the run has no complete set", operation="read", uri=given, hint=hint)
    found = runs_below(run.catalog.store, keys.base.removesuffix("checkpoints"))
    if not found:
        hint = (
            "give the store's URI and the name of the run, STORE/RUN; what other programs have left is listed and restored only"
        )
        return NotFoundError("there are no checkpoint sets of a run here", operation="read", uri=given, hint=hint)
    names = ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
    hint = f"wherry checkpoints {shlex.quote(f'{given}/{found[0]}')}"
    return NotFoundError(f"this is no run, but there are runs below it: {names}", operation="read", uri=given, hint=hint)


def tell_restored(name: str, size_bytes: int, folder: Path, *, dry_run: bool, as_json: bool) -> None:
    """Say that a set, or a checkpoint of another program, was restored, or would be."""
    what = {"set": name, "size_bytes": size_bytes, "folder": str(folder)}
    tell("restored", what, f"{size_text(size_bytes):>10}  {name}  {folder}", as_json=as_json, dry_run=dry_run)
    if dry_run and folder.is_dir() and any(folder.iterdir()):
        print_note(f"{folder} is not empty: it is verified if it holds this set already, and refused if not")
