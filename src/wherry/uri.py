"""URIs of stores and the rules for remote names.

``s3://bucket/prefix`` is scheme, root and prefix. No general URL parser is used: ``?`` and ``#`` are ordinary
characters of a key. A plain path or a ``file://`` URI is a local folder; its root is empty and its prefix is the
absolute path without the leading slash.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from wherry.errors import ConfigError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
#: ``name:password@``. Names of access points begin with ``arn:``, and addresses of IPv6 have brackets.
_LOGIN = re.compile(r"(?!arn:)[^/:\[]*:[^@]*@", re.DOTALL)
#: An access point's ARN as AWS writes it; botocore takes a ":" for each "/" in it.
_ACCESS_POINT = re.compile(r"arn:[^/]*:(?:outpost[:/][^:/]+[:/])?accesspoint/[^/]+")
_PORT = re.compile(r"[^/:\[]*:[0-9]+/")
#: Their root is a bucket, never a host with a port.
_WITHOUT_PORT = frozenset({"s3", "gs"})
#: Other names of the schemes that have a backend of ours.
SCHEME_ALIASES = {"gcs": "gs", "local": "file", "s3a": "s3"}
#: Their root is a machine with all its files, and no bucket.
_FILE_SERVERS = frozenset({"dbfs", "ftp", "hdfs", "sftp", "smb", "ssh", "webdav", "webhdfs"})
MAX_NAME_BYTES = 1024
#: The longest name of a file, NAME_MAX of nearly every file system, and the longest path (PATH_MAX, which counts a 0 at its end).
MAX_FILE_NAME_BYTES = 255
MAX_PATH_BYTES = 4095
#: Scheme -> what no key of its stores may begin with ("Object name requirements" of the service).
_RESERVED = {"gs": ".well-known/acme-challenge/"}
#: Objects whose key has this in it are ours and half-made: no list shows them, and no name may have it.
TEMPORARY_MARK = ".wherry-tmp-"


@dataclass(frozen=True)
class StoreURI:
    """Where a store is (`scheme`, `root`) and the `prefix` below it, without slashes at either end."""

    scheme: str
    root: str
    prefix: str = ""

    @property
    def store(self) -> str:
        """The store alone, as a URI: ``s3://bucket``, ``file://``."""
        return f"{self.scheme}://{self.root}"

    def key_for(self, name: str) -> str:
        """The key of the remote name `name` below this prefix. ConfigError for one that the object store cannot have."""
        key = f"{self.prefix}/{name}" if self.prefix else name
        if (reserved := _RESERVED.get(self.scheme)) is not None and key.startswith(reserved):
            raise ConfigError(
                f"remote name {name!r} makes the key {key!r}: {self.scheme}:// has no objects below {reserved}, use another name"
            )
        shown = name if len(name) <= 100 else name[:97] + "..."
        if self.scheme == "file":
            longest = max(len(part.encode(errors="surrogateescape")) for part in key.split("/"))
            if longest > MAX_FILE_NAME_BYTES:
                raise ConfigError(
                    f"remote name {shown!r} has a part of {longest} bytes of UTF-8: a local folder has names of at most "
                    f"{MAX_FILE_NAME_BYTES}"
                )
            if (size := len(key.encode(errors="surrogateescape")) + 1) > MAX_PATH_BYTES:
                raise ConfigError(
                    f"remote name {shown!r} makes a path of {size} bytes in the folder /{self.prefix}: at most {MAX_PATH_BYTES} "
                    "are allowed"
                )
        elif (size := len(key.encode())) > MAX_NAME_BYTES:
            raise ConfigError(
                f"remote name {shown!r} makes a key of {size} bytes of UTF-8 with the prefix {self.prefix!r}: "
                f"at most {MAX_NAME_BYTES} are allowed"
            )
        return key

    def check_new_name(self, name: str) -> str:
        """Check the whole key of a new object. Only for writing: a prefix may name objects of others, for reading."""
        if self.prefix and self.scheme != "file":  # a local folder is there, or its name is its owner's affair
            check_new_name(self.prefix, what="prefix")
        return check_new_name(name)

    def holds(self, key: str) -> bool:
        """Whether the key is one of this store's: anywhere in a bucket, only below the prefix where the root is a machine."""
        is_bucket = self.scheme != "file" and self.scheme not in _FILE_SERVERS
        return is_bucket or not self.prefix or key.startswith(f"{self.prefix}/")

    def name_for(self, key: str) -> str:
        """The remote name of `key`: what key_for() turns into it."""
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key

    def uri_for(self, key: str) -> str:
        """The full URI of an object of this store."""
        return f"{self.scheme}://{self.root}/{key}"

    def __str__(self) -> str:
        return self.uri_for(self.prefix) if self.prefix else f"{self.store}/"


