"""Checkpoints of Ray Train that become sets: which set, and its commit. Without Ray itself."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping

from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import commit, list_receipts
from wherry.checkpoints.protocol.documents import put_small, read_small
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checksum import crc32c
from wherry.errors import NotFoundError
from wherry.integrations.folder_names import step_of
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta, ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: Ray's record of the checkpoints that it keeps, which a new start of the run reads. Ray writes it before it deletes any of them.
_RECORD = "checkpoint_manager_snapshot.json"
#: The name that Ray gives a checkpoint by itself: the time, to microseconds.
_OF_RAY = re.compile(r"\d\d(\d\d)-(\d\d)-(\d\d)_(\d\d)-(\d\d)-(\d\d)\.(\d{3})\d*$")
_FOLDER = "ray_folder"


def step_and_version(folder: str) -> tuple[int, int] | None:
    """The step of the set for a checkpoint of this name, and its version; None if it has no number at its end.

    >>> step_and_version("checkpoint_000100"), step_and_version("checkpoint_2026-11-23_04-05-06.789012")
    ((100, 1), (261123040506, 790))
    """
    if found := _OF_RAY.search(folder):
        return int("".join(found.groups()[:-1])), min(1 + int(found[7]), 999)
    step = step_of(folder)
    return None if step is None else (step, 1)


def committed(catalog: Catalog, folder: str) -> SetName | None:
    """The newest committed set of a checkpoint of this name."""
    found = [name for name in catalog.names() if (name.step, name.version) == step_and_version(folder)]
    return found[-1] if found else None


def commit_folder(
    catalog: Catalog, name: SetName, folder: str, metrics: Mapping[str, object], parent: SetName | None = None
) -> Manifest:
    """Make a set of a checkpoint, all of whose files are stored. It may be called again."""
    store, keys = catalog.store, catalog.keys
    if not list_receipts(store, keys, name).by_rank:
        prefix = keys.data(name)
        found = each_at_once(lambda meta: _described(store, meta, prefix), list(store.list(prefix)))
        numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, (int, float))}
        finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
        about = {"saved_by": "ray", _FOLDER: folder}
        receipt = Receipt(name, 0, 1, "folder", tuple(found), parent, finite, about)
        data = receipt.to_bytes()
        put_small(store, keys.ranks(name) + receipt.name(data), data, if_absent=False)
    return commit(store, keys, name, 1).manifest


def take_up(catalog: Catalog) -> set[str] | None:
    """Commit the checkpoints that Ray has recorded and a start that was killed has not committed. Returns the names of all that
    Ray has recorded; None: it has recorded none.

    Ray records a checkpoint when all workers have stored their files.
    """
    store = catalog.store
    key = f"{catalog.keys.base.rpartition('/')[0]}/{_RECORD}"
    try:
        content = json.loads(read_small(store, key))
        results = [one for one in (*content["checkpoint_results"], content["latest_checkpoint_result"]) if one is not None]
        recorded = {str(one["checkpoint_dir_name"]): dict(one["metrics"]) for one in results}
        if not recorded:
            return None
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is not as this version of Ray writes it, so nothing is taken up from it: %r", key, error)
        return None
    missing = [folder for folder in recorded if committed(catalog, folder) is None]
    prefix = catalog.keys.all_data
    begun = {meta.key[len(prefix) :].partition("/")[0] for meta in store.list(prefix)} if missing else set()
    names = sorted(name for name in map(SetName.parse, begun) if name is not None)
    for folder in missing:
        of_folder = [name for name in names if (name.step, name.version) == step_and_version(folder)]
        if of_folder:
            commit_folder(catalog, of_folder[-1], folder, recorded[folder])
    return set(recorded)


def not_recorded(catalog: Catalog, recorded: set[str]) -> list[SetName]:
    """The sets that Ray has made and has deleted since, by its record."""
    made = [one for one in catalog.manifests() if one.metadata.get("saved_by") == "ray"]
    return [one.set for one in made if one.metadata.get(_FOLDER) not in recorded]


def _described(store: ObjectStore, meta: ObjectMeta, prefix: str) -> SetObject:
    """An object with its CRC32C, which is read back from a store that does not know it."""
    found = store.head(meta.key)
    crc = 0

    def take(block: bytes | memoryview, at: int) -> None:
        nonlocal crc
        crc = crc32c(block, 0 if at == 0 else crc)  # a call that is made again brings the blocks again

    if found.crc32c is None:
        store.read(meta.key, take, end=found.size_bytes, if_match=found.etag)
    return SetObject(meta.key[len(prefix) :], found.size_bytes, crc if found.crc32c is None else found.crc32c)
