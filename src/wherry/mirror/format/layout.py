"""The names of a mirror's objects, and how a file is put together from them. Writers and readers share this module.

Below the mirror's URI::

    train.log                                               plain object: a sealed, replaced or finished file
    _mirror/rank0/segments/train.log/0001-00000000000000008192      bytes from 8192 on, of the file's first generation
    _mirror/rank0/segments/train.log/0001-00000000000000012288.gz   the same, as one gzip member (.zst: one zstd frame)
    _mirror/rank0/manifest.json                             who writes, since when, how late (wherry.mirror.format.manifest)
    _mirror/rank0/epoch-00000003                            the third process that wrote under this name

Segments are created and never replaced. The offset in a name counts the file's own bytes, also where they are compressed,
and each segment begins where the one before ends: so a listing alone shows where a file ends, and whether something is missing. A
file that was truncated or replaced begins again as the next generation; the newest counts.

All of this together is FORMAT, which each manifest carries. Whatever a reader of today would misread or overlook (another name
for segments, another meaning of an offset) needs a higher FORMAT: readers refuse the writer whose manifest has one they do not
know, and report every name in a writer's folder that they do not understand.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import IO

from wherry.checksum import crc32c
from wherry.errors import ConfigError, IntegrityError
from wherry.mirror.format.inflate import inflated
from wherry.store import ObjectMeta, ObjectStore
from wherry.uri import check_name

#: The version of the names below and of the manifest, as the manifest says it.
FORMAT = 1
#: The folder of all that is not the mirrored files themselves. A mirrored folder may not hold it.
FOLDER = "_mirror"
#: Compression -> what a segment's name ends with.
SUFFIXES: dict[str | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}

_COMPRESSIONS = {suffix.lstrip("."): name for name, suffix in SUFFIXES.items()}
#: No file is larger: POSIX counts its bytes with 63 bits.
MOST_BYTES = 2**63 - 1
#: The names of later generations' segments do not match _SEGMENT.
MOST_GENERATIONS = 10**9 - 1

# The digits are bounded, as any user of the bucket may have made the name: Python refuses to read 5,000 of them.
_SEGMENT = re.compile(r"([^/]+)/segments/(.+)/([0-9]{4,9})-([0-9]{20})(?:\.(gz|zst))?", re.DOTALL)
_EPOCH = re.compile(r"epoch-([0-9]{8,15})")
_MANIFEST = re.compile(r"([^/]+)/manifest\.json", re.DOTALL)


@dataclass(frozen=True)
class Segment:
    """One segment as a listing shows it. `size_bytes` are those stored; `length_bytes` those of the file, None if not known."""

    key: str
    writer: str
    path: str
    generation: int
    start: int
    compression: str | None
    size_bytes: int
    modified_s: float | None = None
    length_bytes: int | None = None
    #: As the listing says them, of the stored bytes; None where it does not.
    etag: str | None = None
    crc32c: int | None = None

    @property
    def end(self) -> int | None:
        """Where the next segment begins; None for the last one of a compressed file, which only its bytes can tell."""
        return None if self.length_bytes is None else self.start + self.length_bytes


@dataclass(frozen=True)
class Assembly:
    """What a file is made of: the plain object, if it counts, then the segments that go on after it, without a gap.

    `generation` is 0 for a file without segments.
    """

    path: str
    plain: ObjectMeta | None
    segments: tuple[Segment, ...]
    generation: int = 0
    writer: str | None = None

    @property
    def size_bytes(self) -> int | None:
        """The file's size as far as it is in the store; None where only the last, compressed segment can tell."""
        if self.segments:
            return self.segments[-1].end
        return self.plain.size_bytes if self.plain is not None else 0


def key_for(prefix: str, name: str) -> str:
    """The key of a name below the mirror's URI, whose prefix is `prefix`."""
    return f"{prefix}/{name}" if prefix else name


def check_writer(name: str) -> str:
    """The name of a writer, or ConfigError."""
    if "/" in (name := check_name(name, what="writer's name")):
        raise ConfigError(f"writer's name {name!r} holds a '/': it is one part of a key, such as rank0")
    return name


def writer_folder(writer: str) -> str:
    """The folder of everything that belongs to one writer, with a slash at its end."""
    return f"{FOLDER}/{writer}/"


def manifest_name(writer: str) -> str:
    """The name of a writer's manifest."""
    return f"{writer_folder(writer)}manifest.json"


def epoch_name(writer: str, number: int) -> str:
    """The name of the object that says: the writer's `number`-th process has begun."""
    return f"{writer_folder(writer)}epoch-{number:08d}"


