"""Turns the errors of S3 and botocore into ours: one table by code, one by HTTP status, one by botocore's classes.

botocore (1.44) does not correct for a clock that is wrong: it signs with this machine's time, always. So a skewed clock is an
error of its own here, told by the server's code, or by its Date when it denies a request; nobody tries again before it is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wherry.backends.http.advice import LOGIN_HINT, SIZE_HINT
from wherry.backends.http.wire_errors import ShortFile, UnreadableFile
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ClockSkewedError,
    CredentialsExpiredError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
    WherryError,
    about,
    cause_of,
)
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from botocore.exceptions import ClientError


class DigestError(TransientError):
    """The server received other bytes than the checksum says. One more attempt is worth it: they may have changed on the way."""


_KEYS = "check the access key, its secret and its rights on the bucket"
_LACKS = "the server lacks this: try the storage options conditional_writes=False and checksums=False"
#: If the answer names the region, botocore goes there by itself.
_REGION = "give the bucket's region as storage option 'region'"
PORTAL_HINT = f"is it a login page of this machine's network? log in there; else {_REGION}, or correct the endpoint"
_CLOCK = "this machine's clock differs from the server's: set it (NTP)"
#: Not final if the credentials come from a source that is read again: a role, or a file that is refreshed.
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_PASSING = ("IncompleteBody", "OperationAborted", "RequestTimeout", "RequestTimeoutException", "XAmzContentSHA256Mismatch")
_SLOWER = ("BandwidthLimitExceeded", "RequestLimitExceeded", "SlowDown", "Throttling")
#: Code -> our error and the next step. What is not here is judged by its HTTP status. From "Error responses" of the Amazon S3 API
#: Reference, and from what MinIO and SeaweedFS add.
_RULES: dict[str, tuple[type[StoreError], str]] = {
    "NoSuchBucket": (BucketNotFoundError, "create the bucket, or correct the URI or the endpoint"),
    **dict.fromkeys(_EXPIRED, (CredentialsExpiredError, "these credentials have expired: supply new ones")),
    "InvalidToken": (AccessDeniedError, "the session token does not belong to the key, or is missing"),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch"), (AccessDeniedError, _KEYS)),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), (ClockSkewedError, _CLOCK)),
    "AuthorizationHeaderMalformed": (PermanentError, _REGION),
    "PermanentRedirect": (PermanentError, f"{_REGION}, or correct the endpoint"),
    "EntityTooLarge": (PermanentError, "an object of this size goes in parts"),
    "KeyTooLongError": (PermanentError, "shorten the name: this server takes fewer bytes than another"),
    "XMinioInvalidResourceName": (PermanentError, "use another name: this server keeps objects as files, and cannot keep it"),
    "XMinioObjectExistsAsDirectory": (PermanentError, "use another name: names of other objects begin with this one and '/'"),
    "XMinioParentIsObject": (PermanentError, "use another name: what stands before a '/' in it is an object"),
    "ConditionalRequestConflict": (TransientError, "another writer was at it at the same moment"),
    **dict.fromkeys(("BadDigest", "XAmzContentChecksumMismatch"), (DigestError, "")),
    **dict.fromkeys(_PASSING, (TransientError, "")),
    **dict.fromkeys((*_SLOWER, "ThrottlingException", "TooManyRequestsException"), (ThrottledError, "")),
}
_STATUS_RULES: dict[int, tuple[type[StoreError], str]] = {
    **dict.fromkeys((301, 308), (PermanentError, f"{_REGION}, or correct the endpoint")),
    **dict.fromkeys((302, 303, 307, 511), (TransientError, PORTAL_HINT)),
    401: (AccessDeniedError, _KEYS),
    403: (AccessDeniedError, _KEYS),
    404: (NotFoundError, ""),
    407: (AccessDeniedError, LOGIN_HINT),
    408: (TransientError, ""),
    412: (IntegrityError, "the object was replaced: begin again"),
    413: (PermanentError, SIZE_HINT),
    416: (IntegrityError, ""),
    429: (ThrottledError, ""),
    501: (PermanentError, _LACKS),
    503: (ThrottledError, ""),
    507: (TransientError, "the server's disk is full"),
}
#: Amazon refuses a request whose time is this far from its own ("RequestTimeTooSkewed").
_SKEW_S = 900.0


@dataclass(frozen=True)
class Translator:
    """Turns what botocore raises about one store into our errors.

    `renew` is called for expired credentials, and says whether newer ones may be found. `timeout_s` and `server`, its address,
    are for words.
    """

    uri: StoreURI
    renew: Callable[[], bool]
    timeout_s: float
    server: str
    now: Callable[[], float] = time.time

    @contextmanager
    def translated(self, operation: str, key: str, part: int | None = None) -> Iterator[None]:
        """Translate what botocore, and our own requests, raise in the block. `part`: the number of the part, for the message."""
        with self.about(operation, key):
            try:
                yield
            except Exception as error:
                if (made := self._made_of(error, operation, key, part)) is None:
                    raise
                raise made from cause_of(error)

    def about(self, operation: str, key: str) -> AbstractContextManager[None]:
        """Have errors of ours in the block name the call and the object."""
        return about(operation, self.uri.uri_for(key))

    def _made_of(self, error: Exception, operation: str, key: str, part: int | None) -> WherryError | None:
        """Our error for another's; None for what stays as it is."""
        if isinstance(error, WherryError):
            return None
        if made := about_the_file(error):
            return made
        from wherry.backends.s3.sdk_errors import is_answer, without_answer

        if is_answer(error):
            return self._answered(error, operation)
        return without_answer(error, f"{operation} {self.uri.uri_for(key)}", part, self.server, self.timeout_s)

    def _answered(self, error: ClientError, operation: str) -> StoreError:
        """The error for an answer."""
        code, status = code_of(error), status_of(error)
        if operation in ("put", "complete") and status == 412:
            return taken()
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        kind, hint = _rule_for(code, status)
        if code in _EXPIRED and self.renew():
            kind, hint = TransientError, "the credentials are read anew for the next attempt"
        elif hint == _CLOCK or (status in (401, 403) and abs(_ahead_s(headers, self.now())) > _SKEW_S):
            hint = self._clock_hint(headers)
        made = kind(self._words(error, kind), hint=hint)
        if isinstance(made, ThrottledError):
            made.retry_after_s = _retry_after_s(headers, self.now())
        return made

    def _words(self, error: ClientError, kind: type[StoreError]) -> str:
        """The server's own words; and who says them, where it may be another server than the one that was meant."""
        code, status = code_of(error), status_of(error)
        said = error.response.get("Error", {}).get("Message", "")
        is_s3s = code not in ("", "unknown", str(status))
        if not is_s3s:  # a body of something else, or none
            from http.client import responses

            code, said = str(status), responses.get(status, "") if code != str(status) else said
        text = f"{code}: {said}" if said else code
        if 300 <= status < 400 and (where := error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("location")):
            text = f"{text.rstrip('.')} (to {where[:200]})"
        if is_s3s and not issubclass(kind, (BucketNotFoundError, AccessDeniedError)) and not 300 <= status < 400:
            return text
        return f"{text.rstrip('.')}, says {self.server}"

    def _clock_hint(self, headers: Mapping[str, str]) -> str:
        ahead_s = _ahead_s(headers, self.now())
        by = f" by {abs(ahead_s):.0f} s, it is {'fast' if ahead_s > 0 else 'slow'}" if abs(ahead_s) >= 1 else ""
        return _CLOCK.replace(":", f"{by}:")


