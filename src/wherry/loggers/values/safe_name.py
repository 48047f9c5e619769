"""File names for metrics and media: readable, accepted by all file systems, different for different keys."""

from __future__ import annotations

import hashlib
import re
import unicodedata

#: What Windows refuses or shells treat specially. What is not printable is replaced as well.
_REFUSED = re.compile(r'[<>:"\\|?*]')
_HASH_DIGITS = 8
_ENDS_IN_HASH = re.compile(rf"-[0-9a-f]{{{_HASH_DIGITS}}}\Z")
#: So that a step and a suffix fit into a file name (255 bytes), and folders into an object's name (1024 bytes).
_MAX_BYTES = 200


def safe_name(key: object, max_bytes: int = _MAX_BYTES) -> str:
    """A relative path for str(key) of at most `max_bytes` bytes of UTF-8. ``/`` makes folders: ``val/loss`` is not changed.

    What file systems refuse becomes ``_``. Empty parts are removed, and no part begins with a dot, so there is no ``..``. If
    anything was changed, a hash of the key is added, so that different keys have different names: ``a:b`` is
    ``a_b-``*8 hexadecimal digits*. A key always has the same name.
    """
    if max_bytes < 2 * _HASH_DIGITS:
        raise ValueError(f"max_bytes is {max_bytes}: there must be room for {2 * _HASH_DIGITS}")
    text = str(key)
    name = "/".join(_safe_part(part) for part in unicodedata.normalize("NFC", text).split("/") if part)
    if name == text and name and len(name.encode()) <= max_bytes and not _ENDS_IN_HASH.search(name):
        return name
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    room = max_bytes - _HASH_DIGITS - 1
    return f"{_cut(name, room)}-{digest}" if name else f"_-{digest}"


def _safe_part(part: str) -> str:
    part = _REFUSED.sub("_", "".join(letter if letter.isprintable() else "_" for letter in part))
    start = part.lstrip(". ")
    part = "_" * (len(part) - len(start)) + start
    end = part.rstrip(". ")
    return end + "_" * (len(part) - len(end))


def _cut(name: str, n_bytes: int) -> str:
    """The beginning of the name, cut between letters. It must not end in a slash, as the hash is appended to it."""
    return name.encode()[:n_bytes].decode(errors="ignore").rstrip("/. ") or "_"
