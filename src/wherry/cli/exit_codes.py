"""Exit codes of the command ``wherry``: one for each kind of error, so that scripts need not read messages."""

from __future__ import annotations

import builtins
from enum import IntEnum

from wherry import errors
from wherry.errors import ConfigError, IntegrityError, SpoolError, UploadFailed


class Exit(IntEnum):
    """The exit codes. Typer gives 2 for a wrong command line as well."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """`meaning` is for --help and the documentation."""
        one = int.__new__(cls, code)
        one._value_, one.meaning = code, meaning
        return one

    OK = 0, "done"
    FAILED = 1, "an upload failed, or the store had another error"
    USAGE = 2, "wrong command line, option, URI or name; nothing was done of it"
    NOT_FOUND = 3, "no such object, bucket or file"
    ALREADY_EXISTS = 4, "the name is taken and --overwrite was not given"
    ACCESS_DENIED = 5, "the store (or the file system) refuses us"
    TIMED_OUT = 6, "time is up; what is left goes on in the background or stays in the spool"
    INTEGRITY = 7, "the bytes are not what they must be"
    SPOOL = 8, "the spool is full, damaged, in use or not ours"
    UNHEALTHY = 9, "status --check: an upload has failed, or is stuck"
    INTERRUPTED = 130, "interrupted with Ctrl-C"


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
