"""Secrets among storage options: read from the environment when a store is opened, and never written out with the options.

A pickle or a JSON text of a file system, or of checkpoints, is sent and stored where nobody guards it (a scheduler's log, a
configuration in git). So it has a reference, ``{"from_env": "AWS_SECRET_ACCESS_KEY"}``, where the options have a secret, and the
process that opens it again reads its own environment. A caller may write such references into the options, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wherry.errors import ConfigError
from wherry.store.environment import variables_for
from wherry.store.registry import split_options

_KEY = "from_env"


def resolve(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what their references name, at any depth. ConfigError for a variable that is not set."""

    def value_of(name: str, value: Any) -> Any:
        if not _is_reference(value):
            return value
        variable = value[_KEY]
        if not os.environ.get(variable):
            raise ConfigError(f"storage option {name!r} is read from the environment variable {variable}, which is not set here")
        return os.environ[variable]

    return _mapped(options, value_of)


def portable(scheme: str, given: Mapping[str, Any], opened: Mapping[str, Any]) -> dict[str, Any]:
    """The options `given`, fit to be written out: each secret replaced by a reference to the variable that has it.

    `opened`: the same as the backend of `scheme` takes them. ConfigError for a secret that no variable of that store has.
    """
    _public, secret = split_options(scheme, opened)
    secrets = [leaf for leaf in _leaves(secret) if not isinstance(leaf, (bool, int, float, type(None)))]
    variables = variables_for(scheme)

    def value_of(name: str, value: Any) -> Any:
        if _is_reference(value) or not any(leaf in secrets for leaf in _leaves(value)):
            return value
        variable = next((one for one in variables if os.environ.get(one) == value), None)
        if variable is not None:
            return {_KEY: variable}
        raise ConfigError(
            f"the storage option {name!r} may be a secret, which is not written to a pickle or to JSON: give "
            f"{{{_KEY!r}: 'NAME'}} in its place, an environment variable that holds it in this process and in the other"
            + (f" (such as {', '.join(variables[:3])})" if variables else "")
        )

    return _mapped(given, value_of)


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {_KEY} and isinstance(value[_KEY], str)


def _mapped(options: Mapping[str, Any], value_of: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Options with each value replaced, also those in mappings among them."""
    return {
        name: _mapped(value, value_of) if isinstance(value, Mapping) and not _is_reference(value) else value_of(name, value)
        for name, value in options.items()
    }


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
