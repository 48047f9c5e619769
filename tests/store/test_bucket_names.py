"""Names of buckets and objects that a store cannot have are refused when an upload is accepted, with the rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import CALLER
from wherry.errors import ConfigError
from wherry.store.registry import check_usable, open_store
from wherry.uploader import Uploader
from wherry.uri import StoreURI, parse_uri

OURS = {"endpoint_url": "http://127.0.0.1:9"}
LONG_PARTS = ".".join(["a" * 63] * 3)  # 191 characters
BAD: list[tuple[str, str]] = [
    ("ab", "fewer than 3"),
    ("a" * 64, "more than 63"),
    ("Bad-Bucket", "lower-case"),
    ("bad bucket", "characters|of 1 to 255"),
    ("-bad", "begin and end"),
    ("bad-", "begin and end"),
    ("bad.", "begin and end"),
    ("bad..bucket", "two dots"),
    ("192.168.5.4", "IP address"),
]


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("scheme", "name", "rule"),
    [
        *(("s3", *row) for row in BAD),
        *(("gs", *row) for row in BAD),
        ("s3", "a_b", "lower-case"),
        ("s3", LONG_PARTS, "more than 63"),
        ("gs", ".".join(["a" * 63] * 4), "more than 222"),
    ],
)
def test_a_bucket_that_cannot_be_is_refused_with_the_rule(scheme: str, name: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        Uploader(f"{scheme}://{name}/run", spool=tmp_path / "spool", config=CALLER)
    assert repr(name) in str(caught.value)
    assert "correct the URI" in str(caught.value)
    assert not (tmp_path / "spool").exists(), "nothing was begun"
    with pytest.raises(ConfigError, match=rule):
        open_store(StoreURI(scheme, name), {})


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("s3", "a-1"),
        ("s3", "my.bucket"),
        ("s3", "a" * 63),
        ("s3", "models--usw2-az1--x-s3"),
        ("s3", "arn:aws:s3:us-east-1:123456789012:accesspoint:mine"),
        ("gs", "a_b"),
        ("gs", "a" * 63),
        ("gs", LONG_PARTS),
    ],
)
def test_a_bucket_that_can_be_is_taken(scheme: str, name: str) -> None:
    check_usable(scheme, {}, name)


@pytest.mark.parametrize(("scheme", "name"), [("s3", "Bad_Bucket"), ("s3", "ab"), ("gs", "Bad..Bucket"), ("gs", "a" * 64)])
def test_other_servers_have_rules_of_their_own(scheme: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_usable(scheme, OURS, name)
    monkeypatch.setenv({"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}[scheme], OURS["endpoint_url"])
    check_usable(scheme, {}, name)


@pytest.mark.parametrize(("scheme", "name"), [("s3", "bucket?"), ("s3", "a" * 256), ("gs", "_bucket"), ("gs", "bucket.")])
def test_what_no_client_can_ask_for_is_refused_everywhere(scheme: str, name: str) -> None:
    with pytest.raises(ConfigError, match="correct the URI"):
        check_usable(scheme, OURS, name)


@pytest.mark.parametrize("endpoint", ["https://s3.eu-west-1.amazonaws.com", "https://storage.googleapis.com"])
def test_a_vendors_own_endpoint_keeps_the_vendors_rules(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="lower-case"):
        check_usable("gs" if "google" in endpoint else "s3", {"endpoint_url": endpoint}, "Bad-Bucket")


def test_a_bucket_of_amazons_that_is_older_than_the_rules_is_reached_by_its_path() -> None:
    check_usable("s3", {"addressing_style": "path"}, "My_Old_Bucket")


def test_google_keeps_no_object_below_its_own_prefix(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    refused = ".well-known/acme-challenge/"
    options = {**OURS, "anonymous": True}
    with Uploader("gs://bucket", storage_options=options, spool=tmp_path / "spool", config=CALLER) as uploader:
        with pytest.raises(ConfigError, match=refused):
            uploader.put(tmp_path / "file", f"{refused}x")
        with pytest.raises(ConfigError, match=refused), uploader.open(f"{refused}x") as file:
            file.write(b"x")
        assert (0, []) == (uploader.counts().queued, list(uploader.spool.objects.iterdir()))
    with pytest.raises(ConfigError, match=refused):
        parse_uri(f"gs://bucket/{refused}").key_for("x")
    assert f"{refused}x" == parse_uri("s3://bucket").key_for(f"{refused}x")
    assert f"run/{refused}x" == parse_uri("gs://bucket/run").key_for(f"{refused}x")
