"""The storage options of ``gs://``. Checked without Google's libraries, so that a caller learns at once what is wrong."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wherry.errors import ConfigError
from wherry.uri import check_domain_like

#: Kind of key file -> what it must hold (google-auth, `from_service_account_info`, `from_authorized_user_info`).
_KEY_FIELDS = {
    "service_account": ("client_email", "private_key", "token_uri"),
    "authorized_user": ("client_id", "client_secret", "refresh_token"),
}
_ENDPOINT = re.compile(r"https?://[^/?#@]+(/[^?#]*)?$")

_GOOGLES_HOST = re.compile(r"(^|\.)googleapis\.com$")


class Options:
    """The storage options, checked. No message shows any of what is secret."""

    KNOWN = (
        "anonymous",
        "credentials_file",
        "credentials_json",
        "endpoint_url",
        "max_connections",
        "project",
        "timeout_s",
        "token",
        "upload",
        "verify",
    )

    def __init__(self, given: Mapping[str, object]) -> None:
        if unknown := sorted(map(str, set(given) - set(self.KNOWN))):
            raise ConfigError(f"unknown storage option(s) {', '.join(unknown)} for gs://: known are {', '.join(self.KNOWN)}")
        given = {name: value for name, value in given.items() if value is not None}
        self.endpoint_url = _text(given, "endpoint_url")
        if self.endpoint_url is not None and not _ENDPOINT.match(self.endpoint_url):
            raise ConfigError("storage option 'endpoint_url' must be http://host:port or https://host, and may have a path")
        self.project = _text(given, "project")
        verify = given.get("verify", True)
        if not isinstance(verify, (bool, str)) or (isinstance(verify, str) and not os.path.exists(verify)):
            raise ConfigError(f"storage option 'verify' is {verify!r}: use True, False or the path of a CA file")
        self.verify = verify
        timeout_s, max_connections = given.get("timeout_s", 60), given.get("max_connections", 32)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise ConfigError(f"storage option 'timeout_s' is {timeout_s!r}: it must be a number above 0")
        if isinstance(max_connections, bool) or not isinstance(max_connections, int) or max_connections < 1:
            raise ConfigError(f"storage option 'max_connections' is {max_connections!r}: it must be a whole number, at least 1")
        self.timeout_s, self.max_connections = float(timeout_s), max_connections
        upload = given.get("upload", "compose")
        if upload not in ("compose", "session"):
            raise ConfigError(f"storage option 'upload' is {upload!r}: use 'compose' or 'session'")
        self.upload = upload
        self._read_credentials(given)

    def _read_credentials(self, given: Mapping[str, object]) -> None:
        anonymous = given.get("anonymous", False)
        if not isinstance(anonymous, bool):
            raise ConfigError(f"storage option 'anonymous' is {anonymous!r}: use True or False")
        kinds = [name for name in ("token", "credentials_file", "credentials_json") if name in given]
        kinds += ["anonymous"] if anonymous else []
        if len(kinds) > 1:
            raise ConfigError(f"the storage options {' and '.join(kinds)} exclude each other: give one of them")
        self.token = _text(given, "token")
        #: The content of a key file, and the option that gave it.
        self.key: dict[str, Any] | None = None
        self.key_name = ""
        if "credentials_file" in given:
            path = Path(_text(given, "credentials_file") or "").expanduser()
            try:
                self.key, self.key_name = _key(path.read_text(encoding="utf-8"), "credentials_file"), "credentials_file"
            except (OSError, UnicodeDecodeError) as error:
                words = getattr(error, "strerror", None) or "it is no text"
                raise ConfigError(f"the credentials_file {path} cannot be read: {words}") from error
        elif "credentials_json" in given:
            self.key, self.key_name = _key(given["credentials_json"], "credentials_json"), "credentials_json"
        is_emulator = self.endpoint_url is None and bool(os.environ.get("STORAGE_EMULATOR_HOST"))
        self.is_anonymous = anonymous or (not kinds and is_emulator)


def check_bucket(bucket: str, options: Mapping[str, object]) -> None:
    """ConfigError for a name that no bucket can have: at Google, by its rules, elsewhere by those of its library ("Bucket naming
    guidelines", Google Cloud Storage).
    """
    if not (bucket[:1].isalnum() and bucket[-1:].isalnum()):
        raise ConfigError(f"the bucket name {bucket!r} does not begin and end with a letter or digit: correct the URI")
    endpoint = Options(options).endpoint_url or os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint is not None and not _GOOGLES_HOST.search(urlsplit(endpoint).hostname or ""):
        return
    try:
        if len(bucket) > 222:
            raise ConfigError(f"the bucket name {bucket!r} has more than 222 characters")
        check_domain_like(bucket, "._-")
    except ConfigError as error:
        raise ConfigError(f"{error}, which Google Cloud Storage does not allow: correct the URI") from None


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"storage option {name!r} must be text that is not empty")
    return value


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
