"""Exit codes of the command ``wherry``: one for each kind of error, so that scripts need not read messages."""

from __future__ import annotations

import builtins
from enum import IntEnum

from wherry import errors
from wherry.errors import ConfigError, IntegrityError, SpoolError, UploadFailed


class Exit(IntEnum):
    """The exit codes. Typer gives 2 for a wrong command line as well."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    ALREADY_EXISTS = 4
    ACCESS_DENIED = 5
    TIMED_OUT = 6
    INTEGRITY = 7
    SPOOL = 8
    UNHEALTHY = 9
    INTERRUPTED = 130


#: The meaning of each code, for --help and the documentation.
MEANINGS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "an upload failed, or the store had another error",
    Exit.USAGE: "wrong command line, option, URI or name; nothing was done",
    Exit.NOT_FOUND: "no such object, bucket or file",
    Exit.ALREADY_EXISTS: "the name is taken and --overwrite was not given",
    Exit.ACCESS_DENIED: "the store (or the file system) refuses us",
    Exit.TIMED_OUT: "time is up; what is left goes on in the background or stays in the spool",
    Exit.INTEGRITY: "the bytes are not what they must be",
    Exit.SPOOL: "the spool is full, damaged, in use or not ours",
    Exit.UNHEALTHY: "status --check: an upload has failed, or is stuck",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}

#: The first match counts: an AccessDeniedError is also a PermissionError, and all of them are OSErrors.
_BY_KIND: tuple[tuple[type[BaseException], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (SpoolError, Exit.SPOOL),
    (IntegrityError, Exit.INTEGRITY),
    (FileNotFoundError, Exit.NOT_FOUND),
    (FileExistsError, Exit.ALREADY_EXISTS),
    (PermissionError, Exit.ACCESS_DENIED),
    (TimeoutError, Exit.TIMED_OUT),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def exit_for(error: BaseException) -> Exit:
    """The exit code of an error. FAILED for those without a code, and for uploads that failed for different reasons."""
    if not isinstance(error, UploadFailed):
        return _code(type(error))
    codes = {_code(_kind(failure.kind)) for failure in error.failures}
    return codes.pop() if len(codes) == 1 else Exit.FAILED


def _code(kind: type[BaseException]) -> Exit:
    return next((code for known, code in _BY_KIND if issubclass(kind, known)), Exit.FAILED)


def _kind(name: str | None) -> type[BaseException]:
    """The error class of a name that `wherry.errors.kind_of()` gave; UploadFailed without a name."""
    return vars(errors).get(name or "") or vars(builtins).get(name or "") or UploadFailed
