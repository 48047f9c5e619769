"""Which server and account requests go to, and by which address: what botocore's session says, for it has read all settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import botocore
import pytest
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, DEFAULT_S3_CONFIG_VARS

from servers.real import S3Server
from wherry import Uploader
from wherry.backends.s3.client import connect, endpoint_of
from wherry.backends.s3.options import BACKEND, S3Options, is_amazons
from wherry.backends.s3.sample import sample_of
from wherry.backends.s3.store import S3Store
from wherry.errors import ConfigError, UploadFailed
from wherry.uri import StoreURI

ELSEWHERE = "http://127.0.0.1:9"
IN_SERVICES = "[profile lab]\nservices = lab\n[services lab]\ns3 =\n  endpoint_url = {0}\n"
#: Variables of botocore's that choose neither servers nor accounts.
HARMLESS = (
    *("AWS_METADATA_SERVICE_TIMEOUT", "AWS_METADATA_SERVICE_NUM_ATTEMPTS", "AWS_CSM_ENABLED", "AWS_CSM_HOST", "AWS_CSM_PORT"),
    *("AWS_CSM_CLIENT_ID", "AWS_ENDPOINT_DISCOVERY_ENABLED", "AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS", "AWS_SDK_UA_APP_ID"),
    *("AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES", "AWS_DISABLE_REQUEST_COMPRESSION", "AWS_REQUEST_CHECKSUM_CALCULATION"),
    *("AWS_RESPONSE_CHECKSUM_VALIDATION", "BOTOCORE_TCP_KEEPALIVE"),
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty config file, which botocore reads."""
    path = tmp_path / "config"
    path.touch()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("text", "options", "variables"),
    [
        (IN_SERVICES.format(ELSEWHERE), {"profile": "lab"}, {}),
        (IN_SERVICES.format(ELSEWHERE), {}, {"AWS_PROFILE": "lab"}),
        (f"[default]\nendpoint_url = {ELSEWHERE}\n", {}, {}),
        (IN_SERVICES.format("http://127.0.0.1:8"), {"profile": "lab"}, {"AWS_ENDPOINT_URL": ELSEWHERE}),
        ("", {}, {"S3_ENDPOINT_URL": ELSEWHERE}),
    ],
)
def test_a_server_of_ones_own_is_known_however_it_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: Mapping[str, object], variables: Mapping[str, str]
) -> None:
    config.write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with S3Store(StoreURI("s3", "bucket"), options) as store:
        assert ELSEWHERE == store.endpoint
        assert not store.capabilities.conditional_put  # until it has been tried


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {"AWS_ENDPOINT_URL": ELSEWHERE, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
        (f"[default]\nignore_configured_endpoint_urls = true\nendpoint_url = {ELSEWHERE}\n", {"AWS_ENDPOINT_URL_S3": ELSEWHERE}),
        (f"[default]\nendpoint_url = {ELSEWHERE}\n", {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
    ],
)
def test_configured_endpoints_that_are_to_be_ignored_are(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str, variables: Mapping[str, str]
) -> None:
    config.write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_amazons(endpoint_of(S3Options()))
    with S3Store(StoreURI("s3", "bucket"), {}) as store:
        assert store.endpoint is None


@pytest.mark.parametrize(
    ("given", "host"), [({"endpoint_url": "http://localhost:9"}, "bucket.localhost:9"), ({}, "bucket.localhost:9")]
)
def test_the_profiles_addressing_style_counts(config: Path, given: Mapping[str, object], host: str) -> None:
    config.write_text("[default]\nendpoint_url = http://localhost:9\ns3 =\n  addressing_style = virtual\n")
    options = S3Options.read({**given, "aws_access_key_id": "key", "aws_secret_access_key": "secret"})
    connection = connect(options, "bucket")
    assert f"http://{host}/" in sample_of(connection.client, "bucket", "put_object").url
    connection.close()


@pytest.mark.parametrize("port", [99999, 0])
@pytest.mark.parametrize("source", ["option", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "profile"])
def test_an_endpoint_with_a_port_that_cannot_be_is_a_clear_error(
    config: Path, monkeypatch: pytest.MonkeyPatch, source: str, port: int
) -> None:
    url = f"http://127.0.0.1:{port}"
    if source == "profile":
        config.write_text(f"[default]\nendpoint_url = {url}\n")
    elif source != "option":
        monkeypatch.setenv(source, url)
    with pytest.raises(ConfigError, match=rf"{source}.*127.0.0.1:{port}.*65535"):
        S3Store(StoreURI("s3", "bucket"), {"endpoint_url": url} if source == "option" else {})


def test_an_endpoints_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hidden@host")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as caught:
        S3Store(StoreURI("s3", "bucket"), {})
    assert "hidden" not in str(caught.value)


def test_a_profile_that_is_mended_is_read_again(config: Path) -> None:
    with pytest.raises(ConfigError, match="lab"):
        S3Store(StoreURI("s3", "bucket"), {"profile": "lab"})
    config.write_text(IN_SERVICES.format(ELSEWHERE))
    with S3Store(StoreURI("s3", "bucket"), {"profile": "lab"}) as store:
        assert ELSEWHERE == store.endpoint


def test_to_find_the_server_no_credentials_are_asked_for(config: Path, tmp_path: Path) -> None:
    config.write_text(f"[default]\ncredential_process = touch {tmp_path}/asked\nendpoint_url = {ELSEWHERE}\n")
    with S3Store(StoreURI("s3", "bucket"), {}) as store:
        assert ELSEWHERE == store.endpoint
    assert not (tmp_path / "asked").exists()


def test_all_addresses_of_amazons_are_known_as_such() -> None:
    partitions = json.loads((Path(botocore.__file__).parent / "data/partitions.json").read_text())["partitions"]
    outputs = [partition["outputs"] for partition in partitions]
    suffixes = [each[name] for each in outputs for name in ("dnsSuffix", "dualStackDnsSuffix")]
    assert [] == [suffix for suffix in suffixes if not is_amazons(f"https://s3.region.{suffix}")]


def test_all_variables_of_botocores_that_choose_servers_and_accounts_travel_with_the_jobs() -> None:
    known = (each[1] for table in (BOTOCORE_DEFAUT_SESSION_VARIABLES, DEFAULT_S3_CONFIG_VARS) for each in table.values())
    names = {name for each in known if each is not None for name in ([each] if isinstance(each, str) else each)}
    assert set() == names - {*BACKEND.variables, *HARMLESS}


def test_a_name_is_taken_at_a_server_that_only_the_profile_names(config: Path, tmp_path: Path, juicefs_server: S3Server) -> None:
    key, secret = juicefs_server.access_key, juicefs_server.secret_key
    keys = f"[profile lab]\naws_access_key_id = {key}\naws_secret_access_key = {secret}"
    config.write_text(IN_SERVICES.format(juicefs_server.url).replace("[profile lab]", keys))
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two")
    uri = f"s3://{juicefs_server.bucket}/test-s3-settings"
    with Uploader(uri, storage_options={"profile": "lab"}, spool=tmp_path / "spool") as uploader:
        first = uploader.put(tmp_path / "one", "name")
        first.result(60)
        assert not first.is_exclusive  # this server keeps no condition
        with pytest.raises(UploadFailed, match="already"):
            uploader.put(tmp_path / "two", "name").result(60)
        uploader.get("name", tmp_path / "back")
    assert b"one" == (tmp_path / "back").read_bytes()
