"""Turns the errors of S3 and botocore into ours: one table by code, one by HTTP status, one by botocore's classes.

botocore (1.44) does not correct for a clock that is wrong: it signs with this machine's time, always. So a skewed clock is an
error of its own here, told by the server's code, or by its Date when it denies a request; nobody tries again before it is set.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

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
REACH_HINT = "is the endpoint right and reachable?"
_CLOCK = "this machine's clock differs from the server's: set it (NTP)"
_ACCOUNT = "the account may not use the service: its owner has to mend that (a bill, a sign-up, a suspension)"
_KMS = "grant kms:GenerateDataKey and kms:Decrypt on the KMS key of the bucket or object, and see that the key is enabled"
_VIRTUAL = "give the storage option addressing_style='virtual': this server does not take the bucket in the path"
_NOT_S3S = "the answer is not in S3's form: if a proxy or a web server gave it, correct the endpoint, HTTPS_PROXY or NO_PROXY"
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
    "InvalidObjectState": (
        PermanentError,
        "the object is archived (GLACIER, DEEP_ARCHIVE): restore it first, with 'aws s3api restore-object', and wait",
    ),
    **dict.fromkeys(("AccountProblem", "AllAccessDisabled", "NotSignedUp", "OptInRequired"), (AccessDeniedError, _ACCOUNT)),
    **dict.fromkeys(
        ("KMS.DisabledException", "KMS.KMSInvalidStateException", "KMS.InvalidStateException", "KMS.NotFoundException"),
        (AccessDeniedError, _KMS),
    ),
    # Of Alibaba's OSS, Tencent's COS and Volcano's TOS.
    **dict.fromkeys(("SecondLevelDomainForbidden", "PathStyleDomainForbidden", "InvalidPathAccess"), (PermanentError, _VIRTUAL)),
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
#: Of what is denied by a code or status that does not say why: what tells it, among the request's name, the code and the
#: server's words, and the next step. The first match counts.
_DENIALS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(tells, re.IGNORECASE), hint)
    for tells, hint in (
        (r"kms:|\bkms key", _KMS),
        (r"multi-?factor|\bmfa\b", "make temporary keys with 'aws sts get-session-token' and the code of the MFA device"),
        (r"^AssumeRole", "the role of the profile is not ours to assume: check its role_arn, trust policy and MFA condition"),
        (r"^GetRoleCredentials", "the SSO role of the profile is not ours: check its sso_account_id and sso_role_name"),
        (r"virtual.?host|path.?style", _VIRTUAL),
        (
            r"^(Get|Head|get_|head_)\w+ (AccessDenied|403)\b",
            f"{_KEYS}; without the right to list it (s3:ListBucket) a name that is missing is answered so, too",
        ),
    )
)
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
        made = without_answer(error, f"{operation} {self.uri.uri_for(key)}", part, self.server, self.timeout_s)
        if isinstance(made, TransientError) and made.hint == REACH_HINT and f"{self.uri.root}." in made.message:
            made.hint += " Does it have a name for each bucket? If not, give the storage option addressing_style='path'"
        return made

    def _answered(self, error: ClientError, operation: str) -> StoreError:
        """The error for an answer."""
        code, status = code_of(error), status_of(error)
        if operation in ("put", "complete") and status == 412:
            return taken()
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        kind, hint = _rule_for(error)
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
        is_s3s = _is_s3s(error)
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


def may_lack_digest(error: BaseException) -> bool:
    """Return True for an answer that a body without a checksum may get: servers word it differently (InvalidRequest,
    MissingContentMD5), so it is any 400 whose code means nothing else to us.
    """
    return status_of(error) == 400 and code_of(cast("ClientError", error)) not in _RULES


def is_denied(error: BaseException | None) -> bool:
    """Return True if an answer denies this request to the keys, and does not say that the keys are wrong."""
    return status_of(error) == 403 and code_of(cast("ClientError", error)) == "AccessDenied"


def _rule_for(error: ClientError) -> tuple[type[StoreError], str]:
    """Our error and the next step, by the code, or else by the HTTP status and the words."""
    code, status = code_of(error), status_of(error)
    if rule := _RULES.get(code):
        return rule
    other = (TransientError, "") if status >= 500 or status == 200 else (PermanentError, "")
    kind, hint = _STATUS_RULES.get(status, other)
    request = error.operation_name
    if status in (400, 401, 403, 404, 405) and not _is_s3s(error) and not request.lower().startswith("head"):
        # The answer to a HEAD has no body, and some servers' refusals have none.
        return kind, f"{hint}; {_NOT_S3S}" if hint and code == str(status) else _NOT_S3S
    if kind is AccessDeniedError and hint == _KEYS:
        text = f"{request} {code} {error.response.get('Error', {}).get('Message', '')}"
        hint = next((hint for pattern, hint in _DENIALS if pattern.search(text)), hint)
    return kind, hint


def _is_s3s(error: ClientError) -> bool:
    """Return True if the answer has the form of S3's, and so a code."""
    return code_of(error) not in ("", "unknown", str(status_of(error)))


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
