"""The error tree. The class of an error decides whether it is worth trying again.

WherryError
 ├─ ConfigError (ValueError)               wrong before anything was sent: names the key and what is allowed
 │   └─ MissingExtraError (ImportError)    the backend's library is not installed: names the extra
 ├─ SpoolError (OSError)                   the spool cannot take the file: no space, not ours, read-only
 │   ├─ SourceChangedError                 the file changed while it was being copied
 │   └─ JournalError                       the journal cannot be read or written
 ├─ UploadFailed                           raised by flush(), close() and result(): every failed job
 │   └─ NameTakenError                     ... and all of them for one reason: it is an AlreadyExistsError, too
 └─ StoreError                             a call to a store failed: .operation .uri .hint, cause in __cause__
     ├─ TransientError                     trying again makes sense
     │   └─ ThrottledError                 ... after .retry_after_s, with fewer calls at once
     └─ PermanentError                     it does not
         ├─ NotFoundError (FileNotFoundError)
         │   └─ BucketNotFoundError        not only the object: the bucket, container or root
         ├─ AlreadyExistsError (FileExistsError)
         ├─ AccessDeniedError (PermissionError)
         │   ├─ CredentialsExpiredError    ... as these credentials have ended: an upload waits for newer ones
         │   └─ ReadOnlyError              ... as nothing can be written there: an upload waits until something can
         ├─ ClockSkewedError               this machine's clock is wrong: an upload waits until it is set
         └─ IntegrityError                 bytes, size or checksum differ from what they must be

Callers need five names: NotFoundError, AlreadyExistsError, AccessDeniedError, UploadFailed, WherryError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from wherry.redact import redact


class WherryError(Exception):
    """Any error that wherry raises on purpose. Its text has no secret that this process knows: libraries' words go into it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(WherryError, ValueError):
    """A setting, name or URI is wrong; nothing was sent. Names the thing, the rule and the remedy."""


class MissingExtraError(ConfigError, ImportError):
    """The library behind a URI scheme is not installed. The message says which extra to install."""


class SpoolError(WherryError, OSError):
    """The spool cannot do what was asked (no space, not writable, not ours). Nothing half-written is left."""


class SourceChangedError(SpoolError):
    """The file changed while it was being copied, so no consistent snapshot of it exists."""


class JournalError(SpoolError):
    """The journal is locked for too long or damaged."""


class StoreError(WherryError):
    """A call to an object store failed.

    `operation` is the contract's verb (``put``, ``get``, ...), `uri` the object, `hint` the next step, if there is one.
    """

    #: What an operator has to mend before the same call can succeed: a value of `WaitsFor`. Then an upload waits.
    waits_for: str | None = None

    def __init__(self, message: str, *, operation: str = "", uri: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = redact(message)
        self.operation = operation
        self.uri = uri
        self.hint = hint

    def __str__(self) -> str:
        where = " ".join(part for part in (self.operation, self.uri) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


def cause_of(error: BaseException) -> BaseException | None:
    """Return this error as the cause to raise one of ours from; None if it, or what it came from, has a secret in its text.

    Python prints the causes of an error that nobody catches.
    """
    each: BaseException | None = error
    while each is not None:
        if redact(str(each)) != str(each):
            return None
        each = each.__cause__ or each.__context__
    return error


@contextmanager
def about(operation: str, uri: str) -> Iterator[None]:
    """Have a StoreError of the block say which call it ended, and of what object, unless it does so already."""
    try:
        yield
    except StoreError as error:
        error.operation, error.uri = error.operation or operation, error.uri or uri
        raise


@contextmanager
def absence_is_fine() -> Iterator[None]:
    """Pass over a NotFoundError, but not one about the bucket."""
    try:
        yield
    except NotFoundError as error:
        if isinstance(error, BucketNotFoundError):
            raise


class TransientError(StoreError):
    """The call may succeed when it is made again: a reset, a time-out, a 5xx answer."""


class ThrottledError(TransientError):
    """The store asks for fewer calls. `retry_after_s` is the wait that the store named, if it did."""

    def __init__(
        self, message: str, *, operation: str = "", uri: str = "", hint: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, operation=operation, uri=uri, hint=hint)
        self.retry_after_s = retry_after_s


class PermanentError(StoreError):
    """Making the same call again gives the same error."""


class NotFoundError(PermanentError, FileNotFoundError):
    """The object is not there. Never raised for an answer that only says "forbidden"."""


class BucketNotFoundError(NotFoundError):
    """The bucket (container, root) itself is not there."""


class AlreadyExistsError(PermanentError, FileExistsError):
    """The name is taken and overwriting was not asked for."""


class AccessDeniedError(PermanentError, PermissionError):
    """The store refuses these credentials. Its own words are in the message."""


class CredentialsExpiredError(AccessDeniedError):
    """These credentials have expired, or cannot be made now: an SSO session that has ended, a process that fails."""

    waits_for = "credentials"


class ReadOnlyError(AccessDeniedError):
    """Nothing can be written to the destination any more: its file system is read-only now."""

    waits_for = "destination"


class ClockSkewedError(PermanentError):
    """The clock of this machine differs from the server's by more than the server accepts."""

    waits_for = "clock"


class IntegrityError(PermanentError):
    """The bytes, the size or the checksum are not what was sent or recorded."""


@dataclass(frozen=True)
class JobFailure:
    """One upload that failed for good: where it was going, how often it was tried, the last error's text.

    `kind` is that error's class by name, as kind_of() says it; None where it is not known.
    """

    job_id: int
    uri: str
    attempts: int
    error: str
    kind: str | None = None


class UploadFailed(WherryError):
    """One or more uploads failed for good; `failures` lists each::

        try:
            uploader.flush()
        except UploadFailed as error:
            names = [failure.uri for failure in error.failures]

    Their files are kept in the spool, but for those that were not accepted (`job_id` 0).
    """

    def __init__(self, failures: Sequence[JobFailure], *, remedy: str = "") -> None:
        self.failures = tuple(failures)
        self.remedy = remedy
        lines = [f"{len(self.failures)} upload{'' if len(self.failures) == 1 else 's'} failed:"]
        lines += [f"  {f.uri} ({_tries(f)}): {f.error}" for f in self.failures]
        super().__init__("\n".join(lines + ([remedy] if remedy else [])))

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments: by default an exception is made again from its text alone."""
        return partial(type(self), remedy=self.remedy), (self.failures,)


class NameTakenError(UploadFailed, AlreadyExistsError):
    """All uploads of the call failed because their names are taken, without overwriting being asked for."""


def _tries(failure: JobFailure) -> str:
    return (
        f"job {failure.job_id}, {failure.attempts} attempt{'' if failure.attempts == 1 else 's'}" if failure.job_id else "no job"
    )


def upload_failed(failures: Sequence[JobFailure], *, remedy: str = "") -> UploadFailed:
    """The error to raise for these failures: NameTakenError if that is what all of them are."""
    taken = {failure.kind for failure in failures} == {AlreadyExistsError.__name__}
    return (NameTakenError if taken else UploadFailed)(failures, remedy=remedy)


def kind_of(error: BaseException) -> str:
    """The name of the error's class, or of what it is a kind of: one of this module or of the builtins."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ in (__name__, "builtins"))
