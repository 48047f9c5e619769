"""The small JSON objects of a run: read with a limit, parsed strictly, written so that equal content has equal bytes.

A bucket may have been written by anybody. So a document is no larger than a limit, has the fields and types that its reader asks
for, and names no object outside its set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import IntegrityError, PermanentError
from wherry.store import CRC32C_METADATA, ObjectMeta, ObjectStore, PutOptions, file_in_memory
from wherry.store.retry import confirmed

#: No receipt and no manifest is larger.
MOST_BYTES = 64 * 2**20
#: Metadata of a set is nested no deeper: Python reads deeper JSON than it writes.
_MOST_DEPTH = 50
_T = TypeVar("_T")


class DamagedDocumentError(IntegrityError):
    """A receipt, manifest or attempt cannot be what wherry wrote: truncated, of another type, or it names what it must not."""


class NewerFormatError(PermanentError):
    """The document was written by a newer version of wherry, whose format this one does not know."""


class Document:
    """A parsed JSON object, whose fields are taken out with their types. `key` names it in errors."""

    def __init__(self, data: bytes, key: str, format_name: str, version: int) -> None:
        self.key = key
        try:
            content = json.loads(data, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"it is no JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != format_name:
            raise self.damaged(f"it does not say that it is a {format_name}")
        if not isinstance(content.get("version"), int) or content["version"] < 1:
            raise self.damaged("it has no version")
        if content["version"] > version:
            raise NewerFormatError(
                f"it has version {content['version']} of {format_name}, this wherry knows up to {version}",
                operation="read",
                uri=key,
                hint="use the wherry that wrote it, or a newer one",
            )
        self.content: dict[str, Any] = content

    def damaged(self, why: str) -> DamagedDocumentError:
        """The error that says what is wrong with it."""
        return DamagedDocumentError(why, operation="read", uri=self.key)

    def take(self, field: str, kind: type[_T]) -> _T:
        """The field, which must be there and of this type."""
        return self.check(self.content.get(field), kind, field)

    def take_or_none(self, field: str, kind: type[_T]) -> _T | None:
        """The field, or None if it is null or absent."""
        value = self.content.get(field)
        return None if value is None else self.check(value, kind, field)

    def take_plain(self, field: str) -> dict[str, Any]:
        """The field, an object which can be written again as it is, whatever is in it."""
        value: dict[str, Any] = self.take(field, dict)
        if (why := why_not_plain(value)) is not None:
            raise self.damaged(f"{field}: {why}")
        return value

    def check(self, value: object, kind: type[_T], what: str) -> _T:
        """`value` if it is of this type (a bool is no int); numbers are not negative."""
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.damaged(f"{what} is {type(value).__name__}, not {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise self.damaged(f"{what} is {value}")
        return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def why_not_plain(value: object, depth: int = 0) -> str | None:
    """Which rule a parsed JSON value breaks, so that it could not be written, or read again elsewhere; None: none."""
    if isinstance(value, str):
        return f"{value!a:.40} has a lone surrogate" if any("\ud800" <= char <= "\udfff" for char in value) else None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no finite number"
    if depth == _MOST_DEPTH and isinstance(value, (dict, list)):
        return f"it is nested more than {_MOST_DEPTH} deep"
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((why for one in inner if (why := why_not_plain(one, depth + 1)) is not None), None)


def dump(format_name: str, version: int, fields: Mapping[str, object]) -> bytes:
    """The bytes of a document: sorted, without a clock or a host's name, so that equal content has equal bytes."""
    content = {"format": format_name, "version": version, **fields}
    return (json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_small(store: ObjectStore, key: str) -> bytes:
    """The bytes of a small object. NotFoundError; DamagedDocumentError if it is larger than any document is."""
    blocks: list[bytes] = []
    size_bytes = 0

    def take(block: bytes | memoryview, at: int) -> None:
        nonlocal size_bytes
        if at == 0:
            blocks.clear()
            size_bytes = 0
        blocks.append(bytes(block))
        size_bytes += len(block)
        if size_bytes > MOST_BYTES:
            raise DamagedDocumentError(f"it has more than {MOST_BYTES} bytes", operation="read", uri=key)

    store.read(key, take)
    return b"".join(blocks)


def put_small(store: ObjectStore, key: str, data: bytes, *, if_absent: bool) -> ObjectMeta:
    """Store a small object and make sure that it is there as it is here. AlreadyExistsError with `if_absent`.

    A store that compares checksums itself is believed, and one whose answer has the MD5 of what came; from any other the object
    is read back.
    """
    crc = crc32c(data)
    put = PutOptions(if_absent=if_absent, crc32c=crc, metadata={CRC32C_METADATA: format_crc32c(crc)})
    with file_in_memory() as path:
        path.write_bytes(data)
        meta = store.put_file(key, path, put)
    md5 = f"md5:{hashlib.md5(data, usedforsecurity=False).hexdigest()}"
    is_proven = store.capabilities.checks_crc32c or meta.digest == md5
    if not is_proven:
        confirmed(lambda: _read_back(store, key, data))
    return meta


def _read_back(store: ObjectStore, key: str, data: bytes) -> None:
    if read_small(store, key) != data:
        raise IntegrityError("the store gives back other bytes than it was sent", operation="verify", uri=key)
