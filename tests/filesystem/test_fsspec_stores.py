"""``wherry::`` over buckets, and the backends as file systems without the queue."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import fsspec
import pytest

from chained import chained
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server
from support import run_script
from wherry.errors import AccessDeniedError, AlreadyExistsError, BucketNotFoundError, ConfigError, IntegrityError, UploadFailed
from wherry.filesystem.filesystem import WherryFileSystem


@pytest.fixture(scope="module")
def fs(seaweedfs_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WherryFileSystem]:
    with chained("s3", seaweedfs_server.options, tmp_path_factory.mktemp("s3") / "spool") as fs:
        yield fs


@pytest.fixture
def folder(seaweedfs_server: S3Server) -> str:
    return f"{seaweedfs_server.bucket}/{uuid.uuid4()}"


@pytest.fixture(scope="module")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


def put_object(server: S3Server, path: str, body: bytes, **how: Any) -> None:
    """As another tool would: with the vendor's own client."""
    session = botocore.session.get_session()
    client = session.create_client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    bucket, _, key = path.partition("/")
    client.put_object(  # type: ignore[attr-defined]  # made at run time
        Bucket=bucket, Key=key, Body=body, **how
    )
    client.close()


def test_a_bucket_is_a_folder_also_when_it_is_empty(fs: WherryFileSystem, seaweedfs_server: S3Server) -> None:
    bucket = f"empty-{uuid.uuid4()}"
    with pytest.raises(BucketNotFoundError):
        fs.info(bucket)
    assert not fs.exists(bucket)
    seaweedfs_server.make_bucket(bucket)
    assert ({"name": bucket, "size": 0, "type": "directory"}, []) == (fs.info(bucket), fs.ls(bucket))
    fs.pipe_file(f"{bucket}/x", b"1")
    assert [f"{bucket}/x"] == fs.ls(bucket, detail=False) == fs.find(f"s3://{bucket}") == fs.glob(f"{bucket}/*")
    with pytest.raises(IsADirectoryError):
        fs.pipe_file(bucket, b"1")


def test_copies_go_from_bucket_to_bucket(fs: WherryFileSystem, seaweedfs_server: S3Server, folder: str) -> None:
    bucket = f"other-{uuid.uuid4()}"
    seaweedfs_server.make_bucket(bucket)
    fs.pipe({f"{folder}/a/x": b"1", f"{folder}/a/y": b"2"})
    fs.mv(f"{folder}/a", f"{bucket}/b", recursive=True)
    fs.flush()
    assert ({f"{bucket}/b/x": b"1", f"{bucket}/b/y": b"2"}, []) == (fs.cat(fs.find(bucket)), fs.find(folder))
    with pytest.raises(ConfigError, match="one bucket"):
        fs.pipe_file(f"{folder}/x", b"1", requires=[f"{bucket}/b/x"])


def test_forbidden_is_not_missing(seaweedfs_server: S3Server, folder: str, tmp_path: Path) -> None:
    wrong = {**seaweedfs_server.options, "aws_secret_access_key": "0" * 40}
    with chained("s3", wrong, tmp_path / "spool") as fs:
        for call in (fs.exists, fs.isfile, fs.isdir, fs.find, fs.cat_file):
            with pytest.raises(AccessDeniedError):
                call(f"{folder}/x")


def test_markers_of_folders_are_folders(fs: WherryFileSystem, seaweedfs_server: S3Server, folder: str) -> None:
    """Consoles and other tools make empty objects whose name ends in a slash."""
    put_object(seaweedfs_server, f"{folder}/made/", b"")
    put_object(seaweedfs_server, f"{folder}/made/x", b"1")
    assert [f"{folder}/made"] == fs.ls(folder, detail=False)
    assert [f"{folder}/made/x"] == fs.ls(f"{folder}/made", detail=False) == fs.find(folder)
    assert fs.isdir(f"{folder}/made")
    fs.rm(f"{folder}/made", recursive=True)
    assert not fs.exists(f"{folder}/made")


def test_damaged_object_is_noticed_by_every_whole_reading(
    fs: WherryFileSystem, seaweedfs_server: S3Server, folder: str, tmp_path: Path
) -> None:
    put_object(seaweedfs_server, f"{folder}/x", b"0123456789", Metadata={"wherry-crc32c": "00000001"})
    with pytest.raises(IntegrityError, match="00000001"):
        fs.cat_file(f"{folder}/x")
    with pytest.raises(IntegrityError), fs.open(f"{folder}/x") as file:
        file.read()
    with pytest.raises(IntegrityError), fs.open(f"{folder}/x", block_size=3) as file:
        while file.read(3):
            pass
    with pytest.raises(IntegrityError):
        fs.cp_file(f"{folder}/x", f"{folder}/y")
    with pytest.raises(IntegrityError):
        fs.get_file(f"{folder}/x", str(tmp_path / "x"))
    assert (False, []) == (fs.exists(f"{folder}/y"), os.listdir(tmp_path))
    assert b"234" == fs.cat_file(f"{folder}/x", 2, 5)  # a part has no checksum


