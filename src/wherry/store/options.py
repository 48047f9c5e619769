"""How a backend describes itself and its storage options: one table a backend, ``BACKEND`` in its ``options.py``.

The table is the backend's options class: a frozen dataclass of `StorageOptions`. It imports no vendor library, so that a caller
learns at once what is wrong, and so that a process which uploads to another store never loads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from wherry.errors import ConfigError

_Options = TypeVar("_Options", bound="StorageOptions")
#: The calls, and so the connections, of one process to one store at a time. At a round trip of 50 ms one alone
#: fetches 20 small objects a second; 32 fill what a connection carries.
MOST_IN_FLIGHT = 32
#: The environment variables that lead any library to a file, a certificate or a proxy.
COMMON_VARIABLES = (
    *("HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
#: Scheme, host, port and perhaps a path; no user, query or fragment.
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^?#\s]*)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Kind:
    """What to do about a value that is not allowed, and which ones are."""

    words: str
    allows: Callable[[Any], bool]


TEXT = Kind("give a text", lambda value: value is None or isinstance(value, str))
ANYTHING = Kind("give any value", lambda value: True)
CERTIFICATES = Kind("use True, False or a file's name", lambda value: isinstance(value, (bool, str)))
#: What goes into a header, or is signed with: white space is there by mistake, as at the end of a file that was read.
KEY = Kind("give it again, without that", lambda value: value is None or isinstance(value, str))
#: By the type of the default.
_KINDS = {
    "NoneType": TEXT,
    "bool": Kind("use True or False", lambda value: isinstance(value, bool)),
    "int": Kind("it takes a whole number above 0", lambda value: type(value) is int and value > 0),
    "float": Kind("it takes a number above 0", lambda value: type(value) in (int, float) and value > 0),
}


def one_of(*values: object) -> Kind:
    """The kind of an option that takes these values only."""
    return Kind(f"use {' or '.join(map(repr, values))}", lambda value: value in values)


@dataclass(frozen=True)
class Option:
    """One storage option of a backend."""

    name: str
    #: Kept in memory only, never written to the journal, and refused on a command line.
    is_secret: bool = False
    #: The environment variables that give it where the caller does not; the first that is set counts. Those of secrets are read
    #: by wherry, all others by the vendor's library.
    variables: tuple[str, ...] = ()
    #: Its names among fsspec's storage options: ``key``, or ``client_kwargs.verify`` for an entry of a dict.
    aliases: tuple[str, ...] = ()
    #: It says which server a URI means. Jobs for one name on two servers are two names.
    names_server: bool = False
    #: It says whose credentials count: where the caller gives it, the environment's are not taken.
    names_credentials: bool = False
    #: The backend's secrets are taken from the environment together, and only if it has this one.
    is_needed: bool = False
    #: True or False. Off, or None, it says nothing.
    is_switch: bool = False

    def value_in(self, environ: Mapping[str, str]) -> str | None:
        """Return what the environment gives."""
        return next((environ[variable] for variable in self.variables if environ.get(variable)), None)


def option(
    default: object,
    *,
    kind: Kind | None = None,
    is_secret: bool = False,
    variables: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    names_server: bool = False,
    names_credentials: bool = False,
    is_needed: bool = False,
) -> Any:
    """A field of an options class; its arguments are those of `Option`. `kind`: by the type of the default."""
    about = Option("", is_secret, variables, aliases, names_server, names_credentials or is_secret, is_needed)
    return field(default=default, repr=not is_secret, metadata={"option": about, "kind": kind})


@dataclass(frozen=True)
class StorageOptions:
    """The storage options of one scheme. A backend's are a frozen dataclass of this one, whose fields are made by option()."""

    scheme: ClassVar[str]

    def __post_init__(self) -> None:
        """ConfigError for a field whose value is of another kind; the value of a secret is not shown."""
        for each in fields(self):
            value = getattr(self, each.name)
            kind = each.metadata.get("kind") or _KINDS[type(each.default).__name__]
            if not kind.allows(value):
                shown = repr(value) if each.repr else "of another type"
                raise ConfigError(f"storage option {each.name!r} is {shown}: {kind.words}")
            if kind is KEY and value is not None:
                variables = each.metadata["option"].variables
                check_key(value, f"storage option {each.name!r}{' or ' if variables else ''}{' or '.join(variables)}")
            if kind is CERTIFICATES and isinstance(value, str) and not os.path.exists(value):
                raise ConfigError(f"storage option {each.name!r} names {value!r}, which is not there: give the authority's file")

    @classmethod
    def table(cls) -> tuple[Option, ...]:
        """What there is to know of each option."""
        found = ((each, each.metadata.get("option", Option(""))) for each in fields(cls))
        return tuple(replace(about, name=each.name, is_switch=isinstance(each.default, bool)) for each, about in found)

    @classmethod
    def read(cls: type[_Options], given: Mapping[str, object]) -> _Options:
        """From a mapping, where None is as good as nothing; ConfigError names the known options for one that is unknown."""
        known = sorted(each.name for each in fields(cls))
        if unknown := sorted(map(str, set(given) - set(known))):
            names = ", ".join(known)
            several = "s" if len(unknown) > 1 else ""
            raise ConfigError(
                f"unknown storage option{several} {', '.join(unknown)} for {cls.scheme}://: known are {names or 'none'}"
            )
        return cls(**{name: value for name, value in given.items() if value is not None})