def epoch_number(name: str) -> int | None:
    """Read what epoch_name() wrote, from a name or a key."""
    match = _EPOCH.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


def segment_name(writer: str, path: str, generation: int, start: int, compression: str | None = None) -> str:
    """The name of a segment of the file `path` that begins with its byte `start`."""
    return f"{writer_folder(writer)}segments/{path}/{generation:04d}-{start:020d}{SUFFIXES[compression]}"


def parse_segment(prefix: str, meta: ObjectMeta) -> Segment | None:
    """Read the name of a segment; None for any other object, and for one whose numbers cannot be true."""
    base = key_for(prefix, f"{FOLDER}/")
    match = _SEGMENT.fullmatch(meta.key[len(base) :]) if meta.key.startswith(base) else None
    if match is None or listing_problem(meta) or int(match[4]) + meta.size_bytes > MOST_BYTES:
        return None
    compression = _COMPRESSIONS[match[5] or ""]
    length = None if compression else meta.size_bytes
    return Segment(
        meta.key, match[1], match[2], int(match[3]), int(match[4]), compression, meta.size_bytes, meta.modified_s, length,
        meta.etag, meta.crc32c,
    )  # fmt: skip


def listing_problem(meta: ObjectMeta) -> str:
    """Why what a listing says of an object cannot be true; empty if it can."""
    if 0 <= meta.size_bytes <= MOST_BYTES:
        return ""
    size = "no size that can be read" if meta.size_bytes < 0 else f"more than {MOST_BYTES} bytes"
    return f"the store's listing gives it {size}: look at it with another tool"


def name_problem(name: str) -> str:
    """Why no file of a mirror can have this name, which any user of the bucket may have made; empty if one can."""
    try:
        is_own = check_name(name).partition("/")[0] == FOLDER
    except ConfigError as error:
        return str(error)
    return f"the folder {FOLDER} is the mirror's own" if is_own else ""


