"""Reads the listings of one bucket, page by page: objects, uploads in parts, and the parts of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from wherry.backends.pages import Pages
from wherry.backends.s3.digests import crc32c_of, etag_of
from wherry.backends.s3.error_table import PORTAL_HINT, Translator
from wherry.backends.s3.page_objects import OBJECTS
from wherry.errors import AccessDeniedError, NotFoundError, PermanentError, TransientError
from wherry.store import ObjectMeta, Page, StoredPart

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# botocore (1.44) reads a page as a whole: one number or date that it cannot read would hide the thousand objects beside it.
_SIZE = re.compile(rb"<Size>(?![0-9]{1,19}</Size>)[^<]*</Size>")
_DAY = rb"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"  # of any month
_TIME = rb"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z"
#: A character that sorts before the slash; after a slash there can be no other one where a key is the path of a file.
_BEFORE_SLASH = re.compile(r"(?<=[^/])[\0-.]")
#: So many folders are asked for beside a listing, at most; for more, it starts earlier.
_MOST_FOLDERS = 4
#: The beginning of each listing's first element; a login page, say, is well-formed XML, too, with no objects in it.
_MOST_BEFORE_BYTES = 4096
_LISTING = re.compile(rb"<(?:\w+:)?(?:List\w+Result|Error)[\s/>]")
_DATE = re.compile(rb"<LastModified>(?!" + _DAY + rb"T" + _TIME + rb"</LastModified>)([^<]*)</LastModified>")


@dataclass
class Listings:
    """What a bucket has. `client` gives the client of the moment."""

    client: Callable[[], S3Client]
    bucket: str
    errors: Translator
    #: The server can be asked for folders only, as a directory bucket ("ListObjectsV2", API Reference).
    only_folders: bool

    def objects(self, prefix: str, start_after: str = "") -> Iterator[ObjectMeta]:
        """The objects whose key starts with `prefix`, in the server's order; those after `start_after` if the server heeds it."""
        for page in self.pages(prefix, **({"StartAfter": start_after} if start_after else {})):
            yield from page.objects

    def pages(self, prefix: str, **extra: str) -> Iterator[Page]:
        """The same by the pages of the server; `extra`: parameters of the first request, of which a Delimiter is in all."""
        asked, pages = self._askable(prefix), Pages()
        levels = {name: value for name, value in extra.items() if name == "Delimiter"}
        with self.errors.translated("list", prefix):
            while True:
                answer = self.client().list_objects_v2(Bucket=self.bucket, Prefix=asked, **cast("Any", extra))
                objects = [meta for meta in _objects_of(answer) if meta.key.startswith(prefix)]
                begun = (found.get("Prefix", "") for found in answer.get("CommonPrefixes", []))
                folders = [folder for folder in begun if folder.startswith(prefix) and folder != prefix]
                token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
                yield Page(objects, folders, token)
                if not answer.get("IsTruncated"):
                    return
                if not token:
                    raise TransientError("the answer breaks off, and does not say how to go on")
                if pages.is_endless(token, len(objects) + len(folders)):
                    raise _endless()
                extra = {"ContinuationToken": token, **levels}

    def in_any_order(self, prefix: str, start_after: str) -> Iterable[ObjectMeta]:
        """The same of a server that may list folder by folder: all that sort after `start_after`, and a few others.

        `start_after` begins with `prefix`. Such a server has listed ``a/b`` before it comes to ``a-b``, so it is asked for the
        folder ``a/`` as well. SeaweedFS (4.48) leaves out the folder ``a/`` with the key ``a``, so it is asked to start earlier.
        """
        if not start_after or self.only_folders:  # "not supported for directory buckets" ("ListObjectsV2", API Reference)
            return self.objects(prefix)
        start, folders = start_in_any_order(prefix, start_after)
        found = {meta.key: meta for folder in folders for meta in self.objects(folder)}
        try:
            found.update((meta.key, meta) for meta in self.objects(prefix, start))
        except (AccessDeniedError, NotFoundError):
            raise
        except PermanentError:  # the server may know no StartAfter
            found.update((meta.key, meta) for meta in self.objects(prefix))
        return found.values()

    def uploads(self, prefix: str, page_size: int) -> Iterator[tuple[str, str, float]]:
        """The key, id and begin, in seconds since the epoch, of each upload in parts of keys that start with `prefix`.

        One request for so many uploads, or for those of one key. SeaweedFS gives them in the order of their ids, and no
        key to go on from, only an id.
        """
        asked, pages = self._askable(prefix), Pages()
        markers: dict[str, Any] = {}
        with self.errors.translated("list_uploads", prefix):
            while True:
                answer = self.client().list_multipart_uploads(Bucket=self.bucket, Prefix=asked, MaxUploads=page_size, **markers)
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
        with self.errors.translated("list_parts", key):
            while True:
                answer = self.client().list_parts(Bucket=self.bucket, Key=key, UploadId=upload_id, PartNumberMarker=marker)
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
        return prefix[: prefix.rfind("/") + 1] if self.only_folders else prefix