def parse_uri(text: str | os.PathLike[str]) -> StoreURI:
    """Read a store's URI or a local folder's path.

    Raises ConfigError for an empty URI, one without a bucket, and one that carries a password (it would end in journals and
    logs: give it in storage_options).
    """
    if not isinstance(text, (str, os.PathLike)):
        raise ConfigError(f"{text!r} is no URI: give a str or a path")
    text = os.fspath(text)
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is no URI: give a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix ...")
    match = _SCHEME.match(text)
    if match is None or match[1].lower() in ("file", "local"):
        path = os.path.expanduser(text) if match is None else match[2]
        if match is not None and not path.startswith("/"):
            raise ConfigError(f"{text!r}: a file URI needs an absolute path, file:///folder/name")
        folder = os.path.abspath(path)
        try:
            folder.encode()
        except UnicodeEncodeError:  # neither the journal nor JSON could keep it
            raise ConfigError(
                f"the path {folder!a} has bytes that are no UTF-8: rename that folder or file, or use another"
            ) from None
        return StoreURI("file", "", folder.strip("/"))
    scheme = SCHEME_ALIASES.get(match[1].lower(), match[1].lower())
    rest = match[2]
    if scheme == "s3" and (arn := _ACCESS_POINT.match(rest)) is not None:
        rest = arn[0].replace("/", ":") + rest[arn.end() :]
    root, _, prefix = rest.partition("/")
    shown = hide_login(scheme, match[2])
    if shown != match[2]:
        raise ConfigError(
            f"the URI {scheme}://{shown} carries a password, which would end in journals and logs: "
            "leave it out and give it in storage_options"
        )
    if not root and scheme != "memory":
        raise ConfigError(f"{text!r} names no bucket: write {scheme}://bucket/prefix")
    prefix = prefix.strip("/")
    if prefix:
        check_name(prefix, what="prefix")
    return StoreURI(scheme, root, prefix)


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path as an absolute one. A ``~`` of a user without a home stays as it is: boto3 needs no home either."""
    return Path(os.path.expanduser(path)).absolute()


def hide_login(scheme: str, rest: str) -> str:
    """What follows a URI's ``scheme://``, as it may be shown: without all before the last ``@`` if there may be a password in it.

    A secret key may have slashes, so that the first part of it looks like a bucket, and the second like a prefix.
    """
    is_login = _LOGIN.match(rest) and (scheme in _WITHOUT_PORT or not _PORT.match(rest))
    return f"...@{rest.rpartition('@')[2]}" if is_login else rest


def check_domain_like(bucket: str, allowed: str, most: int) -> None:
    """The rules for bucket names that Amazon S3 and Google Cloud Storage share; ConfigError that says which one is broken.

    `allowed`: what may stand in it beside lower-case letters and digits; it has at most `most` characters.
    """
    for is_broken, rule in (
        (len(bucket) > most, f"has more than {most} characters"),
        (len(bucket) < 3, "has fewer than 3 characters"),
        (any(len(part) > 63 for part in bucket.split(".")), "has more than 63 characters without a dot between them"),
        (
            not re.fullmatch(f"[a-z0-9{re.escape(allowed)}]+", bucket),
            f"has other characters than lower-case letters, digits and {' '.join(allowed)}",
        ),
        (not re.fullmatch("[a-z0-9].*[a-z0-9]", bucket), "does not begin and end with a letter or digit"),
        (".." in bucket, "has two dots in a row"),
        (re.fullmatch(r"[0-9]+(\.[0-9]+){3}", bucket), "looks like an IP address"),
    ):
        if is_broken:
            raise ConfigError(f"the bucket name {bucket!r} {rule}")


def check_new_name(name: str, *, what: str = "remote name") -> str:
    """check_name() for an object that is going to be made: ConfigError also for what nobody sees, or what is a folder elsewhere.

    That is a backslash, which Windows takes for a slash, and characters that are not shown or turn others around: of the Unicode
    categories Cf (zero-width, bidirectional, byte order mark), Zl and Zp. Objects of others may have such names: they are listed,
    read and deleted by them, and the command shows them escaped.
    """
    name = check_name(name, what=what)
    for char in name:
        if char == "\\" or unicodedata.category(char) in ("Cf", "Zl", "Zp"):
            shown = name if len(name) <= 100 else name[:97] + "..."
            if char == "\\":
                raise ConfigError(f"{what} {shown!a} holds \\, which some systems take for a '/': write another character")
            called = f"U+{ord(char):04X} ({unicodedata.name(char, 'no name')})"
            raise ConfigError(f"{what} {shown!a} holds {called}, which nobody sees: leave it out")
    return name


def check_name(name: str, *, what: str = "remote name") -> str:
    """Return `name` in Unicode form NFC, or raise ConfigError that says which rule it breaks.

    A remote name is relative, ``/``-separated, without empty parts, ``.`` or ``..``, without control characters and
    TEMPORARY_MARK, and has at most 1024 bytes of UTF-8.
    """

    def refuse(rule: str) -> ConfigError:
        shown = name if len(name) <= 100 else name[:97] + "..."
        return ConfigError(f"{what} {shown!r} {rule}")

    if not isinstance(name, str):
        raise ConfigError(f"a {what} is a str, not {type(name).__name__}")
    if not name:
        raise ConfigError(f"the {what} is empty: name the object, for example run1/ep0.pt")
    name = unicodedata.normalize("NFC", name)
    if name.startswith("/"):
        raise refuse("starts with '/': names are relative to the destination's URI")
    for part in name.split("/"):
        if part == "":
            raise refuse("has an empty part ('//' or a '/' at its end): write single slashes between parts")
        if part in (".", ".."):
            raise refuse(f"has the part {part!r}, which would leave or repeat a folder: write the name out")
    if not name.isprintable() and any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        raise refuse("holds a control character or a lone surrogate: use printable characters")
    if TEMPORARY_MARK in name:
        raise refuse(f"holds {TEMPORARY_MARK!r}, which marks what wherry has half written: use another name")
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise refuse(f"has {size} bytes of UTF-8: at most {MAX_NAME_BYTES} are allowed")
    return name
