"""A line or a server in trouble, as the S3 backend tells it: silence either way, wrong clocks, keys that have run out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar

import pytest

from servers.proxy import (
    Action,
    Answer,
    BlackHole,
    CutAnswer,
    DropAnswer,
    Extend,
    FaultProxy,
    Throttle,
    Truncate,
    When,
    fault_proxy,
    s3_error,
)
from servers.real import S3Server, fast_folder, tls_terminator
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, IntegrityError, PermanentError, StoreError, ThrottledError, TransientError
from wherry.store import Part, PutOptions
from wherry.store.wrappers import RetryStore
from wherry.uri import StoreURI

MIB = 2**20
#: More than the buffers between two programs of one machine hold.
LARGE = bytes(24 * MIB)


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    """A name of its own: with parameters of the server's name, pytest starts the server anew for each of them."""
    return bool(request.param)


@pytest.fixture
def seaweedfs_server(seaweedfs_server: S3Server, sdk_only: bool) -> S3Server:
    """Asked by our own requests, and by botocore's."""
    return replace(seaweedfs_server, sdk_only=sdk_only)


@pytest.fixture
def key() -> str:
    return f"trouble/{uuid.uuid4().hex}"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    return path


@contextmanager
def behind(server: S3Server, *plan: When, **options: object) -> Iterator[tuple[S3Store, FaultProxy]]:
    with fault_proxy("127.0.0.1", server.port, plan) as proxy:
        with S3Store(StoreURI("s3", server.bucket), {**server.options, "endpoint_url": proxy.url, **options}) as store:
            yield store, proxy
        assert [] == proxy.unfired


class TestSilence:
    """`read_timeout_s` without a byte is the end, in both directions, and never the time-out of connecting, which is another."""

    OPTIONS: ClassVar[dict[str, object]] = {"read_timeout_s": 1, "connect_timeout_s": 100}

    def test_a_server_that_reads_no_more_is_given_up(self, seaweedfs_server: S3Server, key: str, large: Path) -> None:
        with behind(seaweedfs_server, When("PUT", key, BlackHole(after_bytes=MIB)), **self.OPTIONS) as (store, proxy):
            with pytest.raises(TransientError) as caught:
                store.put_part(key, "id", large, Part(3, 0, len(LARGE), 0))
            assert "no byte of part 3 went through for 1 s" in caught.value.message
            assert proxy.url in caught.value.message
            assert (caught.value.operation, caught.value.uri) == ("put_part", f"s3://{seaweedfs_server.bucket}/{key}")

    def test_on_a_connection_that_was_used_before_too(self, seaweedfs_server: S3Server, key: str, large: Path) -> None:
        with behind(seaweedfs_server, When("PUT", key, BlackHole(after_bytes=MIB)), **self.OPTIONS) as (store, _):
            assert list(store.list(key)) == []
            with pytest.raises(TransientError, match="no byte went through for 1 s"):
                store.put_file(key, large)

    def test_behind_tls_too(self, seaweedfs_server: S3Server, key: str, large: Path) -> None:
        plan = [When("PUT", key, BlackHole(after_bytes=MIB))]
        with (
            fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy,
            fast_folder() as folder,
            tls_terminator(proxy.port, folder) as (url, authority),
        ):
            options = {**seaweedfs_server.options, **self.OPTIONS, "endpoint_url": url, "verify": str(authority)}
            with (
                S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store,
                pytest.raises(TransientError, match="no byte went through for 1 s"),
            ):
                store.put_file(key, large)
            assert [] == proxy.unfired

    @pytest.mark.parametrize("action", [BlackHole(), DropAnswer("hang")], ids=["not passed on", "answer lost"])
    def test_a_server_that_does_not_answer_is_given_up(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path, action: Action
    ) -> None:
        path = tmp_path / "part"
        path.write_bytes(bytes(3 * MIB))
        with behind(seaweedfs_server, When("PUT", "partNumber", action), **self.OPTIONS) as (store, _):
            upload_id = store.begin(key, 3 * MIB)
            with pytest.raises(TransientError, match="no byte of part 1 went through for 1 s"):
                store.put_part(key, upload_id, path, Part(1, 0, 3 * MIB, crc32c(bytes(3 * MIB))))
            store.abort(key, upload_id)

    def test_an_answer_that_stops_in_its_middle_is_given_up(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(3 * MIB))
        with behind(seaweedfs_server, When("GET", key, CutAnswer(MIB, "hang")), **self.OPTIONS) as (store, proxy):
            store.put_file(key, path)
            with pytest.raises(TransientError) as caught:
                store.get_file(key, path)
            assert f"no byte went through for 1 s: {proxy.url} is silent" in str(caught.value)

    def test_a_slow_line_that_goes_on_is_not_silent(self, seaweedfs_server: S3Server, key: str, large: Path) -> None:
        """The whole takes longer than the time-out, each block of it does not."""
        with behind(seaweedfs_server, When("PUT", key, Throttle(6 * MIB)), read_timeout_s=3) as (store, _):
            assert len(LARGE) == store.put_file(key, large).size_bytes


