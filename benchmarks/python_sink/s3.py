"""S3 as the sink speaks it: put, parts, complete, get, head, delete; a listing of nothing. Signatures are not checked."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from python_sink.objects import Stored
from python_sink.peer import Body, Exchange, Request

_CRC = "x-amz-checksum-crc32c"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def refuse(x: Exchange, status: str, code: str) -> None:
    x.peer.answer(status, body=f"<Error><Code>{code}</Code><Message>says the sink</Message></Error>".encode())


def serve(x: Exchange) -> None:
    """Take the request's body, and answer it."""
    body, method = take_body(x), x.request.method
    key = unquote_plus(x.request.path)
    upload = f"?{found[1]}" if (found := re.search(r"uploadId=(\d+)", x.request.query)) else None
    if body is None:
        refuse(x, "400 Bad Request", "IncompleteBody")
    elif "x-amz-copy-source" in x.request.headers or (method == "POST" and "delete" in x.request.parameters):
        refuse(x, "501 Not Implemented", "NotImplemented")
    elif method == "PUT":
        store(x, key, upload, body)
    elif method == "POST":
        complete(x, key, upload) if upload else begin(x)
    elif method == "DELETE":
        with x.objects.lock:
            x.objects.all.pop(upload or key, None)
        x.peer.say("204 No Content", [])
    elif method == "GET" and x.request.query and not re.search("versionId|x-id=GetObject", x.request.query):
        page = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        x.peer.answer("200 OK", ["Content-Type: application/xml"], page)
    elif (there := x.objects.find(key)) is not None:
        describe(x, there, with_body=method == "GET")
    elif method == "HEAD":
        x.peer.answer("404 Not Found")
    else:
        refuse(x, "404 Not Found", "NoSuchKey")


def take_body(x: Exchange) -> Body | None:
    """The body, without the frames of aws-chunked; None if it is not as long as it should be."""
    request = x.request
    trailer: dict[str, str] = {}
    size, data = x.peer.take_chunks() if request.is_in_chunks else (request.size_bytes, x.peer.take(request.size_bytes))
    if (decoded := request.headers.get("x-amz-decoded-content-length")) is not None:
        size = int(decoded)
        if data is not None:
            data, trailer = unframe(data)
            if len(data) != size:
                return None
    return Body(size, data, request.headers.get(_CRC) or trailer.get(_CRC))


def unframe(framed: bytes) -> tuple[bytes, dict[str, str]]:
    """A small body of aws-chunked without its frames, and the headers after the last one."""
    body, at = b"", 0
    while (end := framed.find(b"\r\n", at)) >= 0:
        n = int(framed[at:end].partition(b";")[0] or b"0", 16)
        if not n:
            lines = framed[end + 2 :].decode().split("\r\n")
            return body, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body += framed[end + 2 : end + 2 + n]
        at = end + 2 + n + 2
    return body, {}


def metadata_of(request: Request) -> list[str]:
    return [line for line in request.lines if line.lower().startswith("x-amz-meta-")]


def store(x: Exchange, key: str, upload: str | None, body: Body) -> None:
    """PUT of an object or of a part."""
    if body.is_damaged:
        return refuse(x, "400 Bad Request", "BadDigest")
    with x.objects.lock:
        there = x.objects.all.get(upload or key)
        if upload and there is None:
            return refuse(x, "404 Not Found", "NoSuchUpload")
        if not upload and there is not None and "if-none-match" in x.request.headers:
            return refuse(x, "412 Precondition Failed", "PreconditionFailed")
        if upload and there is not None:
            there.body = None if there.size_bytes else body.data  # of the only part
            there.size_bytes += body.size_bytes
        else:
            made = x.objects.put(key)
            made.metadata, made.body, made.size_bytes, made.crc = metadata_of(x.request), body.data, body.size_bytes, body.crc
    return x.peer.answer("200 OK", [f'ETag: "sink{x.objects.new_id()}"', *([f"{_CRC}: {body.crc}"] if body.crc else [])])


def begin(x: Exchange) -> None:
    upload = x.objects.new_id()
    x.objects.put(f"?{upload}").metadata = metadata_of(x.request)
    headers = []
    if x.request.headers.get("x-amz-checksum-type") == "FULL_OBJECT":
        headers = ["x-amz-checksum-algorithm: CRC32C", "x-amz-checksum-type: FULL_OBJECT"]
    name = "InitiateMultipartUploadResult"
    x.peer.answer("200 OK", headers, f'<{name} xmlns="{_NAMESPACE}"><UploadId>{upload}</UploadId></{name}>'.encode())


def complete(x: Exchange, key: str, upload: str) -> None:
    with x.objects.lock:
        parts = x.objects.all.get(upload)
        if parts is None:
            return refuse(x, "404 Not Found", "NoSuchUpload")
        if key in x.objects.all and "if-none-match" in x.request.headers:
            return refuse(x, "412 Precondition Failed", "PreconditionFailed")
        whole = Body(parts.size_bytes, parts.body, x.request.headers.get(_CRC))
        if whole.is_damaged:  # it is known of one part, as a trial has
            return refuse(x, "400 Bad Request", "BadDigest")
        del x.objects.all[upload]
        made = x.objects.put(key)
        made.metadata, made.body, made.size_bytes, made.crc = parts.metadata, parts.body, parts.size_bytes, whole.crc
    said = f"<ChecksumCRC32C>{whole.crc}</ChecksumCRC32C><ChecksumType>FULL_OBJECT</ChecksumType>" if whole.crc else ""
    text = f'<CompleteMultipartUploadResult><ETag>"sink{x.objects.new_id()}-1"</ETag>{said}</CompleteMultipartUploadResult>'
    return x.peer.answer("200 OK", body=text.encode())


def describe(x: Exchange, found: Stored, *, with_body: bool) -> None:
    """The headers of an object, and its bytes or a range of them."""
    start, end, status, headers = 0, found.size_bytes, "200 OK", []
    if with_body and (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", x.request.headers.get("range", ""))):
        start, end = int(asked[1]), min(int(asked[2]) + 1 if asked[2] else end, end)
        if start >= end:
            return refuse(x, "416 Range Not Satisfiable", "InvalidRange")
        status = "206 Partial Content"
        headers.append(f"Content-Range: bytes {start}-{end - 1}/{found.size_bytes}")
    if found.crc and end - start == found.size_bytes:  # a range has no sum
        headers += [f"{_CRC}: {found.crc}", "x-amz-checksum-type: FULL_OBJECT"]
    if found.crc:
        headers.append(f"x-goog-hash: crc32c={found.crc}")
    headers += [f"x-goog-generation: {found.generation}", f"x-goog-stored-content-length: {found.size_bytes}"]
    headers += [f'ETag: "sink{found.size_bytes}"', "Last-Modified: Sun, 22 Nov 2026 00:00:00 GMT", "Accept-Ranges: bytes"]
    headers += ["Content-Type: application/octet-stream", *found.metadata, f"Content-Length: {end - start}"]
    if with_body and found.body is not None:
        x.objects.count(n_sent=end - start)
        return x.peer.say(status, headers, found.body[start:end])
    x.peer.say(status, headers)
    if with_body:
        x.peer.send_pattern(start, end)
    return None
