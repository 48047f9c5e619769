"""A full disk on the reader's side is reported as such. An error of the store would be waited out."""

from __future__ import annotations

import errno
from pathlib import Path

from wherry.errors import StoreError
from wherry.store.wrappers import WrappedStore

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def full_disk(error: BaseException, place: Path) -> OSError | None:
    """The error to raise if this one, or its cause, says that the disk of `place` is full; None for any other."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            reason = "is read-only" if cause.errno == errno.EROFS else "has no room left"
            words = f"the disk {reason}: mend that, and the same command goes on where it was"
            return OSError(cause.errno, words, str(place))
        cause = cause.__cause__
    return None


class DiskRoomStore(WrappedStore):
    """Raises OSError for a get that fails as the file could not be written here. To be put below a RetryStore."""

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's."""
        try:
            return super().get_file(key, path, start=start, end=end, if_match=if_match)
        except StoreError as error:
            if (told := full_disk(error, path.parent)) is not None:
                raise told from error
            raise
