"""Reads the objects of a page of a listing: with it the whole page takes less than half of its processor time.

botocore (1.44) makes a tree of the page and walks through it by its model of the service. The
plain form that all servers use is read here by two regular expressions; a page of any other form is left to botocore.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from wherry.backends.s3.digests import etag_of
from wherry.store import ObjectMeta

if TYPE_CHECKING:
    from botocore.model import OperationModel

#: What the objects stand under in an answer; no member of the service's model is called so.
OBJECTS = "WherryObjects"
_OBJECT = re.compile(r"<Contents>.*?</Contents>", re.DOTALL)
#: A member of an object that counts, or an object's end.
_TOKEN = re.compile(r"<(?:(Key|Size|ETag|LastModified)>([^<]*)</|/Contents>)")
#: A larger number of bytes cannot be.
_MOST_DIGITS = 19
_OTHER_ENCODING = re.compile(rb"<\?xml[^>]*encoding=[\"'](?!utf-8[\"'])", re.IGNORECASE)
_ENTITY = re.compile(r"&([^;&]{0,9});?")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def take_objects(
    operation_model: OperationModel, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Take the objects out of a page before botocore reads the rest of it ("before-parse" of botocore's events)."""
    body = response_dict.get("body")
    if operation_model.name != "ListObjectsV2" or response_dict.get("status_code") != 200 or not isinstance(body, bytes):
        return
    if b"<!" in body or _OTHER_ENCODING.match(body):  # sections, comments and entities of its own: another parser's work
        return
    with suppress(ValueError):  # no UTF-8, or an entity that cannot be
        text = body.decode()
        rest = _OBJECT.sub("", text)
        if "<Contents" in rest:
            return
        objects = _read(text, is_quoted="<EncodingType>url</EncodingType>" in rest)
        customized_response_dict[OBJECTS] = objects
        response_dict["body"] = rest.encode()


def _read(text: str, *, is_quoted: bool) -> list[ObjectMeta]:
    """The objects of a page. ValueError for a page that only botocore can read."""
    objects: list[ObjectMeta] = []
    fields: dict[str, str] = {}
    for name, value in _TOKEN.findall(text):
        if name:
            fields[name] = value
            continue
        if (key := fields.get("Key")) is None:
            raise ValueError("an object without a key")
        if "&" in key:
            key = _plain(key)
        if is_quoted and ("%" in key or "+" in key):
            key = unquote_plus(key)
        size, tag = fields.get("Size", ""), fields.get("ETag", "").replace("&quot;", '"').replace("&#34;", '"')
        size_bytes = int(size) if size.isdecimal() and len(size) <= _MOST_DIGITS else -1
        modified_s = _seconds(fields.get("LastModified", ""))
        objects.append(ObjectMeta(key, size_bytes, etag_of(_plain(tag) if "&" in tag else tag), modified_s=modified_s))
        fields = {}
    return objects


def _plain(text: str) -> str:
    """Text without the entities of XML. ValueError for others."""
    return _ENTITY.sub(lambda entity: _character(entity[1]), text)


def _character(name: str) -> str:
    if (found := _NAMED.get(name)) is None:
        found = chr(int(f"0{name[1:]}", 16 if name[1:2] == "x" else 10)) if name.startswith("#") else ""
    if not found or "\ud800" <= found <= "\udfff":
        raise ValueError(f"&{name}; is no character")
    return found


@lru_cache(4096)  # objects of one upload share their second
def _seconds(text: str) -> float | None:
    if text.endswith("Z") and text[4:5] == "-":
        with suppress(ValueError, OverflowError):  # Python 3.10 takes only three or six digits behind the point
            return datetime.fromisoformat(f"{text[:-1]}+00:00").timestamp()
    from botocore.utils import parse_timestamp

    try:
        return float(parse_timestamp(text).timestamp())
    except (ValueError, OverflowError, RuntimeError):  # what it raises for a time that cannot be
        return None
