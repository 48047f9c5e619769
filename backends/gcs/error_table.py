"""The table of errors of Google Cloud Storage: our error for each of its answers, and for an answer that does not come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from time import time

from google.api_core.exceptions import GoogleAPICallError, from_http_response, from_http_status
from google.auth.exceptions import DefaultCredentialsError, RefreshError
from requests import Response
from requests.exceptions import ConnectTimeout, InvalidJSONError, ProxyError, SSLError, Timeout, TooManyRedirects
from urllib3.exceptions import NewConnectionError, TimeoutError as PoolTimeout

from wherry.backends.gcs.client import CREDENTIALS_HINT, scrub
from wherry.backends.http.advice import LOGIN_HINT, SIZE_HINT, certificate_hint
from wherry.backends.http.wire_errors import ConnectError, ProxyLoginError, StalledError, TLSError
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ClockSkewedError,
    CredentialsExpiredError,
    IntegrityError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)

_RATE_LIMITS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_CLOCK_HINT = "with a wrong clock, tokens are not valid yet or no longer: set this machine's clock (NTP)"

_PORTAL_HINT = "is it a login page of this machine's network? log in there; else correct the endpoint"


def error_in(answer: Response) -> GoogleAPICallError:
    """The error that an answer with a status other than success is, whatever something on the way has written into its body."""
    try:
        made: GoogleAPICallError = from_http_response(answer)
        tuple(made.errors)  # which it makes a list of when they are asked for
    except (AttributeError, TypeError):  # google-api-core (2.44) takes any JSON object for one of Google's
        made = from_http_status(answer.status_code, f"answer: {answer.text[:500]}", response=answer)
    return made


def words_of(error: GoogleAPICallError) -> str:
    """The server's own words, without the method and the URL that the library puts before them."""
    message = str(error.message)
    return scrub(message.partition(": ")[2] or message).strip().rstrip(".")[:500]


def refused(error: GoogleAPICallError, endpoint: str, *, if_absent: bool, if_match: bool) -> StoreError:
    """The table's first half: answers with a status, but for 404. `endpoint` is said where another server may have answered."""
    status, words, headers = int(error.code or 0), words_of(error), getattr(error.response, "headers", {})
    reasons = {str(item.get("reason")) for item in error.errors if isinstance(item, dict)}
    wait_s = _retry_after(headers.get("Retry-After"))
    if status == 429 or (status == 403 and reasons & _RATE_LIMITS) or (status == 503 and wait_s is not None):
        return ThrottledError(f"{status} {words}", retry_after_s=wait_s)
    is_no_condition = status == 412 and not if_absent and not if_match  # something on the way has answered
    if status in (408, 409) or status >= 500 or is_no_condition:  # 409: another change of the same object is under way
        return TransientError(f"{status} {words}", hint=_PORTAL_HINT if status == 511 else "")
    if status == 401:  # an expired token, or none at all: Google answers both with "Invalid Credentials"
        return CredentialsExpiredError(f"{status} {words}, says {endpoint}", hint=CREDENTIALS_HINT)
    if status in (403, 407):  # 407: a proxy for plain HTTP says it
        return AccessDeniedError(f"{status} {words}, says {endpoint}", hint=LOGIN_HINT if status == 407 else "")
    if status == 412 and if_absent:
        return AlreadyExistsError("the object is there already", hint="choose another name or allow overwriting")
    if status == 412:
        return IntegrityError("the object was replaced")
    if status == 416 or (status == 400 and "doesn't match calculated" in words):
        return IntegrityError(words)
    return PermanentError(f"{status} {words}, says {endpoint}", hint=SIZE_HINT if status == 413 else "")


def failed(error: Exception, endpoint: str, timeout_s: float) -> StoreError:
    """The table's second half: no answer of the store came."""
    if isinstance(error, DefaultCredentialsError) or (isinstance(error, RefreshError) and not error.retryable):
        return _without_token(error)
    if isinstance(error, (SSLError, TLSError)) and (hint := certificate_hint(str(error))):
        return PermanentError(f"the server's certificate is not trusted: {scrub(str(error))}", hint=hint)
    if isinstance(error, ProxyLoginError) or (isinstance(error, ProxyError) and " 407 " in str(error)):
        words = f"the proxy on the way to {endpoint} wants a user and a password, or other ones (407)"
        return AccessDeniedError(words, hint=LOGIN_HINT)
    if isinstance(error, TooManyRedirects):
        to = scrub(str(getattr(error.response, "headers", {}).get("Location", "")))
        return TransientError(f"{endpoint} redirects again and again, at last to {to[:200]}", hint=_PORTAL_HINT)
    if isinstance(error, InvalidJSONError):
        return TransientError(f"the answer is no JSON object of {endpoint}: something on the way has given it", hint=_PORTAL_HINT)
    if isinstance(error, ConnectTimeout) or (isinstance(error, ConnectError) and isinstance(error.__cause__, TimeoutError)):
        return TransientError(f"no connection to {endpoint} within {timeout_s:g} s")
    causes = (each for each in _causes(error) if not isinstance(each, NewConnectionError))  # for urllib3 it is a time-out, too
    if any(isinstance(each, (Timeout, PoolTimeout, TimeoutError, StalledError)) for each in causes):
        return TransientError(f"no byte for {timeout_s:g} s to or from {endpoint}")
    return TransientError(f"{type(error).__name__} with {endpoint}: {scrub(str(error))}")


def _without_token(error: DefaultCredentialsError | RefreshError) -> StoreError:
    if isinstance(error, DefaultCredentialsError):
        why = f": {error.args[0]}" if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") else ""  # which file is wrong
        return AccessDeniedError(f"no credentials were found{why}", hint=CREDENTIALS_HINT)
    words = f"the credentials were not renewed: {error.args[0]}"
    if "iat and exp" in words or "reasonable timeframe" in words:
        return ClockSkewedError(words, hint=_CLOCK_HINT)
    is_over = "expired" in words or "reauth" in words
    return (CredentialsExpiredError if is_over else AccessDeniedError)(words, hint=CREDENTIALS_HINT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it was made of: requests and urllib3 hand one another's errors on as arguments."""
    yield error
    inner = [each for each in (*error.args, error.__cause__) if isinstance(each, BaseException) and each is not error]
    for each in inner:
        yield from _causes(each)


def _retry_after(text: str | None) -> float | None:
    """Seconds of a Retry-After header: a number or a date (RFC 9110, 10.2.3); None if there is none that can be read."""
    if text is None:
        return None
    try:
        return float(text) if text.strip().isdecimal() else max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
    except ValueError:
        return None
