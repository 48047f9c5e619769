"""Symlink objects: ``<name>.symlink`` is a small text object that holds the name of another one.

Composer writes them as its "latest" pointers (https://docs.mosaicml.com/projects/composer, checkpoint saver). It writes keys
from the bucket's root; a name below the destination's prefix is understood, too, and comes first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from wherry.checksum import crc32c
from wherry.errors import BucketNotFoundError, ConfigError, IntegrityError, NotFoundError, PermanentError
from wherry.store import ObjectStore
from wherry.uri import StoreURI, check_name

SYMLINK_SUFFIX = ".symlink"
#: A key has at most 1024 bytes; around it there may be white space.
_MAX_TARGET_BYTES = 4096
#: As many as Linux follows (path_resolution(7)).
_MOST_FOLLOWED = 40


def resolve(store: ObjectStore, uri: StoreURI, name: str) -> str:
    """The key of the object that `name` stands for: its own, or, when that is absent, where ``<name>.symlink`` leads.

    A name that ends in ``.symlink`` is followed, too, and so is each target. Targets are keys of the store that `uri` names:
    below its prefix, or anywhere in its bucket. `store` is asked as it is: give one that retries.
    Raises NotFoundError (says what was tried), AccessDeniedError for any "forbidden" on the way (that is never taken for
    "missing"), PermanentError for a circle, for a chain without end and for content that is no name.
    """
    candidates: Sequence[str] = (uri.key_for(name),)
    followed: list[str] = []
    while True:
        for key in candidates:
            if not key.endswith(SYMLINK_SUFFIX):
                if _is_there(store, key):
                    return key
                key += SYMLINK_SUFFIX
            if _is_there(store, key):
                pointer = key
                break
        else:
            raise _missing(uri, candidates, followed)
        if pointer in followed:
            circle = [uri.uri_for(key) for key in (*followed[followed.index(pointer) :], pointer)]
            raise PermanentError(
                f"symlink objects lead in a circle: {' -> '.join(circle)}",
                operation="get",
                uri=uri.uri_for(uri.key_for(name)),
                hint="delete or rewrite one of them",
            )
        followed.append(pointer)
        if len(followed) > _MOST_FOLLOWED:
            raise PermanentError(
                f"more than {_MOST_FOLLOWED} symlink objects lead to one another, the last is {uri.uri_for(pointer)}",
                operation="get",
                uri=uri.uri_for(uri.key_for(name)),
                hint="let the first one name the object",
            )
        target = _target(store, uri, pointer)
        candidates = tuple(dict.fromkeys((uri.key_for(target), *([target] if uri.holds(target) else []))))


def read_pointer(path: str | os.PathLike[str]) -> str | None:
    """The name in a local file that is going to be a symlink object; None if it cannot be read or holds no name."""
    try:
        with open(path, "rb") as file:
            return check_name(file.read(_MAX_TARGET_BYTES + 1).decode().strip().lstrip("/"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return None


def read_text(store: ObjectStore, key: str, max_bytes: int) -> str:
    """The content of a small object, as text. PermanentError if it has more than `max_bytes` or is no UTF-8."""
    meta = store.head(key)
    if meta.size_bytes > max_bytes:
        raise PermanentError(
            f"the object has {meta.size_bytes} bytes, a small text has at most {max_bytes}", operation="get", uri=key
        )
    data = bytearray()

    def take(block: bytes | memoryview, at: int) -> None:
        data[at:] = block

    if meta.size_bytes:
        store.read(key, take, end=meta.size_bytes, if_match=meta.etag)
    if len(data) != meta.size_bytes or meta.crc32c not in (None, crc32c(bytes(data))):
        raise IntegrityError(
            "the bytes that came do not fit the size and checksum that the store gives", operation="get", uri=key
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PermanentError(f"the object is no UTF-8 text: {error}", operation="get", uri=key) from error


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except BucketNotFoundError:
        raise
    except NotFoundError:
        return False
    return True


def _target(store: ObjectStore, uri: StoreURI, pointer: str) -> str:
    text = read_text(store, pointer, _MAX_TARGET_BYTES).strip().lstrip("/")
    try:
        return check_name(text, what="name in the symlink object")
    except ConfigError as error:
        raise PermanentError(str(error), operation="get", uri=uri.uri_for(pointer)) from error


def _missing(uri: StoreURI, candidates: Sequence[str], followed: Sequence[str]) -> NotFoundError:
    if followed:
        message = f"{uri.uri_for(followed[-1])} points to an object that is not there"
        if not uri.holds(""):
            message += f": its text must be a name below {uri}"
    else:
        message = f"there is no such object, and no {SYMLINK_SUFFIX} object that leads to one"
    return NotFoundError(message, operation="get", uri=uri.uri_for(candidates[0]))
