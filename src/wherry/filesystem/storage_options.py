"""From the storage options that fsspec's users know to those of our backends, and from fsspec's paths to names in a store.

Every option of a backend is taken under its own name. Those of s3fs and gcsfs that mean the same are taken under theirs, too
("S3Fs API reference" and "GCSFS API reference", both of fsspec); others are refused, for an option that is silently dropped is
a surprise. Other file systems get their options as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fsspec.config import conf
from fsspec.registry import available_protocols, get_filesystem_class

from wherry.errors import ConfigError
from wherry.filesystem.portable_secrets import resolve
from wherry.store.registry import backend_for
from wherry.uri import StoreURI, check_name, parse_uri

#: fsspec's names of the stores that have a backend of ours, and our scheme for each.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "file": "file", "local": "file"}

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
    if scheme in _TRANSLATIONS:
        return Place(scheme, scheme == "file"), _TRANSLATIONS[scheme](dict(given))
    backend_for(scheme)  # refuses what nobody knows
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
    if ours is not None:
        return rest.rstrip("/")
    if scheme not in available_protocols():  # a third party's backend
        return rest.rstrip("/")
    return str(get_filesystem_class(scheme)._strip_protocol(url))


def _rename(options: _Options, names: Mapping[str, str], where: str) -> _Options:
    """The options under our names; ConfigError for two that say one thing in two ways."""
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


#: s3fs -> ours.
_S3_NAMES = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token", "anon": "anonymous"}
#: The arguments of botocore's create_client(), which s3fs takes as client_kwargs -> ours.
_S3_CLIENT = {
    "endpoint_url": "endpoint_url",
    "region_name": "region",
    "verify": "verify",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
}
#: botocore's Config, which s3fs takes as config_kwargs -> ours.
_S3_CONFIG = {
    "connect_timeout": "connect_timeout_s",
    "read_timeout": "read_timeout_s",
    "max_pool_connections": "max_connections",
    "region_name": "region",
}


def _s3(options: _Options) -> _Options:
    options = _rename(options, _S3_NAMES, "s3://")
    options = _unfold(options, "client_kwargs", _S3_CLIENT, "s3://")
    return _unfold(options, "config_kwargs", _S3_CONFIG, "s3://")


def _gs(options: _Options) -> _Options:
    options = _rename(options, {}, "gs://")
    token = options.get("token")
    if isinstance(token, Mapping):
        options["credentials_json"] = dict(options.pop("token"))  # type: ignore[call-overload]  # it is a mapping
    elif token == "anon":  # noqa: S105  gcsfs's word for no credentials
        del options["token"]
        options["anonymous"] = True
    elif token == "google_default":  # noqa: S105  what happens without a token
        del options["token"]
    elif token in ("browser", "cache", "cloud"):
        raise ConfigError(
            f"token={token!r} is a way of gcsfs's own to log in: leave it out (google-auth's own chain is asked), or give an "
            "access token, the path or the content of a key file, or 'anon'"
        )
    elif isinstance(token, str) and os.path.isfile(token):
        options["credentials_file"] = options.pop("token")
    return options


def _file(options: _Options) -> _Options:
    options.pop("auto_mkdir", None)  # folders are always made
    return options


_TRANSLATIONS: dict[str, Callable[[_Options], _Options]] = {"s3": _s3, "gs": _gs, "file": _file}
