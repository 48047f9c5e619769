"""Objects as fsspec describes them, and the folders that object stores do not have: prefixes of names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wherry.checksum import format_crc32c
from wherry.filesystem.storage_options import Place
from wherry.store import ObjectMeta
from wherry.uploader import Uploader

Info = dict[str, object]


@dataclass(frozen=True)
class Folder:
    """All names that begin with `name` and a slash; with an empty name all there are."""

    place: Place
    uploader: Uploader
    name: str

    @property
    def info(self) -> Info:
        """The folder itself, whether or not anything is in it."""
        return {"name": self.place.join(self.uploader.uri.root, self.name), "size": 0, "type": "directory"}

    def objects(self) -> Iterator[ObjectMeta]:
        """What is below it at any depth, stored and queued, also empty objects with a slash at the end of their name.

        Some tools make those as folders; here they are never files.
        """
        return self.uploader.list(f"{self.name}/" if self.name else "")

    def entries(self, maxdepth: int | None, *, with_folders: bool) -> dict[str, Info]:
        """What is at most `maxdepth` levels below it, by path. All names below it are gone through whatever the depth."""
        found: dict[str, Info] = {}
        above = len(self.name) + 1 if self.name else 0
        for meta in self.objects():
            parts = meta.key[above:].split("/")
            deepest = len(parts) if maxdepth is None else maxdepth + 1
            for depth in range(1, min(len(parts), deepest) if with_folders else 1):
                folder = Folder(self.place, self.uploader, meta.key[:above] + "/".join(parts[:depth])).info
                found.setdefault(str(folder["name"]), folder)
            if parts[-1] and len(parts) <= deepest - (maxdepth is not None):
                info = describe(self.place, self.uploader, meta)
                found[str(info["name"])] = info
        return found


def describe(place: Place, uploader: Uploader, meta: ObjectMeta) -> Info:
    """An object: path, size in bytes, when it was stored (queued: accepted) as seconds since 1970, etag and CRC32C, if known."""
    return {
        "name": place.join(uploader.uri.root, meta.key),
        "size": meta.size_bytes,
        "type": "file",
        "mtime": meta.modified_s,
        "etag": meta.etag,
        "crc32c": None if meta.crc32c is None else format_crc32c(meta.crc32c),
    }
