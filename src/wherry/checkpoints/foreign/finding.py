"""Find the checkpoints of others below a URI, and fetch one. Reads only, and no more than the limits here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from wherry.checkpoints.foreign.dcp_files import files_named_by
from wherry.checkpoints.foreign.layouts import (
    INDEXES,
    METADATA,
    ForeignCheckpoint,
    ForeignObject,
    checkpoints_in,
    with_dcp_files,
    with_index,
)
from wherry.checkpoints.protocol.documents import read_small
from wherry.checkpoints.restore import (
    STAGING,
    DamagedSetError,
    beside,
    check_restorable,
    full_disk,
    is_full_disk,
    make_own,
    remove_strangers,
    require_room,
)
from wherry.checkpoints.restoring.fan_out import locked
from wherry.checksum import crc32c
from wherry.config import Config
from wherry.errors import IntegrityError, NotFoundError, PermanentError, StoreError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.environment import with_environment
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import check_usable, open_store
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.transfer.download import download
from wherry.transfer.symlinks import SYMLINK_SUFFIX, read_text
from wherry.uri import StoreURI, parse_uri

#: A listing goes no further: 100 requests on S3.
MOST_OBJECTS = 100_000
#: Of so many checkpoints, the newest, the metadata or the index is read; of so many symlink objects the target.
MOST_READ = 50
_MOST_POINTER_BYTES = 4096


@dataclass(frozen=True)
class Found:
    """The checkpoints, from the oldest to the newest. `is_cut`: there are more objects than were looked at.

    `dangling`: what symlink objects name that is not there, as texts.
    """

    checkpoints: tuple[ForeignCheckpoint, ...]
    dangling: tuple[str, ...] = ()
    is_cut: bool = False

    def named(self, which: int | str) -> ForeignCheckpoint | None:
        """The checkpoint of this name or step, or the one that a symlink object of this name leads to; "latest": the newest.

        Of several with one step, and for "latest", those that are incomplete are passed over.
        """
        usable = [one for one in reversed(self.checkpoints) if one.state != "incomplete"]
        named = [one for one in self.checkpoints if which == one.name or which in one.pointers]
        if which == "latest":
            return next(iter(usable), None)
        if isinstance(which, int):
            return next((one for one in [*usable, *self.checkpoints] if one.step == which), None)
        return max(named, key=lambda one: len(one.objects), default=None)  # a checkpoint-N may be a folder of torch, too


def find(
    uri: str | os.PathLike[str], *, storage_options: Mapping[str, object] | None = None, most_objects: int = MOST_OBJECTS
) -> Found:
    """The checkpoints below `uri` that other programs wrote: folders of torch.distributed.checkpoint, files of Composer and
    Lightning, `checkpoint-N` folders of the Hugging Face Trainer.

    One listing of at most `most_objects`, two requests for each of the newest 50 checkpoints whose files are named by one of
    them, and for each of 50 symlink objects. Nothing is unpickled. Raises what the store raises.
    """
    with _opened(uri, storage_options) as (store, target):
        return find_in(store, target, most_objects=most_objects)


def restore(
    uri: str | os.PathLike[str],
    which: int | str,
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    incomplete: bool = False,
) -> Path:
    """Download a checkpoint, by its name in find(), its step, or "latest", into `folder`, which must not be there yet, or be
    empty.

    The folder appears whole or not at all. Each file has the size of the listing, and the checksum that the store knows of it, if
    it knows one. One process at a time restores to a folder, and a call that was killed goes on. Raises NotFoundError;
    PermanentError for a checkpoint that is known to be incomplete, unless `incomplete`; FileExistsError; OSError (ENOSPC) if the
    disk has no room, before any byte moves; DamagedSetError for an object that is gone or has changed.
    """
    with _opened(uri, storage_options) as (store, target):
        one = find_in(store, target).named(which)
        if one is None:
            raise NotFoundError(f"there is no checkpoint {which!r} of another program", operation="restore", uri=str(uri))
        return restore_from(store, target, one, Path(folder), incomplete=incomplete)


@contextmanager
def _opened(uri: str | os.PathLike[str], options: Mapping[str, object] | None) -> Iterator[tuple[RetryStore, StoreURI]]:
    target, config = parse_uri(uri), Config()
    chosen = with_environment(target.scheme, options or {}, os.environ)
    check_usable(target.scheme, chosen, target.root)
    inner = open_store(target, chosen, stall_timeout_s=config.transfer.stall_timeout_s)
    store = RetryStore(LimitStore(inner, max_in_flight=MOST_IN_FLIGHT), config.retry)
    try:
        yield store, target
    finally:
        store.close()


def find_in(store: ObjectStore, target: StoreURI, *, most_objects: int = MOST_OBJECTS) -> Found:
    """As find(), in a store that is open and retries."""
    base = f"{target.prefix}/" if target.prefix else ""
    listed: dict[str, ObjectMeta] = {}
    is_cut = False
    for meta in store.list(base):
        if len(listed) == most_objects:
            is_cut = True
            break
        listed[meta.key[len(base) :]] = meta
    found = checkpoints_in(listed)
    readable = [at for at, one in enumerate(found) if one.state != "incomplete" and _named_by(one) is not None][-MOST_READ:]
    judged = [_judged(store, one) if at in readable else one for at, one in enumerate(found)]
    pointed, dangling = _with_pointers(store, target, listed, judged)
    return Found(tuple(pointed), dangling, is_cut)


def _named_by(one: ForeignCheckpoint) -> ForeignObject | None:
    """The object that names the others."""
    wanted = (METADATA,) if one.layout == "dcp" else INDEXES if one.layout == "transformers" else ()
    return next((item for item in one.objects if item.name in wanted), None)


def _judged(store: ObjectStore, one: ForeignCheckpoint) -> ForeignCheckpoint:
    item = _named_by(one)
    assert item is not None, "only those that have one"
    try:
        data = read_small(store, item.key)
        if one.layout == "dcp":
            return with_dcp_files(one, files_named_by(data, item.key))
        return with_index(one, *_index(data, item.key))
    except NotFoundError:
        return replace(one, state="incomplete", proof=f"{item.name} was removed meanwhile")
    except PermanentError as error:
        return replace(one, state="unproven", proof=f"{item.name}: {error.message}")


def _index(data: bytes, key: str) -> tuple[list[str], int]:
    """The files of weights, and the bytes of tensors in them."""
    try:
        content: Any = json.loads(data)
        files = sorted({str(name) for name in content["weight_map"].values()})
        total = content.get("metadata", {}).get("total_size", 0)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise IntegrityError("it is no index of weights", operation="read", uri=key) from error
    return files, int(total) if isinstance(total, (int, float)) and 0 <= total < 2**63 else 0


def _with_pointers(
    store: ObjectStore, target: StoreURI, listed: Mapping[str, ObjectMeta], found: list[ForeignCheckpoint]
) -> tuple[list[ForeignCheckpoint], tuple[str, ...]]:
    names = [name for name in listed if name.endswith(SYMLINK_SUFFIX)][:MOST_READ]
    dangling = []
    for name in names:
        try:
            key = read_text(store, listed[name].key, _MOST_POINTER_BYTES).strip()
        except PermanentError:
            dangling.append(f"{name} cannot be read")
            continue
        at = next((at for at, one in enumerate(found) if _holds(one, target, key)), None)
        if at is None:
            dangling.append(f"{name} names {key[:200]!r}, which is no checkpoint here")
        else:
            found[at] = replace(found[at], pointers=(*found[at].pointers, name))
    return found, tuple(dangling)


def _holds(one: ForeignCheckpoint, target: StoreURI, key: str) -> bool:
    """Whether a pointer's target, from the bucket's root or below the URI, is one of its objects, or its folder."""
    wanted = {key.rstrip("/"), f"{target.prefix}/{key.rstrip('/')}"}
    folders = {item.key.removesuffix(f"/{item.name}") for item in one.objects if one.layout != "composer"}
    return bool(wanted & ({item.key for item in one.objects} | folders))


def restore_from(store: ObjectStore, target: StoreURI, one: ForeignCheckpoint, folder: Path, *, incomplete: bool = False) -> Path:
    """As restore(), in a store that is open and retries."""
    if one.state == "incomplete" and not incomplete:
        raise PermanentError(
            f"the checkpoint {one.name} is not complete: {one.proof}",
            operation="restore",
            uri=str(target),
            hint="take another one",
        )
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(beside(folder, f"{STAGING}.lock"), f"the folder {folder}"):
        if not check_restorable(folder):
            raise FileExistsError(f"{folder} is not empty: give a folder that is not there yet")
        of = crc32c(repr((one.name, one.objects)).encode())  # a call that was killed goes on in its folder, and no other does
        staging = beside(folder, f".{of:08x}{STAGING}")
        make_own(staging)
        what = f"the checkpoint {one.name}"
        require_room(staging, sum(max(0, item.size_bytes) for item in one.objects), what)
        try:
            each_at_once(partial(_fetch, store, target, staging), one.objects)
        except (OSError, StoreError) as error:
            if is_full_disk(error):
                raise full_disk(staging, what, error) from error
            raise
        remove_strangers(staging, {item.name for item in one.objects})
        if folder.is_dir():
            folder.rmdir()
        os.rename(staging, folder)
    return folder


def _fetch(store: ObjectStore, target: StoreURI, staging: Path, item: ForeignObject) -> None:
    config = Config()
    path = staging / item.name
    try:
        download(
            store.inner if isinstance(store, RetryStore) else store,  # download() retries range by range
            item.key,
            path,
            uri=target.uri_for(item.key),
            overwrite=True,
            transfer=config.transfer,
            retry=config.retry,
        )
    except NotFoundError as error:
        raise DamagedSetError("it was removed meanwhile", operation="restore", uri=item.key) from error
    if (size := path.stat().st_size) != item.size_bytes and item.size_bytes >= 0:
        raise DamagedSetError(f"it has {size} bytes, listed were {item.size_bytes}", operation="restore", uri=item.key)