class TestClock:
    """SeaweedFS and JuiceFS say RequestTimeTooSkewed, as Amazon does; botocore does not correct for it."""

    @pytest.mark.parametrize(
        ("code", "ahead_s", "words"),
        [
            ("RequestTimeTooSkewed", 1200, "differs from the server's by 1200 s, it is fast: set it"),
            ("RequestTimeTooSkewed", -1200, "it is slow: set it"),
            ("RequestExpired", -3600, "it is slow: set it"),
            ("AccessDenied", 7200, "it is fast: set it"),
            ("SignatureDoesNotMatch", -7200, "it is slow: set it"),
            ("AccessDenied", 100, "check the access key"),
            ("RequestTimeTooSkewed", None, "clock differs from the server's: set it"),
        ],
    )
    def test_a_wrong_clock_is_said_with_the_remedy(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path, code: str, ahead_s: float | None, words: str
    ) -> None:
        said = s3_error(403, code)
        if ahead_s is not None:
            said = Answer(403, said.body, (*said.headers, ("Date", formatdate(time.time() - ahead_s, usegmt=True))))
        (tmp_path / "file").write_bytes(b"x")
        with behind(seaweedfs_server, When("PUT", key, said)) as (store, proxy):
            with pytest.raises(PermanentError) as caught:
                store.put_file(key, tmp_path / "file")
            assert words.replace("1200", "") in caught.value.hint.replace("1200", "").replace("1201", "")
            assert len(proxy.log) == 1

    def test_a_head_is_told_by_the_words_of_a_get(self, seaweedfs_server: S3Server, key: str) -> None:
        skewed = s3_error(403, "RequestTimeTooSkewed")
        with (
            behind(seaweedfs_server, When("HEAD", key, Answer(403)), When("GET", key, skewed)) as (store, _),
            pytest.raises(PermanentError, match="clock"),
        ):
            store.head(key)


