"""What an S3 store does with bad certificates, proxies, servers and answers, by our own requests and by botocore's."""

from __future__ import annotations

import gzip
import hashlib
import os
import resource
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from servers import tls
from servers.real import S3Server
from servers.wire import Peer, Talk, Wire, answering, say, secured, wire
from wherry.backends.s3.body import Source
from wherry.backends.s3.probe import AMAZON
from wherry.backends.s3.signing import UNSIGNED
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import (
    AccessDeniedError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
)
from wherry.uri import StoreURI

MIB = 2**20
DATA = b"0123456789"
KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "region": "eu-central-1"}
DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
ABSENT = b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>"
Open = Callable[..., S3Store]
#: Addresses of proxies; the libraries would show them.
UNREADABLE = [
    *("http://me:S3CRET#@host:1", "http://me:S3CRET/@host:1", "http://me:S3CRET?@host:1", "http://me:1/S3CRET@host:1"),
    *("http://me:S3CRET@host:65536", "http://me:S3CRET@host:port", "http://me:S3CRET@[::1", "socks5://me:S3CRET@host:1"),
]


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a store at a port of this machine, one way or the other."""
    stores: list[S3Store] = []

    def opened(port: int, scheme: str = "http", host: str = "127.0.0.1", **options: object) -> S3Store:
        given = {"endpoint_url": f"{scheme}://{host}:{port}", **KEYS, "read_timeout_s": 30, "sdk_only": request.param, **options}
        stores.append(S3Store(StoreURI("s3", "bucket"), given))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(4 * MIB))
    return path


def direct_store(server: Wire, keys: Mapping[str, object] = KEYS) -> S3Store:
    url = f"http://127.0.0.1:{server.port}"
    return S3Store(StoreURI("s3", "bucket"), {"endpoint_url": url, "region": "eu-central-1", **keys})


def answered(status: str, body: bytes = b"", *headers: str) -> Talk:
    """Takes requests with DATA, or without a body, and answers them; the body is for GET."""

    def talk(peer: Peer) -> None:
        while head := peer.head():
            peer.body(len(DATA) if head.startswith(b"PUT") else 0)
            if head.startswith(b"HEAD"):
                peer.say("\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode())
            else:
                peer.answer(body if head.startswith(b"GET") else b"", status, *headers)

    return talk


class TestCertificates:
    """The error is final, and says what to do."""

    def refused(self, open_store: Open, shown: tls.Certificates, trusted: Path, file: Path, host: str = "127.0.0.1") -> str:
        with wire(secured(shown, Peer.wait_for_end)) as server:
            store = open_store(server.port, "https", host, verify=str(trusted))
            with pytest.raises(PermanentError, match="certificate is not trusted") as caught:
                store.put_file("key", file)
        return str(caught.value)

    def test_an_expired_one(self, open_store: Open, file: Path, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path, is_expired=True)
        assert "needs a new certificate; else set the clock" in self.refused(open_store, shown, shown.authority, file)

    def test_a_self_signed_one(self, open_store: Open, file: Path, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path, is_self_signed=True)
        assert "'verify'" in self.refused(open_store, shown, shown.authority, file)

    def test_one_of_another_authority(self, open_store: Open, file: Path, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path)
        (tmp_path / "other").mkdir()
        trusted = tls.make_certificates(tmp_path / "other")
        assert "'verify'" in self.refused(open_store, shown, trusted.authority, file)

    def test_one_for_another_host(self, open_store: Open, file: Path, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path)
        assert "correct the endpoint" in self.refused(open_store, shown, shown.authority, file, "127.1")

    def test_tls_where_plain_http_is_spoken(self, open_store: Open, file: Path, tmp_path: Path) -> None:
        trusted = tls.make_certificates(tmp_path)
        with wire(lambda peer: peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server, pytest.raises(TransientError):
            open_store(server.port, "https", verify=str(trusted.authority)).put_file("key", file)


class TestProxies:
    def test_one_that_wants_a_password_says_where_to_give_it(
        self, open_store: Open, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trusted = tls.make_certificates(tmp_path)
        with wire(say(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")) as server:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{server.port}")
            with pytest.raises(AccessDeniedError, match="407") as caught:
                open_store(9, "https", verify=str(trusted.authority)).put_file("key", file)
        assert "HTTPS_PROXY" in caught.value.hint
        assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"

    def test_one_for_plain_http_says_so_too(self, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        with wire(answering(b"", "407 Proxy Authentication Required")) as server:
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
            with pytest.raises(AccessDeniedError, match="HTTP_PROXY"):
                open_store(9).delete("key")

    @pytest.mark.parametrize("address", UNREADABLE)
    def test_one_whose_address_cannot_be_read_is_not_shown(
        self, open_store: Open, file: Path, monkeypatch: pytest.MonkeyPatch, address: str
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", address)
        with pytest.raises(ConfigError, match="proxy") as caught:
            open_store(9).put_file("key", file)
        assert "S3CRET" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"

    def test_one_that_takes_the_password_is_gone_through(
        self, open_store: Open, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificates = tls.make_certificates(tmp_path)

        def talk(peer: Peer) -> None:
            assert b"Proxy-Authorization: Basic bWU6czNjcmV0" in peer.head()
            peer.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            secured(certificates, answered("200 OK", b"", 'ETag: "e"'))(peer)

        with wire(talk) as server:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{server.port}")
            with open_store(9, "https", verify=str(certificates.authority)) as store:
                assert "e" == store.put_file("key", file).etag

    def test_no_proxy_holds_for_ipv6_too(self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        certificates = tls.make_certificates(tmp_path)
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "[::1],::1")
        with wire(secured(certificates, answered("200 OK", b"", 'ETag: "e"')), host="::1") as server:
            options = {"endpoint_url": f"https://[::1]:{server.port}", "verify": str(certificates.authority), **KEYS}
            with S3Store(StoreURI("s3", "bucket"), options) as store:
                assert "e" == store.put_file("key", file).etag


class TestServers:
    def test_one_at_an_ipv6_address(self, open_store: Open, file: Path) -> None:
        with wire(answered("200 OK", b"", 'ETag: "e"'), host="::1") as server, open_store(server.port, host="[::1]") as store:
            assert "e" == store.put_file("key", file).etag
        assert f"[::1]:{server.port}".encode() in server.peers[0].seen

    def test_one_that_speaks_http_1_0(self, open_store: Open, file: Path) -> None:
        def talk(peer: Peer) -> None:
            is_put = peer.head().startswith(b"PUT")
            peer.body(len(DATA) if is_put else 0)
            body = b"" if is_put else DATA
            peer.say(b'HTTP/1.0 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body))

        with wire(talk, talk) as server, open_store(server.port) as store:
            store.put_file("key", file)
            assert crc32c(DATA) == store.get_file("key", file)

    @pytest.mark.parametrize("page", [b"", b"<html>log in</html>", b"<Other/>"])
    def test_a_login_page_is_no_listing_of_nothing(self, open_store: Open, page: bytes) -> None:
        calls: list[Callable[[S3Store], object]] = [
            lambda store: list(store.list()),
            lambda store: list(store.list_uploads()),
            lambda store: store.list_parts("key", "id"),
        ]
        for call in calls:
            with wire(answering(page)) as server, pytest.raises(TransientError, match=r"no listing.*log in"):
                call(open_store(server.port))

    def test_one_that_gives_a_choice_is_an_error_of_ours(self, open_store: Open) -> None:
        calls: list[Callable[[S3Store], object]] = [
            lambda store: store.delete("key"),
            lambda store: store.begin("key", 5),
        ]
        for call in calls:
            talk = answering(b"choose", "300 Multiple Choices")
            with wire(talk) as server, pytest.raises(StoreError, match=r"300|cannot be read"):
                call(open_store(server.port))

    def test_one_that_has_a_hundred_headers_to_say(self, open_store: Open) -> None:
        headers = [f"x-amz-meta-{n}: v" for n in range(97)]
        with wire(answered("200 OK", b"", 'ETag: "e"', *headers)) as server, open_store(server.port) as store:
            assert 97 == len(store.head("key").metadata)

    def test_one_whose_header_has_a_mebibyte(self, open_store: Open) -> None:
        with (
            wire(answered("200 OK", b"", f"A: {'a' * MIB}")) as server,
            open_store(server.port) as store,
            pytest.raises(TransientError),
        ):
            store.head("key")

    @pytest.mark.parametrize(
        ("status", "body", "error"),
        [
            ("403 Forbidden", DENIED, AccessDeniedError),
            ("413 Content Too Large", b"<html>too large</html>", PermanentError),
            ("413 Content Too Large", b"<Error><Code>EntityTooLarge</Code></Error>", PermanentError),
        ],
    )
    def test_a_refusal_before_a_large_body_is_sent_saves_sending_it(
        self, open_store: Open, large: Path, status: str, body: bytes, error: type[StoreError]
    ) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(body, status, "Connection: close")
            peer.wait_for_end()

        with (
            wire(talk) as server,
            open_store(server.port) as store,
            pytest.raises(error, match=r"AccessDenied|EntityTooLarge|413"),
        ):
            store.put_file("key", large)
        assert server.peers[0].seen.endswith(b"\r\n\r\n")


class TestAnswers:
    # botocore leaves the socket of such an answer to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("length", ["-10", "ten", "1e1", "10, 10", ""])
    def test_a_length_that_is_none_is_refused(self, open_store: Open, file: Path, length: str) -> None:
        said = f'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: {length}\r\n\r\n'.encode()

        def describe(peer: Peer) -> None:
            while peer.head():
                peer.say(said)

        with wire(say(said + bytes(20)), describe) as server, open_store(server.port) as store:
            with pytest.raises(StoreError):
                store.get_file("key", file)
            with pytest.raises(StoreError):
                store.head("key")
        assert DATA == file.read_bytes()

    def test_a_length_that_is_too_large_is_noticed(self, open_store: Open, file: Path) -> None:
        said = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 11\r\n\r\n' + DATA
        with wire(say(said)) as server, open_store(server.port) as store, pytest.raises(TransientError):
            store.get_file("key", file)

    def test_what_comes_after_an_answer_is_not_the_next_one(self, file: Path) -> None:
        """A length that is too small: the rest is on the connection, and could look like an answer."""
        poison = b'HTTP/1.1 200 OK\r\nETag: "poison"\r\nContent-Length: 0\r\n\r\n'

        def first(peer: Peer) -> None:
            peer.head()
            peer.say(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n' + DATA + poison)
            peer.wait_for_end()

        with wire(first, answered("200 OK", b"", 'ETag: "right"')) as server, direct_store(server) as store:
            assert crc32c(DATA) == store.get_file("key", file)
            assert "right" == store.head("key").etag

    def test_a_part_of_another_size_than_it_says_is_noticed(self, open_store: Open, file: Path) -> None:
        part = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 5\r\n\r\n01234"
        with wire(say(part)) as server, open_store(server.port) as store, pytest.raises(TransientError, match="5 bytes early"):
            store.get_file("key", file, start=0, end=10)

    def test_chunked_answers_are_read(self, open_store: Open, file: Path) -> None:
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (ABSENT[:9], ABSENT[9:], b""))
        said = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks
        with wire(say(said)) as server, open_store(server.port) as store, pytest.raises(NotFoundError, match="NoSuchKey"):
            store.get_file("key", file)

    def test_a_head_without_a_size_is_made_up_for_by_a_get(self, open_store: Open) -> None:
        def talk(peer: Peer) -> None:
            assert peer.head().startswith(b"HEAD")
            peer.say(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n')
            assert peer.head().startswith(b"GET")
            peer.say(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n' + DATA)
            peer.wait_for_end()

        with wire(talk) as server, open_store(server.port) as store:
            assert 10 == store.head("key").size_bytes

    @pytest.mark.parametrize(
        ("lines", "body"),
        [
            (("206 Partial Content", "Content-Range: bytes 0-9/17"), DATA),
            (("200 OK",), b"EVIL" + DATA),
            (("200 OK",), gzip.compress(DATA)),
            (("206 Partial Content", "Content-Range: bytes 0-9/10", "Content-Encoding: gzip"), gzip.compress(DATA)[:10]),
        ],
        ids=["head too small", "longer, Range ignored", "compressed, Range ignored", "compressed, of the same length"],
    )
    def test_an_answer_that_is_not_of_the_object_that_was_described_is_refused(
        self, open_store: Open, file: Path, lines: tuple[str, ...], body: bytes
    ) -> None:
        """Objects of other programs may have no checksum that would show it."""

        def talk(peer: Peer) -> None:
            while head := peer.head():
                if head.startswith(b"HEAD"):
                    peer.say(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n')
                else:
                    peer.answer(body, lines[0], 'ETag: "e"', *lines[1:])

        with wire(talk) as server, open_store(server.port) as store:
            assert 10 == store.head("key").size_bytes
            with pytest.raises(IntegrityError, match=r"said 10 before|Content-Encoding 'gzip'"):
                store.get_file("key", file, start=0, end=10, if_match="e")
        assert DATA == file.read_bytes()

    def test_an_object_that_was_stored_compressed_comes_as_it_was_stored(
        self, seaweedfs_server: S3Server, open_store: Open, tmp_path: Path
    ) -> None:
        stored, back, key = gzip.compress(DATA * 1000), tmp_path / "back", f"coded/{uuid.uuid4().hex}"
        options = {**seaweedfs_server.options, "sdk_only": open_store(9)._options.sdk_only}
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
            store._client.put_object(Bucket=seaweedfs_server.bucket, Key=key, Body=stored, ContentEncoding="gzip")
            back.touch()
            assert len(stored) == store.head(key).size_bytes
            assert crc32c(stored) == store.get_file(key, back)
            assert stored == back.read_bytes()
            assert crc32c(stored[5:9]) == store.get_file(key, back, start=5, end=9)

    def test_a_disk_that_takes_a_part_of_a_block_only_is_noticed(self, open_store: Open, tmp_path: Path) -> None:
        """The checksum is of what came, so it must not be returned unless all of that was written."""
        back, data = tmp_path / "back", os.urandom(3 * MIB)
        back.touch()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with wire(answered("200 OK", data)) as server, open_store(server.port) as store:
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 1000, before[1]))
                with pytest.raises(PermanentError, match="cannot be written"):
                    store.get_file("key", back)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert data[: MIB + 1000] == back.read_bytes()


class TestBodies:
    def test_each_denied_unsigned_one_is_tried_once_signed(self, file: Path) -> None:
        """A rule may be for one prefix: that the first helped nobody says nothing of the next."""

        def saying(*answers: tuple[Any, ...]) -> Talk:
            def talk(peer: Peer) -> None:
                for answer in answers:
                    peer.head()
                    peer.body(len(DATA))
                    peer.answer(*answer)

            return talk

        denied = (DENIED, "403 Forbidden")
        with wire(saying(denied, denied), saying(denied, (b"", "200 OK", 'ETag: "e"'))) as server, direct_store(server) as store:
            store.assume(AMAZON.as_dict())
            with pytest.raises(AccessDeniedError):
                store.put_file("elsewhere", file)
            store.put_file("key", file)  # on a connection of its own: botocore was loaded meanwhile
        signed = hashlib.sha256(DATA).hexdigest().encode() + b"\r\n"
        assert [1, 1] == [peer.seen.count(signed) for peer in server.peers]

    def test_anonymous_ones_are_never_summed_for_a_signature(self, file: Path) -> None:
        options = {"endpoint_url": "http://127.0.0.1:9", "anonymous": True}
        with S3Store(StoreURI("s3", "bucket"), options) as store:
            direct = store._objects._direct(store._connected())
            assert direct is not None
            assert UNSIGNED == direct._payload_of(Source(-1, 0, 10))


def test_a_file_that_cannot_be_read_is_not_sent_again(open_store: Open, large: Path) -> None:
    def talk(peer: Peer) -> None:
        peer.head()
        peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.wait_for_end()

    with wire(talk) as server, open(large, "ab") as to_write:
        store = open_store(server.port)
        store.assume(AMAZON.as_dict())
        with pytest.raises(PermanentError, match="the file to send cannot be read"), store._errors.translated("put", "key"):
            store._objects.ask("put_object", "key", Source(to_write.fileno(), 0, 4 * MIB), {})
        for size_bytes in (10, 4 * MIB):  # it is summed before it is sent
            store._sign_payloads(True)
            with pytest.raises(PermanentError, match="the file to send cannot be read"), store._errors.translated("put", "key"):
                store._objects.ask("put_object", "key", Source(to_write.fileno(), 0, size_bytes), {})


class TestPlugins:
    """What a plugin of botocore's adds to requests of one kind is sent with these."""

    @pytest.mark.parametrize(
        ("operation", "added"),
        [
            ("GetObject", {"RequestPayer": "requester"}),
            ("HeadObject", {"RequestPayer": "requester"}),
            ("PutObject", {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:key"}),
            ("GetObject", {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}),
            ("DeleteObject", {"MFA": "serial 123456"}),
        ],
    )
    @pytest.mark.parametrize("keys", [KEYS, {"anonymous": True}], ids=["signed", "anonymous"])
    def test_parameters(self, file: Path, operation: str, added: dict[str, str], keys: dict[str, object]) -> None:
        def add(params: dict[str, Any], **_: object) -> None:
            params |= added

        calls: dict[str, Callable[[S3Store], object]] = {
            "GetObject": lambda store: store.get_file("key", file),
            "HeadObject": lambda store: store.head("key"),
            "PutObject": lambda store: store.put_file("key", file),
            "DeleteObject": lambda store: store.delete("key"),
        }
        # After a sample of PutObject that looks strange botocore makes all requests, on one connection.
        talks = [answered("200 OK", DATA, 'ETag: "e"')] * (1 if operation == "PutObject" else 2)
        text = next(iter(added.values())).encode()
        with wire(*talks) as server, direct_store(server, keys) as store:
            store._client.meta.events.register(f"provide-client-params.s3.{operation}", add)
            for name, call in sorted(calls.items(), key=lambda one: one[0] == operation):
                call(store)
                assert (name == operation) == any(text in peer.seen for peer in server.peers)
