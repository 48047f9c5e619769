"""Whether what is in the store under a mirrored prefix is what it says it is, and what a folder has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from wherry.checksum import crc32c_of_file, format_crc32c
from wherry.errors import BucketNotFoundError, IntegrityError, NotFoundError, PermanentError, StoreError
from wherry.mirror.format.layout import Assembly
from wherry.mirror.format.rules import Rules
from wherry.mirror.reader.reader import MirrorReader
from wherry.mirror.reader.snapshot import Snapshot
from wherry.mirror.writer.scan import scan

#: right: it has the expected bytes. behind: right so far, and more is to come. extra: only the store has it; it was deleted from
#: the folder, or never there. wrong: it has other bytes, or cannot be read.
Verdict = Literal["right", "behind", "extra", "wrong"]


@dataclass(frozen=True)
class Finding:
    """What was found out about one file. `size_bytes` are in the store."""

    path: str
    verdict: Verdict
    size_bytes: int
    text: str


def verify(
    reader: MirrorReader, folder: Path | None = None, rules: Rules | None = None, *, by_reading: bool = False
) -> Iterator[Finding]:
    """One finding a file, by path.

    Without a folder: no gaps, and the sizes and checksums of the listing and the manifests. With one: also the folder's bytes.
    The store's own checksums are believed, unless `by_reading`: then every byte is fetched. Objects of which the store has no
    checksum are fetched in any case.
    """
    snapshot = reader.snapshot()
    if snapshot.broken:
        snapshot = reader.snapshot()  # a seal was under way, perhaps
    if snapshot.is_empty:
        raise NotFoundError("there is no object of this name or below it", operation="verify", uri=reader.prefix)
    local = scan(folder) if folder is not None else None
    if folder is not None and local is None:
        raise NotADirectoryError(20, "is no folder", str(folder))
    here = {} if local is None else local.files
    trouble = snapshot.trouble
    names = {
        *snapshot.files,
        *trouble,
        *snapshot.unknown,
        *(path for path in here if (rules or Rules(())).kind(path) != "ignore"),
    }
    for path in sorted(names):
        if path in trouble:
            yield Finding(path, "wrong", 0, trouble[path])
        elif path in snapshot.unknown:
            yield Finding(path, "extra", 0, "this wherry does not understand the name, perhaps a newer one's")
        elif path not in snapshot.files:
            verdict: Verdict = "wrong" if snapshot.is_sealed else "behind"
            yield Finding(path, verdict, 0, "it is not in the store")
        else:
            yield _verify_file(reader, snapshot, snapshot.files[path], folder, path in here, by_reading)


def _verify_file(
    reader: MirrorReader, snapshot: Snapshot, found: Assembly, folder: Path | None, is_here: bool, by_reading: bool
) -> Finding:
    path, size = found.path, found.size_bytes or 0
    try:
        source = folder / path if folder is not None and is_here else None
        size = _compared(reader, snapshot, found, source, by_reading)
        if source is None:
            return Finding(path, *(("right", size, "") if folder is None else ("extra", size, "it is not in the folder")))
        n_more = os.stat(source).st_size - size
    except BucketNotFoundError:
        raise
    except FileNotFoundError as error:
        return Finding(path, "wrong", size, f"it vanished meanwhile: {error}")
    except (PermanentError, EOFError) as error:
        return Finding(path, "wrong", size, error.message if isinstance(error, StoreError) else "the folder's file is shorter")
    if n_more:
        return Finding(path, "wrong" if snapshot.is_sealed else "behind", size, f"{n_more} bytes of it are not in the store")
    return Finding(path, "right", size, "")


def _compared(reader: MirrorReader, snapshot: Snapshot, found: Assembly, source: Path | None, by_reading: bool) -> int:
    """The size of a file in the store, every byte of which is right. IntegrityError, or EOFError if the folder's is shorter."""
    sums = None if by_reading else reader.checksums(found)
    if sums is None:
        return _read(reader, found, source)
    end = crc = 0
    for start, end, crc in sums:
        if source is not None and crc32c_of_file(source, start, end) != crc:
            raise _differs(found.path, start, end)
    if source is None:
        _compare_with_manifests(snapshot, found, end, crc)
    return end


def _compare_with_manifests(snapshot: Snapshot, found: Assembly, end: int, crc: int) -> None:
    """`end` and `crc` are those of the plain object, or of the last segment."""
    entry = snapshot.entry(found)
    if entry is not None and entry.state == "live" and entry.acked_bytes > end:
        raise IntegrityError(f"it ends at byte {end}, but the manifest says that {entry.acked_bytes} were sent")
    if not found.segments:
        entries = (one for manifest in snapshot.manifests.values() for one in manifest.files)
        told = {one.crc32c for one in entries if (one.name, one.state, one.acked_bytes) == (found.path, "sealed", end)}
        if told and format_crc32c(crc) not in told:
            raise IntegrityError(f"the object has CRC32C {format_crc32c(crc)}, the manifest says {' or '.join(told)}")


def _read(reader: MirrorReader, found: Assembly, source: Path | None) -> int:
    at = 0
    with nullcontext() if source is None else open(source, "rb") as local:
        for block in reader.bytes_of(found):
            if local is not None and local.read(len(block)) != block:
                raise _differs(found.path, at, at + len(block))
            at += len(block)
    return at


def _differs(path: str, start: int, end: int) -> IntegrityError:
    return IntegrityError(f"bytes {start} to {end} are not those of the folder's file", operation="verify", uri=path)


def summary(findings: list[Finding]) -> dict[Verdict, int]:
    """How many files there are of each verdict."""
    return {verdict: sum(one.verdict == verdict for one in findings) for verdict in get_args(Verdict)}
