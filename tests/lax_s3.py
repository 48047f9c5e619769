"""A server that speaks a little S3 and has every flaw that is asked of it: for what no real server at hand does."""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from servers import tls
from servers.way import WAY
from wherry.backends.s3.digests import encode_crc32c
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.uri import StoreURI

Flaw = Literal[
    "ignores checksums",
    "echoes checksums",
    "refuses checksums",
    "forgets checksums",
    "ignores checksums of parts",
    "refuses joined checksums",
    "has composite checksums",
    "ignores conditions",
    "refuses conditions",
    "refuses too late",
    "always refuses conditions",
    "ignores conditions of completes",
    "refuses conditions of completes",
    "refuses copies of parts",
    "takes copies for bodies",
    "ignores checksums of the whole",
    "insists on signed bodies",
    "drops metadata",
    "has no parts",
    "may not delete",
    "keeps versions",
    "answers 404 to a deletion of nothing",
    "leaves the ETag out of answers to GET",
    "leaves the ETag out of the first answer to a complete",
    "takes the name too late in puts",
    "takes the name too late in completes",
    "refuses to start after a key",
]

#: How long a server that takes names too late waits for a second writer between its look and its write.
_WINDOW_S = 0.2


@dataclass
class Kept:
    """An object, or an upload in parts."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)


class LaxServer(ThreadingHTTPServer):
    """Speaks as much S3 as a probe needs, and has the flaws that it is told to have; it remembers the head of every request."""

    daemon_threads = True
    request_queue_size = 128  # of five connections at once one would be begun a second later

    def __init__(self, *flaws: Flaw) -> None:
        self.flaws = frozenset(flaws)
        self.objects: dict[str, Kept] = {}
        self.uploads: dict[str, tuple[str, Kept]] = {}
        self.versions: set[str] = set()
        self.heads: list[str] = []
        self.n_ids = 0
        self.n_completes = 0
        self.deciding = threading.Lock()
        self.window = threading.Barrier(2)
        super().__init__(("127.0.0.1", 0), LaxHandler)

    def new_id(self) -> str:
        self.n_ids += 1
        return f"id{self.n_ids}"


class LaxHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LaxServer

    def answer(self) -> None:
        self.server.heads.append(f"{self.requestline}\n{self.headers}")
        size = int(self.headers.get("Content-Length", 0))
        self.body = self.rfile.read(size)
        where = urlsplit(self.path)
        self.key = unquote(where.path).removeprefix("/bucket/")
        self.query = {name: values[0] for name, values in parse_qs(where.query, keep_blank_values=True).items()}
        if self.lacks("insists on signed bodies") and self.headers.get("x-amz-content-sha256") == "UNSIGNED-PAYLOAD":
            self.error(403, "AccessDenied")
        elif self.lacks("refuses checksums") and re.search("x-amz-checksum-(crc|algo)", str(self.headers), re.IGNORECASE):
            self.error(400, "InvalidRequest")
        else:
            getattr(self, f"{self.command.lower()}_{'upload' if {'uploads', 'uploadId'} & set(self.query) else 'object'}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def lacks(self, flaw: Flaw) -> bool:
        return flaw in self.server.flaws

    def put_object(self) -> None:
        if not self.is_right():
            return
        with self.deciding("takes the name too late in puts"):
            if not self.is_allowed():
                return
            self.leave_a_window("takes the name too late in puts")
            self.server.objects[self.key] = Kept(self.body, self.described())
        self.reply(200, headers={**self.echoed(), **self.version()})

    def deciding(self, flaw: Flaw) -> AbstractContextManager[object]:
        """What keeps other writers out from the look for a name until it is taken."""
        return nullcontext() if self.lacks(flaw) else self.server.deciding

    def leave_a_window(self, flaw: Flaw) -> None:
        """Of two writers at one moment both have looked before either writes."""
        if self.lacks(flaw) and self.headers.get("If-None-Match"):
            with suppress(threading.BrokenBarrierError):
                self.server.window.wait(_WINDOW_S)
            self.server.window.reset()

    def head_object(self) -> None:
        if (found := self.server.objects.get(self.key)) is None:
            self.reply(404)
        else:
            self.reply(200, found.body, found.headers)

    def get_object(self) -> None:
        if "list-type" not in self.query:
            self.head_object()
            return
        if "start-after" in self.query and self.lacks("refuses to start after a key"):
            self.error(501, "NotImplemented")
            return
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(kept.body)}</Size><ETag>{kept.headers['ETag']}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, kept in self.server.objects.items()
            if key.startswith(self.query.get("prefix", ""))
        )
        self.reply(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())

    def delete_object(self) -> None:
        if self.lacks("may not delete"):
            self.error(403, "AccessDenied")
            return
        found = self.server.objects.pop(self.key, None)
        self.server.versions.discard(self.query.get("versionId", ""))
        is_gone = found is None and self.lacks("answers 404 to a deletion of nothing")
        self.reply(404 if is_gone else 204, headers=self.version() if "versionId" not in self.query else {})

    def post_upload(self) -> None:
        if "uploads" in self.query:
            self.begin()
            return
        found = self.server.uploads.get(self.query["uploadId"])
        if found is None:
            self.error(404, "NoSuchUpload")
            return
        kept = found[1]
        self.body = b"".join(body for _, body in sorted(kept.parts.items()))
        with self.deciding("takes the name too late in completes"):
            if not self.may_complete():
                return
            self.leave_a_window("takes the name too late in completes")
            del self.server.uploads[self.query["uploadId"]]
            kept.headers["ETag"] = f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}-{len(kept.parts)}"'
            if "x-amz-checksum-type" in kept.headers:
                kept.headers["x-amz-checksum-crc32c"] = encode_crc32c(crc32c(self.body))
            self.server.objects[self.key] = Kept(self.body, kept.headers)
            self.server.n_completes += 1
        is_silent = self.lacks("leaves the ETag out of the first answer to a complete") and self.server.n_completes == 1
        etag = "" if is_silent else f"<ETag>{kept.headers['ETag']}</ETag>"
        body = f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>"
        self.reply(200, body.encode(), self.version())

    def may_complete(self) -> bool:
        """Whether the upload may become the object, as far as this server cares."""
        if self.headers.get("If-None-Match"):
            if self.lacks("refuses conditions of completes"):
                self.error(501, "NotImplemented")
                return False
            if not self.lacks("ignores conditions of completes") and self.key in self.server.objects:
                self.error(412, "PreconditionFailed")
                return False
        said = self.headers.get("x-amz-checksum-crc32c")
        if said not in (None, encode_crc32c(crc32c(self.body))) and not self.lacks("ignores checksums of the whole"):
            self.error(400, "BadDigest")
            return False
        return True

    def begin(self) -> None:
        if self.lacks("has no parts"):
            self.error(501, "NotImplemented")
            return
        headers = {name: value for name, value in self.described().items() if name.startswith("x-amz-meta")}
        if self.headers.get("x-amz-checksum-type"):
            if self.lacks("refuses joined checksums"):
                self.error(400, "InvalidRequest")
                return
            if not self.lacks("ignores checksums"):
                kind = "COMPOSITE" if self.lacks("has composite checksums") else "FULL_OBJECT"
                headers |= {"x-amz-checksum-type": kind, "x-amz-checksum-algorithm": "CRC32C"}
        upload_id = self.server.new_id()
        self.server.uploads[upload_id] = (self.key, Kept(b"", headers))
        body = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        self.reply(200, body.encode(), {name: text for name, text in headers.items() if "checksum" in name})

    def put_upload(self) -> None:
        source = self.headers.get("x-amz-copy-source")
        if source is not None and not self.lacks("takes copies for bodies"):
            if self.lacks("refuses copies of parts"):
                self.error(501, "NotImplemented")
                return
            _, kept = self.server.uploads[self.query["uploadId"]]
            body = self.server.objects[unquote(source).removeprefix("bucket/")].body
            kept.parts[int(self.query["partNumber"])] = body
            etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
            self.reply(200, f'<CopyPartResult><ETag>"{etag}"</ETag></CopyPartResult>'.encode())
            return
        if self.lacks("ignores checksums of parts") or self.is_right():
            _, kept = self.server.uploads[self.query["uploadId"]]
            kept.parts[int(self.query["partNumber"])] = self.body
            self.reply(200, headers={"ETag": f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"', **self.echoed()})

    def delete_upload(self) -> None:
        self.server.uploads.pop(self.query["uploadId"], None)
        self.reply(204)

    def get_upload(self) -> None:
        rows = "".join(
            f"<Upload><Key>{key}</Key><UploadId>{upload_id}</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
            for upload_id, (key, _) in self.server.uploads.items()
            if key.startswith(self.query.get("prefix", ""))
        )
        self.reply(200, f"<ListMultipartUploadsResult>{rows}</ListMultipartUploadsResult>".encode())

    def is_right(self) -> bool:
        """Whether the body has its checksum, as far as this server cares."""
        said = self.headers.get("x-amz-checksum-crc32c")
        cares = not (self.lacks("ignores checksums") or self.lacks("echoes checksums"))
        if said is None or not cares or said == encode_crc32c(crc32c(self.body)):
            return True
        self.error(400, "BadDigest")
        return False

    def is_allowed(self) -> bool:
        """Whether the object may be written, as far as this server cares."""
        if not self.headers.get("If-None-Match") or self.lacks("ignores conditions"):
            return True
        if self.lacks("refuses conditions"):
            self.error(501, "NotImplemented")
            return False
        if self.key in self.server.objects or self.lacks("always refuses conditions"):
            if self.lacks("refuses too late"):
                self.server.objects[self.key] = Kept(self.body, self.described())
            self.error(412, "PreconditionFailed")
            return False
        return True

    def described(self) -> dict[str, str]:
        kept = (
            {} if self.lacks("drops metadata") else {n: v for n, v in self.headers.items() if n.lower().startswith("x-amz-meta-")}
        )
        if not self.lacks("forgets checksums"):
            kept |= self.echoed()
        return {**kept, "ETag": f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'}

    def echoed(self) -> dict[str, str]:
        said = self.headers.get("x-amz-checksum-crc32c")
        return {} if said is None or self.lacks("ignores checksums") else {"x-amz-checksum-crc32c": said}

    def version(self) -> dict[str, str]:
        if not self.lacks("keeps versions"):
            return {}
        version = self.server.new_id()
        self.server.versions.add(version)
        return {"x-amz-version-id": version, **({"x-amz-delete-marker": "true"} if self.command == "DELETE" else {})}

    def error(self, status: int, code: str) -> None:
        self.reply(status, f"<Error><Code>{code}</Code><Message>as it is</Message></Error>".encode())

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"ETag": '"0"', **(headers or {})}.items():
            if name != "ETag" or self.command != "GET" or not self.lacks("leaves the ETag out of answers to GET"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def lax_server(*flaws: Flaw, certificates: tls.Certificates | None = None) -> Iterator[LaxServer]:
    with LaxServer(*flaws) as server:
        if certificates is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificates.chain, certificates.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def store_at(port: int, scheme: str = "http", **options: object) -> S3Store:
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    return S3Store(StoreURI("s3", "bucket"), {"endpoint_url": f"{scheme}://127.0.0.1:{port}", **keys, **WAY, **options})
