"""Whether two places are one, or one lies in the other, however they are spelled."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from wherry.cli.copy_verbs.sides import Sides
from wherry.errors import ConfigError
from wherry.uri import StoreURI

_PORTS = {"http": 80, "https": 443}


def refuse_overlap(sides: Sides, source: StoreURI, dest: StoreURI, shown: str) -> None:
    """ConfigError for two folders that are one, or of which one holds the other; `shown` is the command."""
    is_inside, is_around = holds(source, dest), holds(dest, source)
    if not (is_inside or is_around) or not are_on_one_server(sides, source, dest):
        return
    if is_inside and is_around:
        raise ConfigError(f"{shown}: both are the same place: name another destination")
    inner = "destination is inside of the source" if is_inside else "source is inside of the destination"
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


def holds(uri: StoreURI, other: StoreURI) -> bool:
    """Whether `other`, of the same store, is the folder `uri` or lies in it; of local folders where they really are."""
    folder, inner = _real_folder(uri), _real_folder(other)
    if not folder or folder == inner or inner.startswith(f"{folder}/"):
        return True
    # A folder has other paths, too: where names ignore case, or by a bind mount.
    path = Path("/", inner)
    return uri.scheme == "file" and any(_is_same(f"/{folder}", above) for above in (path, *path.parents))


def _real_folder(uri: StoreURI) -> str:
    """What all keys below a URI begin with, less the slash."""
    return os.path.realpath(f"/{uri.prefix}").strip("/") if uri.scheme == "file" else uri.prefix


def _is_same(folder: str, path: Path) -> bool:
    try:
        return os.path.samefile(folder, path)
    except OSError:  # one of them is not there yet
        return False


def _addresses(endpoint: str) -> set[tuple[object, ...]]:
    """Where connections to an endpoint go: each address of its host, with port and path."""
    parts = urlsplit(endpoint)
    port = parts.port or _PORTS.get(parts.scheme)
    found: set[tuple[object, ...]] = {(parts.hostname, port, parts.path)}
    with suppress(OSError):  # a name that leads nowhere: the first call says so
        found |= {(info[4][0], port, parts.path) for info in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
    return found
