"""command_of(): the command that draws what an address of the page shows, in a terminal or into a file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from glob import escape

from starlette.datastructures import QueryParams

from wherry.errors import ConfigError
from wherry.runs.shell_words import option_words
from wherry.web.view import run_ids, wanted_of

VERBS = ("plot", "report")
_AXES = {"time": "wall"}


def command_of(verb: str, uris: Sequence[str], options: Mapping[str, object], query: QueryParams) -> str:
    """The command, quoted for a shell. `options` are storage options, without the secret ones. ConfigError for another verb.

    Names are of the bucket's: in what a person pastes there is no control character, and no name is taken for an option.
    """
    if verb not in VERBS:
        raise ConfigError(f"verb={verb!r} is none: use {', '.join(VERBS)}")
    hidden = set(_names(query, "hide"))
    words = [f"--also={uri}" for uri in uris[1:]]
    words += [f"--runs={_typed(run_id)}" for run_id in run_ids(query) if run_id not in hidden]
    keys = _keys(query)
    if verb == "report":
        words += [f"--keys={key}" for key in keys if key != "*"]
        words += [f"--baseline={base}"] if (base := query.get("base")) and base.isprintable() else []
    words += _look(query)
    words += option_words(options)
    places = [uris[0], *(keys if verb == "plot" else ())]
    words += ["--"] if any(place.startswith("-") for place in places) else []
    return shlex.join(["wherry", verb, *words, *places])


def _look(query: QueryParams) -> list[str]:
    wanted = wanted_of(query)
    words = [f"--x={_AXES.get(wanted.x, wanted.x)}"] if wanted.x != "step" else []
    words += [f"--smooth={wanted.half_life_steps:.12g}"] if wanted.half_life_steps else []
    words += ["--log"] if wanted.log_y else []
    words += [option for name, option in (("logx", "--log-x"), ("clip", "--clip")) if query.get(name) == "1"]
    words += [f"--from={wanted.low:.12g}"] if wanted.low is not None else []
    words += [f"--to={wanted.high:.12g}"] if wanted.high is not None else []
    group = query.get("group")
    return [*words, *([f"--group={group}"] if group and group.isprintable() else [])]


def _keys(query: QueryParams) -> list[str]:
    """Patterns for the metrics that the page shows: those that are pinned, and those that its filter lets pass."""
    below = "system/" if query.get("tab") == "system" else ""
    part = query.get("keys", "")
    return [*map(_typed, _names(query, "pin")), f"{below}*{_pattern(part)}*" if part else f"{below}*"]


def _typed(name: str) -> str:
    """A name as it can be typed: a pattern where it has control characters."""
    return name if name.isprintable() else _pattern(name)


def _pattern(name: str) -> str:
    """The pattern of a name, with ``[!/]``, any one character, for what nobody can type."""
    return "".join(one if one.isprintable() else "[!/]" for one in escape(name))


def _names(query: QueryParams, name: str) -> list[str]:
    """A list in an address, as `view.js` writes it."""
    try:
        found = json.loads(query.get(name) or "[]")
    except ValueError:
        raise ConfigError(f"{name}={query[name][:40]!r} is no list of names") from None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
