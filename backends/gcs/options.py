"""The storage options of ``gs://``. Checked without Google's libraries, so that a caller learns at once what is wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.store.options import (
    ANYTHING,
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

#: Kind of key file -> what it must hold (google-auth, `from_service_account_info`, `from_authorized_user_info`).
_KEY_FIELDS = {
    "service_account": ("client_email", "private_key", "token_uri"),
    "authorized_user": ("client_id", "client_secret", "refresh_token"),
}
_KEY_BYTES = 32
#: What google-auth (2.x) reads to find accounts, and wherry or Google's own client to find servers and projects.
_VARIABLES = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT"),
    *("CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN", "NO_GCE_CHECK"),
    *("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "GCE_METADATA_MTLS_MODE"),
    *("GOOGLE_API_USE_CLIENT_CERTIFICATE", "CLOUDSDK_CONTEXT_AWARE_USE_CLIENT_CERTIFICATE", "GOOGLE_API_CERTIFICATE_CONFIG"),
    *("GOOGLE_AUTH_TRUST_BOUNDARY_ENABLED", "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES"),
)
_GOOGLES_HOST = re.compile(r"(^|\.)googleapis\.com$")


@dataclass(frozen=True)
class GCSOptions(StorageOptions):
    """The storage options of ``gs://``. At most one of the four kinds of credentials; else google-auth's own chain is asked."""

    scheme = "gs"
    #: Another server than Google's; else $STORAGE_EMULATOR_HOST, which also means anonymous.
    endpoint_url: str | None = option(None, names_server=True, variables=("STORAGE_EMULATOR_HOST",))
    #: Whose buckets `wherry ls gs://` lists; calls for objects need no project.
    project: str | None = None
    #: The project that pays for the requests to a bucket that bills who asks ("requester pays").
    user_project: str | None = None
    #: A key of 32 bytes in base64, by which Google encrypts objects and forgets it ("customer-supplied encryption keys").
    encryption_key: str | None = option(None, is_secret=True)
    #: A key file, its content as a dict or as text, an access token, or none of them: public buckets.
    credentials_file: str | None = option(None, names_credentials=True)
    credentials_json: object = option(None, kind=ANYTHING, is_secret=True)
    token: str | None = option(None, kind=KEY, is_secret=True)
    anonymous: bool = option(False, names_credentials=True)
    #: Whether to verify the server's certificate, or the file of the authority to verify it with.
    verify: bool | str = option(True, kind=CERTIFICATES)
    #: For a connection, and for each wait for bytes.
    timeout_s: float = 60.0
    max_connections: int = MOST_IN_FLIGHT
    #: True: requests and urllib3 make every request, also those that bodies go with. Slower.
    sdk_only: bool = False
    #: How a large object goes. Parts that are composed go side by side, and need the right to list and delete objects. With
    #: "session" it is one stream without temporary objects, for buckets with a retention policy and for credentials that may
    #: only create objects.
    upload: str = option("compose", kind=one_of("compose", "session"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)
        for name in ("project", "user_project", "credentials_file", "token"):
            if getattr(self, name) == "":
                raise ConfigError(f"storage option {name!r} must be text that is not empty")
        if len(self._credentials) > 1:
            raise ConfigError(f"the storage options {' and '.join(self._credentials)} exclude each other: give one of them")
        if self.encryption_key is not None and len(_decoded(self.encryption_key)) != _KEY_BYTES:
            raise ConfigError("storage option 'encryption_key' must be a key of 32 bytes in base64")
        _ = self.key, self.is_anonymous  # as the file and the environment are now

    @property
    def encryption_headers(self) -> dict[str, str]:
        """What goes with each request that reads or writes an object's bytes."""
        if self.encryption_key is None:
            return {}
        digest = hashlib.sha256(_decoded(self.encryption_key)).digest()
        return {
            "X-Goog-Encryption-Algorithm": "AES256",
            "X-Goog-Encryption-Key": self.encryption_key,
            "X-Goog-Encryption-Key-Sha256": base64.b64encode(digest).decode(),
        }

    @property
    def _credentials(self) -> list[str]:
        names = [name for name in ("token", "credentials_file", "credentials_json") if getattr(self, name) is not None]
        return [*names, *(["anonymous"] if self.anonymous else [])]

    @property
    def key_name(self) -> str:
        """The option that gave `key`."""
        return "credentials_json" if self.credentials_file is None else "credentials_file"

    @cached_property
    def key(self) -> dict[str, Any] | None:
        """The content of a key file."""
        if self.credentials_file is None:
            return None if self.credentials_json is None else _key(self.credentials_json, self.key_name)
        path = Path(os.path.expanduser(self.credentials_file))
        try:
            return _key(path.read_text(encoding="utf-8"), self.key_name)
        except (OSError, UnicodeDecodeError) as error:
            words = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(f"the credentials_file {path} cannot be read: {words}") from error

    @cached_property
    def is_anonymous(self) -> bool:
        """Whether no credentials are sent."""
        is_emulator = self.endpoint_url is None and bool(os.environ.get("STORAGE_EMULATOR_HOST"))
        has_credentials = self._credentials or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        return self.anonymous or (is_emulator and not has_credentials)


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:  # its text is secret
        return b""


def check_bucket(bucket: str, options: Mapping[str, object]) -> None:
    """ConfigError for a name that no bucket can have: at Google, by its rules, elsewhere by those of its library ("Bucket naming
    guidelines", Google Cloud Storage).
    """
    if not (bucket[:1].isalnum() and bucket[-1:].isalnum()):
        raise ConfigError(f"the bucket name {bucket!r} does not begin and end with a letter or digit: correct the URI")
    endpoint = GCSOptions.read(options).endpoint_url or os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint is not None and not _GOOGLES_HOST.search(urlsplit(endpoint).hostname or ""):
        return
    try:
        check_domain_like(bucket, "._-", 222)
    except ConfigError as error:
        raise ConfigError(f"{error}, which Google Cloud Storage does not allow: correct the URI") from None


def _key(given: object, name: str) -> dict[str, Any]:
    """A key file's content, text or dict."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise ConfigError(f"storage option {name!r} is no JSON: give a key file's content") from None  # its text is secret
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in _KEY_FIELDS:
        raise ConfigError(
            f"storage option {name!r} must be of type service_account or authorized_user, not {kind!r}: "
            "for other kinds set GOOGLE_APPLICATION_CREDENTIALS"
        )
    if lacking := [field for field in _KEY_FIELDS[kind] if not given.get(field)]:
        raise ConfigError(
            f"storage option {name!r} is incomplete, without {' and '.join(lacking)}: take a new key file of type {kind}"
        )
    return given


def _from_fsspec(options: dict[str, Any]) -> dict[str, Any]:
    """What gcsfs takes as `token`: an access token, a key file or its content, or one of its words."""
    payer = options.get("requester_pays")
    if isinstance(payer, str) or payer is False:
        options.pop("requester_pays")
    if isinstance(payer, str):
        options["user_project"] = payer
    elif payer is True and options.get("project"):
        del options["requester_pays"]
        options["user_project"] = options["project"]
    token = options.get("token")
    if isinstance(token, Mapping):
        options["credentials_json"] = dict(options.pop("token"))
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


BACKEND = Backend(
    "wherry.backends.gcs.store:GCSStore",
    GCSOptions.table(),
    buckets="wherry.backends.gcs.buckets:list_buckets",
    takes_others=False,
    libraries=("google.auth",),
    install="'wherry[gcs]'",
    check=GCSOptions.read,
    check_bucket=check_bucket,
    stall_option="timeout_s",
    from_fsspec=_from_fsspec,
    authority_variable="REQUESTS_CA_BUNDLE",
    variables=(*_VARIABLES, *COMMON_VARIABLES),
    hint_if_denied=(
        "these credentials may not do this here: give the account that the answer names the role Storage Object User "
        "(roles/storage.objectUser) on the bucket: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        "--member=serviceAccount:ACCOUNT --role=roles/storage.objectUser"
    ),
)
