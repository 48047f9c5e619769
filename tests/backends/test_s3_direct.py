"""Requests past botocore: made as botocore would make them, only where that is certain, and with nothing that it would refuse."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from servers import tls
from servers.real import S3Server
from servers.wire import Peer, say, secured, wire
from wherry.backends.s3.direct_requests import Direct
from wherry.backends.s3.probe import AMAZON
from wherry.backends.s3.signing import NO_BODY, UNSIGNED, Signer
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, ConfigError, PermanentError, TransientError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

DATA = b"0123456789"
KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "region": "eu-central-1"}
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'
DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def store_of(port: int, scheme: str = "http", **options: object) -> S3Store:
    return S3Store(StoreURI("s3", "bucket"), {"endpoint_url": f"{scheme}://127.0.0.1:{port}", **KEYS, **options})


def direct_of(store: S3Store) -> Direct | None:
    return store._objects._direct(store._connected())


def header(peer: Peer, name: str, nth: int = -1) -> str | None:
    """What the nth request had to say of this."""
    head = peer.seen.split(b"\r\n\r\n")[nth] if nth >= 0 else bytes(peer.seen)
    found = [line.partition(": ")[2] for line in head.decode("latin-1").split("\r\n") if line.lower().startswith(f"{name}: ")]
    return found[-1] if found else None


class TestSigning:
    def test_it_signs_as_amazons_documentation_does(self) -> None:
        """The example "GET Object" of "Signature Calculations for the Authorization Header", Amazon S3 API Reference."""
        keys = SimpleNamespace(
            access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", token=None
        )
        signer = Signer(lambda: cast("Any", keys), "us-east-1", "s3")
        headers = {"host": "examplebucket.s3.amazonaws.com", "range": "bytes=0-9"}
        signed = signer.sign("GET", "/test.txt", "", headers, NO_BODY, 1369353600)
        assert "20130524T000000Z" == signed["x-amz-date"]
        assert signed["authorization"].endswith("=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")

    def test_a_new_day_and_new_keys_have_a_key_of_their_own(self) -> None:
        keys = SimpleNamespace(access_key="A", secret_key="one", token=None)
        signer = Signer(lambda: cast("Any", keys), "us-east-1", "s3")

        def signature(now_s: float) -> str:
            return signer.sign("GET", "/", "", {"host": "h"}, NO_BODY, now_s)["authorization"].rpartition("=")[2]

        def fresh(now_s: float) -> str:
            other = Signer(lambda: cast("Any", SimpleNamespace(**vars(keys))), "us-east-1", "s3")
            return other.sign("GET", "/", "", {"host": "h"}, NO_BODY, now_s)["authorization"].rpartition("=")[2]

        for now_s, secret in ((86399, "one"), (86400, "one"), (86400, "two"), (86399, "one")):
            keys.secret_key = secret
            assert fresh(now_s) == signature(now_s)

    def test_a_session_token_is_signed_too(self, file: Path) -> None:
        with wire(say(OK)) as server, store_of(server.port, aws_session_token="TOKEN") as store:
            store.put_file("key", file)
        assert "TOKEN" == header(server.peers[0], "x-amz-security-token")
        assert "x-amz-security-token," in (header(server.peers[0], "authorization") or "")


class TestWhen:
    @pytest.mark.parametrize("name", ["seaweedfs_server", "seaweedfs_tls", "juicefs_server"])
    def test_real_servers_are_asked_past_botocore(self, request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
        server: S3Server = request.getfixturevalue(name)
        path, back = tmp_path / "file", tmp_path / "back"
        path.write_bytes(os.urandom(6 * 2**20))
        back.write_bytes(b"")
        data, key = path.read_bytes(), f"direct/{name}/a b+~ü?&=%2F"
        with S3Store(StoreURI("s3", server.bucket), server.options) as store:
            store.put_file(key, path, PutOptions(crc32c=crc32c(data), metadata={"Wherry-Token": "two words"}))
            assert direct_of(store) is not None
            assert "two words" == store.head(key).token
            assert crc32c(data[5:]) == store.get_file(key, back, start=5)
            assert data[5:] == back.read_bytes()[5:]
            upload_id = store.begin(f"{key}-parts", 5)
            part = store.put_part(f"{key}-parts", upload_id, path, Part(1, 1, 6, crc32c(data[1:6])))
            store.complete(f"{key}-parts", upload_id, [part])
            assert 5 == store.head(f"{key}-parts").size_bytes
            store.delete_many([key, f"{key}-parts"])

    def test_anonymous_requests_are_not_signed(self, file: Path) -> None:
        with wire(say(OK)) as server:
            options = {"endpoint_url": f"http://127.0.0.1:{server.port}", "anonymous": True}
            with S3Store(StoreURI("s3", "bucket"), options) as store:
                store.put_file("key", file)
                assert direct_of(store) is not None
        assert header(server.peers[0], "authorization") is None

    @pytest.mark.parametrize(
        ("scheme", "options", "environment"),
        [
            ("http", {"sdk_only": True}, {}),
            ("https", {"verify": False}, {}),
            ("http", {}, {"HTTP_PROXY": "http://127.0.0.1:9"}),
            ("https", {}, {"HTTPS_PROXY": "https://127.0.0.1:9"}),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Unverified")
    def test_what_is_not_known_here_is_botocores(
        self, monkeypatch: pytest.MonkeyPatch, scheme: str, options: dict[str, object], environment: dict[str, str]
    ) -> None:
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        with store_of(9, scheme, **options) as store:
            assert direct_of(store) is None

    def test_directory_buckets_are_botocores(self) -> None:
        with S3Store(StoreURI("s3", "bucket--use1-az4--x-s3"), {**KEYS, "region": "us-east-1"}) as store:
            assert direct_of(store) is None

    def test_an_access_point_has_the_address_that_botocore_finds(self) -> None:
        with S3Store(StoreURI("s3", "arn:aws:s3:eu-central-1:123456789012:accesspoint/point"), KEYS) as store:
            direct = direct_of(store)
            assert direct is not None
            assert "point-123456789012.s3-accesspoint.eu-central-1.amazonaws.com/" == direct.host + direct.path

    def test_a_plugin_that_adds_a_header_is_botocores(self) -> None:
        def add(request: Any, **_: object) -> None:
            request.headers["x-amz-request-payer"] = "requester"

        with store_of(9) as store:
            store._client.meta.events.register("before-sign.s3", add)
            assert direct_of(store) is None

    def test_a_proxy_for_tls_is_used_and_no_proxy_is_heeded(
        self, monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path
    ) -> None:
        authority = str(tls.make_certificates(tmp_path).authority)
        with wire(say(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")) as server:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.port}")
            with store_of(9, "https", verify=authority) as store, pytest.raises(AccessDeniedError, match="407"):
                store.put_file("key", file)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            with store_of(9, "https", verify=authority) as store, pytest.raises(TransientError, match=":9: "):
                store.put_file("key", file)


class TestBodies:
    @pytest.mark.parametrize("is_early", [False, True])
    def test_over_plain_http_they_are_signed_until_the_server_is_known(self, file: Path, is_early: bool) -> None:
        def talk(peer: Peer) -> None:
            for _ in range(2):
                peer.head()
                peer.body(len(DATA))
                peer.say(OK)

        with wire(talk) as server, store_of(server.port) as store:
            assert is_early or direct_of(store) is not None
            store.put_file("key", file)
            assert hashlib.sha256(DATA).hexdigest() == header(server.peers[0], "x-amz-content-sha256")
            store.assume(AMAZON.as_dict())
            store.put_file("key", file)
            assert UNSIGNED == header(server.peers[0], "x-amz-content-sha256")

    def test_over_tls_they_are_not_signed_and_the_environment_names_the_authority(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificates = tls.make_certificates(tmp_path)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authority))
        with wire(secured(certificates, say(OK))) as server, store_of(server.port, "https") as store:
            store.put_file("key", file)
            assert direct_of(store) is not None
        assert UNSIGNED == header(server.peers[0], "x-amz-content-sha256")

    def test_a_bucket_that_demands_signed_ones_gets_them(self, file: Path) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.body(len(DATA))
            peer.answer(DENIED, "403 Forbidden")
            for _ in range(2):
                peer.head()
                peer.body(len(DATA))
                peer.say(OK)

        with wire(talk) as server, store_of(server.port) as store:
            store.assume(AMAZON.as_dict())
            store.put_file("key", file)
            store.put_file("key", file)
        assert 2 == server.peers[0].seen.count(hashlib.sha256(DATA).hexdigest().encode() + b"\r\n")

    @pytest.mark.parametrize("if_absent", [False, True])
    def test_one_that_may_have_taken_the_name_is_not_sent_twice(self, file: Path, if_absent: bool) -> None:
        """Its second answer would be "the object is there already"."""

        def talk(peer: Peer) -> None:
            for n in range(2):
                peer.head()
                peer.body(len(DATA))
                peer.say(OK[: 0 if n else len(OK)])  # the second time it hangs up

        with wire(talk, *[] if if_absent else [say(OK)]) as server, store_of(server.port, read_timeout_s=2) as store:
            store.assume(AMAZON.as_dict())
            store.put_file("key", file)
            if if_absent:
                with pytest.raises(TransientError, match="hung up"):
                    store.put_file("key", file, PutOptions(if_absent=True))
            else:
                store.put_file("key", file)

    def test_a_checksum_goes_in_a_signed_header(self, file: Path) -> None:
        with wire(say(OK)) as server, store_of(server.port) as store:
            store.put_file("key", file, PutOptions(crc32c=crc32c(DATA)))
        assert header(server.peers[0], "x-amz-checksum-crc32c") is not None
        assert "x-amz-checksum-crc32c;" in (header(server.peers[0], "authorization") or "")


class TestAnswers:
    @pytest.mark.parametrize("sdk_only", [False, True])
    def test_a_description_without_a_size_is_none(self, sdk_only: bool) -> None:
        described = say(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nConnection: close\r\n\r\n')
        unclear = pytest.raises(TransientError, match="how many bytes")
        with wire(described, described) as server, store_of(server.port, sdk_only=sdk_only) as store, unclear:
            store.head("key")

    def test_a_chunked_object_without_a_length_is_refused(self, file: Path) -> None:
        chunked = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n'
        with wire(say(chunked)) as server, store_of(server.port) as store, pytest.raises(PermanentError, match="how many"):
            store.get_file("key", file)

    @pytest.mark.parametrize(
        "head",
        [
            b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n',
            b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: -10\r\n\r\n',
            b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: ten\r\n\r\n',
            b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n0123',
        ],
    )
    def test_a_body_of_unclear_size_is_tried_again(self, file: Path, head: bytes) -> None:
        with wire(say(head)) as server, store_of(server.port) as store, pytest.raises(TransientError):
            store.get_file("key", file)


class TestNames:
    @pytest.mark.parametrize("text", ["a\r\nx-amz-acl: public-read", "a\nb", "a\rb", "a\0b"])
    def test_a_header_has_one_line(self, file: Path, text: str) -> None:
        with store_of(9) as store:
            for metadata in ({"name": text}, {text: "value"}):
                with pytest.raises(PermanentError):
                    store.put_file("key", file, PutOptions(metadata=metadata))

    def test_a_session_token_with_a_line_break_is_not_sent(self) -> None:
        with pytest.raises(ConfigError, match=r"'aws_session_token'.*line break"):
            store_of(9, aws_session_token="TOKEN\r\nx-amz-acl: public-read")

    def test_a_session_token_that_is_not_ascii_is_not_shown(self, file: Path) -> None:
        store = store_of(9, aws_session_token="TOKEN\u20ac")
        with store, pytest.raises(PermanentError, match="not ASCII") as caught:
            store.put_file("key", file)
        assert "TOKEN" not in str(caught.value)

    def test_a_key_with_line_breaks_is_quoted(self) -> None:
        with wire(say(b"HTTP/1.1 204 No Content\r\n\r\n")) as server, store_of(server.port) as store:
            store.delete("a\r\nX: y HTTP/1.1\r\n\r\n")
        assert server.peers[0].seen.startswith(b"DELETE /bucket/a%0D%0AX%3A%20y%20HTTP/1.1%0D%0A%0D%0A HTTP/1.1\r\n")

    def test_dots_and_slashes_are_sent_as_they_are(self) -> None:
        with wire(say(b"HTTP/1.1 204 No Content\r\n\r\n")) as server, store_of(server.port) as store:
            store.delete("../a//b/./c")
        assert server.peers[0].seen.startswith(b"DELETE /bucket/../a//b/./c HTTP/1.1\r\n")


class TestMoved:
    def test_a_redirect_is_botocores_and_nobody_else_gets_the_signature(self, file: Path) -> None:
        """Botocore asks where the bucket is, of the server that it was told; a Location is not followed."""
        moved = "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:{}/key\r\nContent-Length: 0\r\n\r\n"
        with wire() as elsewhere:

            def talk(peer: Peer) -> None:
                while peer.head():
                    peer.body(len(DATA) if b"PUT" in bytes(peer.seen).rpartition(b"\r\n\r\n")[0].split(b"\r\n\r\n")[-1] else 0)
                    peer.say(moved.format(elsewhere.port).encode())

            with wire(talk, talk) as server, store_of(server.port) as store, pytest.raises(TransientError, match="307"):
                store.put_file("key", file)
