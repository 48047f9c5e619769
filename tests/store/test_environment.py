"""What the environment gives, per scheme."""

from __future__ import annotations

import pytest

from wherry.store.environment import environment_of, secrets_from_environment, split_environment, with_environment
from wherry.store.registry import endpoint_key


def test_half_a_key_is_none() -> None:
    assert {} == secrets_from_environment("s3", {"AWS_ACCESS_KEY_ID": "k"})
    assert {} == secrets_from_environment("gs", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


@pytest.mark.parametrize("value", [None, False])
def test_anonymous_that_is_off_leaves_the_environments_credentials(value: object) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA1234", "AWS_SECRET_ACCESS_KEY": "secret12"}
    found = with_environment("s3", {"anonymous": value}, keys)
    assert {"anonymous": value, "aws_access_key_id": "AKIA1234", "aws_secret_access_key": "secret12"} == found
    assert {"anonymous": True} == with_environment("s3", {"anonymous": True}, keys)


def test_other_credentials_files_homes_and_proxies_are_other_environments() -> None:
    for scheme, names in (
        ("s3", ("AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL_STS", "HTTPS_PROXY", "HOME")),
        ("gs", ("CLOUDSDK_CONFIG", "GCE_METADATA_HOST", "no_proxy", "REQUESTS_CA_BUNDLE")),
        ("sftp", ("HOME", "SSL_CERT_FILE")),
    ):
        for name in names:
            assert {name: "/one"} == environment_of(scheme, {name: "/one", "PWD": "/here"})
    assert {} == environment_of("file", {"HOME": "/one"})


def test_what_may_be_a_secret_is_not_public() -> None:
    environment = {
        "HTTPS_PROXY": "user:hidden@proxy:3128",
        "AWS_ENDPOINT_URL": "http://user:hidden@host",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://user:hidden@host",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hidden",
        "HTTP_PROXY": "http://proxy:3128",
        "HOME": "/home/me@domain",
    }
    public, secret = split_environment(environment)
    assert {"HTTP_PROXY", "HOME"} == set(public)
    assert environment == {**public, **secret}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"AWS_PROFILE": "a"}, {"AWS_PROFILE": "b"}),
        ({"AWS_CONFIG_FILE": "/a"}, {}),
        ({"HOME": "/a"}, {"HOME": "/b"}),
        ({"AWS_ENDPOINT_URL": "http://a"}, {"AWS_ENDPOINT_URL": "http://a", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
    ],
)
def test_names_that_may_be_on_two_servers_are_two_names(one: dict[str, str], other: dict[str, str]) -> None:
    assert endpoint_key("s3", {}, one) != endpoint_key("s3", {}, other)
    options = {"endpoint_url": "http://host"}
    assert "endpoint_url=http://host" == endpoint_key("s3", options, one) == endpoint_key("s3", options, other)