def check_key(value: str, source: str) -> None:
    """ConfigError that does not show the key for one that has white space around it, or a line break in it."""
    if value != value.strip() or _CONTROL.search(value):
        fault = "a line break or another control character in it" if _CONTROL.search(value.strip()) else "white space around it"
        raise ConfigError(f"{source} has {fault}: {KEY.words}")


def check_endpoint(url: str, source: str = "storage option 'endpoint_url'") -> str:
    """The address of a server, as it is. ConfigError that shows no password for one that is none."""
    try:
        is_right = _ENDPOINT.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:  # a port that cannot be
        is_right = False
    if not is_right:
        shown = f"...@{url.rpartition('@')[2]}" if "@" in url else re.sub(r"[?#].*", "?...", url, flags=re.DOTALL)
        rule = "write http://host:port or https://host, without a password, with a port from 1 to 65535"
        raise ConfigError(f"{source} is {shown!r}: {rule}")
    return url


@dataclass(frozen=True)
class Backend:
    """Where a backend's store is, what it needs installed, and its options."""

    #: ``module:Class`` of the store, which imports the vendor's library.
    store: str
    options: tuple[Option, ...] = ()
    #: ``module:function`` that lists the buckets of the account whose options it is given; None: there are none.
    buckets: str | None = None
    #: It takes other options than these; each of them is treated as a secret. Else they are refused.
    takes_others: bool = True
    #: The modules it imports that may not be installed, and what to give to pip then.
    libraries: tuple[str, ...] = ()
    install: str = ""
    #: Its objects are seen by one process only.
    process_local: bool = False
    #: Raises ConfigError for wrong values.
    check: Callable[[Mapping[str, object]], object] | None = None
    #: The same for the name of a bucket, with the options given. Imports no vendor library for a name that is right.
    check_bucket: Callable[[str, Mapping[str, object]], object] | None = None
    #: The option by which it is told after how long without a byte a call is cut.
    stall_option: str | None = None
    #: Turns what fsspec's own file system takes, and no alias says, into its options.
    from_fsspec: Callable[[dict[str, object]], dict[str, object]] | None = None
    #: The variable that names an authority's file to all programs that use the vendor's library.
    authority_variable: str = "SSL_CERT_FILE"
    #: The environment variables by which the vendor's library finds servers, accounts and certificates.
    variables: tuple[str, ...] = COMMON_VARIABLES
    #: Which server is meant, as settings by name, from the options and such variables. Imports no vendor library. None: what the
    #: options say that name a server, or their variables.
    server_settings: Callable[[Mapping[str, object], Mapping[str, str]], Mapping[str, object]] | None = None
    #: What to do about a refusal to which the store itself gave no hint; ``{bucket}`` is the bucket's name.
    hint_if_denied: str = ""

    @property
    def public_options(self) -> frozenset[str]:
        """The options that may be written to disk."""
        return frozenset(option.name for option in self.options if not option.is_secret)

    @property
    def secret_options(self) -> frozenset[str] | None:
        """The options that are kept in memory only; None: all that are not public."""
        return None if self.takes_others else frozenset(option.name for option in self.options if option.is_secret)