class TestCredentials:
    def test_new_keys_go_on_with_the_upload_in_parts(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = tmp_path / "credentials"
        lines = [f"aws_access_key_id={seaweedfs_server.access_key}", f"aws_secret_access_key={seaweedfs_server.secret_key}"]
        keys.write_text("\n".join(["[default]", *lines, ""]))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
        path, half = tmp_path / "file", 5 * MIB
        path.write_bytes(bytes(2 * half))
        parts = [Part(n + 1, n * half, (n + 1) * half, crc32c(bytes(half))) for n in range(2)]
        expired = [
            When("PUT", "partNumber=2", s3_error(400, "ExpiredToken")),
            When("POST", "uploadId=", s3_error(400, "ExpiredToken")),
        ]
        with fault_proxy("127.0.0.1", seaweedfs_server.port, expired) as proxy:
            options: dict[str, object] = {"endpoint_url": proxy.url, "region": "us-east-1"}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                upload_id = store.begin(key, 2 * half, PutOptions(crc32c=crc32c(bytes(2 * half))))
                sent = [store.put_part(key, upload_id, path, parts[0])]
                with pytest.raises(TransientError, match="read anew"):
                    store.put_part(key, upload_id, path, parts[1])
                assert [1] == [part.number for part in store.list_parts(key, upload_id)]
                sent.append(store.put_part(key, upload_id, path, parts[1]))
                with pytest.raises(TransientError, match="read anew"):
                    store.complete(key, upload_id, sent)
                assert 2 * half == store.complete(key, upload_id, sent).size_bytes
            assert len(proxy.requests("PUT", "partNumber=1")) == 1

    def test_keys_of_the_options_are_over_when_they_are_over(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with (
            behind(seaweedfs_server, When("PUT", key, s3_error(400, "ExpiredToken"))) as (store, _),
            pytest.raises(AccessDeniedError, match="supply new ones"),
        ):
            store.put_file(key, tmp_path / "file")


class TestServersThatWereNotMeant:
    """What answers may be a proxy, a portal, or another store: the error says who it was, and with what."""

    @pytest.mark.parametrize(
        ("answer", "words", "remedy"),
        [
            (Answer(403), "403: Forbidden", "check the access key"),
            (Answer(403, b"<html>no way</html>"), "403: Forbidden", "not in S3's form"),
            (Answer(403, b'{"no": "way"}'), "403: Forbidden", "check the access key"),
            (s3_error(403, "AccessDenied"), "AccessDenied", "check the access key"),
            (s3_error(404, "NoSuchBucket"), "NoSuchBucket", "create the bucket"),
            (Answer(301), "301: Moved Permanently", "storage option 'region', or correct the endpoint"),
            (Answer(418, b"a teapot"), "418: I'm a Teapot", ""),
        ],
    )
    def test_the_error_says_the_status_the_endpoint_and_the_remedy(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path, answer: Answer, words: str, remedy: str
    ) -> None:
        (tmp_path / "file").write_bytes(b"x")
        n_asked = 2 if answer.status == 301 and not seaweedfs_server.sdk_only else 1  # botocore may know the way
        with behind(seaweedfs_server, When("PUT", key, answer, times=n_asked)) as (store, proxy):
            with pytest.raises(PermanentError) as caught:
                store.put_file(key, tmp_path / "file")
            assert caught.value.message.startswith(words)
            assert caught.value.message.endswith(f", says {proxy.url}")
            assert remedy in caught.value.hint


class TestThrottling:
    @pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests"), (503, "ServiceUnavailable")])
    @pytest.mark.parametrize("retry_after_s", [None, 3])
    def test_a_store_that_asks_for_patience_says_how_much(
        self, seaweedfs_server: S3Server, key: str, status: int, code: str, retry_after_s: int | None
    ) -> None:
        answer = s3_error(status, code, retry_after_s=retry_after_s)
        with behind(seaweedfs_server, When("", key, answer)) as (store, proxy):
            with pytest.raises(ThrottledError) as caught:
                store.begin(key, 1)
            assert retry_after_s == caught.value.retry_after_s
            assert len(proxy.log) == 1


class TestBodies:
    @pytest.mark.parametrize(
        "action",
        [
            Truncate(7),
            Truncate(7, rewrite_length=True),
            Extend(rewrite_length=True),
            Extend(rewrite_length=True, late_s=0.2),
            CutAnswer(5, "close"),
        ],
        ids=["short", "short, length agrees", "long, length agrees", "long, in two pieces, length agrees", "cut"],
    )
    @pytest.mark.parametrize(("start", "end"), [(0, None), (100, 200)])
    def test_a_body_of_another_length_is_noticed_and_nothing_is_written_beside_the_range(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path, action: Action, start: int, end: int | None
    ) -> None:
        data, target = os.urandom(1000), tmp_path / "target"
        target.write_bytes(data)
        whole_is_told = (start, end) == (0, None) and isinstance(action, (Truncate, Extend)) and action.rewrite_length
        with behind(seaweedfs_server, When("GET", key, action)) as (store, _):
            store.put_file(key, target)
            target.write_bytes(b"." * 1000)
            if whole_is_told:  # nothing in the answer contradicts it: the size from head() does, for whoever asks with an end
                store.get_file(key, target)
                assert len(target.read_bytes()) >= 993
                return
            with pytest.raises((TransientError, IntegrityError)):
                store.get_file(key, target, start=start, end=end)
        found = target.read_bytes()
        assert b"." * start == found[:start]
        assert end is None or b"." * (1000 - end) == found[end:]

    def test_bytes_after_the_end_of_an_answer_are_not_the_next_answer(
        self, seaweedfs_server: S3Server, key: str, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_bytes(b"0123456789")
        with behind(seaweedfs_server, When("GET", key, Extend())) as (store, _):
            store.put_file(key, tmp_path / "file")
            again = RetryStore(store)  # the proxy may reset the connection just as the second request goes out
            for _ in range(2):
                again.get_file(key, tmp_path / "file")
                assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_lost_begin_leaves_an_upload_that_is_told_by_its_key(
    seaweedfs_server: S3Server, juicefs_server: S3Server, key: str
) -> None:
    """S3 shows no more of it than that, and when; one request finds it among others, and it has no parts."""
    for server in (seaweedfs_server, juicefs_server):
        with behind(server, When("POST", f"{key}\\?uploads", DropAnswer())) as (store, proxy):
            before_s = time.time()
            with pytest.raises(TransientError):
                store.begin(key, 1)
            other = store.begin(f"{key}-2", 1)
            (found,) = (upload for upload in store.list_uploads(key) if upload.key == key)
            assert len(proxy.requests("GET", "uploads")) == 1
            assert not found.is_ours
            assert before_s - 2 <= found.begun_s <= time.time() + 2
            assert [] == store.list_parts(key, found.upload_id)
            store.abort(key, found.upload_id)
            assert [f"{key}-2"] == [upload.key for upload in store.list_uploads(key)]
            store.abort(f"{key}-2", other)
            assert [] == list(store.list_uploads(key))


class TwoUploadsAPage(S3Store):
    _uploads_a_page = 2


@pytest.fixture
def juicefs_server(juicefs_server: S3Server, seaweedfs_server: S3Server) -> S3Server:
    """Asked as the other one is."""
    return replace(juicefs_server, sdk_only=seaweedfs_server.sdk_only)


@pytest.mark.parametrize("name", ["seaweedfs", "juicefs"])
def test_lists_of_uploads_go_on_over_pages(seaweedfs_server: S3Server, juicefs_server: S3Server, name: str, key: str) -> None:
    """Several of one key too; SeaweedFS gives ids alone to go on from."""
    server = seaweedfs_server if name == "seaweedfs" else juicefs_server
    with TwoUploadsAPage(StoreURI("s3", server.bucket), server.options) as store:
        begun = [(f"{key}/{at}", store.begin(f"{key}/{at}", 1)) for at in ("a", "b c", "b c", "b c", "ä+%2F", "e")]
        found = [(upload.key, upload.upload_id) for upload in store.list_uploads(f"{key}/")]
        assert sorted((at, upload_id.removeprefix("crc32c:")) for at, upload_id in begun) == sorted(found)
        for at, upload_id in begun:
            store.abort(at, upload_id)
        assert [] == list(store.list_uploads(f"{key}/"))


def test_a_list_that_does_not_say_how_it_goes_on_is_an_error(seaweedfs_server: S3Server) -> None:
    row = "<Upload><Key>a</Key><UploadId>1</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
    uploads = f"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>{row}</ListMultipartUploadsResult>"
    objects = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    plan = [When("GET", "uploads", Answer(200, uploads.encode())), When("GET", "list-type", Answer(200, objects.encode()))]
    with behind(seaweedfs_server, *plan) as (store, _):
        with pytest.raises(StoreError, match="goes on"):
            list(store.list_uploads())
        with pytest.raises(StoreError, match="go on"):
            list(store.list())


def test_boto3s_transfer_manager_is_not_used(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    """Nor CRT, which it may choose by itself, and which sends to Amazon whatever the endpoint (boto/boto3#4839)."""
    (tmp_path / "file").write_bytes(b"x")
    program = (
        "import json, sys; from pathlib import Path\n"
        "from wherry.backends.s3.store import S3Store; from wherry.uri import StoreURI\n"
        "bucket, options = json.loads(sys.stdin.read())\n"
        "with S3Store(StoreURI('s3', bucket), options) as s:\n"
        "    s.put_file('modules', Path('file')); s.delete('modules')\n"
        "    found = [name for name in ('upload_file', 'upload_fileobj', 'download_file', 'copy') if hasattr(s._client, name)]\n"
        "print(found + [name for name in ('boto3.s3.transfer', 's3transfer.crt', 'awscrt') if name in sys.modules])"
    )
    settings = json.dumps([seaweedfs_server.bucket, seaweedfs_server.options])
    done = subprocess.run(
        [sys.executable, "-c", program], input=settings, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
