"""Requests to S3 before botocore is loaded: as it would make them, and only where the options alone say how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from servers.wire import answering, say, wire
from wherry.backends.s3.client import connect
from wherry.backends.s3.direct_requests import Direct, _check_alike
from wherry.backends.s3.early import early_direct
from wherry.backends.s3.options import S3Options
from wherry.backends.s3.sample import SAMPLE_KEY, sample_of
from wherry.backends.s3.store import S3Store
from wherry.errors import AccessDeniedError
from wherry.uri import StoreURI

KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
HERE = {"endpoint_url": "http://127.0.0.1:9000", **KEYS}
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'
OPERATIONS = ("put_object", "upload_part", "get_object", "head_object", "delete_object")


def early(given: dict[str, object], bucket: str = "bucket", environ: dict[str, str] | None = None) -> Direct | None:
    nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    options = S3Options.read(given)
    return early_direct(options, bucket, lambda: False, lambda: None, {**nowhere, **(environ or {})})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"endpoint_url": "http://Example.com:80/"},
        {"endpoint_url": "https://store.example.com:443"},
        {"endpoint_url": "https://store.example.com:8443", "aws_session_token": "TOKEN"},
        {"region": "eu-central-1", "addressing_style": "path"},
    ],
)
def test_botocore_makes_the_same_requests(given: dict[str, object]) -> None:
    found, options = early({**HERE, **given}), S3Options.read({**HERE, **given})
    assert found is not None
    connection = connect(options, "bucket")
    url = urlsplit(f"{str(options.endpoint_url).rstrip('/')}{found.path}{SAMPLE_KEY}")
    for operation in OPERATIONS:
        sample = sample_of(connection.client, "bucket", operation)
        _check_alike(sample, operation, url._replace(netloc=urlsplit(sample.url).netloc), found.host, found.signer)
    assert connection.authorities is not None
    connection.close()


@pytest.mark.parametrize(
    ("given", "bucket", "environ"),
    [
        ({"endpoint_url": "https://s3.eu-central-1.amazonaws.com"}, "bucket", {}),
        ({"endpoint_url": "http://127.0.0.1:9000/below"}, "bucket", {}),
        ({"endpoint_url": "https://127.0.0.1:9000", "verify": False}, "bucket", {}),
        ({"addressing_style": "virtual"}, "bucket", {}),
        ({"sdk_only": True}, "bucket", {}),
        ({"anonymous": True}, "bucket", {}),
        ({"profile": "other"}, "bucket", {}),
        ({}, "bucket--use1-az4--x-s3", {}),
        ({}, "arn:aws:s3:eu-central-1:123456789012:accesspoint/point", {}),
        ({}, "some-s3alias", {}),
        ({}, "Bucket", {}),
        ({}, "bucket", {"AWS_PROFILE": "other"}),
        ({}, "bucket", {"AWS_USE_FIPS_ENDPOINT": "true"}),
        ({}, "bucket", {"https_proxy": "http://127.0.0.1:9"}),
        ({}, "bucket", {"HTTP_PROXY": "http://127.0.0.1:9"}),
        ({}, "bucket", {"Http_Proxy": "http://127.0.0.1:9"}),
        ({}, "bucket", {"AWS_CONFIG_FILE": __file__}),
        ({}, "bucket", {"AWS_SHARED_CREDENTIALS_FILE": __file__}),
    ],
)
def test_what_something_else_has_a_say_in_is_botocores(given: dict[str, object], bucket: str, environ: dict[str, str]) -> None:
    assert early({**HERE, **given}, bucket, environ) is None


@pytest.mark.parametrize("missing", ["endpoint_url", "aws_access_key_id"])
def test_without_an_endpoint_or_keys_botocore_looks_for_them(missing: str) -> None:
    given: dict[str, object] = {name: text for name, text in HERE.items() if name != missing}
    if missing == "aws_access_key_id":
        del given["aws_secret_access_key"]
    assert early(given) is None


def test_hosts_that_need_no_proxy_are_no_proxy() -> None:
    assert early(dict(HERE), environ={"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}) is not None


def test_a_first_upload_loads_no_botocore(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    code = (
        "import sys; from pathlib import Path; from wherry.backends.s3.store import S3Store; from wherry.uri import StoreURI\n"
        f"with S3Store(StoreURI('s3', 'bucket'), {{**{HERE!r}, 'endpoint_url': sys.argv[1]}}) as store:\n"
        "    store.put_file('key', Path(sys.argv[2]))\n"
        "assert not {'botocore', 'urllib3'} & sys.modules.keys(), sorted(sys.modules)"
    )
    environment = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "HOME": str(tmp_path)}
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with wire(say(OK)) as server:
        command = [sys.executable, "-c", code, f"http://127.0.0.1:{server.port}", str(tmp_path / "file")]
        subprocess.run(command, check=True, env={**kept, **environment})


def test_what_follows_a_denial_is_made_after_botocores_sample(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    denied = answering(b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", "403 Forbidden")
    with wire(denied, say(OK)) as server:
        options = {**HERE, "endpoint_url": f"http://127.0.0.1:{server.port}"}
        with S3Store(StoreURI("s3", "bucket"), options) as store:
            with pytest.raises(AccessDeniedError):
                store.put_file("key", tmp_path / "file")
            assert not store._objects.is_connected()
            store.put_file("key", tmp_path / "file")
            assert store._objects.is_connected()
