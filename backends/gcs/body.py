"""Bytes as they go to Google Cloud Storage and come back: bodies that are made while they are sent, and checked ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from wherry.backends.http.body import FileRange, body_of
from wherry.backends.http.wire_errors import ShortFile, UnreadableFile
from wherry.errors import IntegrityError, PermanentError, TransientError

#: What is handed to a connection in one go, and must pass within the time-out (CPython counts that for all of sendall()).
SENT_BYTES = 2**18
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")

_LENGTH = re.compile(r"[0-9]{1,19}")


class FileBody:
    """Bytes [start, end) of an open file between a head and a tail, as the body of a request.

    It can be gone through again: google-auth does so after a new token.
    """

    def __init__(self, fd: int, start: int, end: int, *, head: bytes = b"", tail: bytes = b"") -> None:
        self._fd, self._start, self._end = fd, start, end
        self._head, self._tail = head, tail

    def __len__(self) -> int:
        return len(self._head) + self._end - self._start + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        if self._head:
            yield self._head
        at = self._start
        while at < self._end:
            block = read_block(self._fd, at, min(at + SENT_BYTES, self._end), self._end)
            yield block
            at += len(block)
        if self._tail:
            yield self._tail

    def content(self) -> bytes | FileRange:
        """The same for our own client."""
        try:
            return body_of(self._fd, self._start, self._end, self._head, self._tail)
        except ShortFile as error:
            raise short(self._end - error.missing_bytes, self._end) from error
        except UnreadableFile as error:
            raise PermanentError(str(error)) from error


def read_block(fd: int, at: int, until: int, end: int) -> bytes:
    """Some bytes from `at` on, up to `until`, of a file that is to be sent up to `end`."""
    try:
        block = os.pread(fd, until - at, at)
    except OSError as error:  # requests would take it for a broken connection
        raise PermanentError(str(UnreadableFile(error))) from error
    if not block:
        raise short(at, end)
    return block


def short(at: int, end: int) -> IntegrityError:
    """The error for a file that has become shorter than what is to be sent of it."""
    return IntegrityError(f"the file to send ends at byte {at}, {end} were to be sent")


def announced(headers: Mapping[str, str], status: int, start: int, end: int | None) -> int | None:
    """How many bytes will come, checked against those that were asked for; None: the answer does not say."""
    if status == 200:
        if (start or end is not None) and "X-Goog-Generation" not in headers:
            raise TransientError("the answer to a range is the whole, and not from the store: a proxy on the way has sent it")
        if start or end is not None:
            raise PermanentError("the server ignores ranges")
        if (length := headers.get("Content-Length")) is None:
            return None
        if not _LENGTH.fullmatch(length):
            raise PermanentError(f"the server's answer cannot be read: its length is {length[:40]!r}")
        return int(length)
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise PermanentError(f"the server answers a range from {start} with {headers.get('Content-Range')!r}")
    if end is not None and int(match[3]) < end:
        raise beyond(start, end, int(match[3]))
    if int(match[2]) + 1 != (end or int(match[3])):
        raise TransientError(f"the server sends only {match[0]}")
    return int(match[2]) + 1 - start


def beyond(start: int, end: int, size_bytes: int) -> IntegrityError:
    """The error for a range that is not all inside the object."""
    return IntegrityError(f"bytes {start} to {end} were asked for, the object has {size_bytes}")
