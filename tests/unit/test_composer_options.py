"""What Composer's bucket_uri and backend_kwargs are translated to."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.errors import ConfigError
from wherry.integrations.composer_options import Replaced, replaced


def of(uri: str, environ: dict[str, str] | None = None, **kwargs: Any) -> Replaced:
    return replaced(uri, kwargs, 1, environ or {})


def test_a_bucket_and_a_prefix_are_a_uri() -> None:
    assert "s3://b/runs/one" == of("s3://b", prefix="/runs/one/").uri
    assert "gs://b" == of("gs://b").uri


def test_the_given_bucket_counts_more_than_that_of_the_uri() -> None:
    assert "s3://other" == of("s3://b", bucket="other").uri


def test_what_boto3_is_told_becomes_storage_options_and_a_configuration() -> None:
    store = of(
        "s3://b",
        region_name="r",
        endpoint_url="http://h:1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
        client_config={"read_timeout": 5, "retries": {"mode": "standard"}},
        transfer_config={"multipart_chunksize": 2**24, "max_concurrency": 3},
    )
    expected = {
        "region": "r", "endpoint_url": "http://h:1", "aws_access_key_id": "k", "aws_secret_access_key": "s", "read_timeout_s": 5
    }  # fmt: skip
    assert expected == store.options
    assert (2**24, 3) == (store.config.transfer.part_size_bytes, store.config.transfer.parts_in_flight)


def test_more_of_what_boto3_is_told_is_known_or_none_of_our_affair() -> None:
    store = of(
        "s3://b",
        prefix=None,
        client_config={"s3": {"addressing_style": "path"}, "signature_version": "s3v4"},
        transfer_config={"use_threads": False, "max_bandwidth": 1000},
    )
    assert ("s3://b", {"addressing_style": "path"}) == (store.uri, store.options)
    assert 1000 == store.config.transfer.max_bytes_per_s


def test_what_stands_twice_is_taken_once() -> None:
    store = of("sftp://h", host="sftp://me@h:2222", port=2222, username="me")
    assert {"port": 2222, "username": "me"} == store.options
    assert "/f/c" == of("libcloud://c", provider="local", provider_kwargs={"key": "/f"}, key_environ="KEY").uri


def test_a_path_behind_the_bucket_is_not_used_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert "s3://b" == of("s3://b/some/prefix").uri
    assert "Composer does not use the path behind the bucket" in caplog.text


@pytest.mark.parametrize("uri", ["s4://AK:hunter2@b", "s3://AK:hunter2@b", "gs://AK:hunter2@b"])
def test_a_login_in_the_uri_is_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of(uri)
    assert "hunter2" not in str(raised.value)


def test_no_secret_is_in_what_is_shown() -> None:
    store = of("sftp://user:hunter2@host:22", password="hunter3")
    assert "host:22" == store.bucket
    assert "hunter" not in repr(store)


def test_a_canned_acl_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"S3_CANNED_ACL is 'public-read', and wherry sends no ACLs: unset it"):
        of("s3://b", {"S3_CANNED_ACL": "public-read"})


@pytest.mark.parametrize("uri", ["s3://", "s3:///p", "s3:b", "gs://", "gs:b", "oci://", "sftp://", "libcloud://"])
def test_a_uri_without_a_bucket_is_refused(uri: str) -> None:
    kwargs: dict[str, Any] = {"provider": "local", "provider_kwargs": {"key": "/x"}} if uri.startswith("libcloud") else {}
    with pytest.raises(ConfigError, match=r"names no (bucket|host|container): write .*is a variable empty\?"):
        of(uri, **kwargs)


@pytest.mark.parametrize(
    ("uri", "kwargs", "words"),
    [
        (5, {}, "bucket_uri is 5: give a text"),
        ("s3://b", "x", "backend_kwargs is a str: give a dict"),
        ("s3://b", ["bucket"], "backend_kwargs is a list: give a dict"),
        ("s3://b", {"bucket": None}, "names no bucket"),
        ("s3://b", {"prefix": 5}, r"backend_kwargs\['prefix'\] is a int: give a text"),
        ("s3://b", {"transfer_config": 5}, r"backend_kwargs\['transfer_config'\] is a int: give a dict"),
        ("s3://b", {"client_config": {"s3": {"payload_signing_enabled": True}}}, "may have addressing_style only"),
        ("s3://b", {"client_config": {"signature_version": "s3"}}, "can be 's3v4' only"),
        ("libcloud://b", {"provider": "local"}, "libcloud's provider 'local' needs its folder"),
    ],
)
def test_wrong_types_are_named(uri: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replaced(uri, kwargs, 1, {})


def test_the_callers_dict_is_not_changed() -> None:
    given = {"prefix": "p", "client_config": {"retries": {}}}
    replaced("s3://b", given, 1, {})
    assert {"prefix": "p", "client_config": {"retries": {}}} == given


def test_hmac_keys_of_google_speak_s3_to_it() -> None:
    store = of("gs://b", {"GCS_KEY": "k", "GCS_SECRET": "s"}, prefix="p")
    assert ("s3://b/p", "https://storage.googleapis.com") == (store.uri, store.options["endpoint_url"])


def test_libclouds_local_folder_is_a_folder() -> None:
    assert "/data/b" == of("libcloud://b", provider="local", provider_kwargs={"key": "/data"}).uri


def test_libclouds_azure_is_az() -> None:
    environ = {"NAME": "account", "KEY": "secret"}
    store = of("libcloud://b", environ, provider="AZURE_BLOBS", key_environ="NAME", secret_environ="KEY")
    assert ("az://b", {"account_name": "account", "account_key": "secret"}) == (store.uri, store.options)


def test_sftp_has_its_user_and_folder() -> None:
    store = of("sftp://h", host="sftp://me@h:2222/data/runs", key_filename="id")
    assert ("sftp://h/data/runs", 2222, "me", "id") == (
        store.uri,
        *(store.options[name] for name in ("port", "username", "key_filename")),
    )


@pytest.mark.parametrize(
    ("uri", "kwargs", "words"),
    [
        ("magicloud://b", {}, "'magicloud://b' has no equal here: use s3://, gs://"),
        ("dbfs:/Volumes/x", {}, "has no equal here"),
        ("s3://b", {"dir": "x"}, "backend_kwargs of s3:// has dir, which has no equal here: leave it out"),
        ("s3://b", {"client_config": {"proxies": {}}}, r"backend_kwargs\['client_config'\] has proxies: known here are"),
        ("libcloud://b", {"provider": "minio"}, "libcloud's provider 'minio' has no equal here"),
    ],
)
def test_what_has_no_equal_is_refused(uri: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        of(uri, **kwargs)
