"""What answers of S3 say of an object: ETags and checksums, and which of them is of the whole object.

Sources: "Checking object integrity in Amazon S3" of its user guide, "Object" and "HeadObject" of the API Reference.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from wherry.errors import TransientError
from wherry.store import CRC32C_METADATA, ObjectMeta

_MD5 = re.compile("[0-9a-fA-F]{32}")
#: Marks the ids of uploads whose parts the server checks: a later process must send their checksums too.
CHECKED = "crc32c:"


def etag_of(text: str | None) -> str:
    """Without the quotes, which some servers leave out of some answers. A server that is just replacing the object sends none."""
    if not text:
        raise TransientError("the answer has no ETag: the server was just replacing the object")
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def encode_crc32c(crc32c: int) -> str:
    """As a checksum header has it."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def md5_of(blocks: Iterable[bytes]) -> str:
    """The MD5 of a body, as ``Content-MD5`` has it: every server knows that one."""
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def crc32c_of(answer: Mapping[str, Any]) -> int | None:
    """The CRC32C of the whole object or part; None if there is none, or only one of parts' checksums."""
    data = _checksum(answer, "CRC32C", 4) if _is_of_the_whole(answer) else None
    return None if data is None else int.from_bytes(data, "big")


def digest_of(answer: Mapping[str, Any], etag: str) -> str | None:
    """A digest of the whole object, other than CRC32C, that the server keeps: one of its checksums, else an ETag that is an MD5.

    An ETag is no MD5 for objects made of parts, which it shows by a "-", and for those encrypted with a key of KMS or the
    customer's, which other headers show. CRC64NVME, which Amazon computes by itself for every object, is left out: nothing here
    computes it at a speed worth having.
    """
    if _is_of_the_whole(answer):
        for name, size_bytes in (("crc32", 4), ("sha1", 20), ("sha256", 32)):
            if data := _checksum(answer, name.upper(), size_bytes):
                return f"{name}:{data.hex()}"
    is_plain = answer.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in answer
    return f"md5:{etag.lower()}" if is_plain and _MD5.fullmatch(etag) else None


def describe(key: str, answer: Mapping[str, Any]) -> ObjectMeta:
    """What a HEAD or GET says of an object."""
    metadata = {name.lower(): text for name, text in answer.get("Metadata", {}).items()}
    crc32c = crc32c_of(answer)
    if crc32c is None and re.fullmatch(r"[0-9a-f]{8}", ours := metadata.get(CRC32C_METADATA, "")):
        crc32c = int(ours, 16)
    modified_s = answer["LastModified"].timestamp() if "LastModified" in answer else None
    etag = etag_of(answer.get("ETag"))
    if answer.get("ContentLength", -1) < 0:
        raise TransientError("the answer does not say how many bytes the object has")
    digest, content_type = digest_of(answer, etag), answer.get("ContentType")
    return ObjectMeta(key, answer["ContentLength"], etag, crc32c, modified_s, metadata, digest=digest, content_type=content_type)


def _is_of_the_whole(answer: Mapping[str, Any]) -> bool:
    """Whether checksums in an answer are of the whole object: it says so, or it says nothing and the object has no parts."""
    kind = answer.get("ChecksumType")
    return kind == "FULL_OBJECT" or (kind is None and "-" not in (answer.get("ETag") or ""))


def _checksum(answer: Mapping[str, Any], name: str, size_bytes: int) -> bytes | None:
    """The bytes of a checksum. One of parts' checksums (``base64-3``) is no base64, and so is none."""
    if not (text := answer.get(f"Checksum{name}")):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if len(data) == size_bytes else None


def split_id(upload_id: str) -> tuple[bool, str]:
    """Of an upload in parts: whether the server checks its parts, and the server's own id."""
    return upload_id.startswith(CHECKED), upload_id.removeprefix(CHECKED)
