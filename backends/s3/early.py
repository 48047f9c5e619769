"""Requests before botocore is loaded, which takes 0.2 s and 20 MB: only where the storage options alone say how they are made.

That is so for a server of one's own that is reached by the path, with keys among the options, where no file, no variable and no
proxy says more: botocore makes the same requests then (`tests/backends/test_s3_early.py` compares them). When the server has
denied one of them, or another call has loaded botocore, all that follow are made after botocore's samples (`direct_requests`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from wherry.backends.http.client import Client
from wherry.backends.http.routes import route_to
from wherry.backends.http.wire_errors import UnknownWay
from wherry.backends.s3.direct_requests import Direct
from wherry.backends.s3.options import S3Options, is_amazons
from wherry.backends.s3.signing import Keys, Signer

#: Those that are storage options as well, or only change what botocore calls itself or where it looks for keys.
_HARMLESS = frozenset(
    {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV"),
        *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    }
)
#: Variables that botocore, or what it stands on, reads; those of proxies however they are written.
_TELLING = re.compile(r"(AWS|BOTO)_.*|(?!no_).*_proxy", re.IGNORECASE)
#: Of botocore's own, each with the variable that names another.
_FILES = {"~/.aws/config": "AWS_CONFIG_FILE", "~/.aws/credentials": "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/models": ""}
#: A plain name; "--" and "-s3alias" mark what is not reached as other buckets are.
_BUCKET = re.compile(r"(?!.*--)(?!.*-s3alias$)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[!-~]+")
_HOST = re.compile(r"[a-z0-9.-]+(:[0-9]+)?")


def early_direct(
    options: S3Options, bucket: str, takes_unsigned: Callable[[], bool], note: Callable[[], None], environ: Mapping[str, str]
) -> Direct | None:
    """Requests to this bucket as botocore would make them; None if that takes botocore to know."""
    endpoint, key, secret = options.endpoint_url, options.aws_access_key_id, options.aws_secret_access_key
    if endpoint is None or key is None or secret is None or is_amazons(endpoint):
        return None
    is_plain = options.addressing_style in (None, "path") and not (options.sdk_only or options.anonymous or options.profile)
    url = urlsplit(endpoint)
    if not (is_plain and _BUCKET.fullmatch(bucket) and _is_plain(url)) or _says_more(environ):
        return None
    region = options.region or environ.get("AWS_DEFAULT_REGION") or environ.get("AWS_REGION") or "us-east-1"
    authorities = _authorities(options, environ) if url.scheme == "https" else None
    try:
        route = route_to(url, authorities, None, options.connect_timeout_s, options.read_timeout_s)
    except UnknownWay:
        return None
    keys = Keys(key, secret, options.aws_session_token)
    if not all(_KEY.fullmatch(text) for text in keys if text is not None):
        return None
    return Direct(
        Client(route, options.max_connections, note),
        Signer(lambda: keys, region, "s3"),
        url.netloc.lower().removesuffix(":443" if url.scheme == "https" else ":80"),
        f"/{bucket}/",
        "wherry",
        lambda: url.scheme == "https" or takes_unsigned(),
        lambda operation: True,
    )


def _is_plain(url: SplitResult) -> bool:
    return url.path in ("", "/") and _HOST.fullmatch(url.netloc.lower()) is not None


def _says_more(environ: Mapping[str, str]) -> bool:
    """Whether anything beside the options may have a say in how botocore makes requests."""
    if sys.platform != "linux":  # proxies are a setting of the system elsewhere
        return True
    if any(environ[name] and name not in _HARMLESS and _TELLING.fullmatch(name) for name in environ):
        return True
    files = (Path(os.path.expanduser(environ.get(variable) or name)) for name, variable in _FILES.items())
    return any(file.exists() and (file.is_dir() or file.stat().st_size) for file in files)


def _authorities(options: S3Options, environ: Mapping[str, str]) -> str | None:
    """The file or folder of those to trust, as botocore chooses it; None: it is not known, or none is to be verified."""
    if options.verify is not True:
        return options.verify or None
    if bundle := environ.get("AWS_CA_BUNDLE") or environ.get("REQUESTS_CA_BUNDLE"):
        return bundle
    try:
        from certifi import where
    except ImportError:
        return None
    return where()
