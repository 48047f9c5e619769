"""Whether two places are one, or one lies in the other, however they are spelled."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from wherry.cli.copy_verbs.sides import Sides
from wherry.errors import ConfigError
from wherry.uri import StoreURI

_PORTS = {"http": 80, "https": 443}


def refuse_overlap(sides: Sides, source: StoreURI, dest: StoreURI, shown: str) -> None:
    """ConfigError for two folders that are one, or of which one holds the other; `shown` is the command."""
    one, other = real_folder(source), real_folder(dest)
    if not (_holds(one, other) or _holds(other, one)) or not are_on_one_server(sides, source, dest):
        return
    if one == other:
        raise ConfigError(f"{shown}: both are the same place: name another destination")
    inner = "destination is inside of the source" if _holds(one, other) else "source is inside of the destination"
    raise ConfigError(f"{shown}: the {inner}: choose one beside it")


def are_on_one_server(sides: Sides, source: StoreURI, dest: StoreURI) -> bool:
    """Whether equal names mean equal objects: also with options of their own, if those lead to one address."""
    if (source.scheme, source.root) != (dest.scheme, dest.root):
        return False
    if sides.are_one or source.scheme == "file":
        return True
    stores = sides.sources.open(replace(source, prefix="")), sides.dests.open(replace(dest, prefix=""))
    one, other = (each.store.endpoint for each in stores)
    return one == other or bool(one and other and _addresses(one) & _addresses(other))


def real_folder(uri: StoreURI) -> str:
    """What all keys below a URI begin with, less the slash; of a local folder where it really is."""
    return os.path.realpath(f"/{uri.prefix}").strip("/") if uri.scheme == "file" else uri.prefix


def _holds(folder: str, other: str) -> bool:
    return not folder or folder == other or other.startswith(f"{folder}/")


def _addresses(endpoint: str) -> set[tuple[object, ...]]:
    """Where connections to an endpoint go: each address of its host, with port and path."""
    parts = urlsplit(endpoint)
    port = parts.port or _PORTS.get(parts.scheme)
    found: set[tuple[object, ...]] = {(parts.hostname, port, parts.path)}
    with suppress(OSError):  # a name that leads nowhere: the first call says so
        found |= {(info[4][0], port, parts.path) for info in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
    return found
