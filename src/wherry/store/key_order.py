"""The order of keys in listings, and where a listing that starts after a key goes on."""

from __future__ import annotations


def order_of(key: str) -> bytes:
    """What listings sort keys by: their UTF-8 bytes. A name in a local folder that is no UTF-8 counts with its own bytes."""
    return key.encode(errors="surrogateescape")


def start_within(prefix: str, start_after: str) -> str | None:
    """What is left of `start_after` in a listing of `prefix`: a key that begins with `prefix`; "" if all of its keys come later.

    None: all of its keys come earlier, so that there is nothing to ask the store for.
    """
    if start_after.startswith(prefix):
        return start_after
    return "" if order_of(start_after) < order_of(prefix) else None


def rest_after(name: bytes, after: bytes) -> bytes | None:
    """What is left of `after` for a listing of one folder, whose `name` ends with a slash; b"" if all of its keys come later.

    None: all of its keys come earlier, or `name` is that of a file, which does.
    """
    if name.endswith(b"/") and after.startswith(name):
        return after[len(name) :]
    return b"" if name > after else None
