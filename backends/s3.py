"""``s3://bucket/prefix`` on botocore's low-level calls: Amazon S3 and the many servers that speak its API.

One client a store, shared by all threads and made at the first call; no transfer manager, no retries inside the SDK. What an
option means stands in `S3Options`. Sources: "Amazon S3 API Reference"; "Checking object integrity in Amazon S3" for checksums.
"""

from __future__ import annotations

import base64
import builtins
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import botocore.exceptions as sdk
import botocore.session
import google_crc32c
from botocore import UNSIGNED
from botocore.config import Config
from urllib3.exceptions import HTTPError

from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
    WherryError,
)
from wherry.store import (
    CRC32C_METADATA,
    TEMPORARY_MARK,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    Part,
    PendingUpload,
    StoredPart,
)
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_BLOCK_BYTES = 2**20
#: Up to this size a body is read at once and sent without asking for permission first, which takes a round trip.
_IN_MEMORY_BYTES = 2**20
#: Marks the ids of uploads whose parts the server checks: a later process must send their checksums too.
_CHECKED = "crc32c:"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
#: What an option takes, in words, and whether a value is such: by its name, else by the kind of its default.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "addressing_style": ("'auto', 'path' or 'virtual'", lambda value: value in (None, "auto", "path", "virtual")),
    "verify": ("True, False or a file's name", lambda value: isinstance(value, (bool, str))),
    "NoneType": ("a text", lambda value: value is None or isinstance(value, str)),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "int": ("a whole number above 0", lambda value: type(value) is int and value > 0),
    "float": ("a number above 0", lambda value: type(value) in (int, float) and value > 0),
}
#: The ending of the name of every directory bucket.
_DIRECTORY_BUCKET = "--x-s3"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")


@dataclass(frozen=True)
class S3Options:
    """The storage options of ``s3://``. Keys that are not given come from the vendor's own chain: environment, profile, role."""

    #: Else AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, S3_ENDPOINT_URL, the profile's, Amazon's own.
    endpoint_url: str | None = None
    #: Else the environment's or the profile's; a server with an `endpoint_url` gets us-east-1 when there is none.
    region: str | None = None
    profile: str | None = None
    #: "path", "virtual" or "auto". Default: "path" with an endpoint of one's own, which seldom has a name for each bucket.
    addressing_style: Literal["auto", "path", "virtual"] | None = None
    #: Whether to verify the server's certificate, or the file of the authority to verify it with.
    verify: bool | str = True
    #: A connection that is not made in ten seconds will not be; a minute without a byte means a dead one.
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32
    #: Send no credentials at all: public buckets.
    anonymous: bool = False
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    #: False for a server that ignores If-None-Match: `if_absent` then looks first and writes second, so that of two writers at
    #: one moment both may succeed.
    conditional_writes: bool = True
    #: False for a server that fails on checksum headers, or whose ETags look like MD5s and are none. One that ignores the headers
    #: is found out by its answers.
    checksums: bool = True

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            words, allows = _ALLOWED.get(option.name) or _ALLOWED[type(option.default).__name__]
            if not allows(value):
                shown = repr(value) if option.repr else "of another type"
                raise ConfigError(f"storage option {option.name!r} is {shown}: it takes {words}")
        if isinstance(self.verify, str) and not os.path.exists(self.verify):
            raise ConfigError(f"storage option 'verify' names {self.verify!r}, which is not there: give the authority's file")
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            raise ConfigError(
                "storage options 'aws_access_key_id' and 'aws_secret_access_key' belong together: give both or none"
            )
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url, "storage option 'endpoint_url'")


@dataclass(frozen=True)
class _Connection:
    """A client; whether making it anew may find newer credentials; whether its listings come in the order of keys."""

    client: S3Client
    is_renewable: bool
    lists_in_order: bool


