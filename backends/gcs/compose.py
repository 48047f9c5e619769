"""Uploads in parts as temporary objects of a bucket, which may be sent side by side, and are composed at the end; and joins.

A part is the object ``<key>.wherry-tmp-<id>/<number>``. Compose requests join them in a tree, since one takes at most 32. The
composite is checked before it is composed, alone, under its final name: a wrong object is never visible there. All temporaries
are deleted by complete(), abort() and join(); a client that is gone for good leaves them under that prefix. A bucket with a
retention policy does not let them go, and one with soft delete goes on billing them for a while.

Source: "Composite objects" of the Cloud Storage documentation.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from wherry.backends.gcs.bucket import MAX_NAME_BYTES, Bucket, Version, generation_match
from wherry.backends.local_file import opened_source
from wherry.errors import AccessDeniedError, AlreadyExistsError, NotFoundError, PermanentError, StoreError, absence_is_fine
from wherry.posix.thread_pool import each_at_once
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, ObjectMeta, Part, PendingUpload, PutOptions, StoredPart

_MAX_SOURCES = 32
_RIGHTS = (
    "parts of a large object are temporary objects: they need the rights storage.objects.create, list, get and delete "
    '(roles/storage.objectUser), and a bucket without a retention policy; or set the storage option upload="session", which '
    "needs storage.objects.create only"
)
_LONGEST_TAIL = "join-0-00000"
_TAIL = r"begun|\d{5}|join-\d-\d{5}"
#: An object that merely has the mark in its name is somebody's own.
_OURS = re.compile(rf"(.*){re.escape(TEMPORARY_MARK)}([0-9a-f]{{32}})/({_TAIL})", re.DOTALL)
#: Metadata of the object that marks an upload as begun: the whole key, where it had to be cut to make room.
_KEY_METADATA = "wherry-key"


class ComposedUploads:
    """The contract's calls for parts, on temporary objects."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        #: These credentials were seen to have the rights that complete() needs.
        self._is_allowed = False

    @staticmethod
    def knows(upload_id: str) -> bool:
        """Whether the id is one of these uploads'."""
        return re.fullmatch("[0-9a-f]{32}", upload_id) is not None

    def begin(self, key: str, put: PutOptions) -> str:
        """Mark the upload as begun by an empty object: GCS knows nothing of it otherwise. AccessDeniedError before anything is
        made if these credentials lack a right that complete() needs.

        The id follows from the token in `put.metadata`, so that a begin whose answer was lost is repeated under the same
        names, and leaves nothing behind.
        """
        token = put.metadata.get(TOKEN_METADATA)
        upload_id = secrets.token_hex(16) if token is None else hashlib.sha256(token.encode()).hexdigest()[:32]
        prefix = _temporary(key, upload_id)
        noted = dict(put.metadata) if prefix.startswith(key) else {**put.metadata, _KEY_METADATA: quote(key)}
        if not self._is_allowed:
            self._require_rights(prefix, noted)
        self._mark(prefix, noted)
        return upload_id

    def _mark(self, prefix: str, noted: dict[str, str]) -> None:
        with suppress(AlreadyExistsError):
            self._bucket.send(f"{prefix}begun", -1, PutOptions(if_absent=True, crc32c=0, metadata=noted), start=0, end=0)

    def _require_rights(self, prefix: str, noted: dict[str, str]) -> None:
        """Try what complete() needs before bytes are sent: on a name that is not there, so that a refusal leaves nothing hidden,
        and then with the mark, as a retention policy shows only with an object.
        """
        absent = _join_name(prefix, 0, 0)
        try:
            for _ in self._bucket.listed(absent):
                break
            with absence_is_fine():
                self._bucket.look(absent)
            self._bucket.remove(absent)
            self._mark(prefix, noted)
            self._bucket.remove(f"{prefix}begun")
        except AccessDeniedError as error:
            error.hint = error.hint or _RIGHTS  # which has one is no question of rights
            raise
        self._is_allowed = True

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """Send one part. An upload that is unknown or over is not noticed here: complete() will say so."""
        name = f"{_temporary(key, upload_id)}{part.number:05d}"
        with opened_source(path) as fd:
            meta = self._bucket.send(name, fd, PutOptions(crc32c=part.crc32c), start=part.start, end=part.end)
        return StoredPart(part.number, meta.size_bytes, meta.etag or "", meta.crc32c)

    def list_parts(self, key: str, upload_id: str) -> list[StoredPart]:
        """The parts that are there."""
        held = self._temporaries(key, upload_id)
        if "begun" not in held:
            raise NotFoundError(f"the upload {upload_id} is unknown, done or aborted")
        numbered = sorted((int(tail), meta) for tail, meta in held.items() if tail.isdecimal())
        return [StoredPart(number, meta.size_bytes, meta.etag or "", meta.crc32c) for number, meta in numbered]

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions) -> ObjectMeta:
        """Compose the parts. NotFoundError also if one was sent again since: list_parts() tells what is there now.

        Safe to call again after an error. If the error came after the object was made, this then gives AlreadyExistsError,
        NotFoundError or the same object; head() and its token tell.
        """
        if not parts:
            raise PermanentError("an upload without parts cannot be completed")
        prefix = _temporary(key, upload_id)
        pieces: list[Version] = [
            (f"{prefix}{part.number:05d}", int(generation_match(part.etag)["ifGenerationMatch"]))
            for part in sorted(parts, key=lambda part: part.number)
        ]
        meta = self._compose(key, prefix, pieces, sum(part.size_bytes for part in parts), put)
        self.abort(key, upload_id)
        return meta

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions) -> ObjectMeta:
        """Compose objects that are there. Its temporary names follow from what is joined: a second attempt uses, and deletes,
        those that an attempt which was killed has left.
        """
        joined = json.dumps([key, *sources, size_bytes, put.crc32c])
        upload_id = hashlib.sha256(joined.encode()).hexdigest()[:32]
        temporaries = _join_names(_temporary(key, upload_id), len(sources))

        def clean() -> None:
            each_at_once(self._bucket.remove, temporaries, all_of_them=True)

        pieces: list[Version] = [(source, None) for source in sources]
        try:
            meta = self._compose(key, _temporary(key, upload_id), pieces, size_bytes, replace(put, if_absent=False))
        except BaseException:
            with suppress(StoreError):  # the first error counts
                clean()
            raise
        clean()
        return meta

    def _compose(self, key: str, prefix: str, pieces: list[Version], size_bytes: int, put: PutOptions) -> ObjectMeta:
        """Join objects under names below `prefix`, which the caller deletes; check the result; give it its final name."""
        bucket, level = self._bucket, 0
        whole: ObjectMeta | None = None
        while len(pieces) > 1:
            groups = [pieces[at : at + _MAX_SOURCES] for at in range(0, len(pieces), _MAX_SOURCES)]
            names = [_join_name(prefix, level, n) for n in range(len(groups))]
            with bucket.translated():
                made = each_at_once(
                    lambda pair: bucket.compose(*pair, PutOptions()), list(zip(names, groups, strict=True)), all_of_them=True
                )
            whole = made[0]
            pieces, level = [(meta.key, int(meta.etag or 0)) for meta in made], level + 1
        if whole is None:
            whole = bucket.look(*pieces[0])
        bucket.check(whole, size_bytes, put.crc32c, keep=True)
        with bucket.translated(if_absent=put.if_absent):  # of that very generation
            meta = bucket.compose(key, [(whole.key, int(whole.etag or 0))], put)
        bucket.check(meta, size_bytes, put.crc32c)
        return meta

    def abort(self, key: str, upload_id: str) -> None:
        """Delete what is there of it. Its mark goes last: until then the upload is known and can be aborted again."""
        held = self._temporaries(key, upload_id)
        marker = held.pop("begun", None)
        each_at_once(self._bucket.remove, [meta.key for meta in held.values()], all_of_them=True)
        if marker is not None:
            self._bucket.remove(marker.key)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """The uploads by their temporary objects, whose age is that of the newest: an upload under way is never old."""
        newest: dict[tuple[str, str], float] = {}
        whole: dict[tuple[str, str], str] = {}
        for meta in self._bucket.listed(_cut(prefix)):
            if (match := _OURS.fullmatch(meta.key)) is None:
                continue
            upload = match[1], match[2]
            newest[upload] = max(newest.get(upload, 0.0), meta.modified_s or 0.0)
            if _KEY_METADATA in meta.metadata:
                whole[upload] = unquote(meta.metadata[_KEY_METADATA])
        for (key, upload_id), begun_s in newest.items():
            key = whole.get((key, upload_id), key)
            if key.startswith(prefix) or _cut(key) == key == _cut(prefix):  # its mark is gone, and with it the end of its key
                yield PendingUpload(key, upload_id, begun_s, is_ours=True)

    def _temporaries(self, key: str, upload_id: str) -> dict[str, ObjectMeta]:
        """The upload's temporary objects, by what follows their common prefix."""
        prefix = _temporary(key, upload_id)
        held = {meta.key.removeprefix(prefix): meta for meta in self._bucket.listed(prefix)}
        return {tail: meta for tail, meta in held.items() if re.fullmatch(_TAIL, tail)}


def _cut(key: str) -> str:
    """The key, cut where the names of temporary objects would become too long."""
    room = MAX_NAME_BYTES - len(TEMPORARY_MARK) - 32 - 1 - len(_LONGEST_TAIL)
    return key.encode()[:room].decode(errors="ignore")


def _join_name(prefix: str, level: int, number: int) -> str:
    return f"{prefix}join-{level}-{number:05d}"


def _join_names(prefix: str, n_pieces: int) -> list[str]:
    """The names that are used on the way from so many pieces to one, which are none for one piece."""
    names: list[str] = []
    level = 0
    while n_pieces > 1:
        n_pieces = -(-n_pieces // _MAX_SOURCES)
        names += [_join_name(prefix, level, n) for n in range(n_pieces)]
        level += 1
    return names


def _temporary(key: str, upload_id: str) -> str:
    """What the names of an upload's temporary objects begin with: beside the key, if it leaves room."""
    return f"{_cut(key)}{TEMPORARY_MARK}{upload_id}/"
