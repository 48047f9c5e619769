"""What this process's environment says about a store, as storage options.

An agent keeps the environment of whoever started it, so a later user's endpoint or keys must travel with the jobs: the
public ones in the journal, the secret ones in memory. For schemes without a backend of ours the agent's own environment counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wherry.store.options import Option
from wherry.store.registry import own_backend


def with_environment(scheme: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The options, and for those that were not given what the environment says.

    Keys are taken all together, and only if none, no profile and no anonymous access was asked for.
    """
    known = _options(scheme)
    names_credentials = _names_credentials(known, options)
    found = dict(options)
    for each in known:
        is_wanted = not each.is_secret and not (each.names_credentials and names_credentials)
        if is_wanted and each.name not in options and (value := _value(each, environ)) is not None:
            found[each.name] = value
    if not names_credentials:
        found |= secrets_from_environment(scheme, environ)
    if not _names_credentials(known, found):
        found |= {each.implies: True for each in known if each.implies and each.name in found.keys() - options.keys()}
    return found


def variables_for(scheme: str) -> tuple[str, ...]:
    """The variables that hold secrets of a scheme: the vendor's, and those of fsspec's own configuration."""
    secrets = [each for each in _options(scheme) if each.is_secret]
    vendors = (variable for each in secrets for variable in each.variables)
    flat = ([alias for alias in each.aliases if "." not in alias] or [each.name] for each in secrets)
    return (*vendors, *(f"FSSPEC_{scheme}_{name}".upper() for names in flat for name in names))


def variables_of(scheme: str, secret_names: Iterable[str]) -> list[str]:
    """The variables from which secrets_from_environment() takes these options."""
    known = {each.name: each.variables for each in _options(scheme) if each.is_secret}
    return [variable for name in secret_names for variable in known.get(name, ())]


def secrets_from_environment(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The secret options that the environment gives for a scheme."""
    secrets = [each for each in _options(scheme) if each.is_secret]
    if any(each.is_needed and _value(each, environ) is None for each in secrets):
        return {}
    return {each.name: value for each in secrets if (value := _value(each, environ)) is not None}


def _options(scheme: str) -> tuple[Option, ...]:
    backend = own_backend(scheme)
    return () if backend is None else backend.options


def _names_credentials(known: Iterable[Option], options: Mapping[str, object]) -> bool:
    given = (each for each in known if each.name in options and (options[each.name] or not each.is_switch))
    return any(each.names_credentials for each in given)


def _value(option: Option, environ: Mapping[str, str]) -> str | None:
    return next((environ[variable] for variable in option.variables if environ.get(variable)), None)
