"""Uploads as resumable sessions: one stream that goes on, after any interruption, where the server says that it stopped.

Nothing temporary is made, and nothing has to be deleted: so it is the way for buckets with a retention policy, and for
credentials that may create objects and no more. Of what is sent, the server keeps whole multiples of 256 KiB; what is left at the
end goes with the request that completes the object, and until then stays in memory here.

An upload's id is the path of its session's URL, which is permission enough to write that object: it is told in no message, and
no credentials go along with it. The URL is always one of the store's own endpoint, whatever host an answer names: a server behind
a proxy does not know its own address, and a journal must not be able to send data elsewhere. An upload that is left behind ends
by itself, after a week, and costs nothing.

Source: "Resumable uploads" and "Perform resumable uploads" of the Cloud Storage documentation.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from requests import Response

from wherry.backends.gcs.body import FileBody, read_block
from wherry.backends.gcs.bucket import Bucket, json_object, resource_of
from wherry.backends.gcs.error_table import error_in
from wherry.backends.local_file import opened_source
from wherry.errors import NotFoundError, PermanentError, TransientError
from wherry.store import ObjectMeta, Part, PutOptions, StoredPart

#: Every chunk but the last is a multiple of this.
CHUNK_BYTES = 256 * 1024
_HELD = re.compile(r"bytes=0-(\d{1,19})")
#: Answers about a session that is not there: never was or forgotten, over, cancelled (Google's own number).
_GONE = frozenset({404, 410, 499})


@dataclass
class _Stream:
    """What this process knows of a session."""

    #: How many bytes the server holds; None: it has to be asked.
    held: int | None = None
    #: What follows byte `tail_at`: too little to be sent before the end.
    tail: bytes = b""
    tail_at: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class SessionUploads:
    """The contract's calls for parts, on sessions."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        #: By id, for several threads at once: each step on it is one call of the dictionary.
        self._streams: dict[str, _Stream] = {}

    @staticmethod
    def knows(upload_id: str) -> bool:
        """Whether the id is one of these uploads'."""
        return upload_id.startswith("/upload/") and "/../" not in upload_id

    def begin(self, key: str, put: PutOptions) -> str:
        """Open a session. The server knows the precondition, the checksum and the metadata from now on."""
        bucket = self._bucket
        params = {
            "uploadType": "resumable",
            "name": key,
            **bucket.billed,
            **({"ifGenerationMatch": "0"} if put.if_absent else {}),
        }
        with bucket.translated(if_absent=put.if_absent, makes=True, secret=True), ExitStack() as stack:
            answer = bucket.connected().authorized.post(
                bucket.url("upload"),
                params=params,
                data=json.dumps(resource_of(key, put)).encode(),
                headers={"Content-Type": "application/json; charset=UTF-8", **bucket.encryption},
                timeout=bucket.timeout_s,
                stream=True,  # there is no description of an object to look for in this answer
                allow_redirects=False,
            )
            stack.enter_context(answer)
            if answer.status_code not in (200, 201):
                raise error_in(answer)
            where = urlsplit(answer.headers.get("Location", ""))
        path = where.path.removeprefix(urlsplit(bucket.endpoint).path)
        upload_id = f"{path}?{where.query}" if where.query else path
        if not self.knows(upload_id):
            raise TransientError("the answer names no session: something on the way has given it")
        self._stream(upload_id).held = 0
        return upload_id

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """Send what the server does not hold yet of the file up to the part's end, as far as whole chunks go."""
        stream = self._stream(upload_id)
        with stream.lock, opened_source(path) as fd:
            held, stream.held = stream.held, None  # until this has worked
            if held is None:
                held = self._ask(upload_id)
            whole = part.end - part.end % CHUNK_BYTES
            while held < whole:
                answer = self._put(upload_id, f"bytes {held}-{whole - 1}/*", FileBody(fd, held, whole))
                now = self._held(upload_id, answer)
                if now <= held:
                    raise TransientError(f"the server keeps no byte after {held}")
                held = now
            tail = bytearray(stream.tail if stream.tail_at == held else b"")  # longer already, if this part was sent before
            while held + len(tail) < part.end:
                tail += read_block(fd, held + len(tail), part.end, part.end)
            stream.held, stream.tail, stream.tail_at = held, bytes(tail), held
        return StoredPart(part.number, part.size_bytes, _receipt(part.start, part.end), None)

    def list_parts(self, key: str, upload_id: str) -> list[StoredPart]:
        """What the server holds, as one part; none if that is nothing."""
        stream = self._stream(upload_id)
        with stream.lock:
            stream.held, stream.tail = None, b""
            held = self._ask(upload_id)
            stream.held, stream.tail_at = held, held
        return [StoredPart(1, held, _receipt(0, held), None)] if held else []

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions) -> ObjectMeta:
        """Send what is left, with the size of the whole. Safe to call again after an error, also if that came after the end.

        `put` is that of begin(): the server has its condition and its metadata.
        """
        size = _joined(parts)
        stream = self._stream(upload_id)
        with stream.lock:
            held, stream.held = stream.held, None  # until this has worked
            answer = None
            if held is None:
                answer = self._put(upload_id, f"bytes */{size}")
                held = None if answer.status_code in (200, 201) else self._held(upload_id, answer)
            if held is not None and held < size:
                tail = stream.tail[held - stream.tail_at :] if held >= stream.tail_at else b""
                if held + len(tail) != size:
                    raise TransientError(f"of {size} bytes the server holds {held}: send the rest again")
                answer = self._put(upload_id, f"bytes {held}-{size - 1}/{size}", tail, if_absent=put.if_absent)
            elif held is not None:  # all of it is there: this says so
                answer = self._put(upload_id, f"bytes */{size}", if_absent=put.if_absent)
            assert answer is not None, "held is None only after an answer"
            if answer.status_code not in (200, 201):
                raise TransientError("the server has not got to the end of what was sent")
            with self._bucket.translated(secret=True):
                meta = self._bucket.described(key, answer.json())
        self._streams.pop(upload_id, None)
        self._bucket.check(meta, size, put.crc32c)
        return meta

    def abort(self, key: str, upload_id: str) -> None:
        """Cancel the session. An object that it has become stays."""
        self._streams.pop(upload_id, None)
        with self._bucket.translated(secret=True):
            answer = self._bucket.request_of_session("DELETE", f"{self._bucket.endpoint}{upload_id}", {})
            if answer.status_code >= 300 and answer.status_code not in _GONE:
                raise error_in(answer)

    def _ask(self, upload_id: str) -> int:
        """How many bytes the server holds."""
        return self._held(upload_id, self._put(upload_id, "bytes */*"))

    def _held(self, upload_id: str, answer: Response) -> int:
        """How many bytes the server says that it holds, by its answer 308."""
        if answer.status_code != 308:
            self._streams.pop(upload_id, None)
            raise NotFoundError("the upload is over: the object was made")
        match = _HELD.fullmatch(answer.headers.get("Range", ""))
        return int(match[1]) + 1 if match else 0

    def _put(self, upload_id: str, content_range: str, body: FileBody | bytes = b"", *, if_absent: bool = False) -> Response:
        """One request to the session; the answer is 308 (go on), or 200 (the object was made)."""
        with self._bucket.translated(if_absent=if_absent, secret=True):
            answer = self._bucket.request_of_session(
                "PUT", f"{self._bucket.endpoint}{upload_id}", {"Content-Range": content_range, **self._bucket.encryption}, body
            )
            if answer.status_code in _GONE:
                self._streams.pop(upload_id, None)
                words = f"the upload session is gone ({answer.status_code}): it was completed, aborted, or is over a week old"
                raise NotFoundError(words)
            if answer.status_code not in (200, 201, 308):
                raise error_in(answer)
            if answer.status_code != 308:
                json_object(answer)
            return answer

    def _stream(self, upload_id: str) -> _Stream:
        return self._streams.setdefault(upload_id, _Stream())


def _joined(parts: Sequence[StoredPart]) -> int:
    """The size of the whole, if the parts follow one another from the first byte on."""
    end = 0
    if not parts:
        raise PermanentError("an upload without parts cannot be completed")
    for part in sorted(parts, key=lambda part: part.number):
        if part.etag != _receipt(end, end + part.size_bytes):
            raise PermanentError(f"part {part.number} does not follow byte {end} of what was sent")
        end += part.size_bytes
    return end


def _receipt(start: int, end: int) -> str:
    return f"{start}-{end}"
