"""The storage options of fsspec's file systems that are known to be no secrets, and what each scheme needs installed."""

from __future__ import annotations

from dataclasses import replace

from wherry.store.options import Backend, Option

#: Each file system of fsspec has options of its own; those not listed here are passed on, and treated as secrets.
BACKEND = Backend(
    "wherry.backends.fsspec.store:FsspecStore",
    (
        *(Option(name, names_server=True) for name in ("account_name", "endpoint", "host", "port")),
        *(Option(name, is_secret=True, names_server=True) for name in ("account_host", "endpoint_url", "hostname")),
        *(Option(name) for name in ("anon", "project", "protocol", "region", "username")),
    ),
)
#: What fsspec's own implementations import.
_LIBRARIES = {"ftp": "", "hdfs": "pyarrow", "sftp": "paramiko", "smb": "smbclient", "ssh": "paramiko", "webhdfs": "requests"}
#: Packages that have another name than their module.
_PACKAGES = {"smbclient": "smbprotocol"}


def schemes() -> list[str]:
    """All schemes that fsspec knows."""
    from fsspec.registry import available_protocols

    return sorted(set(available_protocols()))


def backend_for(scheme: str) -> Backend | None:
    """The backend with what `scheme` needs beside fsspec itself; None if fsspec does not know the scheme."""
    if scheme not in schemes():
        return None
    library = _library_of(scheme)
    return replace(
        BACKEND,
        libraries=(library,) if library else (),
        install=_PACKAGES.get(library, library.replace("_", "-")),
        process_local=scheme == "memory",
    )


def _library_of(scheme: str) -> str:
    from fsspec.registry import known_implementations, registry

    place = "" if scheme in registry else str(known_implementations.get(scheme, {}).get("class", ""))
    return _LIBRARIES.get(scheme, "") if place.startswith("fsspec.") else place.partition(":")[0].partition(".")[0]
