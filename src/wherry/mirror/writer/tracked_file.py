"""One file of a mirrored folder, and the objects in the store that have the bytes of such files already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wherry.mirror.writer.scan import Found
from wherry.mirror.writer.state_db import Record, Stored


@dataclass(eq=False)
class TrackedFile:
    """A file of the folder, or one that was there. The state database keeps `record`; the rest ends with the process.

    `since_s` is when the oldest bytes that are not sent were not there yet, by the mirror's clock; None: all is sent.
    """

    record: Record
    found: Found | None = None
    since_s: float | None = None
    #: When it was last seen to be other than before.
    changed_s: float = 0.0
    #: It was not found; nothing more is done for it until it is there again.
    is_gone: bool = False
    #: It has not changed for `settle_s`: files that are sent whole go then.
    is_settled: bool = False
    #: A sender has it: no other thread may touch the record.
    is_busy: bool = False
    #: The size at which no whole record was found.
    no_cut_at: int = -1
    #: A sender found that the file does not begin with what was sent.
    restart_reason: str = ""
    not_before_s: float = 0.0
    n_errors: int = 0
    #: How often it was sent whole, by this process, and when it may be again: each time of a file that goes on changing is later.
    n_versions: int = 0
    next_version_s: float = 0.0
    #: Of what file the last version was. Another file under this name is not one that goes on changing.
    version_inode: int = 0
    #: An object that has its bytes, as it was renamed: that is copied inside the store, and may not be replaced before.
    source: Stored | None = None
    #: How often, since the end began, it was brought to its end, and when it may be again, should it go on.
    n_ends: int = 0
    next_end_s: float = 0.0

    @property
    def unsent_bytes(self) -> int:
        """What is not in the store yet, of what was found: more may have been sent, if the file has grown since."""
        if self.found is None or self.since_s is None:
            return 0
        return max(0, self.found.size - self.record.acked) if self.record.rule == "append" else self.found.size

    @property
    def may_have_more(self) -> bool:
        """Whether a growing file may have whole records to send, or a segment whose put has no known outcome."""
        return self.record.in_doubt or (self.found is not None and self.no_cut_at != self.found.size)

    @property
    def is_sent(self) -> bool:
        """Whether the store has all of what was found."""
        record, found = self.record, self.found
        if found is None:
            return False
        if record.rule == "append":
            return found.size <= record.acked and not record.in_doubt
        known = (record.size, record.mtime_ns, record.device, record.inode)
        return record.state == "sealed" and known == (found.size, found.mtime_ns, found.device, found.inode)


class StoredObjects:
    """The plain objects of finished files, by name and by the file (device, inode) whose bytes they have."""

    def __init__(self) -> None:
        self._by_file: dict[tuple[int, int], Stored] = {}
        self._by_name: dict[str, Stored] = {}

    def note(self, record: Record) -> None:
        """The plain object of that name has that file's bytes from now on, or is not known any more."""
        if (before := self._by_name.pop(record.at, None)) is not None and self._by_file.get(before.file) is before:
            del self._by_file[before.file]
        if record.state == "sealed" and record.acked:
            file = (record.device, record.inode)
            stored = Stored(record.at, file, record.size, record.mtime_ns, record.crc32c)
            self._by_file[file] = self._by_name[record.at] = stored

    def source_of(self, found: Found, files: Mapping[str, TrackedFile]) -> Stored | None:
        """An object with the bytes of a file that was renamed: backups that are numbered anew at each rotation.

        None if this file's own name is wanted for that object's next content, directly or by way of other files. Of two files
        that have changed places both are sent. `files` are those of the folder, by path.
        """
        stored = self._by_file.get((found.device, found.inode))
        if stored is None or (stored.size, stored.mtime_ns) != (found.size, found.mtime_ns) or stored.name == found.path:
            return None
        following: Stored | None = stored
        while following is not None and following.name != found.path:
            other = files.get(following.name)
            following = None if other is None else other.source
        return stored if following is None else None
