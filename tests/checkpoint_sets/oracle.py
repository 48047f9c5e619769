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
        keys = {meta.key.removeprefix(f"{self._prefix}/") for meta in self._store.list(f"{self._prefix}/")}
        names = {key.split("/")[1] for key in keys if key.startswith("data/")}
        for name in sorted(names, reverse=True):
            manifest = self._json(f"manifests/{name}.json") if f"manifests/{name}.json" in keys else None
            if manifest is not None and manifest["format"] != "wherry-checkpoint":
                continue  # a tombstone
            if manifest is None and not with_uncommitted:
                continue
            ranks = {}
            for key in keys:
                if key.startswith(f"data/{name}/_ranks/") and (found := _RECEIPT.fullmatch(key.split("/")[-1])):
                    ranks[int(found[1])] = int(found[2])
            worlds = set(ranks.values())
            if len(worlds) == 1 and ranks.keys() == set(range(world := worlds.pop())) and self._is_whole(name, world):
                return name
        return None

    def _is_whole(self, name: str, world: int) -> bool:
        try:
            return all(self._bytes(f"data/{name}/{file}") == data for file, data in self._wanted(name, world).items())
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
