"""What has changed since the last scan of the folder, and what that means for what was sent.

what is found                                        what it means
the same file, longer                                more to send
the same file, shorter than what was sent            truncated (also copytruncate): the next generation begins
another file, the old one under another name         rotated: the old one is finished there, the next generation begins here
another file, the old one under an ignored name      deleted: what was sent stays
a rotated file that is not what was sent             as if truncated: what was sent stays until the next generation is sealed
another file that begins with what was sent          rewritten by a rename (rsync, editors): goes on
another file that does not                           replaced: the next generation begins
none, the old one nowhere                            deleted: what was sent stays
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from wherry.checksum import crc32c_of_file
from wherry.mirror.format.rules import PathKinds, Rules
from wherry.mirror.report import printable
from wherry.mirror.writer.scan import Found, Scan
from wherry.mirror.writer.state_db import Record, StateDb
from wherry.mirror.writer.tracked_file import StoredObjects, TrackedFile

log = logging.getLogger("wherry.mirror")


@dataclass(eq=False)
class _Comparison:
    """One comparison with the folder: what is there, and what came of it."""

    scan: Scan
    since_s: float
    now_s: float
    #: Paths that belong to a rotated file.
    claimed: set[str] = field(default_factory=set)
    #: Files that a sender has. Under another name they are not new but renamed, which is handled when the sender is done.
    busy: set[tuple[int, int]] = field(default_factory=set)
    #: Records to be written down.
    changed: list[Record] = field(default_factory=list)

    @cached_property
    def by_inode(self) -> dict[tuple[int, int], Found]:
        """Where each file is now, by its device and inode."""
        return {(one.device, one.inode): one for one in self.scan.files.values()}

    def may_be_there(self, path: str) -> bool:
        """Whether the path is where nothing could be read."""
        return any(folder == "." or path.startswith(f"{folder}/") for folder in self.scan.trouble)


class FileTracker:
    """Knows every file by its path, and those that were rotated away or truncated besides. For one thread."""

    def __init__(self, folder: Path, state_db: StateDb, rules: Rules, writer: str, prefix: str, settle_s: float) -> None:
        self._folder = folder
        self._state_db = state_db
        self.kinds = PathKinds(rules, writer, prefix)
        self._settle_s = settle_s
        self._generations: dict[str, int] = {}
        self._previous_s: float | None = None
        #: When each file has changed, the latest at the end; those that stand still are taken out.
        self._changed: dict[str, float] = {}
        self._stored = StoredObjects()
        #: load() was called.
        self.is_loaded = False
        self.files: dict[str, TrackedFile] = {}
        self.rotated: list[TrackedFile] = []
        self.superseded: list[Record] = []
        #: Sealed, and their segments are still there.
        self.uncleaned: set[TrackedFile] = set()
        #: Those with something to send.
        self.active: set[TrackedFile] = set()

    def load(self, records: Iterable[Record]) -> None:
        """Begin with what the state database knows."""
        for record in sorted(records, key=lambda one: one.generation):
            self.note_generation(record.path, record.generation)
            tracked = TrackedFile(record)
            if record.state == "superseded":
                self.superseded.append(record)
            elif record.state == "rotated":  # also one that has its old name again
                self.rotated.append(tracked)
            elif record.at == record.path:
                if (earlier := self.files.get(record.path)) is not None:
                    self.superseded.append(replace(earlier.record, state="superseded"))
                self.files[record.path] = tracked
                self._stored.note(record)
            elif record.state == "sealed" and record.has_segments:  # under its new name, and not cleaned yet
                self.uncleaned.add(tracked)
        for tracked in self.files.values():
            if tracked.record.state == "sealed" and self._has_segments(tracked.record):
                self.uncleaned.add(tracked)
        self.is_loaded = True

    def note_generation(self, path: str, generation: int) -> None:
        """That generation is in the store: the next one is a later one."""
        self._generations[path] = max(generation, self._generations.get(path, 0))

    def update(self, scan: Scan, now_s: float) -> None:
        """Compare the folder with what was known. Files that a sender has are left alone until it is done."""
        comparison = _Comparison(scan, now_s if self._previous_s is None else self._previous_s, now_s)
        for tracked in list(self.rotated):
            self._update_rotated(tracked, comparison)
        for path, tracked in list(self.files.items()):
            found = scan.files.get(path)
            if tracked.is_busy:
                comparison.busy.add((tracked.record.device, tracked.record.inode))
            if tracked.is_busy or self.files.get(path) is not tracked or (found is None and tracked.is_gone):
                continue
            if path in comparison.claimed and self._forget_displaced(tracked):
                continue
            if found is not None and found == tracked.found and not tracked.restart_reason:
                tracked.is_settled = self._is_quiet(tracked, now_s)
            elif tracked.record.rule == "append":
                self._compare(tracked, found, comparison)
            elif found is not None:
                self._note_found(tracked, found, comparison)
            else:
                self._note_missing(tracked, comparison)
        for path in scan.files.keys() - self.files.keys() - comparison.claimed:
            self._add(scan.files[path], comparison)
        if comparison.changed:
            self._state_db.save(comparison.changed)
        self._previous_s = now_s

    def sent(self, tracked: TrackedFile, now_s: float) -> None:
        """A sender has brought the record up to date. What has come since then is new."""
        if tracked.record.rule != "append":
            self._stored.note(tracked.record)
        tracked.source = None
        if tracked.is_sent:
            tracked.since_s = None
            self.active.discard(tracked)
        else:
            tracked.since_s = now_s

    def sealed(self, tracked: TrackedFile) -> None:
        """A file is sealed. One that was rotated is from now on a file like any other, under its new name."""
        old = tracked.record
        self._stored.note(old)
        if self._has_segments(old):
            self.uncleaned.add(tracked)
        self.active.discard(tracked)
        tracked.since_s = None
        if tracked not in self.rotated:
            return
        self.rotated.remove(tracked)
        if old.at in self.files or (kind := self.kinds.kind(old.at)) == "ignore":
            return
        generation = self._generations.get(old.at, 0) + 1 if kind == "append" else 0
        was_another = any(one.path == old.at for one in self.superseded)  # its segments are still there, and go with this one's
        record = replace(old, path=old.at, generation=generation, rule=kind, has_segments=was_another, base=0)
        self.note_generation(old.at, generation)
        self.files[old.at] = TrackedFile(record, tracked.found)
        if was_another:
            self.uncleaned.add(self.files[old.at])
        self._state_db.save([record])

    def cleaned(self, files: Iterable[TrackedFile]) -> None:
        """The segments of sealed files are gone."""
        kept: list[Record] = []
        dropped: list[Record] = []
        cleaned: dict[str, int] = {}
        for tracked in files:
            record = tracked.record
            self.uncleaned.remove(tracked)
            cleaned[record.path] = max(record.generation, cleaned.get(record.path, 0))
            if record.at != record.path:
                dropped.append(record)
            else:
                record.has_segments = record.in_doubt
                kept.append(record)
        gone = [one for one in self.superseded if one.generation < cleaned.get(one.path, 0)]
        if gone:
            self.superseded = [one for one in self.superseded if one not in gone]
        self._state_db.save(kept)
        self._state_db.drop([*dropped, *gone])

    def _has_segments(self, record: Record) -> bool:
        """Whether there may be segments that a sealed file does not need any more, those of earlier generations included."""
        earlier = record.at == record.path and any(one.path == record.path for one in self.superseded)
        return record.has_segments or earlier

    def n_changed(self, since_s: float) -> int:
        """How many files have changed since then, by the scans of the folder."""
        while self._changed and next(iter(self._changed.values())) < since_s:
            del self._changed[next(iter(self._changed))]
        return len(self._changed)

    def protected(self) -> set[str]:
        """Names of objects that may not be replaced yet: to be copied, or segments of a renamed file go on behind them."""
        copied = {one.source.name for one in (*self.active, *self.rotated) if one.source is not None}
        return copied | {one.record.path for one in self.rotated if one.record.base}

    def unsealed(self, path: str) -> frozenset[int]:
        """Generations of a path that are to be sealed under other names."""
        return frozenset(one.record.generation for one in self.rotated if one.record.path == path)

    def stale(self, record: Record) -> frozenset[int]:
        """Generations of which segments go on behind the plain object that a renamed file is going to replace."""
        if record.at == record.path:
            return frozenset()
        here = self.files.get(record.at)
        others = [*self.superseded, *([] if here is None else [here.record]), *(one.record for one in self.uncleaned)]
        return frozenset(one.generation for one in others if one.path == record.at and one.base)

    def all_files(self) -> Iterator[TrackedFile]:
        """All files, those that were rotated away included."""
        yield from self.files.values()
        yield from self.rotated

    def _note_found(self, tracked: TrackedFile, found: Found, comparison: _Comparison) -> None:
        """Take over what was found, and whether there is something to send."""
        tracked.found, tracked.is_settled, tracked.is_gone, tracked.changed_s = found, False, False, comparison.now_s
        self._changed.pop(found.path, None)
        self._changed[found.path] = comparison.now_s
        is_whole = tracked.record.rule == "once" or (tracked.record.state == "rotated" and not tracked.record.has_segments)
        tracked.source = self._stored.source_of(found, self.files) if is_whole and not tracked.n_errors else None
        if tracked.is_sent:
            tracked.since_s = None
            self.active.discard(tracked)
        else:
            tracked.since_s = comparison.since_s if tracked.since_s is None else tracked.since_s
            self.active.add(tracked)

    def _add(self, found: Found, comparison: _Comparison) -> None:
        """A path that was not there, or a file that was not."""
        if found.path in comparison.claimed or (found.device, found.inode) in comparison.busy:
            return
        kind = self.kinds.kind(found.path)
        if kind == "ignore":
            return
        record = Record(found.path, 0, kind, "new", at=found.path, device=found.device, inode=found.inode)
        if kind == "append":
            record.generation, record.state = self._generations.get(found.path, 0) + 1, "live"
            self.note_generation(found.path, record.generation)
            comparison.changed.append(record)
        self.files[found.path] = tracked = TrackedFile(record)
        self._note_found(tracked, found, comparison)

    def _compare(self, tracked: TrackedFile, found: Found | None, comparison: _Comparison) -> None:
        """An append file that is not as it was."""
        record = tracked.record
        if found is not None and (found.device, found.inode) == (record.device, record.inode):
            reason = tracked.restart_reason or _why_changed(self._folder / found.path, record, found)
            if reason:
                self._supersede(tracked, found, reason, comparison)
                return
            if record.state == "deleted":  # it was elsewhere for a while
                record.state = "live"
                comparison.changed.append(record)
            self._note_found(tracked, found, comparison)
            return
        is_wanted = not tracked.is_gone and record.state != "deleted"
        elsewhere = comparison.by_inode.get((record.device, record.inode)) if is_wanted else None
        if elsewhere is not None and not record.may_be_there:  # nothing had to be finished, and an inode is soon reused
            del self.files[record.path]
            self.active.discard(tracked)
            self._state_db.drop([record])
            if found is not None:
                self._add(found, comparison)
            return
        if elsewhere is not None and self._is_moved(elsewhere, record):
            self._rotate(tracked, elsewhere, comparison)
            if found is not None:
                self._add(found, comparison)
        elif found is None:
            self._note_missing(tracked, comparison)
        elif record.acked and _has_sent_bytes(self._folder / found.path, record, found):
            record.device, record.inode, record.mtime_ns = found.device, found.inode, found.mtime_ns
            record.state = "live" if record.state == "deleted" else record.state
            comparison.changed.append(record)
            self._note_found(tracked, found, comparison)
        else:
            self._supersede(tracked, found, "another file took its place", comparison)

    def _supersede(self, tracked: TrackedFile, found: Found, reason: str, comparison: _Comparison) -> None:
        """Begin the file anew."""
        old = tracked.record
        if old.acked or tracked.restart_reason:  # or a segment with other bytes lies under its name
            log.warning("%s: %s: it is sent anew as generation %d", printable(old.path), reason, old.generation + 1)
            del self.files[old.path]
            self._retire(tracked, comparison)
            self._add(found, comparison)
            return
        # Nothing of it is in the store: it may as well be this file.
        old.device, old.inode = found.device, found.inode
        old.state = "live" if old.state == "deleted" else old.state
        comparison.changed.append(old)
        self._note_found(tracked, found, comparison)

    def _rotate(self, tracked: TrackedFile, elsewhere: Found, comparison: _Comparison) -> None:
        """The file has another name now: what is left of it is read there."""
        record = tracked.record
        record.at = elsewhere.path
        record.base = record.acked if record.state == "sealed" else record.base
        record.state = "rotated"
        del self.files[record.path]
        self.rotated.append(tracked)
        comparison.changed.append(record)
        comparison.claimed.add(elsewhere.path)
        if (other := self.files.get(elsewhere.path)) is not None:
            self._forget_displaced(other)
        self._note_found(tracked, elsewhere, comparison)

    def _forget_displaced(self, other: TrackedFile) -> bool:
        """A rotated file has taken this one's name. Forget this one if nothing of it is in the store. Whether that was done."""
        if other.is_busy or (other.record.rule == "append" and other.record.may_be_there):
            return False
        del self.files[other.record.path]
        self.active.discard(other)
        self._state_db.drop([other.record])
        return True

    def _update_rotated(self, tracked: TrackedFile, comparison: _Comparison) -> None:
        """A rotated file that is not finished may be renamed again, or deleted."""
        if tracked.is_busy:
            comparison.claimed.add(tracked.record.at)
            return
        record = tracked.record
        found = comparison.by_inode.get((record.device, record.inode))
        if found is not None and found.path == record.at and (tracked.restart_reason or found.size < record.acked):
            self._replace_rotated(tracked, found, tracked.restart_reason or "it was truncated", comparison)
            return
        if found is None or (found.path != record.at and not self._is_moved(found, record)):
            if not comparison.may_be_there(record.at):
                self._note_missing(tracked, comparison)
            return
        is_newest = record.generation >= self._generations.get(record.path, 0)
        if found.path == record.path and record.path not in self.files and is_newest:  # it has its old name again
            is_sealed = record.acked > 0 and not record.has_segments and record.base == record.acked
            record.at = record.path
            record.state, record.base = ("sealed", 0) if is_sealed else ("live", record.base)
            comparison.changed.append(record)
            self.rotated.remove(tracked)
            self.files[record.path] = tracked
            self._note_found(tracked, found, comparison)
            return
        if found.path != record.at:
            record.at = found.path
            comparison.changed.append(record)
        comparison.claimed.add(found.path)
        if found != tracked.found:
            self._note_found(tracked, found, comparison)
        else:
            tracked.is_settled = self._is_quiet(tracked, comparison.now_s)

    def _replace_rotated(self, tracked: TrackedFile, found: Found, reason: str, comparison: _Comparison) -> None:
        """What is at the rotated file's place is not what was sent of it: that one stays in segments, and this one is new."""
        record = tracked.record
        log.warning("%s: %s before it was finished under this name: it is sent anew", printable(record.at), reason)
        self.rotated.remove(tracked)
        self._retire(tracked, comparison)
        if found.path not in self.files:
            self._add(found, comparison)

    def _retire(self, tracked: TrackedFile, comparison: _Comparison) -> None:
        """What was sent of it is no file's any more: it goes with the segments of a later generation."""
        record = tracked.record
        record.state, record.at = "superseded", record.path
        self.superseded.append(record)
        comparison.changed.append(record)
        self.active.discard(tracked)
        self.uncleaned.discard(tracked)
        now = self.files.get(record.path)
        if now is not None and now.record.state == "sealed":
            self.uncleaned.add(now)

    def _is_quiet(self, tracked: TrackedFile, now_s: float) -> bool:
        return now_s - tracked.changed_s >= self._settle_s

    def _is_moved(self, found: Found, record: Record) -> bool:
        """Whether what was found under another name is mirrored, and still what was sent of the record."""
        return self.kinds.kind(found.path) != "ignore" and _has_sent_bytes(self._folder / found.path, record, found)

    def _note_missing(self, tracked: TrackedFile, comparison: _Comparison) -> None:
        """There is no such file any more. What was sent of it stays."""
        record = tracked.record
        if comparison.may_be_there(record.at):
            return
        tracked.is_gone = True
        if record.state == "deleted":
            return
        if tracked.since_s is not None:
            n_bytes = tracked.unsent_bytes
            log.warning("%s was deleted before its last %d bytes were sent", printable(record.at), n_bytes)
        tracked.found = tracked.since_s = None
        self.active.discard(tracked)
        if record.rule != "append":
            del self.files[record.path]
            if record.state == "sealed":
                self._state_db.drop([record])
            return
        if tracked in self.rotated:
            self.rotated.remove(tracked)
            self._retire(tracked, comparison)
            return
        if record.state != "sealed":  # else the plain object has it all
            record.state = "deleted"
            comparison.changed.append(record)
            self.uncleaned.discard(tracked)


def _why_changed(path: Path, record: Record, found: Found) -> str:
    """Why the file, as far as a scan shows, does not begin with what was sent; else empty.

    A file that has grown is compared when more of it is sent.
    """
    if found.size < record.acked:
        return "it was truncated"
    if found.size > record.acked or found.mtime_ns == record.mtime_ns:
        return ""
    try:
        crc = crc32c_of_file(path, 0, record.acked)
    except (OSError, EOFError):  # it is gone, shorter, or not ours to read: the next scan, or the sender, will see
        return ""
    if crc != record.crc32c:
        return "it was rewritten"
    record.mtime_ns = found.mtime_ns
    return ""


def _has_sent_bytes(path: Path, record: Record, found: Found) -> bool:
    """Whether a file begins with the bytes that were sent of the record."""
    if found.size < record.acked:
        return False
    try:
        return crc32c_of_file(path, 0, record.acked) == record.crc32c
    except (OSError, EOFError):
        return False
