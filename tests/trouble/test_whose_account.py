"""Programs of one user share a spool, each with its own environment: the requests for each are made as if by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from servers.features import tell_spool
from servers.real import S3Server
from wherry import Config, Uploader
from wherry.agent.open_stores import Stores
from wherry.config import AgentConfig
from wherry.errors import UploadFailed
from wherry.spool.journal.journal import Journal

Enter = Callable[[Mapping[str, str]], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Enter:
    """Replaces what the environment says about accounts."""

    def change(variables: Mapping[str, str]) -> None:
        for name in (
            "AWS_CONFIG_FILE",
            "AWS_SHARED_CREDENTIALS_FILE",
            "AWS_PROFILE",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return change


def _credentials(path: Path, key: str, secret: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    return path


def _ways(folder: Path, server: S3Server) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Environments that give the right keys and, in the same way, wrong ones."""
    keys = server.access_key, server.secret_key
    good, bad = _credentials(folder / "good", *keys), _credentials(folder / "bad", "nobody", "nothing")
    _credentials(folder / "good-home/.aws/credentials", *keys)
    _credentials(folder / "bad-home/.aws/credentials", "nobody", "nothing")
    return {
        "AWS_SHARED_CREDENTIALS_FILE": ({"AWS_SHARED_CREDENTIALS_FILE": str(good)}, {"AWS_SHARED_CREDENTIALS_FILE": str(bad)}),
        "HOME": ({"HOME": str(folder / "good-home")}, {"HOME": str(folder / "bad-home")}),
        "keys of the agent's starter": (
            {"AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]},
            {"AWS_SHARED_CREDENTIALS_FILE": str(bad)},
        ),
    }


@pytest.mark.parametrize(
    ("way", "starts_well"),
    [
        ("AWS_SHARED_CREDENTIALS_FILE", True),
        ("AWS_SHARED_CREDENTIALS_FILE", False),
        ("HOME", True),
        ("keys of the agent's starter", True),
    ],
)
def test_an_upload_is_made_with_the_credentials_of_its_own_program(
    enter: Enter, tmp_path: Path, seaweedfs_server: S3Server, way: str, starts_well: bool
) -> None:
    good, bad = _ways(tmp_path / "aws", seaweedfs_server)[way]
    tell_spool(tmp_path / "spool", seaweedfs_server)
    target = f"s3://{seaweedfs_server.bucket}/whose"
    options = {"endpoint_url": seaweedfs_server.url}

    def check(variables: Mapping[str, str]) -> Uploader:
        enter(variables)
        uploader = Uploader(target, storage_options=options, spool=tmp_path / "spool")
        if variables is good:
            uploader.check(30)
        else:
            with pytest.raises(UploadFailed):
                uploader.check(30)
        return uploader

    first = check(good if starts_well else bad)
    check(bad if starts_well else good).close()
    first.close()


def test_an_upload_takes_no_proxy_of_another_program(
    enter: Enter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seaweedfs_server: S3Server
) -> None:
    tell_spool(tmp_path / "spool", seaweedfs_server)
    enter({"HTTP_PROXY": "http://user:hidden@127.0.0.1:1", "NO_PROXY": "", "no_proxy": ""})
    with Uploader(tmp_path / "folder", spool=tmp_path / "spool") as first:
        first.check(30)
        monkeypatch.delenv("HTTP_PROXY")
        with Uploader(
            f"s3://{seaweedfs_server.bucket}/whose", storage_options=seaweedfs_server.options, spool=tmp_path / "spool"
        ) as second:
            second.check(30)


def test_a_relative_name_of_a_file_is_one_in_the_programs_folder(
    enter: Enter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seaweedfs_server: S3Server
) -> None:
    _credentials(tmp_path / "keys", seaweedfs_server.access_key, seaweedfs_server.secret_key)
    tell_spool(tmp_path / "spool", seaweedfs_server)
    monkeypatch.chdir(tmp_path)
    enter({"AWS_SHARED_CREDENTIALS_FILE": "keys"})
    options = {"endpoint_url": seaweedfs_server.url}
    with Uploader(f"s3://{seaweedfs_server.bucket}/whose", storage_options=options, spool=tmp_path / "spool") as uploader:
        uploader.check(30)


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTPS_PROXY", "http://user:hidden@proxy:3128"), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden")],
)
def test_a_secret_of_the_environment_is_in_no_file_of_the_spool(enter: Enter, tmp_path: Path, name: str, value: str) -> None:
    enter({name: value})
    here = Config(agent=AgentConfig(run_in="caller"))
    with Uploader("s3://bucket", storage_options={"anonymous": True}, spool=tmp_path / "spool", config=here) as uploader:
        (record,) = uploader.journal.queries.stores().values()
        assert (name,) == record.secret_names
        assert {record.id} == Stores().unusable({record.id: record})
        stores = Stores()
        stores.learn(record.id, {name: value})
        assert set() == stores.unusable({record.id: record})
    assert [] == [path for path in (tmp_path / "spool").rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]


def test_a_process_with_another_environment_leaves_the_jobs_of_a_store_alone(enter: Enter, tmp_path: Path) -> None:
    here = Config(agent=AgentConfig(run_in="caller"))
    enter({"AWS_PROFILE": "one"})
    Uploader("s3://bucket", spool=tmp_path / "spool", config=here).close()
    records = Journal(tmp_path / "spool/journal.db").queries.stores()
    assert set() == Stores().unusable(records)
    for variables in ({"AWS_PROFILE": "two"}, {}, {"AWS_PROFILE": "one", "HOME": "/elsewhere"}):
        enter(variables)
        assert set(records) == Stores().unusable(records)
        assert set() == Stores(own=next(iter(records))).unusable(records)
    enter({"AWS_PROFILE": "one", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    assert set(records) == Stores().unusable(records)


def test_credentials_that_only_the_vendor_knows_are_accepted(enter: Enter, tmp_path: Path) -> None:
    (tmp_path / "federated.json").write_text('{"type": "external_account", "audience": "a", "subject_token_type": "t"}')
    enter({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "federated.json")})
    here = Config(agent=AgentConfig(run_in="caller"))
    with Uploader("gs://bucket", spool=tmp_path / "spool", config=here) as uploader:
        (record,) = uploader.journal.queries.stores().values()
        assert {} == record.options
        assert str(tmp_path / "federated.json") == (record.environment or {})["GOOGLE_APPLICATION_CREDENTIALS"]
