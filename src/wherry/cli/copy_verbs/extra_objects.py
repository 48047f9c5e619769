"""Deletes what only the destination of a sync has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wherry.cli.copy_verbs.transfers import queued_error
from wherry.cli.copy_verbs.two_listings import Side
from wherry.cli.store_verbs.outcome import Outcome
from wherry.errors import StoreError

#: Most names that one request deletes; a store may take fewer.
_AT_ONCE = 1000
#: Names, each with its size.
_Batch = Sequence[tuple[str, int]]


def delete_extra(dest: Side, extra: _Batch, outcome: Outcome, *, dry_run: bool) -> None:
    """Delete these names; of a request that fails, one by one, so that each failure has its name.

    What is queued for upload on this machine is not deleted: it would be there again a moment later.
    """
    store, uri_for = dest.store.store, dest.store.uri.uri_for
    queued = {job.key for job in dest.store.view().queued_under(dest.base)}
    singles: list[tuple[str, int]] = []

    def show(batch: _Batch) -> None:
        for name, size_bytes in batch:
            outcome.deleted(uri_for(dest.base + name), size_bytes)

    def delete(batch: _Batch) -> Callable[[], None] | None:
        keys = [dest.base + name for name, _ in batch]
        try:
            if not queued.isdisjoint(keys):
                raise queued_error("delete", uri_for(keys[0]))
            if not dry_run:
                store.delete_many(keys)
        except StoreError:
            if len(batch) == 1:
                raise
            singles.extend(batch)
            return None
        return lambda: show(batch)

    at_once = max(1, min(_AT_ONCE, store.capabilities.deleted_at_once))
    batches = [extra[at : at + at_once] for at in range(0, len(extra), at_once)]
    outcome.each(delete, batches, lambda batch: uri_for(dest.base + batch[0][0]))
    outcome.each(delete, [[one] for one in singles], lambda batch: uri_for(dest.base + batch[0][0]))
