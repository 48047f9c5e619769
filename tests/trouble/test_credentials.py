"""Wrong credentials and missing buckets: said in the server's own words, early, and never taken for a missing object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.real import S3Server
from support import CALLER, end_agent, file_of, run_script, spool_texts
from wherry.errors import AccessDeniedError, BucketNotFoundError, UploadFailed
from wherry.uploader import Uploader


@pytest.fixture(params=["seaweedfs_server", "juicefs_server"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, S3Server)
    return found


def wrong(server: S3Server, what: str) -> dict[str, object]:
    """The server's options, but for one."""
    if what == "secret":
        return {**server.options, "aws_secret_access_key": "wrong-wrong-wrong-wrong-wrong"}
    return {**server.options, "aws_access_key_id": "NOSUCHKEYATALL"}


WORDS = {"secret": r"SignatureDoesNotMatch|signature", "key": r"InvalidAccessKeyId|access key"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return file_of(tmp_path / "source", 1000)


@pytest.fixture(params=["secret", "key"])
def refused(request: pytest.FixtureRequest, server: S3Server, spool_folder: Path) -> Iterator[tuple[Uploader, str]]:
    """An uploader with wrong credentials, and what the server says of them."""
    uploader = Uploader(
        f"s3://{server.bucket}/run", storage_options=wrong(server, request.param), spool=spool_folder, config=CALLER
    )
    yield uploader, WORDS[request.param]
    uploader.spool.free(uploader.journal.uploads.discard(None)[1])
    uploader.close()


def test_wrong_credentials_show_at_the_check_in_the_servers_own_words(refused: tuple[Uploader, str]) -> None:
    uploader, words = refused
    with pytest.raises(UploadFailed, match=f"(?i){words}|403|Forbidden"):
        uploader.check()


def test_wrong_credentials_fail_the_upload_and_keep_its_file(refused: tuple[Uploader, str], source: Path) -> None:
    uploader, words = refused
    handle = uploader.put(source, "a")
    with pytest.raises(UploadFailed, match=f"(?i){words}") as caught:
        handle.result()
    assert "not found" not in str(caught.value).lower()
    assert 1 == len(list(uploader.spool.objects.iterdir()))


def test_a_refusal_is_never_taken_for_a_missing_object(refused: tuple[Uploader, str], tmp_path: Path) -> None:
    uploader, _ = refused
    with pytest.raises(AccessDeniedError):
        uploader.exists("a")
    with pytest.raises(AccessDeniedError):
        uploader.head("a")
    with pytest.raises(AccessDeniedError):
        uploader.get("a", tmp_path / "back")
    with pytest.raises(AccessDeniedError):
        list(uploader.list())
    with pytest.raises(AccessDeniedError):
        uploader.delete("a")
    assert not (tmp_path / "back").exists()


def test_a_missing_bucket_is_said_to_be_missing(server: S3Server, spool_folder: Path, source: Path, tmp_path: Path) -> None:
    with Uploader("s3://no-such-bucket/run", storage_options=server.options, spool=spool_folder, config=CALLER) as uploader:
        with pytest.raises(UploadFailed, match=r"(?i)bucket"):
            uploader.check()
        with pytest.raises(UploadFailed, match=r"(?i)bucket"):
            uploader.put(source, "a").result()
        with pytest.raises(BucketNotFoundError, match=r"(?i)bucket"):
            uploader.get("a", tmp_path / "back")
        uploader.spool.free(uploader.journal.uploads.discard(None)[1])


def test_no_credentials_at_all_are_an_error_that_says_so(juicefs_server: S3Server, spool_folder: Path, source: Path) -> None:
    options = {name: value for name, value in juicefs_server.options.items() if not name.startswith("aws_")}
    with Uploader(f"s3://{juicefs_server.bucket}", storage_options=options, spool=spool_folder, config=CALLER) as uploader:
        with pytest.raises(UploadFailed, match=r"(?i)credentials"):
            uploader.check()
        with pytest.raises(UploadFailed, match=r"(?i)credentials"):
            uploader.put(source, "a").result()
        uploader.spool.free(uploader.journal.uploads.discard(None)[1])


def test_the_agent_reports_wrong_credentials_and_writes_no_secret_down(
    juicefs_server: S3Server, spool_folder: Path, source: Path
) -> None:
    options = wrong(juicefs_server, "secret")
    with end_agent(spool_folder):
        uploader = Uploader(f"s3://{juicefs_server.bucket}/run", storage_options=options, spool=spool_folder)
        uploader.put(source, "a")
        uploader.start_check()
        with pytest.raises(UploadFailed, match=r"(?i)signature") as caught:
            uploader.flush(60.0)
        assert "wrong-wrong" not in str(caught.value)
        uploader.close()
    assert [] == [name for name, text in spool_texts(spool_folder).items() if b"wrong-wrong" in text]


def test_right_credentials_after_wrong_ones_finish_the_upload(juicefs_server: S3Server, spool_folder: Path, source: Path) -> None:
    uri = f"s3://{juicefs_server.bucket}/again"
    with Uploader(uri, storage_options=wrong(juicefs_server, "secret"), spool=spool_folder, config=CALLER) as uploader:
        handle = uploader.put(source, "a")
        with pytest.raises(UploadFailed):
            handle.result()
    with Uploader(uri, storage_options=juicefs_server.options, spool=spool_folder, config=CALLER) as uploader:
        ids = [job.id for job in uploader.journal.queries.jobs()]
        assert 1 == uploader.journal.uploads.retry(ids)[0]
        uploader.check()
        assert 1000 == uploader.head("a").size_bytes
        assert 0 == uploader.journal.queries.counts().failed


def test_a_forked_child_reads_with_its_own_connections(juicefs_server: S3Server, tmp_path: Path) -> None:
    """Two processes on one connection would read each other's answers."""
    text = """
    import json, os, sys, wherry
    from pathlib import Path
    from support import CALLER, file_of

    folder, uri, options = Path(sys.argv[1]), sys.argv[2], json.loads(os.environ.pop("OPTIONS"))
    uploader = wherry.Uploader(uri, storage_options=options, spool=folder / "spool", config=CALLER)
    expected = {}
    for name in ("parent", "child"):
        source = file_of(folder / f"source-{name}", 200_000, seed=len(name))
        uploader.put(source, name).result()
        expected[name] = source.read_bytes()
    uploader.get("parent", folder / "warm")
    pid = os.fork()
    name = "parent" if pid else "child"
    for i in range(20):
        uploader.get(name, folder / f"back-{name}", overwrite=True)
        assert (folder / f"back-{name}").read_bytes() == expected[name]
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    uploader.close()
    """
    env = {"OPTIONS": json.dumps(juicefs_server.options), "PYTHONWARNINGS": "ignore"}
    run_script(text, tmp_path, f"s3://{juicefs_server.bucket}/fork", env=env)
