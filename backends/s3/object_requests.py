"""Requests about single objects: past botocore where that is safe, else by botocore. Both return and raise what boto3 does."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wherry.backends.http.volley import SmallRequest, Volley
from wherry.backends.http.wire_errors import UnknownWay
from wherry.backends.s3.body import Source
from wherry.backends.s3.digests import md5_of
from wherry.backends.s3.direct_requests import Direct, described, direct_of
from wherry.backends.s3.early import early_direct
from wherry.backends.s3.error_table import may_lack_digest, status_of
from wherry.backends.s3.options import DIRECTORY_BUCKET, S3Options

if TYPE_CHECKING:
    from wherry.backends.s3.client import Connection

log = logging.getLogger("wherry.s3")

_DENIED = (400, 401, 403)
#: Of an answer that says no: read to its end, its connection can be used again.
_MOST_WORDS_BYTES = 64 * 1024
_T = TypeVar("_T")


def has_digest(given: Mapping[str, object]) -> bool:
    """Return True if a request carries a checksum of its body."""
    return "ChecksumCRC32C" in given or "ContentMD5" in given


class Put(NamedTuple):
    """One object to put: what ask() would be given."""

    key: str
    body: Source
    metadata: Mapping[str, str]
    given: Mapping[str, object]


@dataclass
class Objects:
    """Requests to one bucket. `connected` gives the client of the moment, and `is_connected` says whether there is one.

    `takes_unsigned`: whether the server is known to take bodies that are not signed. `note` is called for each request that is
    sent past botocore.
    """

    connected: Callable[[], Connection]
    is_connected: Callable[[], bool]
    bucket: str
    options: S3Options
    takes_unsigned: Callable[[], bool]
    note: Callable[[], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: The server refuses bodies without a checksum, as with a default of object lock; one that it may not compare will do.
    _wants_digests: bool = field(default=False, init=False)
    #: As long as there is no client.
    _early: Direct | None = field(init=False)

    def __post_init__(self) -> None:
        self._early = early_direct(self.options, self.bucket, self.takes_unsigned, self.note, os.environ)

    def ask(
        self, operation: str, key: str, body: Source | None = None, metadata: Mapping[str, str] | None = None, **given: object
    ) -> Mapping[str, Any]:
        """Make a request, by its name in boto3, with what boto3's call would be given.

        A body without a checksum that the server refuses is sent again with its MD5, and so is every such body from then on.
        """
        if body is None or has_digest(given):
            return self._asked(operation, key, body, metadata, given)
        if not self._wants_digests:
            try:
                return self._asked(operation, key, body, metadata, dict(given))
            except Exception as error:
                if not may_lack_digest(error):
                    raise
                log.info("%s is sent again with a checksum, which the server may ask for: %s", key, error)
        body.seek(0)
        answer = self._asked(operation, key, body, metadata, {**given, "ContentMD5": md5_of(iter(body.read, b""))})
        self._wants_digests = True
        return answer

    def _asked(
        self, operation: str, key: str, body: Source | None, metadata: Mapping[str, str] | None, given: dict[str, object]
    ) -> Mapping[str, Any]:
        answer: Mapping[str, Any] | None = None
        if (early := self._early) is not None and not self.is_connected():
            try:
                answer = early.ask(operation, key, body, metadata or {}, given)
            except Exception as error:
                if status_of(error) in _DENIED:
                    self.end_early()
                raise
        elif (direct := self._direct(connection := self.connected())) is not None:
            answer = direct.ask(operation, key, body, metadata or {}, given)
            connection.direct_is_due |= direct.is_moved
        if answer is not None:
            return answer
        connection = self.connected()
        call: Callable[..., Mapping[str, Any]] = getattr(connection.client, operation)
        if body is not None:
            given["Body"] = body.body()
        if metadata is not None:
            given["Metadata"] = dict(metadata)
        return call(Bucket=self.bucket, Key=key, **given)

    def put_many(self, puts: Iterable[tuple[_T, Put]], most: int) -> Iterator[tuple[_T, Mapping[str, Any]]]:
        """Put small objects from one thread, `most` at once, and yield what boto3 would return for each that was put.

        After the first answer that says no, or none, nothing more is begun (see `Volley`), unless a name was taken. What is not
        yielded is to be put by ask(), which knows what to do.
        """
        early = None if self.is_connected() else self._early
        if (direct := early or self._direct(self.connected())) is None:
            return
        is_fine = True

        def requests() -> Iterator[tuple[_T, SmallRequest]]:
            for what, put in puts:
                if self._wants_digests and not has_digest(put.given):
                    return
                request = direct.put_request(put.key, put.body, put.metadata, put.given) if is_fine else None
                if request is None or not isinstance(request.body, bytes):
                    return
                yield what, SmallRequest(request.method, request.head + b"\r\n" + request.body)

        for what, answer in Volley[_T](direct.client, most).answers(requests()):
            if answer.status < 300:
                yield what, described("put_object", answer)
            else:
                is_fine &= answer.status == 412  # a name that is taken says nothing of the others
                answer.read_all(_MOST_WORDS_BYTES)

    def end_early(self) -> None:
        """From now on make every request as botocore would have made it."""
        early, self._early = self._early, None
        if early is not None:
            early.client.close()

    def _direct(self, connection: Connection) -> Direct | None:
        if not connection.direct_is_due:
            return connection.direct
        with self._lock:
            if connection.direct_is_due:
                if connection.direct is not None:
                    connection.direct.client.close()
                connection.direct = self._made(connection)
                connection.direct_is_due = False
            return connection.direct

    def _made(self, connection: Connection) -> Direct | None:
        self.end_early()
        if self.options.sdk_only or self.bucket.endswith(DIRECTORY_BUCKET):
            return None
        try:
            return direct_of(connection, self.bucket, self.options, self.takes_unsigned, self.note)
        except UnknownWay as reason:
            log.info("botocore makes all requests to s3://%s: %s", self.bucket, reason)
            return None
