"""What is said of files whose names another rank had first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wherry.errors import AlreadyExistsError, UploadFailed, upload_failed


def without_lost_names(errors: Sequence[Exception], rank: int, say: Callable[[str], object]) -> list[Exception]:
    """The errors but those of names that were taken: `say` gets a line for each of these.

    For one of several ranks. All of them make the same calls, so for a name without the rank in it one wins and the others lose,
    and an error of one rank ends all of them, under torchrun as elsewhere.
    """
    left: list[Exception] = []
    for error in errors:
        if isinstance(error, UploadFailed):
            lost = [failure for failure in error.failures if failure.kind == AlreadyExistsError.__name__]
            others = [failure for failure in error.failures if failure not in lost]
            for failure in lost:
                say(_line(rank, failure.uri, failure.error))
            if others:
                left.append(upload_failed(others, remedy=error.remedy) if lost else error)
        elif isinstance(error, AlreadyExistsError):
            say(_line(rank, error.uri, str(error)))
        else:
            left.append(error)
    return left


def _line(rank: int, uri: str, error: str) -> str:
    return (
        f"the file of rank {rank} is not uploaded as {uri}, which another rank or run has. The run goes on. "
        f"Upload it on one rank, or put {{rank}} into the name ({error})"
    )
