"""What a program's environment says about a store, so that whoever opens the store for it can have the same.

An agent has the environment of the program that started it. So what chooses servers, accounts and certificates travels with the
jobs of each program: what is public in the journal, what is secret in memory. The vendor's library reads it, in a worker that has
the environment of its stores (`use`); wherry itself reads keys only, which are storage options as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

from wherry.store.options import Option
from wherry.store.registry import described_backend, own_backend

#: What the environment of stores has to be: their scheme, and its variables that are set. None: whatever a process has.
Environment = tuple[str, frozenset[tuple[str, str]]] | None
#: Addresses, in which a password may be.
_ADDRESS = re.compile(r".*(_PROXY|_URI|_HOST|ENDPOINT.*)", re.IGNORECASE)
#: Names of files and folders. A worker's own folder is another.
_PATH = re.compile(
    r"HOME|BOTO_CONFIG|CLOUDSDK_CONFIG|GOOGLE_APPLICATION_CREDENTIALS|.*(_FILE|_DIR|_DIRECTORY|_BUNDLE|_CERTIFICATE_CONFIG)"
)


def with_environment(scheme: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The options, and the keys that the environment gives: all together, and only if no options name other credentials."""
    is_named = names_credentials(scheme, options)
    return dict(options) if is_named else {**options, **secrets_from_environment(scheme, environ)}


def environment_of(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that choose how stores of `scheme` are reached, as far as they are set; names of files are absolute."""
    return {name: _absolute(name, environ[name]) for name in variables_of_stores(scheme) if name in environ}


def variables_of_stores(scheme: str) -> tuple[str, ...]:
    """The variables by which the library of `scheme` finds servers, accounts and certificates."""
    return described_backend(scheme).variables


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Sort variables into those that may be written to disk and the secret rest: keys, and addresses with a password."""
    secret = {name: value for name, value in environment.items() if _is_secret(name, value)}
    return {name: value for name, value in environment.items() if name not in secret}, secret


def carried(scheme: str, environ: Mapping[str, str]) -> tuple[dict[str, str] | None, dict[str, str]]:
    """Return what travels with the jobs for stores of `scheme`: the public variables (None: it knows none), the secret ones."""
    public, secret = split_environment(environment_of(scheme, environ))
    return public if variables_of_stores(scheme) else None, secret


def public_environment(scheme: str) -> dict[str, str]:
    """Return what this process has of environment_of() and may show."""
    return split_environment(environment_of(scheme, os.environ))[0]


def use(environment: Environment) -> None:
    """Make it the environment of this process, for all that chooses how stores are reached. Keys travel as storage options."""
    if environment is None:
        return
    scheme, variables = environment
    for name in (*variables_of_stores(scheme), *(name for each in _options(scheme) for name in each.variables)):
        os.environ.pop(name, None)
    os.environ.update(variables)


def has_keys(scheme: str, environ: Mapping[str, str]) -> bool:
    """Return True if the environment has a key that the library of `scheme` would take where the options name none."""
    return any(each.is_secret and each.value_in(environ) is not None for each in _options(scheme))


def names_credentials(scheme: str, options: Mapping[str, object], secret_names: Collection[str] = ()) -> bool:
    """Return True if these options, or secret ones of these names, say whose credentials count, whatever the environment has."""
    return any(
        each.name in secret_names or (each.name in options and (options[each.name] or not each.is_switch))
        for each in _options(scheme)
        if each.names_credentials
    )


def variables_for(scheme: str) -> tuple[str, ...]:
    """The variables that hold secrets of a scheme: the vendor's, and those of fsspec's own configuration."""
    secrets = [each for each in _options(scheme) if each.is_secret]
    vendors = (variable for each in secrets for variable in each.variables)
    flat = ([alias for alias in each.aliases if "." not in alias] or [each.name] for each in secrets)
    return (*vendors, *(f"FSSPEC_{scheme}_{name}".upper() for names in flat for name in names))


def variables_of(scheme: str, secret_names: Iterable[str]) -> list[str]:
    """The variables from which secrets_from_environment() takes these options, or that they are themselves."""
    known = {each.name: each.variables for each in _options(scheme) if each.is_secret}
    travelling = variables_of_stores(scheme)
    return [variable for name in secret_names for variable in ((name,) if name in travelling else known.get(name, ()))]


def secrets_from_environment(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The secret options that the environment gives for a scheme."""
    secrets = [each for each in _options(scheme) if each.is_secret]
    if any(each.is_needed and each.value_in(environ) is None for each in secrets):
        return {}
    return {each.name: value for each in secrets if (value := each.value_in(environ)) is not None}


def _options(scheme: str) -> tuple[Option, ...]:
    backend = own_backend(scheme)
    return () if backend is None else backend.options


def _absolute(name: str, value: str) -> str:
    return os.path.abspath(value) if _PATH.fullmatch(name) and value and value[0] not in "/~$" else value


def _is_secret(name: str, value: str) -> bool:
    return name.endswith("_TOKEN") or ("@" in value and _ADDRESS.fullmatch(name) is not None)
