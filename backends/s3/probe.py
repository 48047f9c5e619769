"""Finds out by trial what an S3 server really honours: many accept a header and ignore what it asks for.

Some two hundred requests with a few bytes each, most of them side by side. Nothing of them is left, whatever happens: what was
put is deleted again, with its versions, and uploads in parts are aborted; a server that does not let us delete is not tried at
all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, Any

import google_crc32c

from wherry.backends.s3.digests import crc32c_of, encode_crc32c, etag_of, md5_of
from wherry.backends.s3.error_table import DigestError, Translator, status_of
from wherry.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
    absence_is_fine,
)
from wherry.posix.thread_pool import each_at_once
from wherry.store import TOKEN_METADATA

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from wherry.backends.s3.options import S3Options

#: What is put, what must be refused (of another size, so that a look tells them apart), and the first one's checksum.
_RIGHT = b"wherry asks what this server honours"
_WRONG = b"this must be refused"
_CRC32C = int(google_crc32c.value(_RIGHT))
_NAMES = ("object", "new", "parts")
#: Of each race. Swift (2.38) decides nearly every race of puts by chance, SeaweedFS (4.48) every third of completes.
_WRITERS = 6
_PUT_RACES, _COMPLETE_RACES = [f"race{letter}" for letter in "abc"], [f"race{letter}" for letter in "defghi"]
_START_S = 5.0
_TOKEN = "wherry-probe"  # noqa: S105  a value of metadata, no password


@dataclass(frozen=True)
class Findings:
    """What a server honours. The defaults are for an unknown server: each does the least harm if it is wrong."""

    #: Bodies need not be signed ("x-amz-content-sha256: UNSIGNED-PAYLOAD").
    takes_unsigned: bool = True
    #: Metadata given to a put comes back.
    metadata: bool = False
    #: A put with a wrong CRC32C is refused, the right one is confirmed and kept.
    checks_crc32c: bool = False
    #: A put with "If-None-Match: *" on a name that is taken is refused, and keeps the object; of several at once one succeeds.
    conditional_put: bool = False
    #: Uploads in parts work.
    multipart: bool = True
    #: A part with a wrong CRC32C is refused, and that of the whole object is kept for an object of parts.
    joins_crc32c: bool = False
    #: The same of completing with "If-None-Match: *".
    conditional_complete: bool = False
    #: A part may be the copy of an object, and completing with a wrong CRC32C of the whole is refused.
    copies_parts: bool = False

    @classmethod
    def read(cls, findings: Mapping[str, bool]) -> Findings:
        """From what as_dict() gave, perhaps to another version of this class."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: bool(value) for name, value in findings.items() if name in known})

    def as_dict(self) -> dict[str, bool]:
        """By name."""
        return asdict(self)


#: Amazon S3 honours all ("Amazon S3 API Reference"), in directory buckets too.
AMAZON = Findings(**{field.name: True for field in fields(Findings)})