class S3Store(MultipartStore):
    """A bucket. Options: the fields of `S3Options`.

    `capabilities` are those of Amazon S3, less what an option denies; `checks_crc32c` becomes False with the first answer
    that does not confirm the checksum that was sent.
    """

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        known = [option.name for option in fields(S3Options)]
        if unknown := sorted(set(options) - set(known)):
            raise ConfigError(f"storage option {unknown[0]!r} is unknown to s3://: it takes {', '.join(known)}")
        self._uri = uri
        self._bucket = uri.root
        self._options = S3Options(**cast("dict[str, Any]", dict(options)))
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._retired: builtins.list[S3Client] = []
        self.capabilities = Capabilities(
            conditional_put=self._options.conditional_writes,
            conditional_complete=self._options.conditional_writes,
            multipart=True,
            checks_crc32c=self._options.checksums,
            ranged_get=True,
            atomic_replace=True,
            metadata=True,
            max_put_size_bytes=5 * 2**30,
        )

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
        frozen: bool = False,
    ) -> ObjectMeta:
        """As the contract says. A file that grows meanwhile is stored up to the size that it had at the start."""
        extra = self._condition("put", key, if_absent)
        if crc32c is not None and self._options.checksums:
            extra["ChecksumCRC32C"] = _encode_crc32c(crc32c)
        with self._sent("put", key, path, crc32c) as source, self._translated("put", key):
            answer = self._client.put_object(
                Bucket=self._bucket, Key=key, Body=source.body(), Metadata=dict(metadata or {}), **extra
            )
        return ObjectMeta(key, source.size_bytes, _etag(answer.get("ETag")), None if crc32c is None else self._confirmed(answer))

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        try:
            target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(
                PermanentError, "get", key, f"the file to write to, {path}, cannot be opened: {error.strerror}"
            ) from error
        try:
            if start == end or start < 0 or (end is not None and end < start):
                self._check_range(key, start, end, if_match)  # no header can ask for no bytes
                return
            self._fetch(key, target, start, end, if_match)
        finally:
            os.close(target)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says. A refusal to say whether the object is there (403) is never "it is not there"."""
        with self._translated("head", key):
            try:
                answer: Any = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
                return self._described(key, answer)
            except sdk.ClientError as error:
                if _status(error) not in (400, 401, 403, 404):
                    raise
            # The answer to a HEAD has no body, so no words: "no such key" and "no such bucket" look the same. A GET says which;
            # or it describes the object, which came a moment after, or which only HEAD may not see.
            answer = self._client.get_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
            answer["Body"].close()
            return self._described(key, answer)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """As the contract says. Amazon's listings come page by page; any other's is read to its end first, and sorted.

        Servers on a file system list folder by folder, ``a/b`` before ``a-b``; so do Amazon's directory buckets.
        """
        with self._translated("list", prefix):
            in_order = self._connected().lists_in_order
        found = self._pages(prefix)
        yield from found if in_order else sorted(found, key=lambda meta: meta.key.encode())

    def delete(self, key: str) -> None:
        """As the contract says."""
        try:
            with self._translated("delete", key):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return  # Amazon answers 204 for what is not there, some others 404

    def close(self) -> None:
        """As the contract says."""
        with self._lock:
            self._retire()
            while self._retired:
                self._retired.pop().close()

    def begin(
        self,
        key: str,
        *,
        size_bytes: int,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """As the contract says. The id tells a later process whether the server checks the parts."""
        if self._options.checksums:
            try:
                upload_id, algorithm, kind = self._create(key, metadata, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT")
            except PermanentError as error:
                if isinstance(error, (NotFoundError, AccessDeniedError)):
                    raise
            else:
                if (algorithm, kind) == ("CRC32C", "FULL_OBJECT"):
                    return _CHECKED + upload_id
                if algorithm is None:  # ignored
                    return upload_id
                self.abort(key, upload_id)  # it would ask for a checksum of checksums, which nobody has
        return self._create(key, metadata)[0]

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says."""
        checked, raw_id = _split_id(upload_id)
        extra: dict[str, Any] = {"ChecksumCRC32C": _encode_crc32c(part.crc32c)} if checked else {}
        with self._sent("put_part", key, path, part.crc32c, part.start, part.end) as source, self._translated("put_part", key):
            answer = self._client.upload_part(
                Bucket=self._bucket, Key=key, UploadId=raw_id, PartNumber=part.number, Body=source.body(), **extra
            )
        return StoredPart(part.number, part.size_bytes, _etag(answer.get("ETag")), self._confirmed(answer))

    def list_parts(self, key: str, upload_id: str) -> builtins.list[StoredPart]:
        """As the contract says."""
        parts: builtins.list[StoredPart] = []
        marker = 0
        while True:
            with self._translated("list_parts", key):
                answer = self._client.list_parts(
                    Bucket=self._bucket, Key=key, UploadId=_split_id(upload_id)[1], PartNumberMarker=marker
                )
            for part in answer.get("Parts", []):
                crc32c = _decode_crc32c(part.get("ChecksumCRC32C"))
                parts.append(StoredPart(part["PartNumber"], part["Size"], _etag(part.get("ETag")), crc32c))
            if not answer.get("IsTruncated") or not answer.get("Parts"):
                return sorted(parts, key=lambda part: part.number)
            marker = parts[-1].number

    def complete(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[StoredPart],
        *,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectMeta:
        """As the contract says. Amazon keeps the connection busy and answers 200 first: an error in the body counts as one."""
        checked, raw_id = _split_id(upload_id)
        extra = self._condition("complete", key, if_absent)
        if checked and crc32c is not None:
            extra |= {"ChecksumType": "FULL_OBJECT", "ChecksumCRC32C": _encode_crc32c(crc32c)}
        joined = sorted(parts, key=lambda part: part.number)
        try:
            with self._translated("complete", key):
                answer = self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=raw_id,
                    MultipartUpload={"Parts": [{"PartNumber": part.number, "ETag": f'"{_etag(part.etag)}"'} for part in joined]},
                    **extra,
                )
        except _DigestError as error:  # each part arrived whole, so this is no fault of the way
            raise self._error(IntegrityError, "complete", key, error.message) from error
        size_bytes = sum(part.size_bytes for part in joined)
        return ObjectMeta(key, size_bytes, _etag(answer.get("ETag")), None if crc32c is None else self._confirmed(answer))

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        try:
            with self._translated("abort", key):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=_split_id(upload_id)[1])
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says. S3 shows nothing of ours beside an upload's id, so that `is_ours` is always False."""
        markers: dict[str, Any] = {}
        while True:
            with self._translated("list_uploads", prefix):
                answer = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix, **markers)
            for upload in answer.get("Uploads", []):
                yield PendingUpload(upload["Key"], upload["UploadId"], upload["Initiated"].timestamp(), is_ours=False)
            if not answer.get("IsTruncated") or not answer.get("Uploads"):
                return
            markers = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    @property
    def _client(self) -> S3Client:
        return self._connected().client

    def _described(self, key: str, answer: Mapping[str, Any]) -> ObjectMeta:
        """What a HEAD or GET says; digests only where the server is trusted with them: in directory buckets an ETag is no MD5."""
        meta = _describe(key, answer)
        is_vouched_for = self._options.checksums and not self._bucket.endswith(_DIRECTORY_BUCKET)
        return meta if is_vouched_for else replace(meta, digest=None)

    def _connected(self) -> _Connection:
        """The client of this moment; made when there is none."""
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self._options, self._bucket)
            return self._connection

    def _retire(self) -> None:
        """Let the next call make a new client; calls under way go on with the old one. Under the lock."""
        if self._connection is not None:
            self._retired.append(self._connection.client)
            self._connection = None

    def _condition(self, operation: str, key: str, if_absent: bool) -> dict[str, Any]:
        """What makes the server refuse to replace an object; where it cannot, look for one."""
        if not if_absent:
            return {}
        if self._options.conditional_writes:
            return {"IfNoneMatch": "*"}
        try:
            self.head(key)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return {}
        raise self._taken(operation, key)

    def _create(self, key: str, metadata: Mapping[str, str] | None, **checksum: Any) -> tuple[str, str | None, str | None]:
        with self._translated("begin", key):
            answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, Metadata=dict(metadata or {}), **checksum)
        if not (upload_id := answer.get("UploadId")):
            raise self._error(TransientError, "begin", key, "the answer names no upload")
        return upload_id, answer.get("ChecksumAlgorithm"), answer.get("ChecksumType")

    def _confirmed(self, answer: Mapping[str, Any]) -> int | None:
        """The checksum in an answer to a write that had one. A server that says none has not looked at ours."""
        crc32c = _decode_crc32c(answer.get("ChecksumCRC32C"))
        if crc32c is None and self.capabilities.checks_crc32c:
            self.capabilities = replace(self.capabilities, checks_crc32c=False)
        return crc32c

    def _fetch(self, key: str, target: int, start: int, end: int | None, if_match: str | None) -> None:
        extra: dict[str, Any] = {} if if_match is None else {"IfMatch": f'"{if_match}"'}
        if (start, end) != (0, None):  # Range: bytes=0- is an error for an object without bytes
            extra["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        with self._translated("get", key):
            try:
                answer: Mapping[str, Any] = self._client.get_object(Bucket=self._bucket, Key=key, **extra)
            except sdk.ClientError as error:
                if _status(error) != 416:
                    raise
                self._check_range(key, start, end, if_match)
                return
            with closing(answer["Body"]) as body:
                at, size_bytes = 0, answer.get("ContentLength", 0)
                if match := _CONTENT_RANGE.fullmatch(answer.get("ContentRange", "")):
                    at, size_bytes = int(match[1]), int(match[3])
                elif "ContentRange" in answer or "ContentLength" not in answer:
                    raise self._error(PermanentError, "get", key, "the answer does not say which bytes it has, or how many")
                stop = size_bytes if end is None else end
                if stop > size_bytes:
                    raise self._beyond(key, start, stop, size_bytes)
                if at > start:
                    raise self._error(TransientError, "get", key, f"the answer begins at byte {at}, asked for was {start}")
                while at < stop:  # a server that ignores Range sends what comes before, too
                    if not (block := body.read(_BLOCK_BYTES)):
                        raise self._error(TransientError, "get", key, f"the answer ended {stop - at} bytes early")
                    wanted = memoryview(block)[max(0, start - at) : stop - at]
                    self._write(key, target, wanted, max(at, start))
                    at += len(block)
                if at > stop and match:
                    raise self._error(IntegrityError, "get", key, f"{at - stop} bytes more came than were asked for")

    def _write(self, key: str, target: int, data: memoryview, at: int) -> None:
        try:
            while data:
                written = os.pwrite(target, data, at)
                data, at = data[written:], at + written
        except OSError as error:
            raise self._error(PermanentError, "get", key, f"the file cannot be written: {error.strerror}") from error

    def _check_range(self, key: str, start: int, end: int | None, if_match: str | None) -> None:
        """Allow a range without bytes inside of the object, and no other."""
        meta = self.head(key)
        if if_match is not None and meta.etag != if_match:
            raise self._error(IntegrityError, "get", key, f"the object is another by now: etag {meta.etag}, not {if_match}")
        stop = meta.size_bytes if end is None else end
        if not 0 <= start == stop <= meta.size_bytes:
            raise self._beyond(key, start, stop, meta.size_bytes)

    def _pages(self, prefix: str) -> Iterator[ObjectMeta]:
        extra: dict[str, Any] = {}
        while True:
            with self._translated("list", prefix):
                answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **extra)
            for found in answer.get("Contents", []):
                if TEMPORARY_MARK not in found["Key"]:
                    etag, modified_s = _etag(found.get("ETag")), found["LastModified"].timestamp()
                    yield ObjectMeta(found["Key"], found["Size"], etag, modified_s=modified_s)
            if not answer.get("IsTruncated"):
                return
            extra = {"ContinuationToken": answer["NextContinuationToken"]}

    @contextmanager
    def _sent(
        self, operation: str, key: str, path: Path, crc32c: int | None, start: int = 0, end: int | None = None
    ) -> Iterator[_Source]:
        """Open the file to send. If the server finds other bytes than the checksum says, find out whose fault that is."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:  # no NotFoundError: that word is kept for the object
            raise self._error(
                PermanentError, operation, key, f"the file to send, {path}, cannot be read: {error.strerror}"
            ) from error
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise self._error(PermanentError, operation, key, f"{path} is no regular file")
            source = _Source(file, start, status.st_size if end is None else end)
            try:
                yield source
            except _DigestError as error:
                if crc32c is None or source.crc32c() == crc32c:
                    raise
                raise self._error(
                    IntegrityError,
                    operation,
                    key,
                    f"the file's bytes do not have the checksum that they must have: {error.message}",
                ) from error
        finally:
            os.close(file)

    @contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        """Turn what botocore raises into our errors."""
        try:
            yield
        except sdk.ClientError as error:
            if operation in ("put", "complete") and _status(error) == 412:
                raise self._taken(operation, key) from error
            kind, hint = _rule_for(_code(error), _status(error))
            if _code(error) in _EXPIRED and self._renew():
                kind, hint = TransientError, "the credentials are read anew for the next attempt"
            said = error.response.get("Error", {}).get("Message", "")
            made = self._error(kind, operation, key, f"{_code(error)}: {said}" if said else _code(error), hint)
            if isinstance(made, ThrottledError):
                made.retry_after_s = _retry_after_s(error.response["ResponseMetadata"]["HTTPHeaders"], time.time())
            raise made from error
        except (sdk.BotoCoreError, HTTPError) as error:
            raise self._without_answer(error, operation, key) from error
        except _ShortFile as error:
            raise self._error(IntegrityError, operation, key, str(error)) from error

    def _renew(self) -> bool:
        with self._lock:
            if self._connection is None:  # another thread's call has been told already
                return True
            renewable = self._connection.is_renewable
            if renewable:
                self._retire()
            return renewable

    def _without_answer(self, error: Exception, operation: str, key: str) -> WherryError:
        """The error for what went wrong before, or in place of, an answer."""
        text = str(error)
        if isinstance(inner := getattr(error, "kwargs", {}).get("error"), _ShortFile):  # while botocore was reading the body
            return self._error(IntegrityError, operation, key, str(inner))
        if isinstance(error, sdk.SSLError) and "CERTIFICATE_VERIFY_FAILED" in text:
            hint = "give the file of its authority as storage option 'verify'"
            return self._error(PermanentError, operation, key, f"the server's certificate is not trusted: {text}", hint)
        if isinstance(error, _BAD_SETTINGS):
            return ConfigError(f"{operation} {self._uri.uri_for(key)}: {text}")
        kind, hint = next(((kind, hint) for types, kind, hint in _SDK_RULES if isinstance(error, types)), (PermanentError, ""))
        return self._error(kind, operation, key, text, hint)

    def _taken(self, operation: str, key: str) -> StoreError:
        hint = "choose another name or allow overwriting"
        return self._error(AlreadyExistsError, operation, key, "the object is there already", hint)

    def _beyond(self, key: str, start: int, end: int, size_bytes: int) -> StoreError:
        return self._error(IntegrityError, "get", key, f"bytes {start} to {end} were asked for, the object has {size_bytes}")

    def _error(self, kind: type[StoreError], operation: str, key: str, message: str, hint: str = "") -> StoreError:
        return kind(message, operation=operation, uri=self._uri.uri_for(key), hint=hint)


class _DigestError(TransientError):
    """The server received other bytes than the checksum says. One more attempt is worth it: they may have changed on the way."""


class _ShortFile(Exception):
    """The file to send ended before its size."""


class _Source:
    """Bytes [start, end) of an open file, as a body that botocore takes: bytes, or a seekable file, which may be read twice."""

    def __init__(self, file: int, start: int, end: int) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._at = start

    @property
    def size_bytes(self) -> int:
        return self._end - self._start

    def body(self) -> Any:
        """The request's body, at its start."""
        self._at = self._start
        return b"".join(iter(self.read, b"")) if self.size_bytes <= _IN_MEMORY_BYTES else self

    def read(self, size: int = _BLOCK_BYTES) -> bytes:
        """Some of the next bytes, at most `size`; none at the end of the range."""
        left = self._end - self._at
        data = os.pread(self._file, min(size, left), self._at)
        if not data and left and size:
            raise _ShortFile(f"the file to send ends {left} bytes early: it was cut while it was sent")
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As a file's, within the range."""
        self._at = offset + {os.SEEK_SET: self._start, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self.tell()

    def tell(self) -> int:
        """How far into the range the next read is."""
        return self._at - self._start

    def crc32c(self) -> int:
        """The checksum of the bytes that the file has now."""
        self._at, crc = self._start, 0
        while block := self.read(_BLOCK_BYTES):
            crc = google_crc32c.extend(crc, block)
        return int(crc)


_KEYS = "check the access key, its secret and its rights on the bucket"
_OVER = "these credentials are over: supply new ones"
_LACKS = "the server lacks this: try the storage options conditional_writes=False and checksums=False"
#: Code -> our error and the next step. What is not here is judged by its HTTP status. From "Error responses" of the Amazon S3 API
#: Reference, and from what MinIO and SeaweedFS add.
_RULES: dict[str, tuple[type[StoreError], str]] = {
    "NoSuchBucket": (BucketNotFoundError, "create the bucket, or correct the URI or the endpoint"),
    "ExpiredToken": (AccessDeniedError, _OVER),
    "ExpiredTokenException": (AccessDeniedError, _OVER),
    "TokenRefreshRequired": (AccessDeniedError, _OVER),
    "InvalidToken": (AccessDeniedError, "the session token does not belong to the key, or is missing"),
    "InvalidAccessKeyId": (AccessDeniedError, _KEYS),
    "SignatureDoesNotMatch": (AccessDeniedError, _KEYS),
    "RequestTimeTooSkewed": (PermanentError, "this machine's clock differs from the server's: set it"),
    "AuthorizationHeaderMalformed": (PermanentError, "give the bucket's region as storage option 'region'"),
    "PermanentRedirect": (PermanentError, "give the bucket's region as storage option 'region'"),
    "EntityTooLarge": (PermanentError, "an object of this size goes in parts"),
    "BadDigest": (_DigestError, ""),
    "XAmzContentChecksumMismatch": (_DigestError, ""),
    "XAmzContentSHA256Mismatch": (TransientError, ""),
    "ConditionalRequestConflict": (TransientError, "another writer was at it at the same moment"),
    "IncompleteBody": (TransientError, ""),
    "OperationAborted": (TransientError, ""),
    "RequestTimeout": (TransientError, ""),
    "RequestTimeoutException": (TransientError, ""),
    "BandwidthLimitExceeded": (ThrottledError, ""),
    "RequestLimitExceeded": (ThrottledError, ""),
    "SlowDown": (ThrottledError, ""),
    "Throttling": (ThrottledError, ""),
    "ThrottlingException": (ThrottledError, ""),
    "TooManyRequestsException": (ThrottledError, ""),
}
_STATUS_RULES: dict[int, tuple[type[StoreError], str]] = {
    401: (AccessDeniedError, _KEYS),
    403: (AccessDeniedError, _KEYS),
    404: (NotFoundError, ""),
    408: (TransientError, ""),
    412: (IntegrityError, "the object was replaced: begin again"),
    416: (IntegrityError, ""),
    429: (ThrottledError, ""),
    501: (PermanentError, _LACKS),
    503: (ThrottledError, ""),
    507: (TransientError, "the server's disk is full"),
}
#: No final answer where the credentials come from a place that is read anew: a role, a file that someone refreshes. The
#: environment of a running process does not change, and neither do keys from the storage options.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_FIXED_CREDENTIALS = frozenset({"explicit", "env"})

_BAD_SETTINGS = (sdk.ProfileNotFound, sdk.ConfigParseError, sdk.ConfigNotFound, sdk.InvalidConfigError, sdk.NoRegionError)
_SDK_RULES: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
    (
        (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.SSOError, sdk.TokenRetrievalError),
        AccessDeniedError,
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role, or give keys in storage_options",
    ),
    ((sdk.CredentialRetrievalError, sdk.MetadataRetrievalError), TransientError, ""),
    ((sdk.EndpointConnectionError, sdk.ConnectTimeoutError), TransientError, "is the endpoint right and reachable?"),
    ((sdk.HTTPClientError, sdk.ConnectionError, sdk.IncompleteReadError, HTTPError), TransientError, ""),
)


