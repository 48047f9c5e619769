"""Storage options by fsspec's own names, and the names of protocols."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from support import run_script
from wherry.errors import ConfigError
from wherry.filesystem.storage_options import Place, place_and_options

SECRETS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}


@pytest.mark.parametrize(
    ("protocol", "given", "expected"),
    [
        ("s3", {"endpoint_url": "http://x", "region": "r", **SECRETS}, {"endpoint_url": "http://x", "region": "r", **SECRETS}),
        ("s3", {"key": "key", "secret": "secret", "token": "token"}, SECRETS),
        ("s3a", {"anon": True, "profile": None}, {"anonymous": True}),
        (
            "s3",
            {"client_kwargs": {"endpoint_url": "http://x", "region_name": "r", "verify": False, "aws_access_key_id": "key"}},
            {"endpoint_url": "http://x", "region": "r", "verify": False, "aws_access_key_id": "key"},
        ),
        ("s3", {"endpoint_url": "http://x", "client_kwargs": {"endpoint_url": "http://x"}}, {"endpoint_url": "http://x"}),
        (
            "s3",
            {"config_kwargs": {"connect_timeout": 1, "read_timeout": 2.0, "max_pool_connections": 3}},
            {"connect_timeout_s": 1, "read_timeout_s": 2.0, "max_connections": 3},
        ),
        ("gs", {"token": "ya29.x", "project": "p"}, {"token": "ya29.x", "project": "p"}),
        ("gcs", {"token": "anon"}, {"anonymous": True}),
        ("gcs", {"requester_pays": "payer"}, {"user_project": "payer"}),
        ("gcs", {"requester_pays": True, "project": "p"}, {"project": "p", "user_project": "p"}),
        ("gcs", {"requester_pays": False}, {}),
        ("gcs", {"token": "google_default"}, {}),
        ("gcs", {"token": {"type": "service_account"}}, {"credentials_json": {"type": "service_account"}}),
        ("gcs", {"token": __file__}, {"credentials_file": __file__}),
        ("file", {"auto_mkdir": True, "fsync": True}, {"fsync": True}),
        ("memory", {}, {}),
    ],
)  # fmt: skip
def test_options_mean_the_same_under_both_names(protocol: str, given: dict[str, object], expected: dict[str, object]) -> None:
    assert expected == place_and_options(protocol, given)[1]


@pytest.mark.parametrize(
    ("protocol", "given", "words"),
    [
        ("s3", {"key": "one", "aws_access_key_id": "two"}, "two storage options of s3:// give 'aws_access_key_id'"),
        ("s3", {"endpoint_url": "http://x", "client_kwargs": {"endpoint_url": "http://y"}}, "contradicts endpoint_url"),
        ("s3", {"client_kwargs": {"api_version": "1"}}, "'client_kwargs' of s3:// holds api_version.*known are .*endpoint_url"),
        ("s3", {"config_kwargs": "fast"}, "'config_kwargs' of s3:// is a str: give a dict"),
        ("gs", {"token": "browser"}, "leave it out"),
        ("nowhere", {}, "unknown scheme 'nowhere'"),
        ("simplecache", {"target_protocol": "s3"}, "must stand directly before the store"),
    ],
)
def test_options_without_a_meaning_are_refused(protocol: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        place_and_options(protocol, given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"default_block_size": 5}, "default_block_size.*known are.*endpoint_url"),
        ({"key": "one", "requester_pays": True}, "requester_pays"),
    ],
)
def test_unknown_options_are_refused_before_anything_is_sent(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fsspec.open("wherry::s3://bucket/x", s3=given)


def test_no_secret_is_shown() -> None:
    fs, _ = fsspec.url_to_fs("wherry::s3://bucket/x", s3={"key": "AKIA-open", "secret": "very-secret-value"})
    assert "very-secret-value" not in f"{fs!r} {fs} {vars(fs._uploaders)['_key']}"
    with pytest.raises(ConfigError) as caught:
        fsspec.open("wherry::s3://bucket/x", s3={"secret": "very-secret-value", "aws_secret_access_key": "another-secret"})
    assert "secret-value" not in str(caught.value)


def test_configuration_of_fsspec_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": "http://configured", "key": "configured"})
    assert {"endpoint_url": "http://configured", "aws_access_key_id": "given"} == place_and_options("s3", {"key": "given"})[1]


@pytest.mark.parametrize(
    ("protocol", "options", "path", "root", "name"),
    [
        ("s3", {}, "bucket/a/b", "bucket", "a/b"),
        ("gcs", {}, "bucket", "bucket", ""),
        ("file", {}, "/a/b", "", "a/b"),
        ("file", {}, "/", "", ""),
        ("memory", {}, "/a", "", "a"),
        ("sftp", {"host": "ship", "port": 2222}, "/a/b", "ship:2222", "a/b"),
        ("sftp", {"host": "ship"}, "/a/b", "ship", "a/b"),
    ],
)
def test_paths_are_roots_and_names(protocol: str, options: dict[str, object], path: str, root: str, name: str) -> None:
    place, rest = place_and_options(protocol, options)
    assert ((root, name), path, {}) == (place.split(path), place.join(root, name), rest)


@pytest.mark.parametrize("path", ["bucket/a//b", "bucket/../b", "bucket/a\n", ""])
def test_names_that_break_the_rules_are_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        Place("s3", is_rooted=False).split(path)


def test_s3_and_gs_are_known_without_their_packages_and_refuse_to_be_used() -> None:
    script = """
    import fsspec
    for url in ("s3://bucket/x", "gs://bucket/x", "gcs://bucket/x", "s3a://bucket/x"):
        print(fsspec.open("wherry::" + url).path)
        try:
            fsspec.open(url)
        except ImportError as error:
            print(error)
    """
    said = run_script(script, env={"WHERRY_SPOOL": os.devnull}).splitlines()
    assert ["bucket/x"] * 4 == said[::2]
    assert ["Install s3fs to access s3://", "Install gcsfs to access gs://"] * 1 == [
        line.partition(" (")[0] for line in said[1:4:2]
    ]


def test_s3_and_gs_lead_to_their_packages_where_these_are_installed(tmp_path: Path) -> None:
    for package, name in (("s3fs", "S3FileSystem"), ("gcsfs", "GCSFileSystem")):
        (tmp_path / f"{package}.py").write_text(
            f"from fsspec import AbstractFileSystem\nclass {name}(AbstractFileSystem): pass\n"
        )
    script = """
    import fsspec
    print({fsspec.get_filesystem_class(name).__module__ for name in ("s3", "s3a", "gs", "gcs")} == {"s3fs", "gcsfs"})
    """
    assert "True\n" == run_script(script, env={"PYTHONPATH": str(tmp_path)})
