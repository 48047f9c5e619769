"""From a URI's scheme to the backend that keeps its store.

Ours stand in a table, as text, so that nothing is imported before it is used. Third parties add a scheme with the
entry-point group ``wherry.backends`` (name: the scheme, value: ``module:Class``). Any other scheme goes to fsspec.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import re
from collections.abc import Mapping
from typing import Any, cast

from wherry.errors import ConfigError, MissingExtraError
from wherry.redact import register_secret
from wherry.store import ObjectStore
from wherry.store.options import Backend
from wherry.uri import StoreURI

log = logging.getLogger("wherry")

#: Scheme -> the folder of its backend. Its ``options.py`` describes it, in ``BACKEND``.
BACKENDS = {"file": "wherry.backends.local", "s3": "wherry.backends.s3", "gs": "wherry.backends.gcs"}
_FSSPEC = "wherry.backends.fsspec"
#: What of an address may be written in capitals or not.
_SCHEME_AND_HOST = re.compile(r"([^:/]+://)?[^/]*")


@functools.cache
def own_backend(scheme: str) -> Backend | None:
    """The backend of ours that keeps `scheme`, if there is one. Imports no vendor library."""
    return cast("Backend", _described_by(BACKENDS[scheme]).BACKEND) if scheme in BACKENDS else None


def described_backend(scheme: str) -> Backend:
    """The backend of ours for `scheme`, else what is said of all that fsspec, or a third party, keeps."""
    return own_backend(scheme) or cast("Backend", _described_by(_FSSPEC).BACKEND)


def backend_for(scheme: str) -> Backend:
    """The backend that keeps `scheme`: ours, then a third party's, then fsspec's if fsspec knows the scheme.

    Raises ConfigError for an unknown scheme. Imports no vendor library.
    """
    if (backend := own_backend(scheme)) is not None:
        return backend
    from importlib.metadata import entry_points  # late: it costs as much as all of wherry's own modules

    for point in entry_points(group="wherry.backends"):
        if point.name == scheme:
            return Backend(point.value)
    fsspec = _described_by(_FSSPEC)
    if (backend := cast("Backend | None", fsspec.backend_for(scheme))) is not None:
        return backend
    ours = ", ".join(f"{name}://" for name in BACKENDS)
    raise ConfigError(
        f"unknown scheme {scheme!r}: wherry has {ours} and every scheme that fsspec knows "
        f"({', '.join(fsspec.schemes())}); others come as packages with the entry point 'wherry.backends'"
    )


def _described_by(folder: str) -> Any:
    return importlib.import_module(f"{folder}.options")


def endpoint_key(scheme: str, options: Mapping[str, object], environment: Mapping[str, str]) -> str:
    """Which of the servers that keep URIs of `scheme` is meant, by the public storage options and the public environment.

    A name and its uploads are one thing on one server, whatever region or settings they were given with. Empty where nothing
    says it.
    """
    settings = sorted(server_settings(scheme, options, environment).items())
    texts = ((name, str(value).rstrip("/")) for name, value in settings if value not in (None, ""))
    return " ".join(f"{name}={_SCHEME_AND_HOST.sub(lambda host: host[0].lower(), text, count=1)}" for name, text in texts)


def server_settings(scheme: str, options: Mapping[str, object], environment: Mapping[str, str]) -> Mapping[str, object]:
    """Return the settings that say which server is meant, by name."""
    backend = described_backend(scheme)
    if backend.server_settings is not None:
        return backend.server_settings(options, environment)
    return {each.name: options.get(each.name) or each.value_in(environment) for each in backend.options if each.names_server}


def open_store(
    uri: StoreURI, options: Mapping[str, object] | None = None, *, stall_timeout_s: float | None = None
) -> ObjectStore:
    """Open the store of `uri`, bare: no retries, no limits.

    `stall_timeout_s`: cut a call after so long without a byte, where the backend can be told and no option says otherwise.
    From now on no error of ours shows the secret ones among the options.

    Raises MissingExtraError (names what to install), ConfigError for options that the backend does not know and for a bucket's
    name that cannot be.
    """
    backend = backend_for(uri.scheme)
    module_name, _, class_name = backend.store.partition(":")
    given = dict(options or {})
    register_secret(split_options(uri.scheme, given)[1])
    if backend.stall_option is not None and stall_timeout_s is not None:
        given.setdefault(backend.stall_option, stall_timeout_s)
    try:
        store_class = cast("type[ObjectStore]", getattr(importlib.import_module(module_name), class_name))
        if backend.check_bucket is not None:
            backend.check_bucket(uri.root, given)
        return store_class(uri, given)  # type: ignore[call-arg]  # the contract's constructor, see contract.py
    except ImportError as error:  # of the backend, or of what it imports when a store is opened
        require_libraries(uri.scheme, backend, error)
        raise


def check_usable(scheme: str, options: Mapping[str, object], bucket: str = "") -> None:
    """Find out early, and without importing a vendor library, what would fail later.

    Raises ConfigError for an unknown scheme or option, a wrong value or a `bucket` whose name cannot be; MissingExtraError for a
    library that is not installed.
    """
    backend = backend_for(scheme)
    require_libraries(scheme, backend)
    if backend.check is not None and options:
        backend.check(options)
    if backend.check_bucket is not None and bucket:
        backend.check_bucket(bucket, options)
    if "verify" in backend.public_options and options.get("verify") is False:
        warn_unverified(scheme)


@functools.cache
def warn_unverified(scheme: str) -> None:
    """Say once in this process what `verify=False` means; the libraries' own warnings, one a request, are silenced."""
    log.warning("verify=false: nobody checks that the %s:// server is the one that it says it is; not for real data", scheme)


def require_libraries(scheme: str, backend: Backend, cause: ImportError | None = None) -> None:
    """Raise MissingExtraError, which names what to install, for a library of the backend that is not there."""
    for library in backend.libraries:
        try:
            found = importlib.util.find_spec(library)
        except ModuleNotFoundError:
            found = None
        if found is None:
            needed = " and ".join(backend.libraries)
            words = f"{scheme}:// needs {needed}, which is not installed: pip install {backend.install}"
            raise MissingExtraError(words) from cause


def split_options(scheme: str, options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Sort storage options into those that may be written to disk and the secret rest."""
    public = backend_for(scheme).public_options
    plain = (str, int, float, bool, type(None))
    open_part: dict[str, object] = {n: v for n, v in options.items() if n in public and isinstance(v, plain)}
    return open_part, {n: v for n, v in options.items() if n not in open_part}
