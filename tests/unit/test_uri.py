from __future__ import annotations

import os
from pathlib import Path

import pytest

from wherry.errors import ConfigError
from wherry.uri import MAX_NAME_BYTES, StoreURI, check_name, check_new_name, parse_uri


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", StoreURI("s3", "bucket")),
        ("s3://bucket/", StoreURI("s3", "bucket")),
        ("s3://bucket/a/b/", StoreURI("s3", "bucket", "a/b")),
        ("S3://bucket/x", StoreURI("s3", "bucket", "x")),
        ("s3a://bucket/x", StoreURI("s3", "bucket", "x")),
        ("gcs://bucket/x", StoreURI("gs", "bucket", "x")),
        ("gs://bucket/what?is#this", StoreURI("gs", "bucket", "what?is#this")),
        ("memory://", StoreURI("memory", "")),
        ("memory:///runs", StoreURI("memory", "", "runs")),
        ("sftp://user@host:22/runs", StoreURI("sftp", "user@host:22", "runs")),
        ("file:///data/runs/", StoreURI("file", "", "data/runs")),
        ("local:///data", StoreURI("file", "", "data")),
        ("/data/runs", StoreURI("file", "", "data/runs")),
        ("/data/../runs", StoreURI("file", "", "runs")),
        ("/", StoreURI("file", "", "")),
    ],
)
def test_uri_is_scheme_root_and_prefix(text: str, expected: StoreURI) -> None:
    assert expected == parse_uri(text)


def test_relative_path_is_a_local_folder() -> None:
    assert parse_uri("runs/x") == StoreURI("file", "", f"{os.getcwd()}/runs/x".strip("/"))
    assert parse_uri(Path("runs")) == parse_uri("runs")


def test_tilde_is_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_uri("~/runs") == StoreURI("file", "", "home/someone/runs")


@pytest.mark.parametrize("text", ["", "a\0b", "s3://", "gs:///key", "file://relative", "s3://bucket/a/../b", "s3://bucket/a//b"])
def test_bad_uri_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_uri(text)


def test_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_uri("sftp://user:hunter2@host/runs")
    assert "hunter2" not in str(caught.value)
    assert "storage_options" in str(caught.value)


@pytest.mark.parametrize(
    "login",
    [
        "KEY:hunter2",
        "KEY:hun/ter2",
        "KEY:12/hunter2",
        "KEY:hun@t/er2",
        "KEY:h/u@n/ter2",
        ":hunter2",
        "me@corp:hunter2",
        "KEY:h+//2=",
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "gs", "S3A"])
def test_no_part_of_a_login_is_told_wherever_its_slashes_are(scheme: str, login: str) -> None:
    with pytest.raises(ConfigError, match="carries a password") as caught:
        parse_uri(f"{scheme}://{login}@bucket/runs")
    assert str(caught.value).startswith(f"the URI {scheme.lower().rstrip('a')}://...@bucket/runs carries")


@pytest.mark.parametrize(
    "text",
    [
        "sftp://host:22/runs@home",
        "sftp://me@host:22/runs@home",
        "sftp://[::1]:22/runs@home",
        "s3://bucket/run:1@home",
        "s3://arn:aws:s3:us-east-1:123456789012:accesspoint:mine/runs@home",
        "abfs://container@account/runs:1@home",
    ],
)
def test_what_is_no_login_is_no_password(text: str) -> None:
    assert text == str(parse_uri(text))


@pytest.mark.parametrize("uri", [StoreURI("s3", "b"), StoreURI("s3", "b", "p/q"), StoreURI("file", "", "tmp/x")])
def test_key_and_name_are_inverse(uri: StoreURI) -> None:
    assert uri.name_for(uri.key_for("run/ep0.pt")) == "run/ep0.pt"
    assert uri.uri_for(uri.key_for("n")) == (f"{uri.store}/{uri.prefix}/n" if uri.prefix else f"{uri.store}/n")


@pytest.mark.parametrize("text", ["s3://bucket/", "s3://bucket/a/b", "file:///data/runs", "file:///"])
def test_text_of_a_uri_reads_back(text: str) -> None:
    assert text == str(parse_uri(text))
    assert parse_uri(text) == parse_uri(str(parse_uri(text)))


@pytest.mark.parametrize("name", ["a", "a/b.c", "what?#&%20+", "käse", ".hidden", "a..b/...", "x" * MAX_NAME_BYTES])
def test_good_name_is_kept(name: str) -> None:
    assert name == check_name(name)


def test_name_becomes_nfc() -> None:
    assert check_name("ka\u0308se") == "k\u00e4se"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        ("/a", "starts with"),
        ("a/", "empty part"),
        ("a//b", "empty part"),
        ("./a", "part '.'"),
        ("a/../b", "part '..'"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\ud800b", "surrogate"),
        ("x" * (MAX_NAME_BYTES + 1), "1025 bytes"),
        ("ä" * 513, "1026 bytes"),
    ],
)
def test_bad_name_is_refused_with_its_rule(name: str, word: str) -> None:
    with pytest.raises(ConfigError, match="remote name") as caught:
        check_name(name)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\\b", "\\"),
        ("run\u202etxt.exe", "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("a\u2066b", "U+2066"),
        ("a\u200bb", "U+200B (ZERO WIDTH SPACE)"),
        ("a\u200db", "U+200D"),
        ("\ufeffa", "U+FEFF (ZERO WIDTH NO-BREAK SPACE)"),
        ("a\u2028b", "U+2028"),
    ],
)
def test_a_new_object_has_no_name_that_looks_like_another(name: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_new_name(name)
    assert shown in str(caught.value)
    assert str(caught.value).isprintable()
    assert name == check_name(name), "objects of others are reached"


def test_name_must_be_text() -> None:
    with pytest.raises(ConfigError, match="bytes"):
        check_name(b"a")  # type: ignore[arg-type]


def test_a_name_and_its_prefix_together_fit_the_longest_key() -> None:
    uri = parse_uri("s3://bucket/prefix")
    assert 1024 == len(uri.key_for("x" * (1024 - len("prefix/"))))
    with pytest.raises(ConfigError, match="a key of 1025 bytes of UTF-8 with the prefix 'prefix': at most 1024 are allowed"):
        uri.key_for("x" * (1025 - len("prefix/")))
    assert parse_uri("/" + "f" * 200).key_for("/".join(["x" * 255] * 4))  # a local folder's path is no part of the name


def test_no_name_carries_the_mark_of_what_is_half_written() -> None:
    with pytest.raises(ConfigError, match=r"holds '.wherry-tmp-', which marks"):
        check_name("run/.model.wherry-tmp-1")


@pytest.mark.parametrize("text", [b"caf\xe9", b"/srv/caf\xe9/run", b"file:///srv/\xff/run"])
def test_a_path_that_is_no_utf_8_is_refused_by_name(text: bytes) -> None:
    """A journal and JSON hold UTF-8."""
    with pytest.raises(ConfigError, match=r"\\udc.. *.* has bytes that are no UTF-8: rename that folder"):
        parse_uri(os.fsdecode(text))
