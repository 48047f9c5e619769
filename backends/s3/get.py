"""Fetches ranges of objects into files, and refuses answers that do not match the request."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.exceptions as sdk

from wherry.backends.s3.body import BLOCK_BYTES
from wherry.backends.s3.digests import etag_of
from wherry.backends.s3.error_table import Translator, status_of
from wherry.errors import IntegrityError, PermanentError, StoreError, TransientError
from wherry.store import ObjectMeta

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

Take = Callable[[bytes | memoryview, int], object]
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Reader:
    """Reads objects of one bucket. `client` returns the current client, `head` describes an object."""

    def __init__(
        self, client: Callable[[], S3Client], bucket: str, errors: Translator, head: Callable[[str], ObjectMeta]
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._errors = errors
        self._head = head

    def fetch(self, key: str, path: Path, start: int, end: int | None, if_match: str | None) -> None:
        """Write bytes [start, end) of the object to the same offsets of an existing file, and nothing else."""
        try:
            target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(PermanentError, key, f"the file to write to, {path}, cannot be opened: {error.strerror}") from error
        try:
            self.read(key, functools.partial(self._write, key, target), start, end, if_match)
        finally:
            os.close(target)

    def read(self, key: str, take: Take, start: int, end: int | None, if_match: str | None) -> None:
        """Hand bytes [start, end) of the object to `take`, block by block, each with its offset."""
        if start == end or start < 0 or (end is not None and end < start):
            self._check_range(key, start, end, if_match)  # no header can ask for no bytes
        else:
            self._fetch(key, take, start, end, if_match)

    def _fetch(self, key: str, take: Take, start: int, end: int | None, if_match: str | None) -> None:
        extra: dict[str, Any] = {} if if_match is None else {"IfMatch": f'"{if_match}"'}
        if (start, end) != (0, None):  # Range: bytes=0- is an error for an object without bytes
            extra["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        with self._errors.translated("get", key):
            try:
                answer: Mapping[str, Any] = self._client().get_object(Bucket=self._bucket, Key=key, **extra)
            except sdk.ClientError as error:
                if status_of(error) != 416:
                    raise
                self._check_range(key, start, end, if_match)
                return
            with closing(answer["Body"]) as body:
                if answer.get("ETag"):
                    self._check_version(key, etag_of(answer["ETag"]), if_match)  # some servers ignore If-Match
                at, size_bytes = 0, answer.get("ContentLength", 0)
                if match := _CONTENT_RANGE.fullmatch(answer.get("ContentRange", "")):
                    at, size_bytes = int(match[1]), int(match[3])
                elif "ContentRange" in answer or "ContentLength" not in answer:
                    raise self._error(PermanentError, key, "the answer does not say which bytes it has, or how many")
                stop = size_bytes if end is None else end
                if stop > size_bytes:
                    raise self._beyond(key, start, stop, size_bytes)
                if at > start:
                    raise self._error(TransientError, key, f"the answer begins at byte {at}, asked for was {start}")
                while at < stop:  # a server that ignores Range sends what comes before, too
                    if not (block := body.read(BLOCK_BYTES)):
                        raise self._error(TransientError, key, f"the answer ended {stop - at} bytes early")
                    take(memoryview(block)[max(0, start - at) : stop - at], max(at, start))
                    at += len(block)
                if at > stop and match:
                    raise self._error(IntegrityError, key, f"{at - stop} bytes more came than were asked for")
            if if_match is not None and not answer.get("ETag"):
                self._check_version(key, self._head(key).etag, if_match)

    def _write(self, key: str, target: int, block: bytes | memoryview, at: int) -> None:
        data = memoryview(block)
        try:
            while data:
                written = os.pwrite(target, data, at)
                data, at = data[written:], at + written
        except OSError as error:
            raise self._error(PermanentError, key, f"the file cannot be written: {error.strerror}") from error

    def _check_range(self, key: str, start: int, end: int | None, if_match: str | None) -> None:
        """Allow a range without bytes inside of the object, and no other."""
        meta = self._head(key)
        self._check_version(key, meta.etag, if_match)
        stop = meta.size_bytes if end is None else end
        if not 0 <= start == stop <= meta.size_bytes:
            raise self._beyond(key, start, stop, meta.size_bytes)

    def _check_version(self, key: str, etag: str | None, if_match: str | None) -> None:
        if if_match not in (None, etag):
            raise self._error(IntegrityError, key, f"the object is another by now: etag {etag}, not {if_match}")

    def _beyond(self, key: str, start: int, end: int, size_bytes: int) -> StoreError:
        return self._error(IntegrityError, key, f"bytes {start} to {end} were asked for, the object has {size_bytes}")

    def _error(self, kind: type[StoreError], key: str, message: str) -> StoreError:
        return self._errors.error(kind, "get", key, message)
