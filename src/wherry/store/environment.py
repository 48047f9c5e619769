"""What this process's environment says about a store, as storage options.

An agent keeps the environment of whoever started it, so a later user's endpoint or keys must travel with the jobs: the
public ones in the journal, the secret ones in memory. For other schemes than these the agent's own environment counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class RecordedStore(Protocol):
    """What is asked here of the journal's record of a store."""

    @property
    def id(self) -> int: ...  # noqa: D102  as in StoreRecord
    @property
    def scheme(self) -> str: ...  # noqa: D102
    @property
    def secret_names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def settings(self) -> Mapping[str, Mapping[str, float]]: ...  # noqa: D102


#: Option -> the variables that give it, first one first; those are the vendors' own.
_PUBLIC: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "profile": ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
        "verify": ("AWS_CA_BUNDLE",),
    },
    "gs": {
        "credentials_file": ("GOOGLE_APPLICATION_CREDENTIALS",),
        "project": ("GOOGLE_CLOUD_PROJECT",),
    },
}
_S3_KEYS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


def with_environment(scheme: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The options, and for those that were not given what the environment says.

    Keys are taken all together, and only if none, no profile and no anonymous access was asked for.
    """
    found = dict(options)
    own = {"token", "credentials_json", "credentials_file", "profile", *_S3_KEYS}
    names_credentials = bool(own & set(options) or options.get("anonymous"))
    for option, variables in _PUBLIC.get(scheme, {}).items():
        if option in ("profile", "credentials_file") and names_credentials:
            continue
        value = next((environ[variable] for variable in variables if environ.get(variable)), None)
        if value is not None and option not in options:
            found[option] = value
    return found if names_credentials else {**found, **secrets_from_environment(scheme, environ)}


def variables_for(scheme: str) -> tuple[str, ...]:
    """The variables that hold secrets of a scheme: the vendor's, and those of fsspec's own configuration."""
    own = {"s3": (*_S3_KEYS.values(), "FSSPEC_S3_KEY", "FSSPEC_S3_SECRET", "FSSPEC_S3_TOKEN"), "gs": ("FSSPEC_GS_TOKEN",)}
    return own.get(scheme, ())


def secrets_here(stores: Iterable[RecordedStore], environ: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """The secrets of those stores whose first user had them in the environment, as far as this one has them, too: by store."""
    found: dict[int, dict[str, str]] = {}
    for store in stores:
        here = secrets_from_environment(store.scheme, environ)
        if "secrets" in store.settings and set(store.secret_names) <= set(here):
            found[store.id] = {name: here[name] for name in store.secret_names}
    return found


def variables_of(scheme: str, secret_names: Iterable[str]) -> list[str]:
    """The variables from which secrets_from_environment() takes these options."""
    return [_S3_KEYS[name] for name in secret_names if scheme == "s3" and name in _S3_KEYS]


def secrets_from_environment(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The secret options that the environment gives for a scheme."""
    if scheme != "s3" or not (environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY")):
        return {}
    return {option: environ[variable] for option, variable in _S3_KEYS.items() if environ.get(variable)}
