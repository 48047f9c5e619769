"""The benchmarks' server in Python answers as that in C does, request by request, plain and over TLS."""

from __future__ import annotations

import base64
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from servers.tls import make_certificates
from untested import UNTESTED
from wherry.checksum import crc32c

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from sink_program import HERE, language_of_sink, sink_program

SMALL, LARGE = b"0123456789", bytes(200_000)
MIB = 2**20
#: Headers that mean something to a client of the sink.
TELLING = ("content-length", "content-range", "etag", "location", "range", "x-amz-checksum-crc32c", "x-goog-hash", "x-amz-meta-a")

Ask = Callable[..., tuple[int, dict[str, str], bytes]]


def sum_of(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[tuple[Ask, Ask]]:
    """Ways to ask it: plain, and over TLS."""
    files = make_certificates(folder)
    context = ssl.create_default_context(cafile=str(files.authority))
    arguments = [*command, "0", str(files.chain), str(files.key)]
    with subprocess.Popen(arguments, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        plain, secure = (int(port) for port in process.stdout.readline().split())
        connections = HTTPConnection("127.0.0.1", plain), HTTPSConnection("127.0.0.1", secure, context=context)
        try:
            yield asking(connections[0]), asking(connections[1])
        finally:
            for connection in connections:
                connection.close()
            process.stdin.close()


def asking(connection: HTTPConnection) -> Ask:
    def ask(method: str, target: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body, names, encode_chunked="Transfer-Encoding" in names)  # type: ignore[arg-type]
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders() if name.lower() in TELLING}
        return answer.status, told, answer.read()

    return ask


def talk_of_s3(ask: Ask) -> Iterator[object]:
    """What a client may ask of S3, and the answers."""
    yield ask("PUT", "/b/small", SMALL, x_amz_checksum_crc32c=sum_of(SMALL), x_amz_meta_a="v")
    yield ask("PUT", "/b/small", SMALL, x_amz_checksum_crc32c=sum_of(b"other"))
    yield ask("PUT", "/b/small", SMALL, If_None_Match="*")
    yield ask("PUT", "/b/large%20one", LARGE, x_amz_checksum_crc32c=sum_of(SMALL))  # an echo
    yield ask("PUT", "/b/chunks", iter([SMALL, SMALL]), Transfer_Encoding="chunked")
    yield ask("PUT", "/b/many", iter([LARGE, SMALL]), Transfer_Encoding="chunked")
    framed = b"a\r\n%b\r\n0\r\nx-amz-checksum-crc32c:%b\r\n\r\n" % (SMALL, sum_of(SMALL).encode())
    yield ask("PUT", "/b/framed", framed, x_amz_decoded_content_length="10")
    yield ask("PUT", "/b/framed", framed, x_amz_decoded_content_length="11")
    for name in ("small", "large%20one", "chunks", "many", "framed", "missing"):
        yield ask("HEAD", f"/b/{name}")
    yield ask("HEAD", "/b/pattern/20000000")[1]["content-length"]
    for name in ("small", "chunks", "framed", "missing"):
        yield ask("GET", f"/b/{name}")
    yield ask("GET", "/b/small", Range="bytes=2-4")
    yield ask("GET", "/b/small", Range="bytes=4-")
    yield ask("GET", "/b/small", Range="bytes=10-")
    status, headers, body = ask("GET", "/b/pattern/20000000", Range="bytes=8000000-18000000")
    yield status, headers["content-range"], len(body)
    yield ask("GET", "/b?list-type=2")
    yield ask("PUT", "/b/copy", x_amz_copy_source="/b/small")
    yield ask("POST", "/b?delete", b"<Delete/>")
    yield ask("DELETE", "/b/small"), ask("GET", "/b/small")


def talk_of_parts(ask: Ask) -> Iterator[object]:
    for parts, said in (((SMALL,), SMALL), ((SMALL,), b"other"), ((LARGE, LARGE), LARGE)):
        begun = ask("POST", "/b/whole?uploads", x_amz_checksum_type="FULL_OBJECT")
        upload = re.search(rb"<UploadId>(\d+)<", begun[2])
        assert upload is not None
        query = f"/b/whole?uploadId={int(upload[1])}"
        yield begun[0]
        for number, part in enumerate(parts, 1):
            yield ask("PUT", f"{query}&partNumber={number}", part, x_amz_checksum_crc32c=sum_of(part))
        yield ask("POST", query, b"<Complete/>", x_amz_checksum_crc32c=sum_of(said), If_None_Match="*")
        yield ask("POST", query, b"<Complete/>", x_amz_checksum_crc32c=sum_of(said))
        yield ask("HEAD", "/b/whole")
        yield ask("DELETE", query), ask("PUT", f"{query}&partNumber=1", SMALL)


def talk_of_gcs(ask: Ask) -> Iterator[object]:
    at, up = "/storage/v1/b/b/o", "/upload/storage/v1/b/b/o"
    for name, data in (("small", SMALL), ("large", LARGE)):
        description = json.dumps({"name": name, "crc32c": sum_of(data), "metadata": {"a": "v"}}).encode()
        body = b"--mark\r\nContent-Type: application/json\r\n\r\n%b\r\n--mark\r\n\r\n%b\r\n--mark--" % (description, data)
        kind = 'multipart/related; boundary="mark"'
        yield ask("POST", f"{up}?uploadType=multipart&ifGenerationMatch=0", body, Content_Type=kind)
        yield ask("POST", f"{up}?uploadType=multipart&ifGenerationMatch=0", body, Content_Type=kind)
        yield ask("GET", f"{at}/{name}")
    begun = ask("POST", f"{up}?uploadType=resumable&name=streamed", b"{}")
    session = begun[1]["location"].partition("upload_id=")[2]
    yield begun[0]
    target = f"{up}?uploadType=resumable&upload_id={session}"
    yield ask("PUT", target, LARGE, Content_Range="bytes 0-199999/*")
    yield ask("PUT", target, b"", Content_Range="bytes */*")
    yield ask("PUT", target, SMALL, Content_Range="bytes 200000-200009/200010")
    yield ask("PUT", target, SMALL)
    yield ask("POST", f"{up}?uploadType=media&name=media", SMALL)
    sources = json.dumps({"sourceObjects": [{"name": "small"}, {"name": "large"}], "destination": {"metadata": {"a": "w"}}})
    yield ask("POST", f"{at}/a%2Fjoined/compose", sources.encode())
    yield ask("POST", f"{at}/a%2Fjoined/compose?ifGenerationMatch=0", sources.encode())
    yield ask("POST", f"{at}/none/compose", b'{"sourceObjects": [{"name": "missing"}]}')
    yield ask("GET", f"{at}/small?alt=media"), ask("GET", f"{at}/small?alt=media", Range="bytes=1-2")
    items = json.loads(ask("GET", f"{at}?prefix=s")[2])["items"]
    yield sorted((item["name"], item["size"]) for item in items)
    yield ask("GET", "/storage/v1/b/b")
    yield ask("DELETE", f"{at}/small"), ask("DELETE", f"{at}/small"), ask("GET", f"{at}/small")


def known(value: object) -> object:
    """Without the numbers that a server gives, and with JSON as what it means."""
    if isinstance(value, bytes) and value.startswith(b"{"):
        value = json.loads(value)
    if isinstance(value, dict):
        return {name: known(each) for name, each in value.items() if name not in ("generation", "content-length")}
    if isinstance(value, (list, tuple)):
        return [known(each) for each in value]
    if isinstance(value, bytes):
        value = value.decode()
    return re.sub(r"sink\d+", "sink", value) if isinstance(value, str) else value


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("talk", [talk_of_s3, talk_of_parts, talk_of_gcs], ids=lambda talk: talk.__name__)
def test_both_sinks_say_the_same(
    tmp_path: Path,
    talk: Callable[[Ask], Iterator[object]],
    is_secure: bool,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    heard = []
    if language_of_sink(tls=True) == "C":
        with running(sink_program(tmp_path, tls=True), tmp_path) as ways:
            heard.append(known(list(talk(ways[is_secure]))))
            heard.append(known(ways[is_secure]("GET", "/_sink/bytes")[2]))
    else:
        record_property(UNTESTED, "the sink in C: no C compiler, or no OpenSSL headers")
    monkeypatch.setenv("PATH", "")
    assert language_of_sink() == "Python"
    with running(sink_program(tmp_path, tls=True), tmp_path) as ways:
        said = [known(list(talk(ways[is_secure]))), known(ways[is_secure]("GET", "/_sink/bytes")[2])]
        assert (heard or said) == said
        assert ways[is_secure]("POST", "/_sink/forget")[0] == 200
        assert ways[is_secure]("HEAD", "/b/whole")[0] == 404