class Listed:
    """What a listing shows, by what it is, but for empty objects that stand for folders, as buckets' consoles make them."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.plain: dict[str, ObjectMeta] = {}
        self.segments: dict[str, list[Segment]] = {}
        #: By writer.
        self.manifests: dict[str, ObjectMeta] = {}
        #: Objects that cannot be right, by name, with the reason.
        self.flawed: dict[str, str] = {}
        #: Names in the mirror's own folder that this format gives no meaning to.
        self.unknown: list[str] = []
        base, own = key_for(prefix, ""), f"{FOLDER}/"
        for meta in store.list(base):
            name = meta.key[len(base) :]
            inside = name[len(own) :]
            if meta.key.endswith("/") and not meta.size_bytes:
                continue
            if reason := listing_problem(meta):
                self.flawed[name] = reason
            elif (one := parse_segment(prefix, meta)) is not None:
                self.segments.setdefault(one.path, []).append(one)
            elif not name.startswith(own):
                self.plain[name] = meta
            elif match := _MANIFEST.fullmatch(inside):
                self.manifests[match[1]] = meta
            elif _SEGMENT.fullmatch(inside):
                self.flawed[name] = "its name gives it a place where no file has bytes: look at it with another tool"
            elif inside.count("/") != 1 or epoch_number(inside) is None:
                self.unknown.append(name)


def list_segments(store: ObjectStore, prefix: str, writer: str, path: str | None = None) -> list[Segment]:
    """All segments of a writer, or of one of its files, by path, generation and start."""
    below = f"{writer_folder(writer)}segments/" + (f"{path}/" if path is not None else "")
    found = (parse_segment(prefix, meta) for meta in store.list(key_for(prefix, below)))
    segments = [one for one in found if one is not None and path in (None, one.path)]
    return sorted(segments, key=lambda one: (one.path, one.generation, one.start))


def chain(segments: Iterable[Segment], generation: int = 0, sealed_bytes: int = 0) -> tuple[Segment, ...]:
    """The segments of the newest generation, at least `generation`, of one writer's file, up to the first gap.

    Each has its length, except the last one of a compressed file. `sealed_bytes`: so many bytes are in a plain object. Where the
    first segment is gone, a clean-up that was cut short may have left others with gaps between them: those that the plain object
    covers are left out.
    """
    newest = max((one.generation for one in segments), default=0)
    if newest < generation:
        return ()
    ordered = sorted((one for one in segments if one.generation == newest), key=lambda one: one.start)
    if ordered and ordered[0].start > 0:
        ends = [*(one.start for one in ordered[1:]), None]
        beyond = [one for one, end in zip(ordered, ends, strict=True) if (one.end or end or MOST_BYTES) > sealed_bytes]
        if beyond and beyond[0].start <= sealed_bytes:
            ordered = beyond
    linked: list[Segment] = []
    for one, following in zip_longest(ordered, ordered[1:]):
        if linked and linked[-1].end != one.start:
            break
        if one.compression and following is not None:  # it was cut where the next one begins
            one = replace(one, length_bytes=following.start - one.start)
        linked.append(one)
    return tuple(linked)


def assemble(path: str, plain: ObjectMeta | None, segments: Iterable[Segment]) -> Assembly:
    """Decide what a file is made of.

    Segments from the first byte on are the whole file. Where the first ones are gone they were sealed: the plain object has those
    bytes, and segments go on where it ends. Of several writers of one file the last one counts.
    """
    by_writer: dict[str, list[Segment]] = {}
    for one in segments:
        by_writer.setdefault(one.writer, []).append(one)
    sealed_bytes = 0 if plain is None else plain.size_bytes
    chains = [linked for group in by_writer.values() if (linked := chain(group, sealed_bytes=sealed_bytes))]
    if not chains:
        return Assembly(path, plain, ())
    linked = max(chains, key=lambda links: (links[-1].modified_s or 0.0, links[-1].start))
    first = linked[0]
    if first.start == 0:
        return Assembly(path, None, linked, first.generation, first.writer)
    if plain is None or plain.size_bytes < first.start:
        raise IntegrityError(
            f"bytes {plain.size_bytes if plain else 0} to {first.start} are missing: the segments before {first.key} are gone, "
            "and the sealed file does not reach so far",
            operation="read",
            uri=path,
        )
    beyond = tuple(one for one in linked if one.end is None or one.end > plain.size_bytes)
    return Assembly(path, plain, beyond, first.generation, first.writer)


def delete_segments(store: ObjectStore, from_end: Iterable[Segment], from_start: Iterable[Segment] = ()) -> None:
    """Delete segments in few requests. A reader finds a beginning of the file, or all of it, at any moment.

    Also when the deletion is interrupted.

    The plain object of the file has the bytes of those `from_start`: as soon as the first one is gone, it counts. The others are
    part of no plain object of their file's name, so the first one of each generation goes last: without it, they would seem to go
    on behind whatever has that name.
    """
    firsts, others = _firsts(from_end)
    others.reverse()
    for one in others:  # a listing does not show how long a compressed segment is, so a gap behind it cannot be seen
        if one.compression:
            store.delete(one.key)
    store.delete_many([one.key for one in others if not one.compression])
    store.delete_many([one.key for one in reversed(firsts)])
    for group in _firsts(from_start):
        store.delete_many([one.key for one in group])


def _firsts(segments: Iterable[Segment]) -> tuple[list[Segment], list[Segment]]:
    """The first segment of each generation of each file, and the others."""
    firsts: dict[tuple[str, str, int], Segment] = {}
    in_order = sorted(segments, key=lambda one: (one.generation, one.start))
    others = [one for one in in_order if firsts.setdefault((one.writer, one.path, one.generation), one) is not one]
    return list(firsts.values()), others


def segment_blocks(segment: Segment, stored: IO[bytes]) -> Iterator[bytes]:
    """Yield the file's bytes that a segment holds. IntegrityError if they are fewer or more than its neighbour says.

    `stored` has the bytes of the segment's object.
    """
    length = 0
    for block in inflated(stored, segment.compression, segment.length_bytes, segment.size_bytes, uri=segment.key):
        length += len(block)
        yield block
    if segment.length_bytes not in (None, length):
        words = f"the segment has {length} bytes of the file, {segment.length_bytes} were expected"
        raise IntegrityError(words, operation="read", uri=segment.key)


def sum_of(blocks: Iterable[bytes]) -> tuple[int, int]:
    """How many bytes there are, and their CRC32C."""
    length = crc = 0
    for block in blocks:
        length, crc = length + len(block), crc32c(block, crc)
    return length, crc


def fetched(
    store: ObjectStore, key: str, scratch: Path | None, *, start: int = 0, end: int | None = None, if_match: str | None = None
) -> IO[bytes]:
    """Bytes [start, end) of an object, at their offsets, in a temporary file without a name, which is gone when it is closed.

    So a forked child that closes its copy, or a program that cleans up the folder, removes nothing.
    """
    descriptor, name = tempfile.mkstemp(dir=scratch, prefix="read-")
    file = os.fdopen(descriptor, "r+b")
    try:
        store.get_file(key, Path(name), start=start, end=end, if_match=if_match)
    except BaseException:
        file.close()
        raise
    finally:
        os.unlink(name)
    return file
