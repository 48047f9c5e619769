"""``s3://bucket/prefix``: Amazon S3 and the many servers that speak its API.

Requests about single objects go past botocore where that is safe (`Objects`), all others by its low-level calls: no transfer
manager, no retries inside. One client a store, shared by all threads and made at the first call. What an option means stands in
`S3Options`, what a server honours in `Findings`. Sources: "Amazon S3 API Reference"; "Checking object
integrity in Amazon S3" for checksums.
"""

from __future__ import annotations

import builtins
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.backends.local_file import Summed, opened_target
from wherry.backends.s3.body import sending
from wherry.backends.s3.copy import Copier
from wherry.backends.s3.delete import DELETED_AT_ONCE, Deleter
from wherry.backends.s3.digests import CHECKED, crc32c_of, describe, digest_of, encode_crc32c, etag_of, split_id
from wherry.backends.s3.error_table import DigestError, Translator, is_denied, status_of, taken
from wherry.backends.s3.get import Reader
from wherry.backends.s3.listing import Listings
from wherry.backends.s3.object_requests import Objects, Put
from wherry.backends.s3.options import DIRECTORY_BUCKET, S3Options, server_name
from wherry.backends.s3.probe import AMAZON, Findings, Trial
from wherry.backends.tally import Tally
from wherry.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    TransientError,
    absence_is_fine,
)
from wherry.store import (
    TEMPORARY_MARK,
    TOKEN_METADATA,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    Page,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
    order_of,
    start_within,
)
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from wherry.backends.s3.client import Connection

#: Of every part but the last ("Amazon S3 multipart upload limits").
_MIN_PART_BYTES = 5 * 2**20
#: Small objects that one thread puts at once: it is busy then where an answer takes 3 ms, and leaves room for other calls.
_MANY = 24
#: What a trial that was killed leaves: below the prefix that `wherry.store.server_features` gives it, names that `Trial` makes.
_TRIAL = re.compile(rf"(.*/)?{re.escape(TEMPORARY_MARK)}probe-[0-9a-f]+/wherry-probe-[a-z]+", re.DOTALL)


