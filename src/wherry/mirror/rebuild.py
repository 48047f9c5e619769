"""The ledger made again from what is in the store and in the folder, when there is none: a new machine, a lost disk."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from wherry.checksum import combine_crc32c, crc32c_of_file
from wherry.errors import ConfigError, IntegrityError
from wherry.mirror.layout import FOLDER, Segment, chain, key_for, parse_segment
from wherry.mirror.ledger import Record
from wherry.mirror.manifest import Manifest, NewerFormatError, read_manifest
from wherry.mirror.rules import Rules
from wherry.mirror.segments import tail_of
from wherry.mirror.sender import Courier
from wherry.store import ObjectMeta
from wherry.uri import check_name


def rebuild(courier: Courier, rules: Rules) -> list[Record]:
    """A record of each append file that our writer has something of in the store, by one listing.

    What is there is compared with the file in the folder, by its checksum: where they agree it goes on, where they do not the
    file begins anew as the next generation. A file that is not in the folder is taken for deleted. Checksums are the
    manifest's, then the segments' own, which costs a request each.
    """
    plain: dict[str, ObjectMeta] = {}
    segments: list[Segment] = []
    base = key_for(courier.prefix, "")
    for meta in courier.store.list(base):
        if (one := parse_segment(courier.prefix, meta)) is not None:
            if one.writer == courier.writer:
                segments.append(one)
        elif not meta.key.startswith(f"{base}{FOLDER}/"):
            plain[meta.key[len(base) :]] = meta
    segments.sort(key=lambda one: one.path)
    by_path = {path: list(group) for path, group in groupby(segments, key=lambda one: one.path)}
    if not plain and not by_path:
        return []
    try:
        manifest = read_manifest(courier.store, courier.prefix, courier.writer, scratch=courier.scratch)
    except NewerFormatError:  # what we would add to its objects a newer wherry may not understand, nor we what is there
        raise
    except IntegrityError:  # it is a help and no need
        manifest = None
    local = _names(courier.folder)
    return [
        _record(courier, path, local.get(path), plain.get(path), by_path.get(path, []), manifest)
        for path in sorted({*plain, *by_path})
        if rules.kind(local.get(path, path)) == "append" and (path in local or path in by_path)
    ]


def _names(folder: Path) -> dict[str, str]:
    """Name in the store -> path in the folder; they differ in the Unicode form at most."""
    found: dict[str, str] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = (Path(base) / name).relative_to(folder).as_posix()
            if (in_store := _name_of(path)) is not None:
                found[in_store] = path
    return found


def _name_of(path: str) -> str | None:
    try:
        return check_name(path)
    except ConfigError:  # such a name was never sent
        return None


def _record(
    courier: Courier,
    path: str,
    local: str | None,
    plain: ObjectMeta | None,
    segments: list[Segment],
    manifest: Manifest | None,
) -> Record:
    entries = [one for one in manifest.files if one.path == path and one.rule == "append"] if manifest else []
    entry = max(entries, key=lambda one: one.generation, default=None)
    generation = max(1, entry.generation if entry else 0, *(one.generation for one in segments))
    linked = chain(segments, generation)
    record = Record(local or path, generation, "append", "live", at=local or path, has_segments=bool(segments))
    begins_at = linked[0].start if linked else 0
    at = crc = 0
    if not linked or begins_at > 0:
        if plain is None or plain.size_bytes < begins_at:  # its beginning is gone: it begins anew
            record.state = "superseded" if local else "deleted"
            return record
        at, crc = plain.size_bytes, _crc_of_plain(courier, plain)
        record.state = "sealed"
    elif (
        entry is not None and entry.generation == generation and any(entry.acked_bytes in (one.start, one.end) for one in linked)
    ):
        at, crc = entry.acked_bytes, int(entry.crc32c, 16)
    for one in linked:
        if one.start >= at:
            if one.start != at:
                break
            length, segment_crc = courier.measure(one)
            at, crc = at + length, combine_crc32c(crc, segment_crc, length)
            record.state = "live"
    record.acked, record.crc32c, record.size = at, crc, at
    record.base = begins_at if record.state == "live" else 0
    if local is None:
        record.state = "deleted"
        return record
    source = courier.folder / local
    if not os.access(source, os.R_OK):  # when it can be read, it is sent anew
        record.state = "superseded"
        return record
    with open(source, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size < at or crc32c_of_file(source, 0, at) != crc:
            record.state = "superseded"
            return record
        record.tail, record.boundary = tail_of(file.fileno(), at), 0
        record.device, record.inode, record.mtime_ns = status.st_dev, status.st_ino, status.st_mtime_ns
    return record


def _crc_of_plain(courier: Courier, plain: ObjectMeta) -> int:
    found = courier.store.head(plain.key)
    if found.crc32c is not None:
        return found.crc32c
    whole = Segment(plain.key, courier.writer, plain.key, 0, 0, None, plain.size_bytes)
    return courier.measure(whole, found)[1]