def _rule_for(code: str, status: int) -> tuple[type[StoreError], str]:
    """Our error and the next step, by the code or else by the HTTP status."""
    other = (TransientError, "") if status >= 500 or status == 200 else (PermanentError, "")
    return _RULES.get(code) or _STATUS_RULES.get(status) or other


def _code(error: sdk.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _status(error: sdk.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Read a Retry-After header (RFC 9110, section 10.2.3): seconds, or a date, which is taken by the server's own clock."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value).timestamp()
        return max(0.0, until - (parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now))
    except ValueError:
        return None


def _connect(options: S3Options, bucket: str) -> _Connection:
    """Make a client: 50 ms and, the first time, the reading of botocore's model of the service."""
    session = botocore.session.Session(profile=options.profile)
    named = (variable for variable in _ENDPOINT_VARIABLES if os.environ.get(variable))
    endpoint, source = options.endpoint_url, "storage option 'endpoint_url'"
    if endpoint is None and (variable := next(named, None)) is not None:
        endpoint, source = os.environ[variable], f"the variable {variable}"
    if endpoint is None and (configured := session.get_scoped_config().get("endpoint_url")):
        endpoint, source = str(configured), "endpoint_url of the profile"
    if endpoint is not None:
        _check_endpoint(endpoint, source)
    region = options.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
    config = Config(
        signature_version=UNSIGNED if options.anonymous else None,
        retries={"total_max_attempts": 1, "mode": "standard"},  # only our own policy counts
        request_checksum_calculation="when_required",  # ours is known before the first byte is sent
        response_checksum_validation="when_required",
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.max_connections,
        tcp_keepalive=True,
        user_agent_extra="wherry",
        s3={
            "addressing_style": options.addressing_style or ("path" if endpoint else "auto"),
            "payload_signing_enabled": False,  # over https; the checksum is in a signed header
        },
    )
    try:
        client = session.create_client(
            "s3",
            region_name=region or ("us-east-1" if endpoint else None),
            endpoint_url=endpoint,
            verify=None if options.verify is True else options.verify,  # None: AWS_CA_BUNDLE counts
            aws_access_key_id=options.aws_access_key_id,
            aws_secret_access_key=options.aws_secret_access_key,
            aws_session_token=options.aws_session_token,
            config=config,
        )
    except ValueError as error:  # no host name, no region
        raise ConfigError(f"no S3 client can be made: {error}") from error
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    credentials = None if options.anonymous or options.aws_access_key_id else session.get_credentials()
    return _Connection(
        cast("S3Client", client),
        is_renewable=credentials is not None and credentials.method not in _FIXED_CREDENTIALS,
        lists_in_order=endpoint is None and not bucket.endswith(_DIRECTORY_BUCKET),
    )


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    """Take back the "Expect: 100-continue" that botocore adds to every body."""
    if not isinstance(params["body"], _Source):
        params["headers"].pop("Expect", None)


def _check_endpoint(url: str, source: str) -> None:
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^?#\s]*)?", url):
        shown = re.sub(r"//[^/]*@", "//...@", url)
        raise ConfigError(f"{source} is {shown!r}: write http://host:port or https://host, without a password")


def _describe(key: str, answer: Mapping[str, Any]) -> ObjectMeta:
    metadata = {name.lower(): text for name, text in answer.get("Metadata", {}).items()}
    crc32c = _decode_crc32c(answer.get("ChecksumCRC32C")) if answer.get("ChecksumType") != "COMPOSITE" else None
    if crc32c is None and re.fullmatch(r"[0-9a-f]{8}", ours := metadata.get(CRC32C_METADATA, "")):
        crc32c = int(ours, 16)
    modified_s = answer["LastModified"].timestamp() if "LastModified" in answer else None
    etag = _etag(answer.get("ETag"))
    return ObjectMeta(key, answer["ContentLength"], etag, crc32c, modified_s, metadata, digest=_digest(answer, etag))


def _digest(answer: Mapping[str, Any], etag: str) -> str | None:
    """A digest of the whole object, other than CRC32C, that the server keeps: one of its checksums, else an ETag that is an MD5.

    An ETag is no MD5 for objects made of parts, which it shows by a "-", and for those encrypted with a key of KMS or the
    customer's, which other headers show ("Object" and "HeadObject" of the Amazon S3 API Reference).
    """
    if answer.get("ChecksumType") != "COMPOSITE":
        for name, size_bytes in (("crc32", 4), ("sha1", 20), ("sha256", 32)):
            if data := _decode_checksum(answer.get(f"Checksum{name.upper()}"), size_bytes):
                return f"{name}:{data.hex()}"
    is_plain = answer.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in answer
    return f"md5:{etag.lower()}" if is_plain and re.fullmatch("[0-9a-fA-F]{32}", etag) else None


def _etag(text: str | None) -> str:
    """Without the quotes, which some servers leave out of some answers. No ETag at all means a server in mid-change."""
    if not text:
        raise TransientError("the answer has no ETag: the server was just replacing the object", operation="s3")
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _encode_crc32c(crc32c: int) -> str:
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def _decode_crc32c(text: str | None) -> int | None:
    """A checksum header; None if there is none, or one of parts' checksums (``base64-3``)."""
    data = _decode_checksum(text, 4)
    return None if data is None else int.from_bytes(data, "big")


def _decode_checksum(text: str | None, size_bytes: int) -> bytes | None:
    try:
        data = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return data if len(data) == size_bytes else None


def _split_id(upload_id: str) -> tuple[bool, str]:
    """Whether the upload's parts are checked, and the server's own id."""
    return upload_id.startswith(_CHECKED), upload_id.removeprefix(_CHECKED)
