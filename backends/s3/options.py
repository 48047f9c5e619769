"""The storage options of ``s3://``, and which server they lead to. Checked without botocore, so that a caller learns at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.uri import check_domain_like

if TYPE_CHECKING:
    from botocore.session import Session

#: What an option takes, in words, and whether a value is such: by its name, else by the kind of its default.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "addressing_style": ("'auto', 'path' or 'virtual'", lambda value: value in (None, "auto", "path", "virtual")),
    "verify": ("True, False or a file's name", lambda value: isinstance(value, (bool, str))),
    "NoneType": ("a text", lambda value: value is None or isinstance(value, str)),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "int": ("a whole number above 0", lambda value: type(value) is int and value > 0),
    "float": ("a number above 0", lambda value: type(value) in (int, float) and value > 0),
}
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
#: Scheme, host, port and perhaps a path; no user, query or fragment.
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^?#\s]*)?")
#: Amazon's own hosts, in all partitions that are reachable from outside ("Amazon Simple Storage Service endpoints and quotas").
_AMAZONS_HOST = re.compile(r"(^|\.)(amazonaws\.(com|com\.cn|eu)|api\.aws)$")


#: What botocore (1.44) lets pass.
_BOTOCORES_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")


@dataclass(frozen=True)
class S3Options:
    """The storage options of ``s3://``. Keys that are not given come from the vendor's own chain: environment, profile, role."""

    #: Else AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, S3_ENDPOINT_URL, the profile's, Amazon's own.
    endpoint_url: str | None = None
    #: Else the environment's or the profile's; a server with an `endpoint_url` gets us-east-1 when there is none.
    region: str | None = None
    profile: str | None = None
    #: "path", "virtual" or "auto". Default: "path" with an endpoint of one's own, which seldom has a name for each bucket.
    addressing_style: Literal["auto", "path", "virtual"] | None = None
    #: Whether to verify the server's certificate, or the file of the authority to verify it with.
    verify: bool | str = True
    #: A connection that is not made in ten seconds will not be; a minute without a byte, either way, means a dead one.
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32
    #: Send no credentials at all: public buckets.
    anonymous: bool = False
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    #: False: never send If-None-Match. `if_absent` then looks first and writes second, so that of two writers at one moment both
    #: may succeed. A server that ignores it is found out by trial; this is for one that nobody is allowed to try.
    conditional_writes: bool = True
    #: False for a server whose ETags look like MD5s and are none, or that must not be sent checksum headers. One that ignores
    #: or refuses them is found out by trial.
    checksums: bool = True

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            words, allows = _ALLOWED.get(option.name) or _ALLOWED[type(option.default).__name__]
            if not allows(value):
                shown = repr(value) if option.repr else "of another type"
                raise ConfigError(f"storage option {option.name!r} is {shown}: it takes {words}")
        if isinstance(self.verify, str) and not os.path.exists(self.verify):
            raise ConfigError(f"storage option 'verify' names {self.verify!r}, which is not there: give the authority's file")
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            raise ConfigError(
                "storage options 'aws_access_key_id' and 'aws_secret_access_key' belong together: give both or none"
            )
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url, "storage option 'endpoint_url'")

    @classmethod
    def read(cls, options: Mapping[str, object]) -> S3Options:
        """From a mapping; ConfigError that names the known options for one that is unknown."""
        known = [option.name for option in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise ConfigError(f"storage option {unknown[0]!r} is unknown to s3://: it takes {', '.join(known)}")
        return cls(**cast("dict[str, Any]", dict(options)))

    def endpoint(self, session: Session | None = None) -> str | None:
        """The address of the server: the option's, the environment's, the profile's; None: Amazon's own.

        Raises ConfigError for one that is wrong, and what botocore raises for a profile that is not there.
        """
        if self.endpoint_url is not None:
            return self.endpoint_url
        if (variable := next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)) is not None:
            return _check_endpoint(os.environ[variable], f"the variable {variable}")
        from botocore.session import Session

        session = session or Session(profile=self.profile)
        if configured := session.get_scoped_config().get("endpoint_url"):
            return _check_endpoint(str(configured), "endpoint_url of the profile")
        return None

    def server(self) -> str | None:
        """A name of the server, if it is not Amazon's: scheme, host, port and path. None also where the settings are wrong."""
        from botocore.exceptions import BotoCoreError

        try:
            endpoint = self.endpoint()
        except (ConfigError, BotoCoreError):  # the first call raises it, with its reason
            return None
        if endpoint is None or is_amazons(endpoint):
            return None
        parts = urlsplit(endpoint)
        return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def is_amazons(endpoint: str | None) -> bool:
    """Whether an endpoint is Amazon's own; None is."""
    return endpoint is None or _AMAZONS_HOST.search(urlsplit(endpoint).hostname or "") is not None


def check_bucket(bucket: str, options: Mapping[str, object]) -> None:
    """ConfigError for a name that no bucket can have: at Amazon, by its rules, elsewhere by those of botocore ("General purpose
    bucket naming rules", Amazon S3 User Guide).

    Buckets that are older than the rules are reached by the path only, and so allowed with addressing_style="path".
    """
    if bucket.startswith("arn:"):
        return
    if not _BOTOCORES_BUCKET.fullmatch(bucket):
        raise ConfigError(f"the bucket name {bucket!r} is not of 1 to 255 letters, digits, dots, '-' and '_': correct the URI")
    try:
        if len(bucket) > 63:
            raise ConfigError(f"the bucket name {bucket!r} has more than 63 characters")
        check_domain_like(bucket, ".-")
    except ConfigError as error:
        given = S3Options.read(options)
        if given.server() is None and given.addressing_style != "path":
            raise ConfigError(
                f"{error}, which Amazon S3 does not allow: correct the URI or give endpoint_url (a bucket from before 2018 may "
                "have such a name: give the storage option addressing_style='path')"
            ) from None


def _check_endpoint(url: str, source: str) -> str:
    if not _ENDPOINT.fullmatch(url):
        shown = f"...@{url.rpartition('@')[2]}" if "@" in url else url
        raise ConfigError(f"{source} is {shown!r}: write http://host:port or https://host, without a password")
    return url
