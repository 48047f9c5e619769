"""Which of several errors is raised, and how the others are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wherry.errors import AlreadyExistsError, UploadFailed, upload_failed
from wherry.loggers.run.state import State


def raise_first(errors: Sequence[Exception], state: State, warn: Callable[..., object], *, is_asked_for: bool) -> None:
    """Raise one error for all: UploadFailed with all uploads that failed, if there are any, otherwise the first error.

    `warn` gets the others. With several ranks, a name that another rank had first is no error, unless `is_asked_for`.
    """
    if state.world_size > 1 and not is_asked_for:
        errors = without_lost_names(errors, state.rank, warn)
    uploads = [error for error in errors if isinstance(error, UploadFailed)]
    others = [error for error in errors if not isinstance(error, UploadFailed)]
    for error in others if uploads else others[1:]:
        warn(f"{type(error).__name__}: {error}", error)
    if len(uploads) > 1:
        remedies = dict.fromkeys(error.remedy for error in uploads if error.remedy)
        raise UploadFailed([failure for error in uploads for failure in error.failures], remedy="\n".join(remedies))
    if errors:
        raise uploads[0] if uploads else others[0]


def without_lost_names(errors: Sequence[Exception], rank: int, warn: Callable[[str], object]) -> list[Exception]:
    """The errors but those of names that another rank had first: `warn` gets a line for each of these.

    All ranks make the same calls. For a name without the rank in it, one rank wins and the others lose; an error on one rank
    would end all of them, under torchrun as elsewhere.
    """
    left: list[Exception] = []
    for error in errors:
        if isinstance(error, UploadFailed):
            lost = [failure for failure in error.failures if failure.kind == AlreadyExistsError.__name__]
            others = [failure for failure in error.failures if failure not in lost]
            for failure in lost:
                warn(_line(rank, failure.uri, failure.error))
            if others:
                left.append(upload_failed(others, remedy=error.remedy) if lost else error)
        elif isinstance(error, AlreadyExistsError):
            warn(_line(rank, error.uri, str(error)))
        else:
            left.append(error)
    return left


def _line(rank: int, uri: str, error: str) -> str:
    return (
        f"the file of rank {rank} is not uploaded as {uri}, which another rank or run has. The run goes on. "
        f"Upload it on one rank, or put {{rank}} into the name ({error})"
    )
