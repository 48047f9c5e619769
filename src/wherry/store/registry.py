"""From a URI's scheme to the class that keeps its store.

Ours stand in a table, as text, so that nothing is imported before it is used. Third parties add a scheme with the
entry-point group ``wherry.backends`` (name: the scheme, value: ``module:Class``). Any other scheme goes to fsspec.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

from wherry.errors import ConfigError, MissingExtraError
from wherry.store import ObjectStore
from wherry.uri import StoreURI

log = logging.getLogger("wherry")


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is, what it needs installed, and which of its options may be written to disk.

    Every option that is not in `public_options` is treated as a secret: it is kept in memory only. A backend that lists
    its `secret_options` knows no others. `process_local`: its objects are seen by one process only.
    """

    target: str
    extra: str | None = None
    libraries: tuple[str, ...] = ()
    public_options: frozenset[str] = frozenset()
    secret_options: frozenset[str] | None = None
    process_local: bool = False
    #: What checks the values of options, ``module:function``; it imports no vendor library.
    options: str | None = None
    #: What checks the name of a bucket with the options given, ``module:function``; no vendor library for one that is right.
    bucket: str | None = None
    #: The option by which it is told after how long without a byte a call is cut.
    stall_option: str | None = None


_FSSPEC = BackendEntry(
    "wherry.backends.fsspec.store:FsspecStore",
    public_options=frozenset({"account_name", "anon", "endpoint", "host", "port", "project", "protocol", "region", "username"}),
)

#: What fsspec's own implementations import.
_BEHIND_FSSPEC = {"ftp": "", "hdfs": "pyarrow", "sftp": "paramiko", "smb": "smbclient", "ssh": "paramiko", "webhdfs": "requests"}
#: Packages that have another name than their module.
_PACKAGES = {"smbclient": "smbprotocol"}

_S3_OPTIONS = (
    "addressing_style",
    "anonymous",
    "checksums",
    "conditional_writes",
    "connect_timeout_s",
    "endpoint_url",
    "max_connections",
    "profile",
    "read_timeout_s",
    "region",
    "verify",
)
_S3_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_GCS_SECRETS = ("credentials_json", "token")
_GCS_OPTIONS = ("anonymous", "credentials_file", "endpoint_url", "max_connections", "project", "timeout_s", "upload", "verify")

BACKENDS: dict[str, BackendEntry] = {
    "file": BackendEntry(
        "wherry.backends.local.store:LocalStore",
        public_options=frozenset({"fsync", "links_within"}),
        secret_options=frozenset(),
        options="wherry.backends.local.options:LocalOptions.read",
    ),
    "s3": BackendEntry(
        "wherry.backends.s3.store:S3Store",
        "s3",
        ("botocore",),
        frozenset(_S3_OPTIONS),
        frozenset(_S3_SECRETS),
        options="wherry.backends.s3.options:S3Options.read",
        bucket="wherry.backends.s3.options:check_bucket",
        stall_option="read_timeout_s",
    ),
    "gs": BackendEntry(
        "wherry.backends.gcs.store:GCSStore",
        "gcs",
        ("google.cloud.storage",),
        frozenset(_GCS_OPTIONS),
        frozenset(_GCS_SECRETS),
        options="wherry.backends.gcs.options:Options",
        bucket="wherry.backends.gcs.options:check_bucket",
        stall_option="timeout_s",
    ),
}


def backend_for(scheme: str) -> BackendEntry:
    """The entry that keeps `scheme`: ours, then a third party's, then fsspec's if fsspec knows the scheme.

    Raises ConfigError for an unknown scheme. Imports no vendor library.
    """
    if (entry := BACKENDS.get(scheme)) is not None:
        return entry
    from importlib.metadata import entry_points  # late: it costs as much as all of wherry's own modules

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
    return replace(_FSSPEC, libraries=_library_of(scheme), process_local=scheme == "memory")


