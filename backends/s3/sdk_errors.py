"""botocore's own errors, and those of our requests that got no answer, as ours. Loaded when the first one comes."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError, ResponseParserFactory
from urllib3.exceptions import HTTPError

from wherry.backends.http.advice import LOGIN_HINT, OTHER_HOST_HINT, certificate_hint
from wherry.backends.http.wire_errors import ConnectError, ProxyLoginError, StalledError, TLSError, WireError
from wherry.backends.s3.error_table import PORTAL_HINT, REACH_HINT, about_the_file
from wherry.errors import (
    AccessDeniedError,
    ConfigError,
    CredentialsExpiredError,
    PermanentError,
    StoreError,
    TransientError,
    WherryError,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_BAD_SETTINGS = (sdk.ProfileNotFound, sdk.ConfigParseError, sdk.ConfigNotFound, sdk.InvalidConfigError, sdk.NoRegionError)
_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role, or give keys in storage_options"
_PROCESS = "run the profile's credential_process by itself: it must end with 0 and print keys as JSON"
_MFA = "without a terminal nobody can be asked for it: make temporary keys with 'aws sts get-session-token', and use these"
_SDK_RULES: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
    ((sdk.NoCredentialsError, sdk.PartialCredentialsError), AccessDeniedError, _KEYS),
    ((sdk.SSOError, sdk.TokenRetrievalError), CredentialsExpiredError, "log in again: aws sso login --profile PROFILE"),
    ((getattr(sdk, "LoginError", sdk.SSOError),), CredentialsExpiredError, "log in again: aws login --profile PROFILE"),
    ((sdk.RefreshWithMFAUnsupportedError,), CredentialsExpiredError, _MFA),
    ((sdk.CredentialRetrievalError, sdk.MetadataRetrievalError), TransientError, ""),
    (
        (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, ConnectError),
        TransientError,
        REACH_HINT,
    ),
    ((sdk.HTTPClientError, sdk.ConnectionError, sdk.IncompleteReadError, HTTPError, WireError), TransientError, ""),
)


class AnswerParsers(ResponseParserFactory):
    """Makes botocore's parsers, which raise PermanentError for an answer with a number or a date that cannot be.

    botocore (1.44) raises ResponseParserError for answers that have another form, and for these what Python raises.
    """

    def create_parser(self, protocol_name: str) -> Any:
        """One for a protocol of botocore's."""
        parser: Any = super().create_parser(protocol_name)
        parse = parser.parse

        def parse_or_say(response: Any, shape: Any) -> Any:
            try:
                return parse(response, shape)
            except ValueError as error:
                raise PermanentError(f"the server's answer cannot be read: {error}") from error

        parser.parse = parse_or_say
        return parser


def ask_for_code(prompt: str) -> str:
    """Ask for the code of an MFA device, on the terminal; EOFError if there is none.

    getpass() would take a line of standard input then, whatever that is, and warn.
    """
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR))
    except OSError:
        raise EOFError from None
    return getpass.getpass(prompt)


@contextmanager
def making_credentials() -> Iterator[None]:
    """Turn what Python raises while botocore makes credentials into errors of ours, for which an upload waits."""
    try:
        yield
    except EOFError as error:
        raise CredentialsExpiredError("the role of the profile needs the code of an MFA device", hint=_MFA) from error
    except OSError as error:
        words = f"the credentials cannot be read: {error.strerror}: {error.filename}"
        raise CredentialsExpiredError(words, hint="correct the name of the file, or of the program, in the profile") from error
    except ValueError:  # a process prints no JSON
        raise CredentialsExpiredError("the credential process does not print JSON", hint=_PROCESS) from None


def is_answer(error: Exception) -> TypeIs[sdk.ClientError]:
    """Whether the error is about an answer of the server's."""
    return isinstance(error, sdk.ClientError)


def without_answer(error: Exception, call: str, part: int | None, server: str, timeout_s: float) -> WherryError | None:
    """The error for what went wrong before, or in place of, an answer; None for any other error. The rest is for words."""
    if not isinstance(error, (sdk.BotoCoreError, ResponseParserError, HTTPError, WireError)):
        return None
    text = str(error)
    if made := about_the_file(getattr(error, "kwargs", {}).get("error")):  # while botocore was reading the body
        return made
    if isinstance(error, (sdk.SSLError, TLSError)) and (hint := certificate_hint(text)):
        if hint == OTHER_HOST_HINT:  # the bucket's name stands before the server's own, say
            hint += ", or give the storage option addressing_style='path'"
        return PermanentError(f"the server's certificate is not trusted: {text}", hint=hint)
    if isinstance(error, ProxyLoginError) or (
        isinstance(error, sdk.ProxyConnectionError) and " 407 " in str(error.kwargs.get("error"))
    ):
        return AccessDeniedError(f"{text}: it wants a user and a password, or other ones (407)", hint=LOGIN_HINT)
    if isinstance(error, ResponseParserError):  # it shows the whole answer
        return TransientError(f"the server's answer cannot be read: {text[:200]!r}", hint=PORTAL_HINT)
    if isinstance(error, _BAD_SETTINGS):
        return ConfigError(f"{call}: {text}")
    if isinstance(error, (sdk.ReadTimeoutError, StalledError)):  # a URLLib3 one too: botocore's is both
        what = f" of part {part}" if part is not None else ""
        return TransientError(f"no byte{what} went through for {timeout_s:g} s: {server} is silent")
    kind, hint = _rule_for(error)
    return kind(text.strip(), hint=hint)


def _rule_for(error: Exception) -> tuple[type[StoreError], str]:
    """Our error and the next step, by the class of another's."""
    if isinstance(error, sdk.CredentialRetrievalError) and error.kwargs.get("provider") == "custom-process":
        return CredentialsExpiredError, _PROCESS
    return next(((kind, hint) for types, kind, hint in _SDK_RULES if isinstance(error, types)), (PermanentError, ""))
