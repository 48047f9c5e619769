"""How much a command says: --quiet and --verbose, which all verbs take, before the verb or after it."""

from __future__ import annotations

import logging
from functools import cache
from typing import Annotated, Any

import typer

_is_quiet = False
_is_verbose = False


def is_quiet() -> bool:
    """Whether to write errors, and what was asked for, only: no summaries, notes and bars."""
    return _is_quiet


def is_verbose() -> bool:
    """Whether to name each object and each retry."""
    return _is_verbose


def log_only_errors(logger: str) -> None:
    """Keep a command's own warnings from those who did not ask for them with --verbose."""
    if not _is_verbose:
        logging.getLogger(logger).setLevel(logging.ERROR)


@cache
def options() -> tuple[Any, ...]:
    """The two options, for the parameters of a verb or a group."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command()(_both)
    return tuple(one for one in typer.main.get_command(alone).params if one.name in ("quiet", "verbose"))


def _be_quiet(is_given: bool) -> bool:
    global _is_quiet
    if is_given:
        _is_quiet = True
        _set_level(logging.ERROR)
    return is_given


def _be_verbose(is_given: bool) -> bool:
    global _is_verbose
    if is_given:
        _is_verbose = True
        _set_level(logging.DEBUG)
    return is_given


def _set_level(level: int) -> None:
    if _is_quiet and _is_verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other: give one of them")
    logging.getLogger("wherry").setLevel(level)


def _both(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            expose_value=False,
            callback=_be_quiet,
            help="Only errors and what was asked for: no summary, no bar.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", expose_value=False, callback=_be_verbose, help="Name each object and each retry.")
    ] = False,
) -> None:
    """Only its options are used."""
