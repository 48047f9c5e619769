"""What the environment gives, per scheme."""

from __future__ import annotations

import pytest

from wherry.store.environment import secrets_from_environment, with_environment


def test_half_a_key_is_none() -> None:
    assert {} == secrets_from_environment("s3", {"AWS_ACCESS_KEY_ID": "k"})
    assert {} == secrets_from_environment("gs", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


def test_google_credentials_are_a_file_name() -> None:
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": "/keys.json", "GOOGLE_CLOUD_PROJECT": "p"}
    assert {"credentials_file": "/keys.json", "project": "p"} == with_environment("gs", {}, environ)
    assert {"token": "t", "project": "p"} == with_environment("gs", {"token": "t"}, environ)


def test_an_emulators_host_means_anonymous_unless_something_says_whose_credentials_count() -> None:
    environ = {"STORAGE_EMULATOR_HOST": "http://e", "REQUESTS_CA_BUNDLE": "/ca.pem"}
    found = {"endpoint_url": "http://e", "verify": "/ca.pem"}
    assert {**found, "anonymous": True} == with_environment("gs", {}, environ)
    assert {**found, "token": "t"} == with_environment("gs", {"token": "t"}, environ)
    keys = {"GOOGLE_APPLICATION_CREDENTIALS": "/keys.json"}
    assert {**found, "credentials_file": "/keys.json"} == with_environment("gs", {}, {**environ, **keys})
    assert {"endpoint_url": "http://o", "verify": True} == with_environment(
        "gs", {"endpoint_url": "http://o", "verify": True}, environ
    )


def test_other_schemes_take_nothing() -> None:
    assert {"fsync": True} == with_environment("file", {"fsync": True}, {"AWS_PROFILE": "p", "AWS_ENDPOINT_URL": "e"})


def test_the_first_variable_counts_and_empty_ones_do_not() -> None:
    environ = {"AWS_ENDPOINT_URL_S3": "", "AWS_ENDPOINT_URL": "http://a", "S3_ENDPOINT_URL": "http://b"}
    assert {"endpoint_url": "http://a"} == with_environment("s3", {}, environ)


@pytest.mark.parametrize("value", [None, False])
def test_anonymous_that_is_off_leaves_the_environments_credentials(value: object) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA1234", "AWS_SECRET_ACCESS_KEY": "secret12"}
    found = with_environment("s3", {"anonymous": value}, keys)
    assert {"anonymous": value, "aws_access_key_id": "AKIA1234", "aws_secret_access_key": "secret12"} == found
    found = with_environment("gs", {"anonymous": value}, {"GOOGLE_APPLICATION_CREDENTIALS": "/keys.json"})
    assert {"anonymous": value, "credentials_file": "/keys.json"} == found
    assert {"anonymous": True} == with_environment("s3", {"anonymous": True}, keys)
