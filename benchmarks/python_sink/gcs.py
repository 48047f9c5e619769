"""The JSON API of GCS as the sink speaks it: uploads in one request and in sessions, media, metadata, lists, compose, delete.

Objects are those that S3's paths show, under /bucket/name.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from python_sink.objects import SMALL_BYTES, Stored, decode, encode
from python_sink.peer import Body, Exchange
from python_sink.s3 import describe
from wherry.checksum import combine_crc32c, crc32c

PREFIXES = ("/storage/v1/", "/upload/storage/", "/download/storage/")
#: More than what closes a multipart body.
_TAIL_BYTES = 512
_JSON = ["Content-Type: application/json"]


def refuse(x: Exchange, status: str) -> None:
    x.peer.answer(status, _JSON, json.dumps({"error": {"code": int(status[:3]), "message": "says the sink"}}).encode())


def told(found: Stored) -> dict[str, Any]:
    _, bucket, name = found.key.split("/", 2)
    more = {"crc32c": found.crc} if found.crc else {}
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "generation": f"{found.generation}",
        "metageneration": "1",
        "size": f"{found.size_bytes}",
        "etag": f"{found.generation}",
        "contentType": "application/octet-stream",
        "updated": "2026-11-22T00:00:00.000Z",
        "timeCreated": "2026-11-22T00:00:00.000Z",
        **more,
        **({"metadata": found.custom} if found.custom else {}),
    }


def tell(x: Exchange, value: object) -> None:
    x.peer.answer("200 OK", _JSON, json.dumps(value).encode())


def serve(x: Exchange) -> None:
    """Take the request's body, and answer it."""
    asked, way = x.request.parameters, x.request.parameters.get("uploadType")
    bucket, _, name = x.request.path.partition("/b/")[2].partition("/")
    if x.request.path.startswith("/upload/"):
        if way == "multipart":
            return make_of_parts(x, bucket)
        body = Body(x.request.size_bytes, x.peer.take(x.request.size_bytes))
        if "upload_id" in asked:
            return go_on(x, bucket, body)
        return begin_session(x, bucket, body) if way == "resumable" else make(x, bucket, {}, body)
    data = x.peer.take(x.request.size_bytes)
    if not name:
        return tell(x, {"kind": "storage#bucket", "location": "US"})
    if name == "o":
        return tell(x, {"kind": "storage#objects", "items": listed(x, f"/{bucket}/{asked.get('prefix', '')}")})
    if x.request.method == "POST" and name.endswith("/compose"):
        return compose(x, bucket, unquote(name[2:].removesuffix("/compose")), json.loads(data or b"{}"))
    return of_object(x, f"/{bucket}/{unquote(name[2:])}")


def listed(x: Exchange, start: str) -> list[dict[str, Any]]:
    with x.objects.lock:
        return [told(found) for key, found in sorted(x.objects.all.items()) if key.startswith(start)]


def of_object(x: Exchange, key: str) -> None:
    """Delete, fetch or describe."""
    if x.request.method == "DELETE":
        with x.objects.lock:
            gone = x.objects.all.pop(key, None)
        return refuse(x, "404 Not Found") if gone is None else x.peer.say("204 No Content", [])
    if (found := x.objects.find(key)) is None:
        return refuse(x, "404 Not Found")
    return describe(x, found, with_body=True) if x.request.parameters.get("alt") == "media" else tell(x, told(found))


def is_taken(x: Exchange, key: str) -> bool:
    return x.request.parameters.get("ifGenerationMatch") == "0" and key in x.objects.all


def make(x: Exchange, bucket: str, description: dict[str, Any], body: Body) -> None:
    """An object as its description says."""
    name, body = description.get("name") or x.request.parameters.get("name"), replace(body, crc=description.get("crc32c"))
    if name is None or body.is_damaged:
        return refuse(x, "400 Bad Request")
    with x.objects.lock:
        if is_taken(x, f"/{bucket}/{name}"):
            return refuse(x, "412 Precondition Failed")
        made = x.objects.put(f"/{bucket}/{name}")
        made.size_bytes, made.body, made.custom = body.size_bytes, body.data, description.get("metadata")
        made.crc = body.crc or (encode(crc32c(body.data)) if body.data is not None else None)
    return tell(x, told(replace(made, custom=None)))


def make_of_parts(x: Exchange, bucket: str) -> None:
    """multipart/related: a description, then the body (RFC 2387)."""
    size = x.request.size_bytes
    boundary = re.search("boundary=[\"']?([^\"'; ]+)", x.request.headers.get("content-type", ""))
    begun = x.peer.read(min(size, SMALL_BYTES))
    mark = re.escape(b"--" + boundary[1].encode()) if boundary else b"(?!)"
    heads = re.match(rb"\s*%b.*?(\{.*?\})\s*?(\r?\n)%b.*?\r?\n\r?\n" % (mark, mark), begun, re.DOTALL)
    if heads is None:
        x.peer.drop(size - len(begun))
        return refuse(x, "400 Bad Request")
    n_tail = min(size - len(begun), _TAIL_BYTES)
    x.peer.drop(size - len(begun) - n_tail)
    end = re.search(rb"\r?\n%b--\s*$" % mark, (begun + x.peer.read(n_tail))[-_TAIL_BYTES:])
    if end is None:
        return refuse(x, "400 Bad Request")
    n_media = size - heads.end() - len(end[0])
    data = begun[heads.end() : heads.end() + n_media] if size <= SMALL_BYTES else None
    return make(x, bucket, json.loads(heads[1]), Body(n_media, data))


def begin_session(x: Exchange, bucket: str, body: Body) -> None:
    session = x.objects.new_id()
    x.objects.put(f"?{session}").custom = {"name": x.request.parameters.get("name"), **json.loads(body.data or b"{}")}
    host = x.request.headers.get("host", "localhost")
    where = f"http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session}"
    x.peer.answer("200 OK", [f"Location: {where}"])


def go_on(x: Exchange, bucket: str, body: Body) -> None:
    """One piece of a session."""
    total = x.request.headers.get("content-range", "").rpartition("/")[2]
    key = f"?{x.request.parameters['upload_id']}"
    with x.objects.lock:
        if (session := x.objects.all.get(key)) is None:
            return refuse(x, "404 Not Found")
        start, size = session.size_bytes, session.size_bytes + body.size_bytes
        session.size_bytes = size
        is_last = not total or (total != "*" and size >= int(total))
        if is_last:
            del x.objects.all[key]
    if is_last:
        assert isinstance(session.custom, dict)
        return make(x, bucket, session.custom, Body(size, None if start else body.data))
    return x.peer.answer("308 Resume Incomplete", [f"Range: bytes=0-{size - 1}"] if size else [])


def compose(x: Exchange, bucket: str, name: str, asked: dict[str, Any]) -> None:
    with x.objects.lock:
        found = [x.objects.find(f"/{bucket}/{one['name']}") for one in asked.get("sourceObjects", [])]
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) < len(found):
            return refuse(x, "404 Not Found")
        if is_taken(x, f"/{bucket}/{name}"):
            return refuse(x, "412 Precondition Failed")
        crc: int | None = 0
        for piece in pieces:
            crc = combine_crc32c(crc, decode(piece.crc), piece.size_bytes) if crc is not None and piece.crc else None
        made = x.objects.put(f"/{bucket}/{name}")
        made.size_bytes, made.crc = sum(piece.size_bytes for piece in pieces), encode(crc) if crc is not None else None
        made.custom = asked.get("destination", {}).get("metadata")
    return tell(x, told(replace(made, custom=None)))
