"""Fetches ranges of objects, and refuses answers that do not match the request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from wherry.backends.s3.body import BLOCK_BYTES
from wherry.backends.s3.digests import etag_of
from wherry.backends.s3.error_table import Translator, status_of
from wherry.backends.s3.object_requests import Objects
from wherry.errors import IntegrityError, PermanentError, TransientError
from wherry.store import ObjectMeta, TakeBlock

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
#: Of so many objects it is remembered how head() described them.
_MOST_DESCRIBED = 1024


@dataclass(frozen=True)
class Reader:
    """Reads objects of one bucket. `head` describes an object."""

    objects: Objects
    errors: Translator
    head: Callable[[str], ObjectMeta]
    #: By key and etag: size and Content-Encoding. A GET that says otherwise is not believed: many objects of other programs
    #: have no checksum that would show it.
    _described: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def describe(self, key: str, answer: Mapping[str, Any]) -> None:
        """Note what an answer to head() says of the object."""
        if answer.get("ETag") and answer.get("ContentLength", -1) >= 0:
            while len(self._described) >= _MOST_DESCRIBED:
                with suppress(RuntimeError, StopIteration):  # another thread has changed it meanwhile
                    self._described.pop(next(iter(self._described)), None)
            self._described[key, etag_of(answer["ETag"])] = (answer["ContentLength"], answer.get("ContentEncoding", ""))

    def read(self, key: str, take: TakeBlock, start: int, end: int | None, if_match: str | None) -> None:
        """Hand bytes [start, end) of the object to `take`, block by block, each with its offset."""
        with self.errors.translated("get", key):
            if start == end or start < 0 or (end is not None and end < start):
                self._check_range(key, start, end, if_match)  # no header can ask for no bytes
            else:
                self._fetch(key, take, start, end, if_match)

    def _fetch(self, key: str, take: TakeBlock, start: int, end: int | None, if_match: str | None) -> None:
        extra: dict[str, Any] = {} if if_match is None else {"IfMatch": f'"{if_match}"'}
        if (start, end) != (0, None):  # Range: bytes=0- is an error for an object without bytes
            extra["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            answer: Mapping[str, Any] = self.objects.ask("get_object", key, **extra)
        except Exception as error:
            if status_of(error) != 416:
                raise
            self._check_range(key, start, end, if_match)
            return
        with closing(answer["Body"]) as body:
            if answer.get("ETag"):
                _check_version(etag_of(answer["ETag"]), if_match)  # some servers ignore If-Match
            at, size_bytes = 0, answer.get("ContentLength", 0)
            if match := _CONTENT_RANGE.fullmatch(answer.get("ContentRange", "")):
                at, size_bytes = int(match[1]), int(match[3])
            elif "ContentRange" in answer or answer.get("ContentLength", -1) < 0:
                raise PermanentError("the answer does not say which bytes it has, or how many")
            if answer.get("ETag"):
                self._compare(key, etag_of(answer["ETag"]), size_bytes, answer.get("ContentEncoding", ""))
            stop = size_bytes if end is None else end
            if stop > size_bytes:
                raise _beyond(start, stop, size_bytes)
            if at > start:
                raise TransientError(f"the answer begins at byte {at}, not at {start}")
            while at < stop:  # a server that ignores Range sends what comes before, too
                if not (block := body.read(BLOCK_BYTES)):
                    raise TransientError(f"the answer ended {stop - at} bytes early")
                is_asked_for = start <= at and at + len(block) <= stop
                take(block if is_asked_for else memoryview(block)[max(0, start - at) : stop - at], max(at, start))
                at += len(block)
            # The body may come in pieces: one byte more is looked for, also where the last piece ended at `stop`.
            if match and (at > stop or body.read(1)):
                raise IntegrityError("more bytes came than were asked for")
        if if_match is not None and not answer.get("ETag"):
            _check_version(self.head(key).etag, if_match)

    def _compare(self, key: str, etag: str, size_bytes: int, encoding: str) -> None:
        """IntegrityError if the object, with the same etag, was described differently."""
        size_then, encoding_then = self._described.get((key, etag), (size_bytes, encoding))
        if size_bytes != size_then:
            raise IntegrityError(
                f"the server says that the object has {size_bytes} bytes, and said {size_then} before, with the same etag"
            )
        if encoding and not encoding_then:
            raise IntegrityError(
                f"the answer has Content-Encoding {encoding!r}, and the object has none: a proxy on the way compresses"
            )

    def _check_range(self, key: str, start: int, end: int | None, if_match: str | None) -> None:
        """Allow a range without bytes inside of the object, and no other."""
        meta = self.head(key)
        _check_version(meta.etag, if_match)
        stop = meta.size_bytes if end is None else end
        if not 0 <= start == stop <= meta.size_bytes:
            raise _beyond(start, stop, meta.size_bytes)


def _check_version(etag: str | None, if_match: str | None) -> None:
    if if_match not in (None, etag):
        raise IntegrityError(f"the object was replaced: its etag is {etag}, not {if_match}")


def _beyond(start: int, end: int, size_bytes: int) -> IntegrityError:
    return IntegrityError(f"bytes {start} to {end} were asked for, the object has {size_bytes}")
