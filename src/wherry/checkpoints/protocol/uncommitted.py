"""Sets that have objects and no manifest: found in few requests, and committed if the receipts of all their ranks are there.

A set is not lost with the node whose agent would have committed it: whoever resumes the run, or prunes it, commits it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import (
    IncompleteSetError,
    Receipts,
    SetAbandonedError,
    SetFailedError,
    commit,
    list_receipts,
)
from wherry.checkpoints.protocol.documents import NewerFormatError
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import AccessDeniedError, IntegrityError, NotFoundError
from wherry.store import ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: So many sets are looked at; an older one is found by the next who looks, when these are committed or gone.
MOST_SETS = 1000
#: A listing gives so many keys in one request, so a set with fewer is read past, and a larger one is jumped over.
_A_PAGE = 1000


def sets_with_data(store: ObjectStore, keys: RunKeys, after: SetName | None = None) -> Iterator[SetName]:
    """The sets that have an object, those newer than `after`, from the oldest to the newest.

    Requests: at most one for a thousand objects, and one for each set that has more than that.
    """
    start_after = "" if after is None else f"{keys.all_data}{after}0"  # "0" sorts next to "/": behind all of the set's keys
    found: str | None = None
    is_over = False
    while not is_over:
        is_over = True
        n_keys = 0
        for meta in store.list(keys.all_data, start_after=start_after):
            text, slash, _ = meta.key[len(keys.all_data) :].partition("/")
            if not slash:
                continue  # no object of a set
            n_keys = n_keys + 1 if text == found else 0
            if text != found:
                found = text
                if (name := SetName.parse(text)) is not None:
                    yield name
            elif n_keys >= _A_PAGE:
                start_after = f"{keys.all_data}{text}0"
                is_over = False
                break


def uncommitted(
    store: ObjectStore, keys: RunKeys, after: SetName | None = None, known: set[SetName] | None = None
) -> list[SetName]:
    """The sets newer than `after` that have an object, and neither a manifest nor a tombstone; at most MOST_SETS, the oldest.

    `known`: those that have one, if the caller has listed them. One request if there are no newer sets.
    """
    found: list[SetName] = []
    for name in sets_with_data(store, keys, after):
        if known is None:
            known = set(Catalog(store, keys).names(after=after))
        if name in known:
            continue
        found.append(name)
        if len(found) == MOST_SETS:
            log.warning("%s has more than %d sets that are not committed: prune removes them", keys.base, MOST_SETS)
            break
    return found


def commit_if_complete(store: ObjectStore, keys: RunKeys, name: SetName) -> Manifest | None:
    """Commit the set if the receipts of all its ranks are there; None if it cannot be."""
    try:
        return commit(store, keys, name).manifest
    except (IncompleteSetError, SetFailedError, SetAbandonedError, NotFoundError) as error:  # or it is being deleted just now
        log.debug("the set %s is not committed: %s", name, error)
    except (IntegrityError, NewerFormatError) as error:
        log.warning("the set %s is not committed: %s", name, error)
    return None


def receipts_or_none(store: ObjectStore, keys: RunKeys, name: SetName) -> Receipts | None:
    """What the ranks have written of a set; None if that cannot be understood."""
    try:
        return list_receipts(store, keys, name)
    except (IntegrityError, NewerFormatError) as error:
        log.warning("the receipts of the set %s are damaged: %s", name, error)
        return None


def roll_forward(store: ObjectStore, keys: RunKeys, after: SetName | None) -> list[Manifest]:
    """Commit the sets newer than `after` whose receipts are all there; those that were committed, from the oldest.

    One request if there are no newer sets, and about eight for each set that is committed. Who may not write commits none.
    """
    found = []
    for name in uncommitted(store, keys, after):
        try:
            manifest = commit_if_complete(store, keys, name)
        except AccessDeniedError as error:
            log.debug("sets are not committed by a reader: %s", error)
            break
        if manifest is not None:
            found.append(manifest)
    return found
