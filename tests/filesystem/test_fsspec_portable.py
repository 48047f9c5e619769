"""File systems and paths that go to another process take no secret along: references to its environment go instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from upath import UPath

from chained import chained
from servers.features import tell_spool
from servers.real import S3Server
from support import run_script
from wherry.errors import ConfigError
from wherry.filesystem.filesystem import WherryFileSystem

SECRET = "AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def fs(seaweedfs_server: S3Server, spool: Path) -> Iterator[WherryFileSystem]:
    """Opened with keys as they are."""
    tell_spool(spool, seaweedfs_server)
    with chained("s3", seaweedfs_server.options, spool) as fs:
        yield fs


@pytest.fixture
def keys(seaweedfs_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has the same keys."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs_server.access_key)
    monkeypatch.setenv(SECRET, seaweedfs_server.secret_key)


def path_of(server: S3Server, spool: Path) -> UPath:
    return UPath(f"wherry::s3://{server.bucket}/x", s3=server.options, wherry={"spool": str(spool)})


def test_a_secret_that_no_variable_has_is_not_written_out(fs: WherryFileSystem, seaweedfs_server: S3Server, spool: Path) -> None:
    path = path_of(seaweedfs_server, spool)
    for write in (
        lambda: pickle.dumps(fs),
        lambda: fs.to_json(),
        lambda: fs.to_json(include_password=False),
        lambda: pickle.dumps(path),
    ):
        with pytest.raises(ConfigError, match="from_env") as raised:
            write()
        assert seaweedfs_server.secret_key not in str(raised.value)


@pytest.mark.usefixtures("keys")
def test_what_is_written_out_names_the_variables_that_have_the_secrets(
    fs: WherryFileSystem, seaweedfs_server: S3Server, spool: Path
) -> None:
    path = path_of(seaweedfs_server, spool)
    texts = [pickle.dumps(fs), fs.to_json().encode(), pickle.dumps(path)]
    assert [] == [text for text in texts if seaweedfs_server.secret_key.encode() in text]
    assert [] == [text for text in texts if SECRET.encode() not in text]


@pytest.mark.usefixtures("keys")
def test_another_process_reads_its_own_environment(fs: WherryFileSystem, seaweedfs_server: S3Server, tmp_path: Path) -> None:
    place = f"{seaweedfs_server.bucket}/portable"
    fs.pipe_file(place, b"bytes")
    fs.flush()
    (tmp_path / "pickle").write_bytes(pickle.dumps(fs))
    (tmp_path / "json").write_text(fs.to_json())
    script = """
    import os, pickle, sys, fsspec
    pickled, text, place = sys.argv[1:]
    same = fsspec.AbstractFileSystem.from_json(open(text).read())
    print(pickle.load(open(pickled, "rb")).cat_file(place) == same.cat_file(place) == b"bytes")
    del os.environ["AWS_SECRET_ACCESS_KEY"]
    fsspec.AbstractFileSystem.clear_instance_cache()
    same.__class__.clear_instance_cache()
    try:
        pickle.load(open(pickled, "rb"))
    except ValueError as error:
        print(type(error).__name__, "AWS_SECRET_ACCESS_KEY" in str(error))
    """
    assert "True\nConfigError True\n" == run_script(script, tmp_path / "pickle", tmp_path / "json", place)


def test_a_reference_stands_for_the_variable_it_names(
    seaweedfs_server: S3Server, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_STORE_SECRET", seaweedfs_server.secret_key)
    options = {**seaweedfs_server.options, "aws_secret_access_key": {"from_env": "MY_STORE_SECRET"}}
    options["aws_access_key_id"] = {"from_env": "MY_STORE_KEY"}
    monkeypatch.setenv("MY_STORE_KEY", seaweedfs_server.access_key)
    with chained("s3", options, spool) as fs:
        fs.pipe_file(f"{seaweedfs_server.bucket}/referred", b"bytes")
        fs.flush()
        assert b"MY_STORE_SECRET" in pickle.dumps(fs)
        assert seaweedfs_server.secret_key.encode() not in pickle.dumps(fs)


def test_a_secret_inside_another_option_is_found(seaweedfs_server: S3Server, spool: Path) -> None:
    keys = {"aws_access_key_id": "one", "aws_secret_access_key": "two"}
    fs = fsspec.filesystem("wherry", target_protocol="s3", target_options={"client_kwargs": keys}, spool=str(spool))
    with pytest.raises(ConfigError, match="aws_access_key_id"):
        pickle.dumps(fs)


def test_a_copy_within_the_process_is_the_same_one(fs: WherryFileSystem, seaweedfs_server: S3Server, spool: Path) -> None:
    path = path_of(seaweedfs_server, spool)
    assert (fs, fs, path, path) == (copy.copy(fs), copy.deepcopy(fs), copy.copy(path), copy.deepcopy(path))
    assert "x" == str(path.relative_to(path.parent))  # universal-pathlib copies the path and changes the copy
    assert path.is_absolute()


def test_public_options_are_written_as_they_are(tmp_path: Path, spool: Path) -> None:
    with chained("s3", {"endpoint_url": "http://127.0.0.1:9", "anonymous": True}, spool) as fs:
        assert fs is pickle.loads(pickle.dumps(fs)) is fsspec.AbstractFileSystem.from_json(fs.to_json())  # noqa: S301
