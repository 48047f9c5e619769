"""Media of a run: a file each, in a folder of its kind and key, and a line for each in an index, which is what readers read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wherry.loggers.files.json_lines import JsonLines, json_line
from wherry.loggers.values.safe_name import safe_name
from wherry.posix.atomic_write import AtomicFiles

#: Kind -> folder and suffix.
_KINDS = {
    "image": ("images", ".png"),
    "mask": ("masks", ".png"),
    "audio": ("audio", ".wav"),
    "video": ("video", ".mp4"),
    "point_cloud": ("pointclouds", ".ply"),
}
_BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class Media:
    """A picture, mask, sound, video or cloud, as the index says it. `t`: seconds since the epoch, when it was logged."""

    kind: str
    key: str
    step: int
    t: float
    shape: Sequence[int]
    is_one_of_several: bool = False
    #: Below that of its kind; by default made of the key.
    folder: str = ""
    #: Added to the index's line.
    more: Mapping[str, object] = field(default_factory=dict)


class MediaIndex:
    """Adds media to `folder` (``media``), and a line for each to the index there.

    Their files: ``<kind>/<key>/<step>.<suffix>``; several of one call, and those for whose step there is one already, are
    ``<step>-<number>``: the first number that is free, from 0 or 1 on. No file is replaced.
    """

    def __init__(self, folder: Path, index: JsonLines, files: AtomicFiles) -> None:
        self._folder = folder
        self._index = index
        self._files = files
        self._next_free: dict[Path, tuple[int, int]] = {}  # folder -> the last step there, and the next number for it

    def add(self, media: Media, write: Callable[[Path], object]) -> Path:
        """Have `write` write the file, and index it. Only one thread may call."""
        kind, suffix = _KINDS[media.kind]
        with self._files.temporary(suffix) as temporary:
            write(temporary)
            sha256, size_bytes = _sha256(temporary), temporary.stat().st_size
            path = self._put(temporary, self._folder / kind / (media.folder or safe_name(media.key)), media, suffix)
        line: dict[str, object] = {"t": media.t, "step": media.step, "key": media.key, "kind": media.kind}
        line["path"] = path.relative_to(self._folder.parent).as_posix()
        line |= {"sha256": sha256, "size_bytes": size_bytes, "shape": list(media.shape), **media.more}
        self._index.append(json_line(line))
        return path

    def _put(self, temporary: Path, folder: Path, media: Media, suffix: str) -> Path:
        last_step, number = self._next_free.get(folder, (media.step, -1))
        if last_step != media.step or number < 0:
            number = 0 if media.is_one_of_several else -1  # -1: a name without number
        while True:
            path = folder / (f"{media.step}{suffix}" if number < 0 else f"{media.step}-{number}{suffix}")
            number = max(1, number + 1)
            if self._files.put(temporary, path):
                self._next_free[folder] = (media.step, number)
                return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
