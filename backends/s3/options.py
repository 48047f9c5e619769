"""The storage options of ``s3://``, and which server they lead to. Checked without botocore, so that a caller learns at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.store.options import CERTIFICATES, MOST_IN_FLIGHT, Backend, StorageOptions, check_endpoint, one_of, option
from wherry.uri import check_domain_like

if TYPE_CHECKING:
    from botocore.session import Session

#: The ending of the name of every directory bucket.
DIRECTORY_BUCKET = "--x-s3"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
#: Amazon's own hosts, in all partitions that are reachable from outside ("Amazon Simple Storage Service endpoints and quotas").
_AMAZONS_HOST = re.compile(r"(^|\.)(amazonaws\.(com|com\.cn|eu)|api\.aws)$")


#: What botocore (1.44) lets pass.
_BOTOCORES_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")


@dataclass(frozen=True)
class S3Options(StorageOptions):
    """The storage options of ``s3://``. Keys that are not given come from the vendor's own chain: environment, profile, role."""

    scheme = "s3"
    #: Else the variables', the profile's, Amazon's own.
    endpoint_url: str | None = option(
        None, names_server=True, variables=_ENDPOINT_VARIABLES, aliases=("client_kwargs.endpoint_url",)
    )
    #: Else the environment's or the profile's; a server with an `endpoint_url` gets us-east-1 when there is none.
    region: str | None = option(
        None, variables=("AWS_REGION", "AWS_DEFAULT_REGION"), aliases=("client_kwargs.region_name", "config_kwargs.region_name")
    )
    profile: str | None = option(None, names_credentials=True, variables=("AWS_PROFILE", "AWS_DEFAULT_PROFILE"))
    #: "path", "virtual" or "auto". Default: "path" with an endpoint of one's own, which seldom has a name for each bucket.
    addressing_style: Literal["auto", "path", "virtual"] | None = option(None, kind=one_of("auto", "path", "virtual", None))
    #: Whether to verify the server's certificate, or the file of the authority to verify it with.
    verify: bool | str = option(True, kind=CERTIFICATES, variables=("AWS_CA_BUNDLE",), aliases=("client_kwargs.verify",))
    #: A connection that is not made in ten seconds will not be; a minute without a byte, either way, means a dead one.
    connect_timeout_s: float = option(10.0, aliases=("config_kwargs.connect_timeout",))
    read_timeout_s: float = option(60.0, aliases=("config_kwargs.read_timeout",))
    max_connections: int = option(MOST_IN_FLIGHT, aliases=("config_kwargs.max_pool_connections",))
    #: True: botocore makes every request, also those that bodies go with. Slower; for what only botocore's plugins can do.
    sdk_only: bool = False
    #: Send no credentials at all: public buckets.
    anonymous: bool = option(False, names_credentials=True, aliases=("anon",))
    aws_access_key_id: str | None = option(
        None, is_secret=True, is_needed=True, variables=("AWS_ACCESS_KEY_ID",), aliases=("key", "client_kwargs.aws_access_key_id")
    )
    aws_secret_access_key: str | None = option(
        None,
        is_secret=True,
        is_needed=True,
        variables=("AWS_SECRET_ACCESS_KEY",),
        aliases=("secret", "client_kwargs.aws_secret_access_key"),
    )
    aws_session_token: str | None = option(
        None, is_secret=True, variables=("AWS_SESSION_TOKEN",), aliases=("token", "client_kwargs.aws_session_token")
    )
    #: False: never send If-None-Match. `if_absent` then looks first and writes second, so that of two writers at one moment both
    #: may succeed. A server that ignores it is found out by trial; this is for one that nobody is allowed to try.
    conditional_writes: bool = True
    #: False for a server whose ETags look like MD5s and are none, or that must not be sent checksum headers. One that ignores
    #: or refuses them is found out by trial.
    checksums: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            raise ConfigError(
                "storage options 'aws_access_key_id' and 'aws_secret_access_key' belong together: give both or none"
            )
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)

    def endpoint(self, session: Session | None = None) -> str | None:
        """The address of the server: the option's, the environment's, the profile's; None: Amazon's own.

        Raises ConfigError for one that is wrong, and what botocore raises for a profile that is not there.
        """
        if self.endpoint_url is not None:
            return self.endpoint_url
        if (variable := next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)) is not None:
            return check_endpoint(os.environ[variable], f"the variable {variable}")
        from botocore.session import Session

        session = session or Session(profile=self.profile)
        if configured := session.get_scoped_config().get("endpoint_url"):
            return check_endpoint(str(configured), "endpoint_url of the profile")
        return None

    def server(self) -> str | None:
        """A name of the server, if it is not Amazon's: scheme, host, port and path. None also where the settings are wrong."""
        if (endpoint := self.endpoint_url) is None:  # who gives it need not wait for botocore
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
        check_domain_like(bucket, ".-", 63)
    except ConfigError as error:
        given = S3Options.read(options)
        if given.server() is None and given.addressing_style != "path":
            raise ConfigError(
                f"{error}, which Amazon S3 does not allow: correct the URI or give endpoint_url (a bucket from before 2018 may "
                "have such a name: give the storage option addressing_style='path')"
            ) from None


BACKEND = Backend(
    "wherry.backends.s3.store:S3Store",
    S3Options.table(),
    buckets="wherry.backends.s3.buckets:list_buckets",
    takes_others=False,
    libraries=("boto3",),
    install="'wherry[s3]'",
    check=S3Options.read,
    check_bucket=check_bucket,
    stall_option="read_timeout_s",
    authority_variable="AWS_CA_BUNDLE",
)
