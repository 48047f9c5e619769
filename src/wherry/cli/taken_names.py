"""Names that are taken, found before `wherry put` stages anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from wherry.config import TERMINAL_RETRY
from wherry.errors import AlreadyExistsError, NotFoundError, StoreError
from wherry.store import ObjectStore
from wherry.store.environment import with_environment
from wherry.store.registry import check_usable, open_store
from wherry.store.wrappers import RetryStore
from wherry.uri import StoreURI, check_new_name

_STALL_S = 5.0
_LOOKS_AT_ONCE = 8


def refuse_taken(target: StoreURI, options: Mapping[str, object], sources: Sequence[tuple[Path, str]]) -> None:
    """Raise AlreadyExistsError if the store has an object of a name that one of `sources` (path, name) is going to get.

    Nothing is raised where the store cannot say so: it is down, silent or does not let us look. Then the upload finds out.
    """
    options = with_environment(target.scheme, options, os.environ)
    check_usable(target.scheme, options, target.root)
    try:
        with RetryStore(open_store(target, options, stall_timeout_s=_STALL_S), TERMINAL_RETRY) as store:
            taken = _first_taken(store, target, sources)
    except (StoreError, OSError):
        return
    if taken is not None:
        raise AlreadyExistsError(
            "there is an object of this name already, and nothing was uploaded",
            operation="put",
            uri=target.uri_for(taken),
            hint="give --overwrite to replace it, or another name",
        )


def _first_taken(store: ObjectStore, target: StoreURI, sources: Sequence[tuple[Path, str]]) -> str | None:
    """The key of the first of these objects that is there."""
    keys = [target.key_for(check_new_name(name)) for path, name in sources if not path.is_dir()]
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        for key, is_there in zip(keys, pool.map(lambda key: _is_there(store, key), keys), strict=True):
            if is_there:
                return key
    for folder, name in sources:
        if folder.is_dir():
            found = {meta.key for meta in store.list(f"{target.key_for(check_new_name(name))}/")}
            for path in sorted(folder.rglob("*")) if found else ():
                key = target.key_for(check_new_name(f"{name}/{path.relative_to(folder).as_posix()}"))
                if key in found and path.is_file():
                    return key
    return None


def _is_there(store: ObjectStore, key: str) -> bool:
    with suppress(NotFoundError):
        store.head(key)
        return True
    return False
