"""Which set a word means."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import ConfigError, NotFoundError
from wherry.uri import StoreURI


def best_of(sets: Sequence[Manifest], which: str) -> Manifest | None:
    """The set with the lowest metric, for "best:METRIC" (or :min), or the highest, for "best:METRIC:max"; of equal ones the
    newest.

    None if no set has the metric; ConfigError for a word that is none of these.
    """
    prefix, _, rest = which.partition(":")
    metric, _, order = rest.rpartition(":") if rest.endswith((":min", ":max")) else (rest, "", "min")
    if prefix != "best" or not metric:
        raise ConfigError(f"{which!r}: write best:METRIC for the lowest, or best:METRIC:max for the highest")
    having = [one for one in sets if metric in one.metrics]
    sign = -1.0 if order == "max" else 1.0
    return min(reversed(having), key=lambda one: sign * one.metrics[metric], default=None)


def why_none(sets: Sequence[Manifest], which: int | str) -> str:
    """What to say where none of the committed sets is the one that a word or a step means."""
    if not isinstance(which, str):
        return f"there is no complete set of step {which}"
    if which.startswith("best:"):
        known = sorted({metric for one in sets for metric in one.metrics})
        return f"no complete set has the metric of {which!r}, only: {', '.join(known) or 'none'}"
    return "there is no complete set"


def not_found(why: str, uri: StoreURI, keys: RunKeys) -> NotFoundError:
    """The error that names the run, and the command which shows what is there. `uri`: any of its store."""
    run = uri.uri_for(keys.base.removesuffix("/checkpoints"))
    return NotFoundError(why, operation="find", uri=run, hint=f"wherry checkpoints {shlex.quote(run)} shows what there is")


def set_of(manifest: Manifest | None) -> SetName | None:
    """The name of a set, if there is one."""
    return None if manifest is None else manifest.set
