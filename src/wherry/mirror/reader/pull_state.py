"""The state of a pull, in a hidden folder of the copy, so that the next pull goes on from there.

copy/.wherry-pull/
  lock         held by the one pull into this folder
  state.json   of each file: how much of it is here, its checksum, what it was made of
  scratch/     downloads on their way; they go on after a kill
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from wherry.errors import ConfigError, SpoolError
from wherry.posix.atomic_write import AtomicFiles
from wherry.posix.locks import lock_and_sign

FOLDER = ".wherry-pull"
_FORMAT = 1
#: What is still in scratch after so long belongs to objects that are not there any more.
_STALE_S = 7 * 86_400.0


@dataclass(frozen=True)
class Copied:
    """How much of a file is here: its first `size` bytes, with that CRC32C. The file may have more, of a pull that was killed.

    `source` is the writer and the generation of its segments, empty for a plain object, whose `version` is then given.
    `checked` of the bytes were compared with a checksum of the writer's. `mtime_ns` is when we wrote last.
    """

    size: int = 0
    crc32c: int = 0
    checked: int = 0
    source: str = ""
    version: str = ""
    mtime_ns: int = 0


class PullState:
    """The hidden folder of a copy. ConfigError if it is a copy of something else, SpoolError if another pull is at it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._place = folder / FOLDER
        self._uri = uri
        self._place.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if (who := lock_and_sign(self._lock, f"process {os.getpid()}\n")) is not None:
                raise SpoolError(f"{who} is pulling into {folder} already: one at a time, so end that one first")
            self.files = self._load(folder)
            self.scratch = self._place / "scratch"
            self.scratch.mkdir(exist_ok=True)
            self._remove_stale()
        except BaseException:
            os.close(self._lock)
            raise
        self._saved: dict[str, Copied] = dict(self.files)

    def _load(self, folder: Path) -> dict[str, Copied]:
        try:
            data = json.loads((self._place / "state.json").read_text())
            uri, found = data["uri"], data["files"]
            if data["format"] != _FORMAT:
                return {}  # of another version of wherry: everything is compared anew
            names = [one.name for one in fields(Copied)]
            files = {path: Copied(**{name: one[name] for name in names}) for path, one in found.items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # there is none, or it is damaged, by a full disk perhaps: everything is compared anew
        if uri != self._uri:
            raise ConfigError(
                f"{folder} is a copy of {uri}, not of {self._uri}: pull into another folder, or remove {self._place} first"
            )
        return files

    def _remove_stale(self) -> None:
        with os.scandir(self.scratch) as entries:
            for entry in entries:
                # "read-*" are of a process that was killed, and of no use; downloads can be gone on with
                if entry.name.startswith("read-") or entry.stat().st_mtime < time.time() - _STALE_S:
                    os.unlink(entry.path)

    def note(self, path: str, copied: Copied) -> None:
        """Remember how much of a file is here; from any thread. save() writes it down."""
        self.files[path] = copied

    def save(self) -> None:
        """Write it down, if anything has changed. Whole or not at all."""
        files = dict(self.files)
        if files == self._saved:
            return
        text = json.dumps({"format": _FORMAT, "uri": self._uri, "files": {path: asdict(one) for path, one in files.items()}})
        AtomicFiles(self.scratch).write(self._place / "state.json", text.encode())  # what a kill leaves there is removed in time
        self._saved = files

    def close(self) -> None:
        """Let the next pull have it."""
        os.close(self._lock)
