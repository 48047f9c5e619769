"""Deleting many objects of a bucket, a thousand a request ("DeleteObjects", API Reference), where the server takes that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.backends.s3.error_table import Translator
from wherry.errors import AccessDeniedError, BucketNotFoundError, NotFoundError, PermanentError, TransientError
from wherry.posix.thread_pool import each_at_once

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

log = logging.getLogger("wherry.s3")

#: The most that Amazon takes.
DELETED_AT_ONCE = 1000
#: What XML 1.0 cannot hold, or its readers turn into a line feed: the request would be invalid, or name another key.
_NOT_IN_XML = frozenset([*map(chr, range(0x20)), "\x7f", "\ufffe", "\uffff"])


@dataclass
class Deleter:
    """Deletes for one store. `delete_one` is the store's delete()."""

    client: Callable[[], S3Client]
    bucket: str
    errors: Translator
    delete_one: Callable[[str], None]
    #: False once the server has refused, and where no checksums may be sent: botocore sends one with each of these. Some know no
    #: DeleteObjects; others want an MD5 with it, which botocore (1.36 on) no longer sends. That is not mended here: JuiceFS
    #: (1.2), given one, leaves folders behind that break its listings.
    takes_many: bool

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are absent are no error."""
        plain = [key for key in keys if _NOT_IN_XML.isdisjoint(key)]
        singly = [key for key in keys if not _NOT_IN_XML.isdisjoint(key)]
        for start in range(0, len(plain), DELETED_AT_ONCE):
            page = plain[start : start + DELETED_AT_ONCE]
            singly += page if len(page) == 1 or not self.takes_many else self._delete_page(page)
        each_at_once(self.delete_one, singly)

    def _delete_page(self, keys: list[str]) -> list[str]:
        """Send one request; the keys that it has not deleted, which are to be deleted one by one."""
        try:
            with self.errors.translated("delete_many", keys[0]):
                answer = self.client().delete_objects(
                    Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
                )
        except (TransientError, BucketNotFoundError, AccessDeniedError):
            raise
        except (PermanentError, NotFoundError) as error:
            self.takes_many = False
            log.info("objects are deleted one by one from here on: the server does not take many at once (%s)", error)
            return keys
        # A key that was refused is tried by itself: delete() has the words for why, and for whether to try again.
        failed = {found.get("Key") for found in answer.get("Errors", [])}
        return [key for key in keys if key in failed] if failed <= set(keys) else keys
