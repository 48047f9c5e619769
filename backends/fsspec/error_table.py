"""Translates the errors of fsspec's file systems. Each of them raises those of its own library."""

from __future__ import annotations

import errno
import ftplib

from wherry.errors import (
    AccessDeniedError,
    MissingExtraError,
    NotFoundError,
    PermanentError,
    ReadOnlyError,
    StoreError,
    ThrottledError,
    TransientError,
)

#: Libraries whose errors without a status are about the connection.
_NETWORK_LIBRARIES = frozenset(
    {"aiohttp", "asyncio", "azure", "httpcore", "httpx", "paramiko", "requests", "smbprotocol", "urllib3"}
)


#: Errors without a status that mean wrong credentials: paramiko's, Azure's for a key that is none.
_DENIED = frozenset({"AuthenticationException", "AzureSigningError"})


def words_of(error: Exception) -> str:
    """The text of an error, after the name of its class. A plain ValueError or OSError has no name in front."""
    # adlfs puts these words, and no account, before any wrong option
    name, text = type(error).__name__, str(error).removeprefix("unable to connect to account for ")
    return text if text and type(error) in (ValueError, OSError) else f"{name}: {text}" if text else name


def translate(error: Exception, scheme: str) -> StoreError:
    """The one table from the errors of fsspec's file systems to ours."""
    words = words_of(error)
    kind: type[StoreError] = PermanentError
    status = _status(error)
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return ReadOnlyError(words, hint="make it writable: it is tried again until the deadline")
    names = {base.__name__ for base in type(error).__mro__}
    if status == 429:
        kind = ThrottledError
    elif isinstance(error, PermissionError) or status in (401, 403) or names & _DENIED:
        kind = AccessDeniedError
    elif isinstance(error, FileNotFoundError) or status == 404:
        kind = NotFoundError
    elif isinstance(error, (FileExistsError, IsADirectoryError, NotADirectoryError)):
        return PermanentError(f"a file and a folder cannot share a name: {words}")
    elif isinstance(error, (OSError, EOFError)) or (status is not None and (status >= 500 or status == 408)):
        kind = TransientError  # time-outs, resets, full disks, and servers that say no more than "failure"
    elif isinstance(error, ImportError):
        raise MissingExtraError(f"{scheme}:// needs another library: {error}") from error
    elif isinstance(error, NotImplementedError):
        return PermanentError(f"the file system cannot do this: {words}")
    elif status is None and type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES:
        kind = TransientError
    return kind(words)


def _status(error: Exception) -> int | None:
    """The HTTP status that an error carries, whichever library raised it. FTP's codes (RFC 959) are translated."""
    if isinstance(error, ftplib.Error):  # noqa: S321  the errors of fsspec's own FTP
        code = str(error)[:3]
        return {"530": 401, "532": 401, "550": 404, "552": 507}.get(code, 503 if code.startswith("4") else 400)
    for found in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            if isinstance(status := getattr(found, name, None), int) and not isinstance(status, bool):
                return status
    return None
