"""The storage options of ``s3://``, and which server they lead to. Checked without botocore, so that a caller learns at once."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.store.options import (
    CERTIFICATES,
    COMMON_VARIABLES,
    KEY,
    MOST_IN_FLIGHT,
    Backend,
    StorageOptions,
    check_endpoint,
    one_of,
    option,
)
from wherry.uri import check_domain_like

#: The ending of the name of every directory bucket.
DIRECTORY_BUCKET = "--x-s3"
#: The first of them that is set counts; the last is not botocore's, and counts where botocore knows of no other server.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
#: What leads to a server where no endpoint is given: a profile may have one.
_SERVER_SETTINGS = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
#: What botocore (1.44) reads to find servers, accounts and certificates.
VARIABLES = (
    *ENDPOINT_VARIABLES,
    *_SERVER_SETTINGS,
    *("AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC", "AWS_ENDPOINT_URL_SIGNIN"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CREDENTIAL_FILE", "BOTO_CONFIG", "AWS_LOGIN_CACHE_DIRECTORY"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"),
    *("AWS_EC2_METADATA_V1_DISABLED", "AWS_IMDS_USE_IPV6"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT", "AWS_STS_REGIONAL_ENDPOINTS"),
    *("AWS_S3_USE_ARN_REGION", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "AWS_S3_DISABLE_MULTIREGION_ACCESS_POINTS"),
    *("AWS_S3_DISABLE_EXPRESS_SESSION_AUTH", "AWS_AUTH_SCHEME_PREFERENCE", "AWS_SIGV4A_SIGNING_REGION_SET"),
    *("AWS_ACCOUNT_ID_ENDPOINT_MODE", "AWS_DISABLE_HOST_PREFIX_INJECTION", "AWS_DEFAULTS_MODE", "AWS_DATA_PATH"),
    "AWS_CA_BUNDLE",
)
#: Amazon's own hosts, in all partitions (`partitions.json` of botocore).
_AMAZONS_HOST = re.compile(
    r"(^|\.)(amazonaws\.(com|com\.cn|eu)|api\.aws|api\.amazonwebservices\.(com\.cn|eu)"
    r"|(c2s|csp\.hci)\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|api\.aws\.((hci\.)?ic\.gov|scloud)|api\.cloud-aws\.adc-e\.uk)$"
)


#: What botocore (1.44) lets pass.
_BOTOCORES_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")


@dataclass(frozen=True)
class S3Options(StorageOptions):
    """The storage options of ``s3://``. Keys that are not given come from the vendor's own chain: environment, profile, role."""

    scheme = "s3"
    #: Else what botocore finds in variables, profiles and their `services`; else Amazon's own.
    endpoint_url: str | None = option(
        None, names_server=True, variables=ENDPOINT_VARIABLES, aliases=("client_kwargs.endpoint_url",)
    )
    #: Else the environment's or the profile's; a server with an `endpoint_url` gets us-east-1 when there is none.
    region: str | None = option(None, aliases=("client_kwargs.region_name", "config_kwargs.region_name"))
    profile: str | None = option(None, names_credentials=True)
    #: "path", "virtual" or "auto". Else the profile's; else "path" with an endpoint of one's own, which
    #: seldom has a name for each bucket.
    addressing_style: Literal["auto", "path", "virtual"] | None = option(None, kind=one_of("auto", "path", "virtual", None))
    #: Whether to verify the server's certificate, or the file of the authority to verify it with.
    verify: bool | str = option(True, kind=CERTIFICATES, aliases=("client_kwargs.verify",))
    #: A connection that is not made in ten seconds will not be; a minute without a byte, either way, means a dead one.
    connect_timeout_s: float = option(10.0, aliases=("config_kwargs.connect_timeout",))
    read_timeout_s: float = option(60.0, aliases=("config_kwargs.read_timeout",))
    max_connections: int = option(MOST_IN_FLIGHT, aliases=("config_kwargs.max_pool_connections",))
    #: True: botocore makes every request, also those that bodies go with. Slower; for what only botocore's plugins can do.
    sdk_only: bool = False
    #: Send no credentials at all: public buckets.
    anonymous: bool = option(False, names_credentials=True, aliases=("anon",))
    aws_access_key_id: str | None = option(
        None,
        kind=KEY,
        is_secret=True,
        is_needed=True,
        variables=("AWS_ACCESS_KEY_ID",),
        aliases=("key", "client_kwargs.aws_access_key_id"),
    )
    aws_secret_access_key: str | None = option(
        None,
        kind=KEY,
        is_secret=True,
        is_needed=True,
        variables=("AWS_SECRET_ACCESS_KEY",),
        aliases=("secret", "client_kwargs.aws_secret_access_key"),
    )
    aws_session_token: str | None = option(
        None,
        kind=KEY,
        is_secret=True,
        variables=("AWS_SESSION_TOKEN",),
        aliases=("token", "client_kwargs.aws_session_token"),
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

    @property
    def shown_checksums(self) -> dict[str, Any]:
        """The parameters of a HEAD or GET that ask for the object's checksums."""
        return {"ChecksumMode": "ENABLED"} if self.checksums else {}

    def tried(self, server: str | None) -> str | None:
        """The name of a server for what a trial finds out, which depends on what it may send."""
        switches = [name for name in ("checksums", "conditional_writes") if not getattr(self, name)]
        return f"{server}#without={','.join(switches)}" if server and switches else server


def server_name(endpoint: str) -> str | None:
    """A name of the server at this address, if it is not Amazon's: scheme, host, port and path."""
    if is_amazons(endpoint):
        return None
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def is_amazons(endpoint: str) -> bool:
    """Return True for an endpoint of Amazon's own."""
    return _AMAZONS_HOST.search(urlsplit(endpoint).hostname or "") is not None


def server_settings(options: Mapping[str, object], environment: Mapping[str, str]) -> Mapping[str, object]:
    """Return the settings that say which server is meant, without botocore: the endpoint, or what leads botocore to one."""
    is_ignored = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    addresses = (environment.get(name) for name in ENDPOINT_VARIABLES[2 if is_ignored else 0 :])
    if endpoint := options.get("endpoint_url") or next(filter(None, addresses), None):
        return {"endpoint_url": endpoint}
    settings = {name: environment.get(name) for name in _SERVER_SETTINGS}
    home = environment.get("HOME")
    return {**settings, "profile": options.get("profile"), "HOME": None if home == _home_of_user() else home}


def _home_of_user() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user, say
        return None


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
        from wherry.backends.s3.client import endpoint_of  # botocore knows where requests go

        given = S3Options.read(options)
        if is_amazons(endpoint_of(given)) and given.addressing_style != "path":
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
    variables=(*VARIABLES, *COMMON_VARIABLES),
    server_settings=server_settings,
)
