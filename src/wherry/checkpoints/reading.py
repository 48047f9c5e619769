"""While a set is restored: prune is told to leave it, and a set that is deleted nevertheless is told from a damaged one."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.uses import announce_reader, check_there
from wherry.checkpoints.restore import DamagedSetError, PrunedWhileRestoringError
from wherry.errors import NotFoundError, StoreError
from wherry.posix.thread_pool import wait_for_end
from wherry.store import ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: Prune leaves a set whose reader was heard of within an hour (PruneDelays.reader_s).
RENEW_S = 300.0


@contextmanager
def reading(store: ObjectStore, keys: RunKeys, name: SetName, *, renew_s: float = RENEW_S) -> Iterator[None]:
    """Keep prune from deleting the set while the block restores it, where this process may write to the store.

    Raises PrunedWhileRestoringError if the set is deleted already, and in place of a DamagedSetError of the block if it is by
    then. Three requests, and one each `renew_s`.
    """
    token = secrets.token_hex(8)
    key = _announce(store, keys, name, token)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(store, keys, name, token, ended, renew_s), daemon=True, name="wherry-reader")
    try:
        if key is not None:
            renewing.start()
        _check_there(store, keys, name, None)
        with told_if_pruned(store, keys, name):
            yield
    finally:
        ended.set()
        if renewing.ident is not None:
            wait_for_end(renewing)
        if key is not None:
            _withdraw(store, key)


@contextmanager
def told_if_pruned(store: ObjectStore, keys: RunKeys, name: SetName) -> Iterator[None]:
    """Raise PrunedWhileRestoringError in place of a DamagedSetError of the block, if the set is deleted by then."""
    try:
        yield
    except DamagedSetError as error:
        _check_there(store, keys, name, error)
        raise


def _check_there(store: ObjectStore, keys: RunKeys, name: SetName, cause: DamagedSetError | None) -> None:
    try:
        check_there(store, keys, name, "restore")
    except NotFoundError as error:
        raise PrunedWhileRestoringError(
            "the set was pruned while it was restored", operation="restore", uri=str(name), hint="restore a newer one"
        ) from (cause or error)
    except (DamagedDocumentError, NewerFormatError) as error:
        log.warning("the manifest of the set %s is damaged by now: %s", name, error)


def _announce(store: ObjectStore, keys: RunKeys, name: SetName, token: str) -> str | None:
    try:
        return announce_reader(store, keys, name, token)
    except (StoreError, OSError) as error:  # who may only read does without: the objects stay for the grace of a deletion
        log.info("prune is not told that the set %s is being restored: %s", name, error)
        return None


def _renew(store: ObjectStore, keys: RunKeys, name: SetName, token: str, ended: threading.Event, renew_s: float) -> None:
    while not ended.wait(renew_s):
        _announce(store, keys, name, token)


def _withdraw(store: ObjectStore, key: str) -> None:
    try:
        store.delete(key)
    except (StoreError, OSError) as error:
        log.info("the reader %s is left to prune: %s", key, error)
