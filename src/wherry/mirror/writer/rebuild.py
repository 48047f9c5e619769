"""Makes the state database again from the store and the folder, when it is missing: a new machine, a lost disk."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from wherry.checksum import combine_crc32c, crc32c_of_file
from wherry.errors import BucketNotFoundError, ConfigError, IntegrityError, StoreError, TransientError
from wherry.mirror.format.layout import MOST_BYTES, Listed, Segment, chain, key_for, manifest_name
from wherry.mirror.format.manifest import FileEntry, Manifest, NewerFormatError, read_manifest
from wherry.mirror.format.rules import Rules
from wherry.mirror.report import printable
from wherry.mirror.writer.scan import scan
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.segments import tail_of
from wherry.mirror.writer.state_db import Record
from wherry.store import ObjectMeta
from wherry.uri import check_name

log = logging.getLogger("wherry.mirror")


def rebuild(sender: SegmentSender, rules: Rules) -> list[Record]:
    """A record of each append file that our writer has something of in the store, by one listing.

    What is there is compared with the file in the folder, by its checksum: where they agree it goes on, where they do not the
    file begins anew as the next generation. A file that is not in the folder is taken for deleted. Checksums are the
    manifest's, then the segments' own, which costs a request each. A file whose objects cannot be read
    begins anew, too.
    """
    listed = Listed(sender.store, sender.uri.prefix)
    plain = listed.plain
    ours = {path: [one for one in group if one.writer == sender.writer] for path, group in listed.segments.items()}
    by_path = {path: group for path, group in ours.items() if group}
    if not plain and not by_path:
        return []
    try:
        manifest = read_manifest(sender.store, key_for(sender.uri.prefix, manifest_name(sender.writer)), sender.scratch)
    except NewerFormatError:  # what we would add to its objects a newer wherry may not understand, nor we what is there
        raise
    except IntegrityError:  # it can be done without
        manifest = None
    local = _names(sender.folder)
    return [
        _record(sender, path, local.get(path), plain.get(path), by_path.get(path, []), manifest)
        for path in sorted({*plain, *by_path})
        if rules.kind(local.get(path, path)) == "append" and (path in local or path in by_path)
    ]


def _names(folder: Path) -> dict[str, str]:
    """Name in the store -> path in the folder, of regular files; they differ in the Unicode form at most."""
    names: dict[str, str] = {}
    found = scan(folder)
    for path in () if found is None else found.files:
        with suppress(ConfigError):  # such a name was never sent
            names[check_name(path)] = path
    return names


def _record(
    sender: SegmentSender,
    path: str,
    local: str | None,
    plain: ObjectMeta | None,
    segments: list[Segment],
    manifest: Manifest | None,
) -> Record:
    entries = [one for one in manifest.files if one.path == path and one.rule == "append"] if manifest else []
    entry = max(entries, key=lambda one: one.generation, default=None)
    generation = max(1, entry.generation if entry else 0, *(one.generation for one in segments))
    record = Record(local or path, generation, "append", "live", at=local or path, has_segments=bool(segments))
    try:
        is_whole = _measure(sender, record, plain, chain(segments, generation), entry)
    except (TransientError, BucketNotFoundError):
        raise
    except StoreError as error:
        if error.waits_for is not None:
            raise
        log.warning("%s: what is in the store of it cannot be read, so it is sent anew: %s", printable(path), error)
        is_whole = False
    if not is_whole:
        record.acked = record.crc32c = record.size = record.base = 0
    if local is None:
        record.state = "deleted"
    elif not is_whole or not _matches_folder(sender.folder / local, record):
        record.state = "superseded"
    return record


def _measure(
    sender: SegmentSender, record: Record, plain: ObjectMeta | None, linked: tuple[Segment, ...], entry: FileEntry | None
) -> bool:
    """Note how much of the file is in the store, and its checksum; False if its beginning is not there."""
    begins_at = linked[0].start if linked else 0
    at = crc = 0
    if not linked or begins_at > 0:
        if plain is None or plain.size_bytes < begins_at:
            return False
        whole = Segment(plain.key, sender.writer, plain.key, 0, 0, None, plain.size_bytes)
        at, crc = plain.size_bytes, sender.measure(whole)[1]
        record.state = "sealed"
    elif (
        entry is not None
        and entry.generation == record.generation
        and any(entry.acked_bytes in (one.start, one.end) for one in linked)
    ):
        at, crc = entry.acked_bytes, int(entry.crc32c, 16)
    for one in linked:
        if one.start >= at:
            if one.start != at:
                break
            length, segment_crc = sender.measure(one)
            if at + length > MOST_BYTES:
                raise IntegrityError("it ends beyond the end of any file", operation="read", uri=one.key)
            at, crc = at + length, combine_crc32c(crc, segment_crc, length)
            record.state = "live"
    record.acked, record.crc32c, record.size = at, crc, at
    record.base = begins_at if record.state == "live" else 0
    return True


def _matches_folder(source: Path, record: Record) -> bool:
    """Note which file it is, if it begins with what is in the store. One that cannot be read is sent anew when it can be."""
    try:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size < record.acked:
            return False
        if crc32c_of_file(source, 0, record.acked) != record.crc32c:
            return False
        record.tail, record.boundary = tail_of(file, record.acked), 0
    except (FileNotFoundError, EOFError):  # it was replaced or truncated in this moment
        return False
    finally:
        os.close(file)
    record.device, record.inode, record.mtime_ns = status.st_dev, status.st_ino, status.st_mtime_ns
    return True
