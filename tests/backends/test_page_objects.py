"""Pages of S3's listings: what is read by ourselves is what botocore reads, and what cannot be is left to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wherry.backends.s3.page_objects import OBJECTS, take_objects
from wherry.store import ObjectMeta

HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
DATE = "2026-01-01T00:00:00.000Z"
#: As a page has it -> the key.
KEYS = {
    "a/b": "a/b",
    "a+b": "a+b",
    "a%20b": "a%20b",
    "a&amp;&lt;&gt;&quot;&apos;b": "a&<>\"'b",
    "a&amp;lt;b": "a&lt;b",
    "&#38;lt;&#x41;": "&lt;A",
    "é\U0001f600": "é\U0001f600",
    "": "",
}


def page(key: str, *, more: str = "", head: str = HEAD, url: bool = False) -> bytes:
    rows = (
        f"<Contents><Key>{key}</Key><ETag>&quot;e&quot;</ETag><Size>7</Size><Owner><ID>Size</ID></Owner>"
        f"<LastModified>{DATE}</LastModified></Contents>"
    )
    encoding = "<EncodingType>url</EncodingType>" if url else ""
    end = "<IsTruncated>false</IsTruncated></ListBucketResult>"
    return f"{head}<ListBucketResult><Prefix>p</Prefix>{encoding}{rows}{more}{end}".encode()


def taken(body: bytes, *, operation: str = "ListObjectsV2", status: int = 200) -> tuple[list[ObjectMeta] | None, bytes]:
    response: dict[str, Any] = {"body": body, "status_code": status}
    found: dict[str, Any] = {}
    take_objects(SimpleNamespace(name=operation), response, found)  # type: ignore[arg-type]
    return found.get(OBJECTS), response["body"]


@pytest.mark.parametrize("text", KEYS)
def test_keys_are_read_with_their_entities(text: str) -> None:
    objects, rest = taken(page(text))
    assert [ObjectMeta(KEYS[text], 7, "e", modified_s=1767225600.0)] == objects
    assert b"<Contents" not in rest
    assert b"<IsTruncated>false</IsTruncated>" in rest


def test_quoted_keys_are_read_as_botocore_does() -> None:
    objects, _ = taken(page("a+b%2Bc%C3%A9%2525", url=True))
    assert objects is not None
    assert "a b+cé%25" == objects[0].key


@pytest.mark.parametrize(
    "body",
    [
        page("a", more="<!-- a comment -->"),
        page("<![CDATA[a]]>"),
        page("a", head='<?xml version="1.0" encoding="ISO-8859-1"?>'),
        page("a").replace(b"<Key>a", b"<Key>\xff"),
        page("&unknown;"),
        page("&#xd800;"),
        page("&#x110000;"),
        page("a & b"),
        page("a", more="<Contents xmlns='x'><Key>b</Key></Contents>"),
        page("a").replace(b"<Key>a</Key>", b""),
        page("a").replace(b"</Contents>", b""),
    ],
)
def test_other_pages_are_left_to_botocore(body: bytes) -> None:
    assert (None, body) == taken(body)


def test_other_answers_are_left_alone() -> None:
    assert None is taken(page("a"), operation="ListParts")[0]
    assert None is taken(page("a"), status=404)[0]
