"""Which answers of an S3 server count as unreadable, and that a mistake of ours does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servers.wire import answering, wire
from wherry.backends.s3.store import S3Store
from wherry.errors import PermanentError
from wherry.uri import StoreURI

KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "region": "eu-central-1"}
PARTS = "<ListPartsResult><Part><PartNumber>%s</PartNumber><Size>%s</Size><ETag>e</ETag></Part></ListPartsResult>"
UPLOADS = (
    "<ListMultipartUploadsResult><Upload><Key>a</Key><UploadId>1</UploadId><Initiated>%s</Initiated></Upload>"
    "</ListMultipartUploadsResult>"
)


def store_of(port: int) -> S3Store:
    return S3Store(StoreURI("s3", "bucket"), {"endpoint_url": f"http://127.0.0.1:{port}", **KEYS})


def list_parts(store: S3Store) -> object:
    return store.list_parts("key", "id")


def list_uploads(store: S3Store) -> object:
    return list(store.list_uploads())


@pytest.mark.parametrize(
    ("page", "call"),
    [
        (PARTS % ("first", "1"), list_parts),
        (UPLOADS % "yesterday", list_uploads),
        (UPLOADS % ("9" * 30), list_uploads),  # a time that no date can hold
    ],
    ids=["number", "date", "year"],
)
def test_a_value_that_cannot_be_is_an_error_for_good(page: str, call: Callable[[S3Store], object]) -> None:
    with (
        wire(answering(page.encode())) as server,
        store_of(server.port) as store,
        pytest.raises(PermanentError, match="the server's answer cannot be read"),
    ):
        call(store)


@pytest.mark.parametrize("mistake", [ValueError("a bug"), RuntimeError("dictionary changed size during iteration")], ids=str)
def test_a_mistake_of_our_own_is_no_answer_of_the_servers(mistake: Exception) -> None:
    with store_of(1) as store, pytest.raises(type(mistake)) as caught, store._errors.translated("put", "key"):
        raise mistake
    assert caught.value is mistake