def test_names_of_s3fs_open_the_same_store(seaweedfs_server: S3Server, folder: str, tmp_path: Path) -> None:
    """What storage_options of pandas and others hold for s3fs today."""
    s3fs = {
        "key": seaweedfs_server.access_key,
        "secret": seaweedfs_server.secret_key,
        "client_kwargs": {"endpoint_url": seaweedfs_server.url, "region_name": "us-east-1"},
    }
    script = """
    import fsspec, json, sys
    url, options, spool = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    with fsspec.open(url, "wb", s3=options, wherry={"spool": spool}) as file:
        file.write(b"from s3fs's user")
    """
    url = f"wherry::s3://{folder}/x"
    said = run_script(script, url, json.dumps(s3fs), tmp_path / "spool")
    assert said in ("", "wherry: waiting for 1 upload, 16 B\n")  # said when an upload outlasts the program by a moment
    with chained("s3", s3fs, tmp_path / "spool") as fs:
        assert b"from s3fs's user" == fs.cat_file(url)


# Without the queue.


@pytest.fixture(params=["wherry+s3", "wherry+gs", "wherry+file"])
def direct(
    request: pytest.FixtureRequest, seaweedfs_server: S3Server, gcs_server: GCSServer, tmp_path: Path
) -> Iterator[tuple[WherryFileSystem, str]]:
    """A file system without the queue, and a URL in it."""
    protocol = request.param
    place, options = {
        "wherry+s3": (f"{seaweedfs_server.bucket}/{uuid.uuid4()}", seaweedfs_server.options),
        "wherry+gs": (f"{gcs_server.bucket}/{uuid.uuid4()}", gcs_server.options),
        "wherry+file": (str(tmp_path / "store"), {}),
    }[protocol]
    fs, path = fsspec.url_to_fs(f"{protocol}://{place}", **options)
    assert (place, f"{protocol}://{place}") == (path, fs.unstrip_protocol(path))
    yield fs, f"{protocol}://{place}"
    fs.close()


def test_direct_write_ends_when_the_object_is_in_the_store(direct: tuple[WherryFileSystem, str], tmp_path: Path) -> None:
    fs, url = direct
    with fs.open(f"{url}/a/x", "wb") as file:
        file.write(b"bytes")
        assert not fs.exists(f"{url}/a/x")
    assert fs.info(f"{url}/a/x")["etag"] is not None
    (tmp_path / "source").write_bytes(b"file")
    fs.put_file(str(tmp_path / "source"), f"{url}/a/y")
    fs.cp_file(f"{url}/a/y", f"{url}/z")
    for name in ("a/x", "a/y", "z"):
        assert fs.info(f"{url}/{name}")["etag"] is not None
    assert [b"bytes", b"file", b"file"] == list(fs.cat(fs.find(url)).values())
    with pytest.raises(AlreadyExistsError):
        fs.open(f"{url}/z", "xb")
    fs.rm(url, recursive=True)
    assert not fs.exists(url)


def test_loser_of_a_direct_race_is_told_that_the_name_is_taken(direct: tuple[WherryFileSystem, str]) -> None:
    fs, url = direct
    late = fs.open(f"{url}/x", "xb")  # the name is free by now
    fs.pipe_file(f"{url}/x", b"first", mode="create")
    late.write(b"second")
    with pytest.raises(FileExistsError) as caught:
        late.close()
    assert isinstance(caught.value, AlreadyExistsError)
    assert isinstance(caught.value, UploadFailed)
    assert b"first" == fs.cat_file(f"{url}/x")


def test_direct_move_keeps_every_object(direct: tuple[WherryFileSystem, str]) -> None:
    fs, url = direct
    fs.pipe({f"{url}/run1/x": b"1", f"{url}/run2/x": b"2"})
    with pytest.raises(OSError, match="into itself"):
        fs.mv(f"{url}/run1", f"{url}/run1/old", recursive=True)
    fs.mv(f"{url}/run*", f"{url}/run_old/", recursive=True)
    place = fs._strip_protocol(url)
    assert {f"{place}/run_old/run1/x": b"1", f"{place}/run_old/run2/x": b"2"} == fs.cat(fs.find(url))


def test_direct_write_that_fails_is_told_at_once_and_nothing_is_left(tmp_path: Path) -> None:
    script = """
    import fsspec, sys, wherry
    fs, path = fsspec.url_to_fs("wherry+file://" + sys.argv[1])
    fs.pipe_file(path + "/x", b"a file")
    try:
        fs.pipe_file(path + "/x/y", b"below a file")
    except wherry.UploadFailed as error:
        print("told")
    """
    environment = {"TMPDIR": str(tmp_path), "WHERRY_SPOOL": str(tmp_path / "spool")}
    assert run_script(script, tmp_path / "store", env=environment).endswith("told\n")
    assert ["store"] == os.listdir(tmp_path)
