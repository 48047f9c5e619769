"""MediaIndex: a file for each image, sound or video of a run, and a line for each in an index that readers follow."""

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
    """The entry of an image, mask, sound, video or point cloud in the index. `t`: when it was logged, in seconds since 1970."""

    kind: str
    key: str
    step: int
    t: float
    shape: Sequence[int]
    is_one_of_several: bool = False
    #: The folder inside that of the kind; by default made of the key.
    folder: str = ""
    #: Further items of the line in the index.
    more: Mapping[str, object] = field(default_factory=dict)


class MediaIndex:
    """Adds media to `folder` (``media``), and a line for each to the index there.

    A file is named ``<kind>/<key>/<step>.<suffix>``. Several of one call are ``<step>-<number>`` with numbers from 0 on, and the
    next ones at a step that has a file already have numbers from 1 on. No file is replaced.
    """

    def __init__(self, folder: Path, index: JsonLines, files: AtomicFiles) -> None:
        self._folder = folder
        self._index = index
        self._files = files
        self._next_free: dict[Path, tuple[int, int]] = {}  # folder -> the last step there, and the next number for it

    def add(self, media: Media, write: Callable[[Path], object]) -> Path:
        """Have `write` write the file, and add its line to the index. Only one thread may call."""
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
