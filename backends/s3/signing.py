"""Signs requests: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.

Some ten microseconds a request: the key for a day is made once, and what is signed is only what we send.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

#: In place of a body's SHA-256.
UNSIGNED = "UNSIGNED-PAYLOAD"
MOMENT = "%Y%m%dT%H%M%SZ"
NO_BODY = sha256(b"").hexdigest()


class Keys(NamedTuple):
    """Credentials that stay as they are."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return f"Keys({self.access_key!r})"  # a traceback's frames are printed


class Signer:
    """Signs for one region. `credentials` gives those of the moment, renewed when they are about to expire."""

    def __init__(self, credentials: Callable[[], ReadOnlyCredentials | Keys], region: str, service: str) -> None:
        self._credentials = credentials
        self._scope = f"{region}/{service}/aws4_request"
        #: For which day and secret, and the key: replaced as a whole, as several threads use it.
        self._key: tuple[str, str, bytes] = ("", "", b"")

    def sign(
        self, method: str, path: str, query: str, headers: Mapping[str, str], payload: str, now_s: float | None = None
    ) -> dict[str, str]:
        """The headers, with those that the signature adds. `path` and `query` are as they are sent.

        `headers` have names in lower case, the host among them, and values without spaces at their ends or several in a row.
        `payload` is the SHA-256 of the body in hex, or UNSIGNED.
        """
        credentials = self._credentials()
        moment = time.strftime(MOMENT, time.gmtime(now_s))
        signed = {**headers, "x-amz-content-sha256": payload, "x-amz-date": moment}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = sorted(signed)
        lines = "".join([f"{name}:{signed[name]}\n" for name in names])
        request = f"{method}\n{path}\n{query}\n{lines}\n{';'.join(names)}\n{payload}"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{moment[:8]}/{self._scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._day_key(moment[:8], credentials.secret_key or ""), text.encode(), "sha256").hex()
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{moment[:8]}/{self._scope}, "
            f"SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return signed

    def _day_key(self, day: str, secret: str) -> bytes:
        """Good until midnight (UTC), and as long as the secret stays the same."""
        for_day, for_secret, key = self._key
        if (for_day, for_secret) != (day, secret):
            key = f"AWS4{secret}".encode()
            for text in (day, *self._scope.split("/")):
                key = hmac.digest(key, text.encode(), "sha256")
            self._key = (day, secret, key)
        return key
