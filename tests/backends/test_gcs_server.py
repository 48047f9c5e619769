"""The strict server against fake-gcs-server, call by call, where both can do a thing; alone where fake-gcs-server is lax."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.real import Server
from support import environment_with_tests
from wherry.checksum import crc32c

CHUNK = 256 * 1024


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def fields(self, *names: str) -> tuple[object, ...]:
        return (self.status, *(self.json.get(name) for name in names))


@dataclass(frozen=True)
class Api:
    """Raw requests to one server, below a prefix of its own."""

    url: str
    bucket: str
    token: str | None = None
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)

    def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
        sent = {**({"Authorization": f"Bearer {self.token}"} if self.token else {}), **(headers or {})}
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        joined = f"{path}{'&' if '?' in path else '?'}{urlencode(query)}" if query else path
        try:
            connection.request(method, joined, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()

    def at(self, name: str) -> str:
        return f"/storage/v1/b/{self.bucket}/o/{quote(f'{self.prefix}/{name}', safe='')}"

    def media(self, name: str, data: bytes, **query: object) -> Answer:
        path = f"/upload/storage/v1/b/{self.bucket}/o"
        headers = {"Content-Type": "text/plain"}
        return self.call("POST", path, data, headers, uploadType="media", name=f"{self.prefix}/{name}", **query)

    def multipart(self, name: str, data: bytes, resource: Mapping[str, object], **query: object) -> Answer:
        text = json.dumps({"name": f"{self.prefix}/{name}", **resource})
        body = (
            f"--limit\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{text}\r\n"
            f"--limit\r\nContent-Type: {resource.get('contentType', 'c/d')}\r\n\r\n"
        ).encode()
        headers = {"Content-Type": "multipart/related; boundary=limit"}
        path = f"/upload/storage/v1/b/{self.bucket}/o"
        return self.call("POST", path, body + data + b"\r\n--limit--\r\n", headers, uploadType="multipart", **query)

    def begin(self, name: str, resource: Mapping[str, object] | None = None, **query: object) -> Answer:
        path, headers = f"/upload/storage/v1/b/{self.bucket}/o", {"Content-Type": "application/json"}
        body = json.dumps(resource or {}).encode()
        return self.call("POST", path, body, headers, uploadType="resumable", name=f"{self.prefix}/{name}", **query)

    def chunk(self, session: str, content_range: str, data: bytes = b"", **headers: str) -> Answer:
        where = urlsplit(session)
        return self.call("PUT", f"{where.path}?{where.query}", data, {"Content-Range": content_range, **headers})

    def compose(self, name: str, sources: list[dict[str, object]], **query: object) -> Answer:
        named = [{**source, "name": f"{self.prefix}/{source['name']}"} for source in sources]
        body = json.dumps({"sourceObjects": named, "destination": {"contentType": "text/plain"}}).encode()
        return self.call("POST", f"{self.at(name)}/compose", body, {"Content-Type": "application/json"}, **query)

    def names(self) -> list[str]:
        found = self.call("GET", f"/storage/v1/b/{self.bucket}/o", prefix=f"{self.prefix}/").json.get("items", [])
        return [item["name"].removeprefix(f"{self.prefix}/") for item in found]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture
def strict(server: GCSServer) -> Api:
    return Api(server.url, server.bucket, server.token)


def b64(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


# What both can do: each scenario gives the statuses and fields that must be equal.


def uploads(api: Api) -> list[object]:
    named = ("size", "crc32c", "md5Hash", "contentType", "metageneration")
    simple = api.media("simple", b"some bytes")
    whole = api.multipart("whole", b"\r\n--not the end\r\n", {"contentType": "a/b", "metadata": {"k": "vé"}})
    empty = api.multipart("empty", b"", {})
    read = api.call("GET", api.at("whole"))
    return [
        *(answer.fields(*named) for answer in (simple, whole, empty)),
        read.fields(*named, "metadata"),
        read.json["generation"] == whole.json["generation"],
        api.call("GET", api.at("whole"), alt="media").body,
    ]


def ranges(api: Api) -> list[object]:
    api.media("object", b"0123456789")

    def get(asked: str) -> list[object]:
        answer = api.call("GET", f"/download{api.at('object')}", headers={"Range": asked}, alt="media")
        return [answer.status, answer.headers.get("Content-Range"), answer.body if answer.status == 206 else b""]

    whole = api.call("GET", f"/download{api.at('object')}", alt="media")
    return [
        *map(get, ("bytes=2-4", "bytes=5-", "bytes=-3", "bytes=8-20", "bytes=0-0")),
        get("bytes=10-")[0],
        (whole.status, whole.body, set(whole.headers["X-Goog-Hash"].split(","))),
        whole.headers["X-Goog-Generation"] == api.call("GET", api.at("object")).json["generation"],
    ]


def missing(api: Api) -> list[object]:
    nowhere = Api(api.url, "no-such-bucket", api.token)
    return [
        api.call("GET", api.at("object")).status,
        api.call("GET", f"/download{api.at('object')}", alt="media").status,
        api.call("DELETE", api.at("object")).status,
        nowhere.call("GET", nowhere.at("object")).status,
        nowhere.call("GET", "/storage/v1/b/no-such-bucket").status,
        nowhere.call("GET", "/storage/v1/b/no-such-bucket/o").status,
        nowhere.media("object", b"data").status,
        api.call("GET", f"/storage/v1/b/{api.bucket}").fields("name"),
    ]


def conditional_uploads(api: Api) -> list[object]:  # multipart ones: fake-gcs-server ignores the condition on media uploads
    first = api.multipart("object", b"1", {}, ifGenerationMatch=0)
    refused = api.multipart("object", b"2", {}, ifGenerationMatch=0)
    second = api.multipart("object", b"3", {}, ifGenerationMatch=first.json["generation"])
    late = api.multipart("object", b"4", {}, ifGenerationMatch=first.json["generation"])
    return [
        *(answer.status for answer in (first, refused, second, late)),
        int(first.json["generation"]) < int(second.json["generation"]),
        api.call("GET", api.at("object"), alt="media").body,
    ]


def listings(api: Api) -> list[object]:
    names = ["a-b", "a/b", "a/c/d", "a0", "B", "z", "é", "\uff5e", "\U0001f600"]
    for name in reversed(names):
        api.media(name, name.encode())

    def pages(size: int, delimiter: str = "", below: str = "", start: str = "") -> list[object]:
        found: list[object] = []
        token = ""
        while True:
            query: dict[str, Any] = {"prefix": f"{api.prefix}/{below}", "delimiter": delimiter, "maxResults": size}
            if start:
                query["startOffset"] = f"{api.prefix}/{start}"
            if token:
                query["pageToken"] = token
            page = api.call("GET", f"/storage/v1/b/{api.bucket}/o", **query).json
            keys = [item["name"] for item in page.get("items", ())] + page.get("prefixes", [])
            found.append([key.removeprefix(f"{api.prefix}/") for key in keys])
            token = page.get("nextPageToken", "")
            if not token:
                return found

    every = [name for page in pages(4) if isinstance(page, list) for name in page]
    later = [pages(2, start=name) for name in ("a/b", "a1", "\uff5e", "z", "\U0001f600\U0001f600")]
    return [every, later, pages(1000, below="a"), pages(1000, "/"), pages(1000, "/", "a/"), pages(1000, below="nothing")]


def composing(api: Api) -> list[object]:
    for name in "abc":
        api.media(name, name.encode() * 3)
    done = api.compose("target", [{"name": name} for name in "cab"])
    again = api.compose("target", [{"name": "target"}, {"name": "a"}])
    return [
        done.fields("size", "crc32c", "contentType"),
        again.fields("size", "crc32c"),
        api.call("GET", api.at("target"), alt="media").body,
    ]


def patching(api: Api) -> list[object]:
    api.multipart("object", b"data", {"metadata": {"old": "1"}})
    changed = api.call(
        "PATCH", api.at("object"), json.dumps({"metadata": {"new": "2"}}).encode(), {"Content-Type": "application/json"}
    )
    return [changed.status, changed.json["metadata"].get("new"), changed.fields("size", "crc32c")]


def deleting(api: Api) -> list[object]:
    api.media("object", b"data")
    first = api.call("DELETE", api.at("object"))
    return [first.status in (200, 204), api.call("DELETE", api.at("object")).status, api.names()]


def resumable(api: Api) -> list[object]:
    data = b"x" * (2 * CHUNK) + b"the end"
    begun = api.begin("object", {"metadata": {"k": "v"}})
    session = begun.headers["Location"]
    first = api.chunk(session, f"bytes 0-{CHUNK - 1}/*", data[:CHUNK])
    second = api.chunk(session, f"bytes {CHUNK}-{2 * CHUNK - 1}/{len(data)}", data[CHUNK : 2 * CHUNK])
    last = api.chunk(session, f"bytes {2 * CHUNK}-{len(data) - 1}/{len(data)}", data[2 * CHUNK :])
    return [
        *(answer.status for answer in (begun, first, second)),
        last.fields("size", "metadata"),
        last.json["crc32c"] == b64(crc32c(data)),
        api.call("GET", api.at("object"), alt="media").body == data,
    ]


def buckets(api: Api) -> list[object]:
    name = f"bucket-{api.prefix}"
    body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
    made = [api.call("POST", "/storage/v1/b", body, headers, project="test") for _ in range(2)]
    return [made[0].fields("name") == (200, name), made[1].status]


SCENARIOS = (
    uploads,
    ranges,
    missing,
    conditional_uploads,
    listings,
    composing,
    patching,
    deleting,
    resumable,
    buckets,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_both_servers_answer_alike(scenario: Callable[[Api], list[object]], strict: Api, fake_gcs_server: Server) -> None:
    assert scenario(Api(fake_gcs_server.url, fake_gcs_server.bucket)) == scenario(strict)


# What only the strict server does.


def test_token_is_needed(server: GCSServer, strict: Api) -> None:
    strict.media("object", b"data")
    calls: list[Callable[[Api], Answer]] = [
        lambda api: api.call("GET", f"/storage/v1/b/{api.bucket}"),
        lambda api: api.call("GET", f"/storage/v1/b/{api.bucket}/o"),
        lambda api: api.call("GET", api.at("object")),
        lambda api: api.call("GET", f"/download{api.at('object')}", alt="media"),
        lambda api: api.call("DELETE", api.at("object")),
        lambda api: api.call("PATCH", api.at("object"), b"{}"),
        lambda api: api.compose("target", [{"name": "object"}]),
        lambda api: api.media("other", b"data"),
        lambda api: api.multipart("other", b"data", {}),
        lambda api: api.begin("other"),
    ]
    for token, status in ((None, 401), ("wrong", 401), (server.forbidden_token, 403)):
        api = Api(server.url, server.bucket, token, strict.prefix)
        assert [status] * len(calls) == [call(api).status for call in calls]
    assert strict.names() == ["object"]


def test_errors_have_googles_shape(strict: Api) -> None:
    answer = strict.call("GET", strict.at("object"))
    error = answer.json["error"]
    assert (404, f"No such object: {strict.bucket}/{strict.prefix}/object") == (error["code"], error["message"])
    assert error["errors"] == [{"message": error["message"], "domain": "global", "reason": "notFound"}]
    nowhere = Api(strict.url, "no-such-bucket", strict.token)
    assert nowhere.media("object", b"").json["error"]["message"] == "The specified bucket does not exist."


def test_resumable_status_and_resume(strict: Api) -> None:
    data = bytes(range(256)) * (3 * CHUNK // 256) + b"the end"
    session = strict.begin("object").headers["Location"]
    asked = strict.chunk(session, f"bytes */{len(data)}")
    assert (308, None) == (asked.status, asked.headers.get("Range"))
    first = strict.chunk(session, f"bytes 0-{CHUNK - 1}/{len(data)}", data[:CHUNK])
    assert (308, f"bytes=0-{CHUNK - 1}") == (first.status, first.headers.get("Range"))
    for unknown in ("*", str(len(data))):
        asked = strict.chunk(session, f"bytes */{unknown}")
        assert (308, f"bytes=0-{CHUNK - 1}") == (asked.status, asked.headers.get("Range"))
    gap = strict.chunk(session, f"bytes {2 * CHUNK}-{3 * CHUNK - 1}/*", data[:CHUNK])
    odd = strict.chunk(session, f"bytes {CHUNK}-{CHUNK + 9}/*", data[:10])
    wrong_length = strict.chunk(session, f"bytes {CHUNK}-{2 * CHUNK - 1}/*", data[:10])
    assert [400, 400, 400] == [gap.status, odd.status, wrong_length.status]
    again = strict.chunk(session, f"bytes 0-{2 * CHUNK - 1}/*", data[: 2 * CHUNK])  # overlaps what is persisted
    assert (308, f"bytes=0-{2 * CHUNK - 1}") == (again.status, again.headers.get("Range"))
    assert strict.names() == []
    last = strict.chunk(session, f"bytes {2 * CHUNK}-{len(data) - 1}/{len(data)}", data[2 * CHUNK :])
    assert (200, str(len(data)), b64(crc32c(data))) == last.fields("size", "crc32c")
    assert data == strict.call("GET", strict.at("object"), alt="media").body
    asked = strict.chunk(session, f"bytes */{len(data)}")
    assert (200, last.json["generation"]) == asked.fields("generation")


def test_cut_chunk_is_kept_up_to_a_multiple(server: GCSServer, strict: Api) -> None:
    session = urlsplit(strict.begin("object").headers["Location"])
    data = bytes(3 * CHUNK)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        head = f"PUT {session.path}?{session.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        raw.sendall(f"{head}Content-Range: bytes 0-{len(data) - 1}/{len(data)}\r\n\r\n".encode() + data[: CHUNK + 100])
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(1) == b""  # the server has seen the end
    asked = strict.chunk(session.geturl(), "bytes */*")
    assert (308, f"bytes=0-{CHUNK - 1}") == (asked.status, asked.headers.get("Range"))


def test_session_is_over_after_delete(strict: Api) -> None:
    session = strict.begin("object").headers["Location"]
    where = urlsplit(session)
    assert strict.call("DELETE", f"{where.path}?{where.query}").status == 499
    assert strict.chunk(session, "bytes */*").status == 410
    assert strict.chunk(session.replace("upload_id=", "upload_id=x"), "bytes */*").status == 404
    assert strict.names() == []


def test_session_that_has_made_its_object_is_not_cancelled(strict: Api) -> None:
    session = strict.begin("object").headers["Location"]
    assert strict.chunk(session, "bytes 0-3/4", b"data").status == 200
    where = urlsplit(session)
    assert strict.call("DELETE", f"{where.path}?{where.query}").status == 404
    assert strict.chunk(session, "bytes */4").fields("size") == (200, "4")
    assert strict.call("GET", strict.at("object"), alt="media").body == b"data"


def test_size_of_a_session_is_said_once(strict: Api) -> None:
    session = strict.begin("object").headers["Location"]
    first = strict.chunk(session, f"bytes 0-{CHUNK - 1}/{2 * CHUNK}", bytes(CHUNK))
    other = strict.chunk(session, f"bytes {CHUNK}-{CHUNK + 9}/{CHUNK + 10}", bytes(10))
    less = strict.chunk(strict.begin("less").headers["Location"], f"bytes 0-{CHUNK - 1}/*", bytes(CHUNK))
    assert (308, 400, 308) == (first.status, other.status, less.status)
    assert strict.chunk(session, f"bytes */{CHUNK}").status == 400
    assert strict.chunk(session, f"bytes {CHUNK}-{2 * CHUNK - 1}/{2 * CHUNK}", bytes(CHUNK)).status == 200


def test_who_may_only_create_replaces_reads_lists_and_deletes_nothing(server: GCSServer, strict: Api) -> None:
    creator = Api(server.url, server.bucket, server.creator_token, strict.prefix)
    strict.media("part", b"data")
    session = creator.begin("new", ifGenerationMatch=0)
    allowed = [
        creator.media("first", b"data"),
        session,
        creator.chunk(session.headers["Location"], "bytes 0-3/4", b"data"),
    ]
    assert [200, 200, 200] == [answer.status for answer in allowed]
    refused = [
        creator.media("part", b"other"),
        creator.multipart("part", b"other", {}),
        creator.begin("part"),
        creator.compose("joined", [{"name": "part"}]),
        creator.call("GET", creator.at("part")),
        creator.call("GET", creator.at("part"), alt="media"),
        creator.call("GET", f"/storage/v1/b/{creator.bucket}/o"),
        creator.call("DELETE", creator.at("part")),
        creator.call("PATCH", creator.at("part"), b"{}"),
    ]
    assert [403] * len(refused) == [answer.status for answer in refused]
    assert creator.media("part", b"other", ifGenerationMatch=0).status == 412
    assert ["first", "new", "part"] == strict.names()


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("a.bucket.with.dots", 200),
        (f"{'x' * 63}.{'y' * 63}", 200),
        ("ab", 400),
        ("x" * 64, 400),
        ("two..dots", 400),
        (".dot", 400),
        ("UPPER", 400),
        ("-dash", 400),
    ],
)
def test_bucket_names_have_rules(strict: Api, name: str, status: int) -> None:
    body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
    assert status == strict.call("POST", "/storage/v1/b", body, headers, project="test").status


def test_resumable_keeps_preconditions_at_both_ends(strict: Api) -> None:
    session = strict.begin("object", ifGenerationMatch=0).headers["Location"]
    strict.media("object", b"first")
    assert strict.begin("object", ifGenerationMatch=0).status == 412
    assert strict.chunk(session, "bytes 0-5/6", b"second").status == 412
    assert strict.chunk(session, "bytes */6").status == 410
    assert strict.call("GET", strict.at("object"), alt="media").body == b"first"


def test_wrong_checksums_are_refused(strict: Api) -> None:
    wrong = b64(crc32c(b"data") ^ 1)
    refused = strict.multipart("object", b"data", {"crc32c": wrong})
    assert refused.status == 400
    assert f'Provided CRC32C "{wrong}" doesn\'t match calculated CRC32C' in refused.json["error"]["message"]
    assert strict.multipart("object", b"data", {"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}).status == 400
    for resource, header in (({"crc32c": wrong}, ""), ({}, f"crc32c={wrong}")):
        session = strict.begin("object", resource).headers["Location"]
        assert strict.chunk(session, "bytes 0-3/4", b"data", **{"X-Goog-Hash": header}).status == 400
    assert strict.names() == []
    assert strict.multipart("object", b"data", {"crc32c": b64(crc32c(b"data"))}).status == 200


def test_preconditions_hold_for_every_call(strict: Api) -> None:
    now = strict.media("object", b"data").json["generation"]
    other = str(int(now) + 1)

    def get(**query: Any) -> int:
        return strict.call("GET", strict.at("object"), **query).status

    for alt in ("json", "media"):
        assert [200, 412, 412] == [get(alt=alt, ifGenerationMatch=value) for value in (now, other, 0)]
        assert [304, 200] == [get(alt=alt, ifGenerationNotMatch=value) for value in (now, other)]
        assert [200, 412] == [get(alt=alt, ifMetagenerationMatch=value) for value in (1, 2)]
        assert [200, 404] == [get(alt=alt, generation=value) for value in (now, other)]
    unmet: tuple[dict[str, Any], ...] = ({"ifGenerationMatch": other}, {"ifGenerationMatch": 0}, {"ifMetagenerationMatch": 2})
    for query in unmet:
        assert strict.call("DELETE", strict.at("object"), **query).status == 412
        assert strict.call("PATCH", strict.at("object"), b"{}", **query).status == 412
        assert strict.media("object", b"x", **query).status == 412
        assert strict.multipart("object", b"x", {}, **query).status == 412
        assert strict.begin("object", **query).status == 412
        assert strict.compose("object", [{"name": "object"}], **query).status == 412
    assert strict.media("absent", b"x", ifGenerationMatch=other).status == 412
    assert get(ifGenerationMatch="x") == 400
    assert strict.call("PATCH", strict.at("object"), b'{"metadata": {"k": "v"}}').json["metageneration"] == "2"
    assert strict.call("GET", strict.at("object"), alt="media").body == b"data"
    assert strict.call("DELETE", strict.at("object"), ifGenerationMatch=now).status == 204


def test_compose_has_its_limits(strict: Api) -> None:
    generations = [strict.media(f"part{n}", bytes([65 + n])).json["generation"] for n in range(3)]
    assert strict.compose("target", [{"name": "no source"}]).status == 404
    assert strict.compose("target", []).status == 400
    assert strict.compose("target", [{"name": "part0"}] * 33).status == 400
    made = strict.compose("target", [{"name": "part0"}] * 32)
    assert (200, "32", 32, None) == made.fields("size", "componentCount", "md5Hash")
    for pin, status in ((generations[1], 200), (generations[0], 404)):
        assert status == strict.compose("pinned", [{"name": "part1", "generation": pin}]).status
    for pin, status in ((generations[1], 200), (generations[0], 412)):
        condition = {"objectPreconditions": {"ifGenerationMatch": pin}}
        assert status == strict.compose("conditional", [{"name": "part1", **condition}]).status
    assert strict.compose("target", [{"name": "part0"}], ifGenerationMatch=0).status == 412
    assert strict.call("POST", f"{strict.at('target')}/compose", b'{"sourceObjects": [1]}').status == 400


def test_of_eight_writers_one_wins(strict: Api) -> None:
    start = threading.Barrier(8)

    def put(n: int) -> int:
        start.wait(60)
        return strict.media(f"race{n // 8}", bytes([n]), ifGenerationMatch=0).status

    with ThreadPoolExecutor(8) as pool:
        for round_ in range(10):
            statuses = list(pool.map(put, range(8 * round_, 8 * round_ + 8)))
            assert [200, *[412] * 7] == sorted(statuses)


def test_cut_upload_leaves_nothing(server: GCSServer, strict: Api) -> None:
    query = urlencode({"uploadType": "media", "name": f"{strict.prefix}/object"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        head = f"POST /upload/storage/v1/b/{server.bucket}/o?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        raw.sendall(f"{head}Authorization: Bearer {server.token}\r\n\r\n".encode() + b"half of it")
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(1) == b""
    assert strict.names() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--limit\r\n",
        b"no boundary\r\n",
        b"--limit\r\n\r\n{}\r\n--limit\r\n\r\nno end",
        b"--limit\r\n\r\n[\r\n--limit\r\n\r\n",
    ],
)
def test_broken_multipart_bodies_are_refused(strict: Api, body: bytes) -> None:
    headers = {"Content-Type": "multipart/related; boundary=limit"}
    path, name = f"/upload/storage/v1/b/{strict.bucket}/o", f"{strict.prefix}/object"
    assert strict.call("POST", path, body, headers, uploadType="multipart", name=name).status == 400
    assert strict.names() == []


def test_bad_names_are_refused(strict: Api) -> None:
    for name in ("", ".", "..", "a\nb", "x" * 1025, ".well-known/acme-challenge/x"):
        path = f"/upload/storage/v1/b/{strict.bucket}/o"
        assert strict.call("POST", path, b"data", uploadType="media", name=name).status == 400


def test_objects_outlive_the_server(tmp_path: Path) -> None:
    with strict_gcs(tmp_path) as server:
        api = Api(server.url, server.bucket, server.token, "kept")
        api.media("replaced", b"old")
        stored = api.multipart("replaced", b"new", {"metadata": {"k": "v"}}).json
        api.begin("unfinished")
    (tmp_path / "strict-gcs" / "data" / "left by a kill").write_bytes(b"x")
    with strict_gcs(tmp_path) as server:
        api = Api(server.url, server.bucket, server.token, "kept")
        assert (200, stored["generation"], {"k": "v"}) == api.call("GET", api.at("replaced")).fields("generation", "metadata")
        assert api.call("GET", api.at("replaced"), alt="media").body == b"new"
        assert int(stored["generation"]) < int(api.media("replaced", b"newer").json["generation"])
        assert len(list((tmp_path / "strict-gcs" / "data").iterdir())) == 1
    assert server.token not in server.log.read_text()


def test_server_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from servers.gcs_server import strict_gcs\n"
        "with strict_gcs(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.port, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env=environment_with_tests(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        with socket.create_connection(("127.0.0.1", int(parent.stdout.readline())), timeout=60) as raw:
            os.kill(parent.pid, signal.SIGKILL)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(1) == b""  # open for as long as the server lives