class Trial:
    """One examination of a server, by objects below `prefix`.

    `client` gives the client of the moment, `sign` tells it whether to sign bodies from now on. What the `options` switch off
    is not tried, and so not found.
    """

    def __init__(
        self,
        client: Callable[[], S3Client],
        sign: Callable[[bool], None],
        bucket: str,
        errors: Translator,
        prefix: str,
        options: S3Options,
    ) -> None:
        self._client = client
        self._options = options
        self._sign = sign
        self._bucket = bucket
        self._errors = errors
        self._keys = {name: f"{prefix}wherry-probe-{name}" for name in (*_NAMES, *_PUT_RACES, *_COMPLETE_RACES)}
        self._prefix = prefix
        self._versions: list[tuple[str, str]] = []

    def find(self) -> Findings:
        """Try everything. Raises StoreError when there is no answer, or when even a plain put is refused."""
        try:
            found = self._find()
        except BaseException:
            with suppress(StoreError):  # the first error counts
                self._clean()
            raise
        self._clean()
        return found

    def _find(self) -> Findings:
        unsigned = self._takes_unsigned()
        checks = self._options.checksums and self._checks_crc32c()
        described = self._head("object")
        metadata = {name.lower(): text for name, text in described["Metadata"].items()}
        checks = checks and crc32c_of(described) == _CRC32C and described["ContentLength"] == len(_RIGHT)
        conditional = self._options.conditional_writes and self._is_conditional()
        return Findings(
            takes_unsigned=unsigned,
            metadata=metadata.get(TOKEN_METADATA) == _TOKEN,
            checks_crc32c=checks,
            conditional_put=conditional,
            **self._tries_parts(checks),
        )

    def _takes_unsigned(self) -> bool:
        self._sign(False)
        if not self._is_refused(self._start):
            return True
        self._sign(True)
        try:
            self._start()
        except StoreError:
            self._sign(False)
            raise
        return False

    def _start(self) -> None:
        for name in _NAMES:  # what an earlier attempt may have left; if we may not delete, this raises now
            self._delete(self._keys[name])
        self._put("object", _RIGHT)

    def _checks_crc32c(self) -> bool:
        crc32c = {"ChecksumCRC32C": encode_crc32c(_CRC32C)}
        try:
            answer = self._put("object", _RIGHT, **crc32c)
        except (PermanentError, DigestError):
            return False
        return crc32c_of(answer) == _CRC32C and self._is_refused(lambda: self._put("object", _WRONG, **crc32c))

    def _is_conditional(self) -> bool:
        before = self._head("object")["ContentLength"]
        try:
            self._put("object", _RIGHT + _WRONG, IfNoneMatch="*")
        except AlreadyExistsError:
            is_kept = self._head("object")["ContentLength"] == before
            return (
                is_kept
                and not self._is_refused(lambda: self._put("new", _RIGHT, IfNoneMatch="*"))
                and self._decides_races(_PUT_RACES, lambda name: [lambda: self._put(name, _RIGHT, IfNoneMatch="*")] * _WRITERS)
            )
        except PermanentError:
            return False
        return False

    def _tries_parts(self, checks: bool) -> dict[str, bool]:
        """What is found about parts, by the names in `Findings`."""
        try:
            upload_id, joins = self._begin(checks)
        except PermanentError:
            return {"multipart": False}
        joins = joins and self._is_refused(lambda: self._put_part(upload_id, _WRONG, joins))
        etag = self._put_part(upload_id, _RIGHT, joins)
        # Under a free name first, for a server may refuse the header itself.
        is_conditional = self._options.conditional_writes and not self._is_refused(
            lambda: self._complete(upload_id, etag, joins, IfNoneMatch="*")
        )
        if not is_conditional:
            if joins and self._is_refused(lambda: self._complete(upload_id, etag, joins)):
                joins = False
            if not joins and self._is_refused(lambda: self._complete(upload_id, etag, joins)):
                return {"multipart": False}
        joins = joins and crc32c_of(self._head("parts")) == _CRC32C
        copies = joins and self._copies_parts()
        is_conditional = is_conditional and self._keeps_what_is_there()
        return {"joins_crc32c": joins, "conditional_complete": is_conditional, "copies_parts": copies}

    def _copies_parts(self) -> bool:
        """An upload whose one part is a copy of what has just been joined, under the same name."""
        upload_id, _ = self._begin(True)
        source = {"Bucket": self._bucket, "Key": self._keys["parts"]}
        try:
            answer = self._ask("join", "upload_part_copy", "parts", UploadId=upload_id, PartNumber=1, CopySource=source)
        except (PermanentError, DigestError):
            return False
        etag = answer.get("CopyPartResult", {}).get("ETag")
        if etag is None:  # it has made a part of the request's body, which is empty
            return False
        wrong = encode_crc32c(_CRC32C ^ 1)
        if not self._is_refused(lambda: self._complete(upload_id, etag_of(etag), True, ChecksumCRC32C=wrong)):
            return False
        return not self._is_refused(lambda: self._complete(upload_id, etag_of(etag), True))

    def _keeps_what_is_there(self) -> bool:
        upload_id, _ = self._begin(False)
        etag = self._put_part(upload_id, _WRONG, False)
        try:
            self._complete(upload_id, etag, False, IfNoneMatch="*")
        except AlreadyExistsError:
            is_kept = bool(self._head("parts")["ContentLength"] == len(_RIGHT))
            return is_kept and self._decides_races(_COMPLETE_RACES, self._completes)
        except PermanentError:
            return False
        return False

    def _completes(self, name: str) -> list[Callable[[], object]]:
        """Calls that each complete an upload of its own under one name."""

        def begin(_: int) -> tuple[str, str]:
            upload_id, _joins = self._begin(False, name)
            return upload_id, self._put_part(upload_id, _RIGHT, False, name)

        begun = each_at_once(begin, range(_WRITERS))
        return [partial(self._complete, upload_id, etag, False, name, IfNoneMatch="*") for upload_id, etag in begun]

    def _decides_races(self, names: Sequence[str], writers: Callable[[str], list[Callable[[], object]]]) -> bool:
        """Whether of several writers of each of these free names, at one moment, exactly one is told that it has it.

        A server may look for the name first and take it second: then the condition is kept as long as nobody else is there.
        """

        def wins(write: Callable[[], object]) -> bool:
            try:
                start.wait(_START_S)
                write()
            except BrokenBarrierError:  # not side by side, as at the interpreter's end: nothing is proven
                return False
            except BucketNotFoundError:
                raise
            except PermanentError:  # AlreadyExistsError, say
                return False
            except TransientError as error:
                if status_of(error.__cause__) == 409:
                    return False  # another was at it at the same moment
                raise
            return True

        for name in names:
            start = Barrier(_WRITERS)
            if sum(each_at_once(wins, writers(name))) != 1:
                return False
        return True

    def _is_refused(self, call: Callable[[], object]) -> bool:
        """Whether the server says no, for good; what is no answer at all goes up."""
        try:
            call()
        except BucketNotFoundError:
            raise
        except (PermanentError, DigestError):
            return True
        return False

    def _ask(self, operation: str, request: str, name: str, **given: Any) -> Mapping[str, Any]:
        """Make a request, by its name in boto3, about one of our objects."""
        if "Body" in given and "ChecksumCRC32C" not in given:  # with object lock a server may refuse a body without a checksum
            given["ContentMD5"] = md5_of([given["Body"]])
        with self._errors.translated(operation, self._keys[name], given.get("PartNumber")):
            call: Callable[..., Mapping[str, Any]] = getattr(self._client(), request)
            return call(Bucket=self._bucket, Key=self._keys[name], **given)

    def _put(self, name: str, body: bytes, **extra: Any) -> Mapping[str, Any]:
        answer = self._ask("put", "put_object", name, Body=body, Metadata={TOKEN_METADATA: _TOKEN}, **extra)
        return self._noted(name, answer)

    def _head(self, name: str) -> Mapping[str, Any]:
        answer = self._ask("head", "head_object", name, **self._options.shown_checksums)
        etag_of(answer.get("ETag"))
        return answer

    def _begin(self, checks: bool, name: str = "parts") -> tuple[str, bool]:
        """An upload, and whether it is one whose parts' CRC32C is joined."""
        if checks:
            with suppress(PermanentError):
                answer = self._create(name, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT")
                if (answer.get("ChecksumAlgorithm"), answer.get("ChecksumType")) == ("CRC32C", "FULL_OBJECT"):
                    return answer["UploadId"], True
        return self._create(name)["UploadId"], False

    def _create(self, name: str, **extra: Any) -> Mapping[str, Any]:
        answer = self._ask("begin", "create_multipart_upload", name, **extra)
        if not answer.get("UploadId"):
            with self._errors.about("begin", self._keys[name]):
                raise TransientError("the answer names no upload")
        return answer

    def _put_part(self, upload_id: str, body: bytes, checks: bool, name: str = "parts") -> str:
        extra: dict[str, Any] = {"ChecksumCRC32C": encode_crc32c(_CRC32C)} if checks else {}
        answer = self._ask("put_part", "upload_part", name, UploadId=upload_id, PartNumber=1, Body=body, **extra)
        return etag_of(answer.get("ETag"))

    def _complete(self, upload_id: str, etag: str, joins: bool, name: str = "parts", **extra: Any) -> None:
        if joins:
            extra = {"ChecksumType": "FULL_OBJECT", "ChecksumCRC32C": encode_crc32c(_CRC32C), **extra}
        parts: Any = {"Parts": [{"PartNumber": 1, "ETag": f'"{etag}"'}]}
        answer = self._ask("complete", "complete_multipart_upload", name, UploadId=upload_id, MultipartUpload=parts, **extra)
        self._noted(name, answer if answer.get("ETag") else {**answer, "ETag": self._head(name).get("ETag")})

    def _noted(self, name: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a write, which must be one of S3; the version that it made is going to be deleted."""
        etag_of(answer.get("ETag"))
        if version := answer.get("VersionId"):
            self._versions.append((self._keys[name], version))
        return answer

    def _clean(self) -> None:
        """Remove all that was made, as far as it goes. Errors are raised at the end: the last, with the others as its context.

        Uploads go first: a request to complete one may still be on its way, after Ctrl-C, and makes no object any more then.
        """
        with ExitStack() as steps:  # each is taken, in the reverse order, whatever becomes of the others
            steps.callback(self._delete_versions)
            steps.callback(each_at_once, self._delete, self._keys.values(), all_of_them=True)
            self._abort_uploads()

    def _delete_versions(self) -> None:
        """In a versioned bucket a plain deletion hides an object, and leaves a mark."""
        while self._versions:
            key, version = self._versions.pop()
            with suppress(PermanentError):  # it takes a right of its own
                self._delete(key, VersionId=version)

    def _abort_uploads(self) -> None:
        with suppress(PermanentError), self._errors.translated("list_uploads", self._prefix):
            answer = self._client().list_multipart_uploads(Bucket=self._bucket, Prefix=f"{self._prefix}wherry-probe-")
            for upload in answer.get("Uploads", []):
                if upload["Key"] in self._keys.values():
                    with suppress(NotFoundError), self._errors.translated("abort", upload["Key"]):
                        self._client().abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _delete(self, key: str, **extra: Any) -> None:
        with absence_is_fine():
            with self._errors.translated("delete", key):
                answer = self._client().delete_object(Bucket=self._bucket, Key=key, **extra)
            if not extra and (mark := answer.get("VersionId")):
                self._versions.append((key, mark))