def _endless() -> PermanentError:
    return PermanentError("the server gives the same page of the listing again: it has no end")


def start_in_any_order(prefix: str, start_after: str) -> tuple[str, list[str]]:
    """Where a listing must start, and which folders must be listed beside it, to have every key after `start_after`.

    That holds for servers that compare keys byte by byte and for those that compare them name by name, from slash to slash.
    The two differ only where one key has a slash and the other a character that sorts before it: at each such place of
    `start_after` there may be a folder whose keys are later in bytes and earlier in names.
    """
    places = [match.start() for match in _BEFORE_SLASH.finditer(start_after, len(prefix))]
    start = start_after[: places[_MOST_FOLDERS]] if len(places) > _MOST_FOLDERS else start_after
    if not start.endswith("/"):
        last = start[-1]  # the one before "0" is the slash, and the one before U+E000 no character
        start = start[:-1] + (f"{chr(ord(last) - 1)}~" if last > "0" and last != "\ue000" else "")
    # SeaweedFS (4.47) lists nothing after what does not begin with the prefix (seaweedfs/seaweedfs#11321).
    has_start = start.startswith(prefix) and start != prefix
    return start if has_start else "", [f"{start_after[:at]}/" for at in places[:_MOST_FOLDERS]]


def leave_out_what_cannot_be(response_dict: dict[str, Any], **_: object) -> None:
    """Take sizes and dates that cannot be read out of a page of a listing, before botocore reads it.

    TransientError for an answer that is none: botocore would read it as a listing of nothing.
    """
    if isinstance(body := response_dict.get("body"), bytes):
        if response_dict.get("status_code") == 200 and not _LISTING.search(body, 0, _MOST_BEFORE_BYTES):
            raise TransientError("the answer is no listing: something on the way has given it", hint=PORTAL_HINT)
        response_dict["body"] = _DATE.sub(_checked_date, _SIZE.sub(b"", body))


def _checked_date(match: re.Match[bytes]) -> bytes:
    from botocore.utils import parse_timestamp

    try:
        parse_timestamp(match[1].decode()).timestamp()
    except (ValueError, OverflowError, RuntimeError):  # what parse_timestamp() and datetime raise
        return b""
    return match[0]


def timestamp_of(value: Any) -> datetime:
    """A time in an answer, as botocore reads it, but in a tenth of the processor time if it has the form of listings: a listing
    of 8,000 objects takes half as long. ValueError for one that cannot be.
    """
    from botocore.utils import parse_timestamp

    if isinstance(value, str) and value.endswith("Z"):
        with suppress(ValueError):  # Python 3.10 takes only three or six digits behind the point
            return datetime.fromisoformat(f"{value[:-1]}+00:00")
    try:
        found: datetime = parse_timestamp(value)
    except RuntimeError as error:  # its year is beyond what Python knows
        raise ValueError(str(error)) from error
    return found


def _objects_of(answer: Mapping[str, Any]) -> Iterable[ObjectMeta]:
    """The objects of a page, as take_objects() has read them, or botocore."""
    if (taken := answer.get(OBJECTS)) is not None:
        return cast("list[ObjectMeta]", taken)
    return (_listed(found) for found in answer.get("Contents", []) if "Key" in found)


def _listed(found: Mapping[str, Any]) -> ObjectMeta:
    modified = found.get("LastModified")
    modified_s = None if modified is None else modified.timestamp()
    return ObjectMeta(found["Key"], found.get("Size", -1), etag_of(found.get("ETag")), modified_s=modified_s)
