"""From the storage options that fsspec's users know to those of our backends, and from fsspec's paths to names in a store.

Every option of a backend is taken under its own name. Those of s3fs and gcsfs that mean the same are taken under theirs, too
("S3Fs API reference" and "GCSFS API reference", both of fsspec); others are refused, for an option that is silently dropped is
a surprise. Other file systems get their options as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fsspec.config import conf
from fsspec.registry import available_protocols, get_filesystem_class

from wherry.errors import ConfigError
from wherry.store.options import Backend
from wherry.store.portable_secrets import resolve
from wherry.store.registry import BACKENDS, backend_for, own_backend
from wherry.uri import SCHEME_ALIASES, StoreURI, check_name, parse_uri

#: fsspec's names of the stores that have a backend of ours, and our scheme for each.
SCHEMES = {**{scheme: scheme for scheme in BACKENDS}, **SCHEME_ALIASES}

_Options = dict[str, object]


@dataclass(frozen=True)
class Place:
    """Where the objects of one file system are.

    `is_rooted`: paths begin with a slash and the whole path is the key, as for ``file`` and ``sftp``; else a path begins with the
    bucket. `root` is the host of a rooted store, if it has one.
    """

    scheme: str
    is_rooted: bool
    root: str = ""

    def split(self, path: str) -> tuple[str, str]:
        """(root, name) of a path; the name is empty for the root itself and is checked by the rules for remote names."""
        if self.is_rooted:
            if not path.startswith("/"):
                raise ConfigError(
                    f"the path {path!r} of {self.scheme}:// is relative: give it from the root, with a '/' at its start"
                )
            root, name = self.root, path[1:]
        else:
            root, _, name = path.partition("/")
            if not root:
                raise ConfigError(f"the path {path!r} names no bucket: write {self.scheme}://bucket/name")
        return root, check_name(name, what="path") if name else ""

    def join(self, root: str, name: str) -> str:
        """The path of a name: what split() takes apart."""
        return f"/{name}" if self.is_rooted else f"{root}/{name}" if name else root

    def store(self, root: str) -> StoreURI:
        """The URI of the store that holds all names below `root`."""
        return parse_uri(f"{self.scheme}://{root}/")


def place_and_options(protocol: str, given: Mapping[str, object]) -> tuple[Place, _Options]:
    """Where the file system `protocol` with the options `given` is, and the same options as our backend takes them.

    What fsspec's own configuration says of that protocol (``fsspec.config.conf``, FSSPEC_S3_KEY ...) counts where `given` says
    nothing, and references to the environment (``{"from_env": "NAME"}``) are replaced by what it has. Raises ConfigError for
    options that are unknown, contradict each other or have no meaning here.
    """
    given = resolve({**conf.get(protocol, {}), **given})
    if "target_protocol" in given or "fo" in given:
        raise ConfigError(
            f"wherry:: must stand directly before the store, and {protocol}:: is none: write {protocol}::wherry::..."
        )
    scheme = SCHEMES.get(protocol, protocol)
    if (backend := own_backend(scheme)) is not None:
        return Place(scheme, scheme == "file"), _translated(backend, dict(given), f"{scheme}://")
    backend_for(scheme)  # ConfigError for an unknown scheme
    is_rooted = strip_scheme(scheme, f"{scheme}://a/b").startswith("/")
    options = dict(given)
    root = ""
    if is_rooted and (host := options.pop("host", None)):
        port = options.pop("port", None)
        root = f"{host}:{port}" if port else str(host)
    return Place(scheme, is_rooted, root), options


def strip_scheme(scheme: str, url: str) -> str:
    """The path in an URL of a file system, as that file system itself writes it."""
    rest = url.partition("://")[2]
    ours = SCHEMES.get(scheme)
    if ours == "file":
        return os.path.abspath(rest)
    if ours is not None or scheme not in available_protocols():  # the latter: a third party's backend
        return rest.rstrip("/")
    return str(get_filesystem_class(scheme)._strip_protocol(url))


def _translated(backend: Backend, options: _Options, where: str) -> _Options:
    """The options as `backend` takes them, by the aliases of its table and by what it says itself of fsspec's."""
    names: dict[str, dict[str, str]] = {"": {}}  # a dict among the options, or "" for themselves -> alias -> our name
    for each in backend.options:
        for alias in each.aliases:
            outer, _, inner = alias.rpartition(".")
            names.setdefault(outer, {})[inner] = each.name
    options = _rename(options, names.pop(""), where)
    for outer in sorted(names):
        options = _unfold(options, outer, names[outer], where)
    return options if backend.from_fsspec is None else backend.from_fsspec(options)


def _rename(options: _Options, names: Mapping[str, str], where: str) -> _Options:
    """The options under our names; ConfigError for two names of one option with different values."""
    renamed: _Options = {}
    for name, value in options.items():
        ours = names.get(name, name)
        if value is None:
            continue
        if ours in renamed and renamed[ours] != value:
            raise ConfigError(f"two storage options of {where} give {ours!r}, with different values: give one of them")
        renamed[ours] = value
    return renamed


def _unfold(options: _Options, name: str, known: Mapping[str, str], where: str) -> _Options:
    """Replace the dict `name` among the options by what is in it. `known`: the name there -> ours."""
    inner = options.pop(name, None) or {}
    if not isinstance(inner, Mapping):
        raise ConfigError(f"storage option {name!r} of {where} is a {type(inner).__name__}: give a dict")
    if unknown := sorted(str(key) for key in inner if key not in known):
        raise ConfigError(
            f"storage option {name!r} of {where} holds {', '.join(unknown)}, which means nothing here: "
            f"known are {', '.join(sorted(known))}"
        )
    merged = _rename(dict(inner), known, where)
    if twice := sorted(key for key, value in merged.items() if options.get(key, value) != value):
        raise ConfigError(f"storage option {name!r} of {where} contradicts {', '.join(twice)}: give one of them")
    return {**options, **merged}