class S3Store(MultipartStore):
    """A bucket. Options: the fields of `S3Options`.

    `capabilities` are what the server is known to honour, less what an option denies. Of Amazon that is all; of any other server
    nothing, until probe() has tried it or assume() was told. Until then conditions and checksums are sent and not relied on: a
    put with `if_absent` looks for the object first, and no answer is taken for proof. `checks_crc32c` becomes False with
    the first answer that does not confirm the checksum that was sent.
    """

    #: The most that Amazon gives.
    _uploads_a_page = 1000

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        self._options = S3Options.read(options)
        self._uri = uri
        self._bucket = uri.root
        self._is_directory_bucket = uri.root.endswith(DIRECTORY_BUCKET)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._retired: builtins.list[Connection] = []
        self._requests = Tally()
        self._signs_payloads = False
        self._errors = Translator(uri, self._renew, self._options.read_timeout_s, "Amazon S3")
        self._address = self._options.endpoint_url or self._resolved()
        #: Not for directory buckets: they are Amazon's, under addresses that depend on the bucket.
        server = None if self._is_directory_bucket else server_name(self._address)
        self.endpoint = self._options.tried(server)
        self._findings = AMAZON if server is None else None
        self._errors = replace(self._errors, server=server or self._errors.server)
        self._objects = Objects(
            self._connected,
            lambda: self._connection is not None,
            self._bucket,
            self._options,
            self._takes_unsigned,
            self._requests.add,
        )
        self._copier = Copier(
            lambda: self._client,
            self._bucket,
            self._errors,
            self,
            lambda: self._findings is not None and self.capabilities.conditional_put,
        )
        self._deleter = Deleter(lambda: self._client, self._bucket, self._errors, self.delete, self._options.checksums)
        self._reader = Reader(self._objects, self._errors, self.head)
        self._listings = Listings(lambda: self._client, self._bucket, self._errors, only_folders=self._is_directory_bucket)
        self.capabilities = self._capable(self._findings or Findings())

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        """As the contract says: some two hundred small requests. Nothing is tried at Amazon, whose answer is known."""
        if self.endpoint is None:
            return {}
        trial = Trial(lambda: self._client, self._sign_payloads, self._bucket, self._errors, key_prefix, self._options)
        found = trial.find().as_dict()
        self.assume(found)
        return found

    def assume(self, findings: Mapping[str, bool]) -> None:
        """As the contract says."""
        if self.endpoint is None or not findings:
            return
        found = Findings.read(findings)
        self._sign_payloads(not found.takes_unsigned)
        self._findings = found
        self.capabilities = self._capable(found)

    @property
    def n_requests(self) -> int:
        """As the contract says."""
        return self._requests.value

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. A file that grows meanwhile is stored up to the size that it had at the start."""
        with self._errors.about("put", key):
            given = self._given(key, put)
            with sending(path, put.crc32c) as source, self._errors.translated("put", key):
                answer = self._objects.ask("put_object", key, source, put.metadata, **given)
            return self._stored(key, source.size_bytes, put, answer)

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the contract says: past botocore, and only what the server is known to honour."""
        sizes: dict[int, int] = {}

        def prepared() -> Iterator[tuple[int, Put]]:
            for place, (key, path, put) in enumerate(puts):
                if self.capabilities.conditional_put or not put.if_absent:
                    with sending(path, put.crc32c) as source:
                        sizes[place] = source.size_bytes
                        yield place, Put(key, source, put.metadata, self._given(key, put))

        if puts and (most := min(most, len(puts), self.capabilities.puts_at_once)) > 1:
            with self._errors.translated("put", puts[0][0]):
                for place, answer in self._objects.put_many(prepared(), most):
                    key, _, put = puts[place]
                    yield place, self._stored(key, sizes[place], put, answer)

    def _given(self, key: str, put: PutOptions) -> dict[str, Any]:
        given = self._condition(key, put.if_absent, None if self._findings is None else self._findings.conditional_put)
        if put.crc32c is not None and self._options.checksums and (self._findings is None or self._findings.checks_crc32c):
            given["ChecksumCRC32C"] = encode_crc32c(put.crc32c)
        if put.content_type:
            given["ContentType"] = put.content_type
        return given

    def _stored(self, key: str, size_bytes: int, put: PutOptions, answer: Mapping[str, Any]) -> ObjectMeta:
        crc32c, etag = None if put.crc32c is None else self._confirmed(answer), etag_of(answer.get("ETag"))
        return ObjectMeta(key, size_bytes, etag, crc32c, digest=digest_of(answer, etag) if self._options.checksums else None)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        with self._errors.about("get", key), opened_target(path) as target:
            summed = Summed(target, path)
            self.read(key, summed.take, start=start, end=end, if_match=if_match)
            return summed.crc32c

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says."""
        self._reader.read(key, take, start, end, if_match)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says. A refusal to say whether the object is there (403) is never "it is not there"."""
        with self._errors.translated("head", key):
            try:
                answer = self._objects.ask("head_object", key, **self._options.shown_checksums)
                if answer.get("ContentLength", -1) >= 0:  # a proxy that compresses answers, say, leaves it out
                    self._reader.describe(key, answer)
                    return self._described(key, answer)
            except Exception as error:
                if status_of(error) not in (400, 401, 403, 404):
                    raise
            # The answer to a HEAD has no body, so no words: "no such key" and "no such bucket" look the same. A GET says which;
            # or it describes the object, which came a moment after, or which only HEAD may not see.
            answer = self._objects.ask("get_object", key, **self._options.shown_checksums)
            answer["Body"].close()
            return self._described(key, answer)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the contract says. Amazon's listings come page by page; any other's is read to its end first, and sorted.

        Servers on a file system list folder by folder, ``a/b`` before ``a-b``; so do Amazon's directory buckets.
        """
        if (start := start_within(prefix, start_after)) is None:
            return
        with self._errors.translated("list", prefix):
            in_order = self._connected().lists_in_order
        listed, after = self._listings.objects if in_order else self._listings.in_any_order, order_of(start)
        found = (meta for meta in listed(prefix, start) if TEMPORARY_MARK not in meta.key and order_of(meta.key) > after)
        yield from found if in_order else sorted(found, key=lambda meta: order_of(meta.key))

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the contract says; of servers other than Amazon's in the order that they have, such as folder by folder."""
        extra = {**({"Delimiter": "/"} if one_level else {}), **({"ContinuationToken": mark} if mark else {})}
        return map(Page.without_temporary, self._listings.pages(prefix, **extra))

    def left_by_trials(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below `prefix` that probe() has made and did not live to delete; of a trial under way, too.

        S3 cannot be asked for them alone: everything below the prefix is listed, a request for a thousand objects.
        """
        return (meta for meta in self._listings.objects(prefix) if _TRIAL.fullmatch(meta.key))

    def delete(self, key: str) -> None:
        """As the contract says."""
        with absence_is_fine(), self._errors.translated("delete", key):  # Amazon answers 204 for it, some others 404
            self._objects.ask("delete_object", key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """As the contract says: a request for a thousand where the server takes that, else one for each, several at once."""
        self._deleter.delete(keys)

    def close(self) -> None:
        """As the contract says."""
        with self._lock:
            self._objects.end_early()
            self._retire()
            while self._retired:
                self._retired.pop().close()

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says."""
        if self.capabilities.min_joined_bytes is None:
            return super().join(key, sources, size_bytes, put)
        return self._copier.join(key, sources, size_bytes, put)

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        """As the contract says."""
        return self._copier.copy(key, source, root, if_absent=if_absent)

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the contract says. The id tells a later process whether the server checks the parts."""
        if self._options.checksums and (self._findings is None or self._findings.joins_crc32c):
            try:
                upload_id, algorithm, kind = self._create(key, put, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT")
            except PermanentError as error:
                if isinstance(error, (NotFoundError, AccessDeniedError)):
                    raise
            else:
                if (algorithm, kind) == ("CRC32C", "FULL_OBJECT"):
                    return CHECKED + upload_id
                if algorithm is None:  # ignored
                    return upload_id
                self.abort(key, upload_id)  # it would ask for a checksum of checksums, which nobody has
        return self._create(key, put)[0]

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says."""
        checked, raw_id = split_id(upload_id)
        extra: dict[str, Any] = {"ChecksumCRC32C": encode_crc32c(part.crc32c)} if checked else {}
        with (
            self._errors.about("put_part", key),
            sending(path, part.crc32c, start=part.start, end=part.end) as source,
            self._errors.translated("put_part", key, part.number),
        ):
            answer = self._objects.ask("upload_part", key, source, UploadId=raw_id, PartNumber=part.number, **extra)
            return StoredPart(part.number, part.size_bytes, etag_of(answer.get("ETag")), self._confirmed(answer))

    def list_parts(self, key: str, upload_id: str) -> builtins.list[StoredPart]:
        """As the contract says."""
        return self._listings.parts(key, split_id(upload_id)[1])

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. Amazon keeps the connection busy and answers 200 first: an error in the body counts as one."""
        checked, raw_id = split_id(upload_id)
        honoured = None if self._findings is None else self._findings.conditional_complete
        joined = sorted(parts, key=lambda part: part.number)
        with self._errors.about("complete", key):
            listed: Any = {"Parts": [{"PartNumber": part.number, "ETag": f'"{etag_of(part.etag)}"'} for part in joined]}
            extra = self._condition(key, put.if_absent, honoured)
            if checked and put.crc32c is not None:
                extra |= {"ChecksumType": "FULL_OBJECT", "ChecksumCRC32C": encode_crc32c(put.crc32c)}
            try:
                with self._errors.translated("complete", key):
                    answer = self._client.complete_multipart_upload(
                        Bucket=self._bucket, Key=key, UploadId=raw_id, MultipartUpload=listed, **extra
                    )
            except DigestError as error:  # each part arrived whole, so this is no fault of the way
                raise IntegrityError(error.message) from error
            size_bytes = sum(part.size_bytes for part in joined)
            etag = etag_of(answer["ETag"]) if answer.get("ETag") else self._etag_of_completed(key, size_bytes, put.metadata)
        return ObjectMeta(key, size_bytes, etag, None if put.crc32c is None else self._confirmed(answer))

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        with absence_is_fine(), self._errors.translated("abort", key):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=split_id(upload_id)[1])

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says. S3 shows nothing of ours beside an upload's id: `is_ours` is what a killed trial has left."""
        for key, upload_id, begun_s in self._listings.uploads(prefix, self._uploads_a_page):
            yield PendingUpload(key, upload_id, begun_s, is_ours=_TRIAL.fullmatch(key) is not None)

    def _etag_of_completed(self, key: str, size_bytes: int, metadata: Mapping[str, str]) -> str | None:
        """The ETag of what was just completed; Ceph (16) leaves it out of the first answer of each process of its gateway."""
        try:
            found = self.head(key)
        except NotFoundError:
            found = None
        token = metadata.get(TOKEN_METADATA)
        if found is None or found.size_bytes != size_bytes or (found.token or token) != token:
            words = "the answer has no ETag, and the object is missing or another one: a proxy on the way may have answered"
            raise TransientError(words)
        return found.etag

    @property
    def _client(self) -> S3Client:
        return self._connected().client

    def _resolved(self) -> str:
        """The server's address, where no option gives it. Whoever gives it need not wait for botocore."""
        from wherry.backends.s3.client import endpoint_of

        with self._errors.translated("open", ""):
            return endpoint_of(self._options)

    def _described(self, key: str, answer: Mapping[str, Any]) -> ObjectMeta:
        """What a HEAD or GET says; digests only where the server is trusted with them: in directory buckets an ETag is no MD5."""
        meta = describe(key, answer)
        is_vouched_for = self._options.checksums and not self._is_directory_bucket
        return meta if is_vouched_for else replace(meta, digest=None)

    def _takes_unsigned(self) -> bool:
        return self._findings is not None and self._findings.takes_unsigned

    def _connected(self) -> Connection:
        """The client of this moment; made when there is none."""
        with self._lock:
            if self._connection is None:
                from wherry.backends.s3.client import connect

                self._connection = connect(self._options, self._bucket, self._address, signs_payloads=self._signs_payloads)
                self._connection.client.meta.events.register("before-send.s3", self._requests.add)
            return self._connection

    def _retire(self) -> None:
        """Let the next call make a new client; calls under way go on with the old one. Under the lock."""
        if self._connection is not None:
            self._retired.append(self._connection)
            self._connection = None

    def _sign_payloads(self, signs: bool) -> None:
        with self._lock:
            if signs != self._signs_payloads:
                self._objects.end_early()
                self._signs_payloads = signs
                self._retire()

    def _renew(self) -> bool:
        """Whether a new client may find newer credentials; the next call makes it then."""
        if self._options.aws_access_key_id is not None:  # there are no others
            return False
        with self._lock:
            if self._connection is None:  # another thread's call has been told already
                return True
            renewable = self._connection.is_renewable
            if renewable:
                self._retire()
            return renewable

    def _capable(self, found: Findings) -> Capabilities:
        return Capabilities(
            conditional_put=self._options.conditional_writes and found.conditional_put,
            conditional_complete=self._options.conditional_writes and found.conditional_complete,
            multipart=found.multipart,
            checks_crc32c=self._options.checksums and found.checks_crc32c and (found.joins_crc32c or not found.multipart),
            ranged_get=True,
            atomic_replace=True,
            metadata=found.metadata,
            max_put_size_bytes=5 * 2**30,
            deleted_at_once=DELETED_AT_ONCE if self._options.checksums else 1,
            copies=True,
            puts_at_once=1 if self._options.sdk_only or self._findings is None else min(_MANY, self._options.max_connections),
            min_joined_bytes=_MIN_PART_BYTES if self._options.checksums and found.copies_parts else None,
        )

    def _condition(self, key: str, if_absent: bool, honoured: bool | None) -> dict[str, Any]:
        """What makes the server refuse to replace an object; unless it is known to do that, look for one first."""
        if not if_absent:
            return {}
        asked: dict[str, Any] = {"IfNoneMatch": "*"} if self._options.conditional_writes and honoured is not False else {}
        if asked and honoured:
            return asked
        try:
            self.head(key)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return asked
        except AccessDeniedError as error:
            if is_denied(error.__cause__):
                error.hint = "without the right to read, nobody can tell if the name is free: allow s3:GetObject, or overwriting"
            raise
        raise taken()

    def _create(self, key: str, put: PutOptions, **extra: Any) -> tuple[str, str | None, str | None]:
        if put.content_type:
            extra["ContentType"] = put.content_type
        with self._errors.translated("begin", key):
            answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, Metadata=dict(put.metadata), **extra)
            if not (upload_id := answer.get("UploadId")):
                raise TransientError("the answer names no upload")
        return upload_id, answer.get("ChecksumAlgorithm"), answer.get("ChecksumType")

    def _confirmed(self, answer: Mapping[str, Any]) -> int | None:
        """The checksum in an answer to a write that had one. A server that returns none has not compared ours.

        One that returns ours may only echo it, unless it is known to check.
        """
        if self._findings is None or not self._findings.checks_crc32c:
            return None
        crc32c = crc32c_of(answer)
        if crc32c is None and self.capabilities.checks_crc32c:
            self.capabilities = replace(self.capabilities, checks_crc32c=False)
        return crc32c