def about_the_file(error: object) -> WherryError | None:
    """The error for a file that cannot be sent as it is; None for any other error."""
    if isinstance(error, ShortFile):
        return IntegrityError(str(error))
    return PermanentError(str(error)) if isinstance(error, UnreadableFile) else None


def taken() -> AlreadyExistsError:
    """The error for a name that is taken."""
    return AlreadyExistsError("the object is there already", hint="choose another name or allow overwriting")


def code_of(error: ClientError) -> str:
    """The code of an answer: NoSuchKey and the like."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def status_of(error: BaseException | None) -> int:
    """The HTTP status of the answer that botocore's error is about; 0 for any other error."""
    answer: Any = getattr(error, "response", None)
    return 0 if not isinstance(answer, dict) else int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _rule_for(code: str, status: int) -> tuple[type[StoreError], str]:
    """Our error and the next step, by the code or else by the HTTP status."""
    other = (TransientError, "") if status >= 500 or status == 200 else (PermanentError, "")
    return _RULES.get(code) or _STATUS_RULES.get(status) or other


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Read a Retry-After header (RFC 9110, section 10.2.3): seconds, or a date, which is taken by the server's own clock."""
    value = headers.get("retry-after", "")
    if value.isascii() and value.isdecimal():
        return float(value)
    until_s, server_s = _seconds(value), _seconds(headers.get("date", ""))
    return None if until_s is None else max(0.0, until_s - (now if server_s is None else server_s))


def _ahead_s(headers: Mapping[str, str], now: float) -> float:
    """How far our clock is ahead of the one that the answer's Date is from; 0 if it has none."""
    server_s = _seconds(headers.get("date", ""))
    return 0.0 if server_s is None else now - server_s


def _seconds(date: str) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
