"""Which sets a bucket holds, read by rules of the tests' own: nothing of wherry's reading or committing is used here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from wherry.errors import NotFoundError
from wherry.store import ObjectStore

_RECEIPT = re.compile(r"(\d{5})-of-(\d{5})-.*\.json")


class SetOracle:
    """Looks at the run below `prefix` (which ends in ``checkpoints``). `wanted` gives a set's files by its name and world."""

    def __init__(self, store: ObjectStore, prefix: str, wanted: Callable[[str, int], Mapping[str, bytes]]) -> None:
        self._store = store
        self._prefix = prefix
        self._wanted = wanted

    def newest(self, *, with_uncommitted: bool = False) -> str | None:
        """The newest set that is committed and of which all bytes are there; or could be committed, as all its receipts are."""
        keys = self._keys()
        names = {key.split("/")[1] for key in keys if key.startswith("data/")}
        for name in sorted(names, reverse=True):
            manifest = self._json(f"manifests/{name}.json") if f"manifests/{name}.json" in keys else None
            if manifest is not None and manifest["format"] != "wherry-checkpoint":
                continue  # a tombstone
            if manifest is None and not with_uncommitted:
                continue
            if self._is_whole(name, keys):
                return name
        return None

    def broken(self) -> list[str]:
        """The committed sets of which something is missing."""
        keys = self._keys()
        committed = [key for key in keys if key.startswith("manifests/")]
        committed = [key for key in committed if (self._json(key) or {}).get("format") == "wherry-checkpoint"]
        names = sorted(key.removeprefix("manifests/").removesuffix(".json") for key in committed)
        return [name for name in names if not self._is_whole(name, keys)]

    def _keys(self) -> set[str]:
        return {meta.key.removeprefix(f"{self._prefix}/") for meta in self._store.list(f"{self._prefix}/")}

    def _is_whole(self, name: str, keys: set[str]) -> bool:
        """Whether all receipts are there, and each file, in the set itself or in the older one that a receipt says."""
        prefix = f"data/{name}/_ranks/"
        ranks = {}
        for key in keys:
            if key.startswith(prefix) and (found := _RECEIPT.fullmatch(key.split("/")[-1])):
                ranks[int(found[1])] = int(found[2])
        worlds = set(ranks.values())
        if len(worlds) != 1 or ranks.keys() != set(range(world := worlds.pop())):
            return False
        receipts = [self._json(key) for key in keys if key.startswith(prefix) and key.endswith("-refs.json")]
        lies_in = {one["name"]: one.get("set", name) for receipt in receipts if receipt for one in receipt["objects"]}
        try:
            wanted = self._wanted(name, world).items()
            return all(self._bytes(f"data/{lies_in.get(file, name)}/{file}") == data for file, data in wanted)
        except NotFoundError:
            return False

    def _json(self, key: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self._bytes(key))
        except NotFoundError:
            return None
        return content

    def _bytes(self, key: str) -> bytes:
        blocks: list[bytes] = []
        self._store.read(f"{self._prefix}/{key}", lambda block, _: blocks.append(bytes(block)))
        return b"".join(blocks)
