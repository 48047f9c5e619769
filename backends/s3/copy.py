"""Copies of objects inside one server: "CopyObject", and "UploadPartCopy" for what is too large for it (API Reference)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wherry.backends.s3.digests import crc32c_of, digest_of, etag_of, split_id
from wherry.backends.s3.error_table import Translator, status_of, taken
from wherry.errors import IntegrityError, NotFoundError, PermanentError, StoreError
from wherry.posix.thread_pool import each_at_once
from wherry.store import MultipartStore, ObjectMeta, PutOptions

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

#: CopyObject takes at most 5 GiB; so does a part. Smaller ones are copied side by side.
COPIED_AT_ONCE_BYTES = 5 * 2**30
_PART_BYTES = 512 * 2**20


@dataclass
class Copier:
    """Copies into one bucket. `client` gives the client of the moment; `store` completes what is copied in parts.

    `refuses_taken`: whether the server is known to refuse to replace an object if it is told so.
    """

    client: Callable[[], S3Client]
    bucket: str
    errors: Translator
    store: MultipartStore
    refuses_taken: Callable[[], bool]
    at_once_bytes: int = COPIED_AT_ONCE_BYTES
    part_bytes: int = _PART_BYTES

    def copy(self, key: str, source: ObjectMeta, root: str | None, *, if_absent: bool) -> ObjectMeta:
        """As the contract says."""
        with self.errors.about("copy", key):
            if source.size_bytes > self.at_once_bytes:
                return self._copy_in_parts(key, source, root, if_absent=if_absent)
            try:
                with self.errors.translated("copy", key):
                    answer = self._copy(key, source, root, if_absent=if_absent)
            except IntegrityError as error:
                if if_absent and status_of(error.__cause__) == 412 and self._is_there(key):
                    raise taken() from error
                raise
            found = answer.get("CopyObjectResult", {})
            etag = etag_of(found.get("ETag"))
            if etag and etag == source.etag and "-" not in etag and source.size_bytes >= 0:
                return ObjectMeta(key, source.size_bytes, etag, crc32c_of(found), digest=digest_of(answer, etag))
            return self.store.head(key)

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions) -> ObjectMeta:
        """As the contract says: an upload whose parts are copies ("UploadPartCopy", API Reference)."""
        put = replace(put, if_absent=False)
        upload_id = self.store.begin(key, size_bytes, put)
        checked, raw_id = split_id(upload_id)

        def copy(part: tuple[int, str]) -> None:
            number, name = part
            source: Any = {"Bucket": self.bucket, "Key": name}
            with self.errors.translated("join", name, number):
                self.client().upload_part_copy(Bucket=self.bucket, Key=key, UploadId=raw_id, PartNumber=number, CopySource=source)

        try:
            with self.errors.about("join", key):
                if not checked:
                    raise PermanentError("the server does not check what it joins any more")
                each_at_once(copy, enumerate(sources, 1))
                parts = self.store.list_parts(key, upload_id)
                if (found := sum(part.size_bytes for part in parts)) != size_bytes:
                    raise IntegrityError(f"the sources have {found} bytes, not {size_bytes}")
                return self.store.complete(key, upload_id, parts, put)
        except BaseException:
            with suppress(StoreError):  # the first error counts
                self.store.abort(key, upload_id)
            raise

    def _copy(self, key: str, source: ObjectMeta, root: str | None, *, if_absent: bool) -> Mapping[str, Any]:
        client, condition = self.client(), dict[str, Any]()
        if if_absent:
            # Amazon has the condition since 2025, and older versions of botocore do not know it.
            shape = client.meta.service_model.operation_model("CopyObject").input_shape
            if self.refuses_taken() and shape is not None and "IfNoneMatch" in shape.members:
                condition["IfNoneMatch"] = "*"
            elif self._is_there(key):
                raise taken()
        if source.etag:
            condition["CopySourceIfMatch"] = f'"{source.etag}"'
        place: Any = {"Bucket": root or self.bucket, "Key": source.key}
        return client.copy_object(Bucket=self.bucket, Key=key, CopySource=place, **condition)

    def _copy_in_parts(self, key: str, source: ObjectMeta, root: str | None, *, if_absent: bool) -> ObjectMeta:
        """An upload whose parts are copies of ranges; its begin is told metadata and media type, which no part carries."""
        with self.errors.translated("copy", source.key):
            condition: Any = {"IfMatch": f'"{source.etag}"'} if source.etag else {}
            described = self.client().head_object(Bucket=root or self.bucket, Key=source.key, **condition)
        given = PutOptions(
            if_absent=if_absent, metadata=dict(described.get("Metadata", {})), content_type=described.get("ContentType")
        )
        put = PutOptions(if_absent, source.crc32c, given.metadata, given.content_type)
        upload_id = self.store.begin(key, source.size_bytes, put)
        raw_id = split_id(upload_id)[1]
        size = max(self.part_bytes, -(-source.size_bytes // self.store.capabilities.max_parts))
        condition = {"CopySourceIfMatch": f'"{source.etag}"'} if source.etag else {}

        def copy(start: int) -> None:
            end = min(start + size, source.size_bytes)
            with self.errors.translated("copy", source.key, start // size + 1):
                self.client().upload_part_copy(
                    Bucket=self.bucket,
                    Key=key,
                    UploadId=raw_id,
                    PartNumber=start // size + 1,
                    CopySource={"Bucket": root or self.bucket, "Key": source.key},
                    CopySourceRange=f"bytes={start}-{end - 1}",
                    **condition,
                )

        try:
            each_at_once(copy, range(0, source.size_bytes, size))
            parts = self.store.list_parts(key, upload_id)
            if (found := sum(part.size_bytes for part in parts)) != source.size_bytes:
                raise IntegrityError(f"{found} bytes were copied, not {source.size_bytes}")
            return self.store.complete(key, upload_id, parts, put)
        except BaseException:
            with suppress(StoreError):  # the first error counts
                self.store.abort(key, upload_id)
            raise

    def _is_there(self, key: str) -> bool:
        try:
            self.store.head(key)
        except NotFoundError:
            return False
        return True
