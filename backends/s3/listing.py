"""Reads the listings of one bucket, page by page: objects, uploads in parts, and the parts of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.utils import parse_timestamp

from wherry.backends.pages import Pages
from wherry.backends.s3.digests import crc32c_of, etag_of
from wherry.backends.s3.error_table import Translator
from wherry.errors import PermanentError, TransientError
from wherry.store import ObjectMeta, StoredPart

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# botocore (1.44) reads a page as a whole: one number or date that it cannot read would hide the thousand objects beside it.
_SIZE = re.compile(rb"<Size>(?![0-9]{1,19}</Size>)[^<]*</Size>")
_DAY = rb"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"  # of any month
_TIME = rb"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z"
_DATE = re.compile(rb"<LastModified>(?!" + _DAY + rb"T" + _TIME + rb"</LastModified>)([^<]*)</LastModified>")


class Listings:
    """What a bucket has. `client` gives the client of the moment.

    `only_folders`: the server can be asked for folders only, as a directory bucket ("ListObjectsV2", API Reference).
    """

    def __init__(self, client: Callable[[], S3Client], bucket: str, errors: Translator, *, only_folders: bool) -> None:
        self._client = client
        self._bucket = bucket
        self._errors = errors
        self._only_folders = only_folders

    def objects(self, prefix: str) -> Iterator[ObjectMeta]:
        """The objects whose key starts with `prefix`, in the server's order."""
        asked, pages = self._askable(prefix), Pages()
        extra: dict[str, Any] = {}
        with self._errors.translated("list", prefix):
            while True:
                answer = self._client().list_objects_v2(Bucket=self._bucket, Prefix=asked, **extra)
                yield from (_listed(found) for found in answer.get("Contents", []) if found.get("Key", "").startswith(prefix))
                if not answer.get("IsTruncated"):
                    return
                if not (token := answer.get("NextContinuationToken")):
                    raise TransientError("the answer breaks off, and does not say how to go on")
                if pages.is_endless(token, len(answer.get("Contents", []))):
                    raise _endless()
                extra = {"ContinuationToken": token}

    def uploads(self, prefix: str, page_size: int) -> Iterator[tuple[str, str, float]]:
        """The key, id and begin, in seconds since the epoch, of each upload in parts of keys that start with `prefix`.

        One request for so many uploads, or for those of one key. SeaweedFS gives them in the order of their ids, and no
        key to go on from, only an id.
        """
        asked, pages = self._askable(prefix), Pages()
        markers: dict[str, Any] = {}
        with self._errors.translated("list_uploads", prefix):
            while True:
                answer = self._client().list_multipart_uploads(Bucket=self._bucket, Prefix=asked, MaxUploads=page_size, **markers)
                for upload in answer.get("Uploads", []):
                    if upload["Key"].startswith(prefix):
                        yield upload["Key"], upload["UploadId"], upload["Initiated"].timestamp()
                names = {"KeyMarker": answer.get("NextKeyMarker"), "UploadIdMarker": answer.get("NextUploadIdMarker")}
                markers = {name: marker for name, marker in names.items() if marker}
                if not answer.get("IsTruncated") or not answer.get("Uploads"):
                    return
                if not markers:
                    raise PermanentError("the server does not say how the list goes on")
                if pages.is_endless(markers, len(answer["Uploads"])):
                    raise _endless()

    def parts(self, key: str, upload_id: str) -> list[StoredPart]:
        """The parts of an upload, by number; `upload_id` is the server's own."""
        parts: list[StoredPart] = []
        marker = 0
        with self._errors.translated("list_parts", key):
            while True:
                answer = self._client().list_parts(Bucket=self._bucket, Key=key, UploadId=upload_id, PartNumberMarker=marker)
                parts += [
                    StoredPart(part["PartNumber"], part["Size"], etag_of(part.get("ETag")), crc32c_of(part))
                    for part in answer.get("Parts", [])
                ]
                if not answer.get("IsTruncated") or not answer.get("Parts"):
                    return sorted(parts, key=lambda part: part.number)
                if parts[-1].number <= marker:
                    raise _endless()
                marker = parts[-1].number

    def _askable(self, prefix: str) -> str:
        return prefix[: prefix.rfind("/") + 1] if self._only_folders else prefix


def _endless() -> PermanentError:
    return PermanentError("the server gives the same page of the listing again: it has no end")


def leave_out_what_cannot_be(response_dict: dict[str, Any], **_: object) -> None:
    """Take sizes and dates that cannot be read out of a page of a listing, before botocore reads it."""
    if isinstance(body := response_dict.get("body"), bytes):
        response_dict["body"] = _DATE.sub(_checked_date, _SIZE.sub(b"", body))


def _checked_date(match: re.Match[bytes]) -> bytes:
    try:
        parse_timestamp(match[1].decode()).timestamp()
    except (ValueError, OverflowError, RuntimeError):  # what parse_timestamp() and datetime raise
        return b""
    return match[0]


def _listed(found: Mapping[str, Any]) -> ObjectMeta:
    modified = found.get("LastModified")
    modified_s = None if modified is None else modified.timestamp()
    return ObjectMeta(found["Key"], found.get("Size", -1), etag_of(found.get("ETag")), modified_s=modified_s)
