"""A refusal is told by its cause, with the remedy for that one."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.features import features_of
from servers.proxy import Answer, When, fault_proxy, s3_error
from servers.real import S3Server
from support import leased_job
from wherry.backends.s3.store import S3Store
from wherry.config import TransferConfig
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    CredentialsExpiredError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
)
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

KMS_WORDS = "User: arn:aws:iam::1:user/u is not authorized to perform: kms:GenerateDataKey on resource: arn:aws:kms:key/k"
PAGE = Answer(403, b"<html><head><title>Proxy</title></head><body>Forbidden</body></html>", (("Content-Type", "text/html"),))
#: What the server answers to a put or a get, our error, and the start of the remedy.
REFUSALS: dict[str, tuple[str, Answer, type[StoreError], str]] = {
    "archived": ("get", s3_error(403, "InvalidObjectState"), PermanentError, "the object is archived"),
    "no ListBucket": (
        "get",
        s3_error(403, "AccessDenied"),
        AccessDeniedError,
        r"check.*\(s3:ListBucket\) a name that is",
    ),
    "rights": ("put", s3_error(403, "AccessDenied"), AccessDeniedError, "check the access key, its secret and its rights on"),
    "KMS": ("put", s3_error(403, "AccessDenied", KMS_WORDS), AccessDeniedError, "grant kms:GenerateDataKey"),
    "KMS key": ("get", s3_error(400, "KMS.DisabledException"), AccessDeniedError, "grant kms:GenerateDataKey"),
    "MFA": ("put", s3_error(403, "AccessDenied", "Mfa Authentication must be used"), AccessDeniedError, "make temporary keys"),
    "account": ("put", s3_error(403, "AllAccessDisabled"), AccessDeniedError, "the account may not use"),
    "style": ("get", s3_error(403, "SecondLevelDomainForbidden"), PermanentError, "give the storage option addressing_style='v"),
    "style by words": (
        "put",
        s3_error(403, "AccessDenied", "use virtual-hosted style"),
        AccessDeniedError,
        "give the storage opt",
    ),
    "proxy": ("get", PAGE, AccessDeniedError, "the answer is not in S3's form"),
    "proxy for puts": ("put", PAGE, AccessDeniedError, "the answer is not in S3's form"),
    "web server": ("get", Answer(404, PAGE.body), NotFoundError, "the answer is not in S3's form"),
    "empty": ("put", Answer(403), AccessDeniedError, "check the access key.*; the answer is not in S3's form"),
}


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    return path


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_refusal_is_told_by_its_cause(file: Path, cause: str, sdk_only: bool) -> None:
    verb, answer, kind, hint = REFUSALS[cause]
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    with (
        fault_proxy("127.0.0.1", 1, [When("", "", answer, times=9)]) as proxy,
        S3Store(StoreURI("s3", "bucket"), {"endpoint_url": proxy.url, "sdk_only": sdk_only, **keys}) as store,
        pytest.raises(kind, match="s3://bucket/key") as caught,
    ):
        store.put_file("key", file) if verb == "put" else store.head("key")
    assert kind is type(caught.value)
    assert re.match(hint, caught.value.hint), caught.value.hint


def test_a_server_without_a_name_for_each_bucket_is_told_by_that(file: Path, sdk_only: bool) -> None:
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "addressing_style": "virtual", "sdk_only": sdk_only}
    store = S3Store(StoreURI("s3", "bucket"), {"endpoint_url": "http://server.invalid:1", **keys})
    with store, pytest.raises(TransientError, match="addressing_style='path'"):
        store.put_file("key", file)


def test_keys_that_may_only_write_learn_that_a_name_is_taken(seaweedfs_server: S3Server, file: Path, sdk_only: bool) -> None:
    denied = [When(method, "", s3_error(403, "AccessDenied"), times=99) for method in ("GET", "HEAD")]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, denied) as proxy, ThreadPoolExecutor(1) as pool:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url, "sdk_only": sdk_only}
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
            store.assume(features_of(seaweedfs_server))
            key = f"write-only/{sdk_only}"
            sender = Sender(None, pool)
            sender.send(leased_job(key, 10, overwrite=False), file, store, TransferConfig())
            with pytest.raises(AlreadyExistsError):
                sender.send(leased_job(key, 10, overwrite=False), file, store, TransferConfig())


def test_keys_that_may_only_write_are_told_what_an_unknown_server_lacks(seaweedfs_server: S3Server, file: Path) -> None:
    """It may ignore conditions, and so replace an object: nothing is sent."""
    denied = [When(method, "", s3_error(403, "AccessDenied"), times=99) for method in ("GET", "HEAD")]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, denied) as proxy, ThreadPoolExecutor(1) as pool:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store, pytest.raises(AccessDeniedError) as caught:
            Sender(None, pool).send(leased_job("unknown", 10, overwrite=False), file, store, TransferConfig())
        assert "allow s3:GetObject" in caught.value.hint
        assert [] == proxy.requests("PUT")


#: The lines of a profile, what the error says and what the remedy.
PROFILES = {
    "SSO": (
        "sso_start_url = https://x.awsapps.com/start\nsso_region = us-east-1\nsso_account_id = 111122223333\nsso_role_name = r",
        "aws sso login",
    ),
    "SSO session": ("sso_session = s\nsso_account_id = 111122223333\nsso_role_name = r", "aws sso login"),
    "process fails": ('credential_process = sh -c "echo locked >&2; exit 3"', "locked .*credential_process by itself"),
    "process is silent": ("credential_process = true", "JSON .*credential_process by itself"),
    "process lacks keys": ("credential_process = echo {}", "credential_process by itself"),
    "no such process": ("credential_process = /no/such/program", "/no/such/program .*in the profile"),
    "no such token": (
        "role_arn = arn:aws:iam::111122223333:role/r\nweb_identity_token_file = /no/such/file",
        "/no/such/file .*in the profile",
    ),
    "MFA": (
        "role_arn = arn:aws:iam::111122223333:role/r\nsource_profile = base\nmfa_serial = arn:aws:iam::111122223333:mfa/me",
        "needs the code of an MFA device .*aws sts get-session-token",
    ),
}


def profile(tmp_path: Path, lines: str) -> dict[str, str]:
    """Variables that lead to a profile."""
    config = tmp_path / "config"
    session = "[sso-session s]\nsso_region = us-east-1\nsso_start_url = https://x.awsapps.com/start\n"
    base = "[profile base]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = not-a-secret\n"
    config.write_text(f"{session}{base}[profile mine]\n{lines}\n")
    return {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "mine", "HOME": str(tmp_path)}


@pytest.mark.parametrize("cause", [cause for cause in PROFILES if cause != "MFA"])
def test_credentials_that_cannot_be_made_are_told_by_their_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """An upload waits for them, as for new keys."""
    lines, words = PROFILES[cause]
    for name, value in profile(tmp_path, lines).items():
        monkeypatch.setenv(name, value)
    with (
        S3Store(StoreURI("s3", "bucket"), {"endpoint_url": "http://127.0.0.1:1"}) as store,
        pytest.raises(CredentialsExpiredError, match=f"head s3://bucket/key: .*{words}"),
    ):
        store.head("key")


@pytest.mark.parametrize("cause", ["SSO", "MFA", "no such token"])
def test_no_traceback_of_botocores_reaches_a_person(line: CommandLine, tmp_path: Path, cause: str) -> None:
    lines, words = PROFILES[cause]
    said = line.refuse("ls", "s3://bucket/", "-o", "endpoint_url=http://127.0.0.1:1", expected=5, env=profile(tmp_path, lines))
    assert re.search(words, said), said


def test_a_token_that_a_process_gives_is_looked_at_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"Version": 1, "AccessKeyId": "AKIAEXAMPLE", "SecretAccessKey": "not-a-secret", "SessionToken": "hunter2hunter2\n"}
    (tmp_path / "keys").write_text(json.dumps(keys))
    for name, value in profile(tmp_path, f"credential_process = cat {tmp_path}/keys").items():
        monkeypatch.setenv(name, value)
    store = S3Store(StoreURI("s3", "bucket"), {"endpoint_url": "http://127.0.0.1:1"})
    with store, pytest.raises(ConfigError, match=r"^the token that botocore has found .*white space") as caught:
        store.head("key")
    assert "hunter2" not in str(caught.value)
