"""Names of metrics and media as names of files: readable, harmless, and different for different keys."""

from __future__ import annotations

import hashlib
import re
import unicodedata

#: What Windows, or a shell's user, would stumble over. What is not printable goes as well.
_REFUSED = re.compile(r'[<>:"\\|?*]')
_HASH_DIGITS = 8
_ENDS_IN_HASH = re.compile(rf"-[0-9a-f]{{{_HASH_DIGITS}}}\Z")
#: For the whole name: there is room for a step and a suffix in a file name (255 bytes), and for folders in an object's (1024).
_MAX_BYTES = 200


def safe_name(key: object, max_bytes: int = _MAX_BYTES) -> str:
    """A relative path for str(key), in at most `max_bytes` bytes of UTF-8: ``val/loss`` stays what it is, ``/`` makes folders.

    What file systems refuse becomes ``_``, folders have no empty names and none that begin with a dot, so there is no ``..``.
    Where anything had to be changed, a hash of the key is added, ``a:b`` is ``a_b-``*8 hexadecimal digits*: different keys have
    different names. One key always has the same.
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
    """The beginning of the name, whole letters only; an end that is a slash would make the hash a file name of its own."""
    return name.encode()[:n_bytes].decode(errors="ignore").rstrip("/. ") or "_"
