"""From a URI's scheme to the class that keeps its store.

Ours stand in a table, as text, so that nothing is imported before it is used. Third parties add a scheme with the
entry-point group ``wherry.backends`` (name: the scheme, value: ``module:Class``). Any other scheme goes to fsspec.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import cast

from wherry.errors import ConfigError, MissingExtraError
from wherry.store import ObjectStore
from wherry.uri import StoreURI


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is, what it needs installed, and which of its options may be written to disk.

    Every option that is not in `public_options` is treated as a secret: it is kept in memory only.
    """

    target: str
    extra: str | None = None
    libraries: tuple[str, ...] = ()
    public_options: frozenset[str] = frozenset()


_FSSPEC = BackendEntry(
    "wherry.backends.fsspec_store:FsspecStore",
    public_options=frozenset({"account_name", "anon", "endpoint", "host", "port", "project", "protocol", "region", "username"}),
)

_S3_OPTIONS = (
    "addressing_style",
    "anonymous",
    "connect_timeout_s",
    "endpoint_url",
    "max_connections",
    "profile",
    "read_timeout_s",
    "region",
    "verify",
)
_GCS_OPTIONS = ("anonymous", "credentials_file", "endpoint_url", "max_connections", "project", "timeout_s", "verify")

BACKENDS: dict[str, BackendEntry] = {
    "file": BackendEntry("wherry.backends.local:LocalStore", public_options=frozenset({"fsync"})),
    "s3": BackendEntry("wherry.backends.s3:S3Store", "s3", ("boto3",), frozenset(_S3_OPTIONS)),
    "gs": BackendEntry("wherry.backends.gcs:GCSStore", "gcs", ("google.cloud.storage",), frozenset(_GCS_OPTIONS)),
}


def backend_for(scheme: str) -> BackendEntry:
    """The entry that keeps `scheme`: ours, then a third party's, then fsspec's if fsspec knows the scheme.

    Raises ConfigError for an unknown scheme. Imports no vendor library.
    """
    if (entry := BACKENDS.get(scheme)) is not None:
        return entry
    for point in entry_points(group="wherry.backends"):
        if point.name == scheme:
            return BackendEntry(point.value)
    from fsspec.registry import available_protocols

    known = set(available_protocols())
    if scheme not in known:
        ours = ", ".join(f"{name}://" for name in BACKENDS)
        raise ConfigError(
            f"unknown scheme {scheme!r}: wherry has {ours} and every scheme that fsspec knows "
            f"({', '.join(sorted(known))}); others come as packages with the entry point 'wherry.backends'"
        )
    return _FSSPEC


def open_store(uri: StoreURI, options: Mapping[str, object] | None = None) -> ObjectStore:
    """Open the store of `uri`, bare: no retries, no limits.

    Raises MissingExtraError (names what to install), ConfigError for options that the backend does not know.
    """
    entry = backend_for(uri.scheme)
    module_name, _, class_name = entry.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        wanted = any((error.name or "").split(".")[0] == library.split(".")[0] for library in entry.libraries)
        if entry.extra is None or not wanted:
            raise
        raise MissingExtraError(
            f"{uri.scheme}:// needs {' and '.join(entry.libraries)}, which is not installed: pip install 'wherry[{entry.extra}]'"
        ) from error
    store_class = cast("type[ObjectStore]", getattr(module, class_name))
    return store_class(uri, dict(options or {}))  # type: ignore[call-arg]  # the contract's constructor, see store.py


def split_options(scheme: str, options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Sort storage options into those that may be written to disk and the secret rest."""
    public = backend_for(scheme).public_options
    plain = (str, int, float, bool, type(None))
    open_part = {name: value for name, value in options.items() if name in public and isinstance(value, plain)}
    return open_part, {name: value for name, value in options.items() if name not in open_part}