def _library_of(scheme: str) -> tuple[str, ...]:
    """The module that a scheme of fsspec's needs beside fsspec itself; none if that is not known."""
    from fsspec.registry import known_implementations, registry

    place = "" if scheme in registry else str(known_implementations.get(scheme, {}).get("class", ""))
    library = _BEHIND_FSSPEC.get(scheme, "") if place.startswith("fsspec.") else place.partition(":")[0].partition(".")[0]
    return (library,) if library else ()


def open_store(
    uri: StoreURI, options: Mapping[str, object] | None = None, *, stall_timeout_s: float | None = None
) -> ObjectStore:
    """Open the store of `uri`, bare: no retries, no limits.

    `stall_timeout_s`: cut a call after so long without a byte, where the backend can be told and no option says otherwise.

    Raises MissingExtraError (names what to install), ConfigError for options that the backend does not know and for a bucket's
    name that cannot be.
    """
    entry = backend_for(uri.scheme)
    module_name, _, class_name = entry.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        wanted = any((error.name or "").split(".")[0] == library.split(".")[0] for library in entry.libraries)
        if entry.extra is None or not wanted:
            raise
        raise _missing(uri.scheme, entry) from error
    store_class = cast("type[ObjectStore]", getattr(module, class_name))
    given = dict(options or {})
    if entry.stall_option is not None and stall_timeout_s is not None:
        given.setdefault(entry.stall_option, stall_timeout_s)
    if entry.bucket is not None:
        _load(entry.bucket)(uri.root, given)
    return store_class(uri, given)  # type: ignore[call-arg]  # the contract's constructor, see contract.py


def check_usable(scheme: str, options: Mapping[str, object], bucket: str = "") -> None:
    """Find out early, and without importing a vendor library, what would fail later.

    Raises ConfigError for an unknown scheme or option, a wrong value or a `bucket` whose name cannot be; MissingExtraError for a
    library that is not installed.
    """
    entry = backend_for(scheme)
    for library in entry.libraries:
        try:
            found = importlib.util.find_spec(library)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise _missing(scheme, entry)
    if entry.secret_options is not None and (unknown := set(options) - entry.public_options - entry.secret_options):
        raise ConfigError(
            f"unknown storage option(s) {', '.join(sorted(unknown))} for {scheme}://: known are "
            f"{', '.join(sorted(entry.public_options | entry.secret_options)) or 'none'}"
        )
    if entry.options is not None and options:
        _load(entry.options)(options)
    if entry.bucket is not None and bucket:
        _load(entry.bucket)(bucket, options)
    if "verify" in entry.public_options and options.get("verify") is False:
        warn_unverified(scheme)


@functools.cache
def warn_unverified(scheme: str) -> None:
    """Say once in this process what `verify=False` means; the libraries' own warnings, one a request, are silenced."""
    log.warning("verify=false: nobody checks that the %s:// server is the one that it says it is; not for real data", scheme)


def _load(place: str) -> Callable[..., object]:
    module_name, _, name = place.partition(":")
    return cast("Callable[..., object]", attrgetter(name)(importlib.import_module(module_name)))


def _missing(scheme: str, entry: BackendEntry) -> MissingExtraError:
    wanted = f"'wherry[{entry.extra}]'" if entry.extra is not None else " ".join(map(_package_of, entry.libraries))
    return MissingExtraError(f"{scheme}:// needs {' and '.join(entry.libraries)}, which is not installed: pip install {wanted}")


def _package_of(module: str) -> str:
    return _PACKAGES.get(module, module.replace("_", "-"))


def split_options(scheme: str, options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Sort storage options into those that may be written to disk and the secret rest."""
    public = backend_for(scheme).public_options
    plain = (str, int, float, bool, type(None))
    open_part: dict[str, object] = {n: v for n, v in options.items() if n in public and isinstance(v, plain)}
    return open_part, {n: v for n, v in options.items() if n not in open_part}
