"""Sealing without the folder: for a writer who is gone with his machine, from what he has sent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from wherry.checksum import format_crc32c
from wherry.errors import ConfigError, IntegrityError, NotFoundError
from wherry.mirror.fence import Fence
from wherry.mirror.layout import Assembly, Segment, assemble, key_for, list_segments, manifest_name
from wherry.mirror.manifest import FileEntry, Manifest
from wherry.mirror.reader import Look, MirrorReader, blocks
from wherry.mirror.sender import Courier
from wherry.store import ObjectStore
from wherry.uri import StoreURI


@dataclass(frozen=True)
class _Work:
    """One generation of one file, and the name that it gets."""

    path: str
    name: str
    generation: int
    segments: tuple[Segment, ...]
    #: What the manifest says is here.
    acked_bytes: int


def writers(look: Look) -> dict[str, str]:
    """Who has segments or an open manifest here: name -> state as of now."""
    now_s = time.time()
    found = {name: str(one.state_at(now_s)) for name, one in look.manifests.items() if one.state != "sealed"}
    for one in look.files.values():
        for segment in one.segments:
            if segment.writer not in found:
                found[segment.writer] = "sealed" if segment.writer in look.manifests else "lost"
    return found


def seal(
    store: ObjectStore, uri: StoreURI, writer: str, scratch: Path, *, even_if_open: bool = False
) -> Iterator[tuple[str, int]]:
    """Make plain objects of a writer's segments, then remove those; yields (name, size) of each file when it is there.

    A process that still writes under that name is fenced: it stops by itself. So a writer who was heard of lately is refused with
    ConfigError, unless `even_if_open`. Files that were deleted in the folder stay segments. It may be interrupted and made again.
    IntegrityError, and nothing is deleted, where the segments of a file do not join to their end.
    """
    with MirrorReader(store, uri.prefix, scratch=scratch) as reader:
        look = reader.look()
        manifest = look.manifests.get(writer)
        segments = list_segments(store, uri.prefix, writer)
        if manifest is None and not segments:
            raise NotFoundError(f"nobody has mirrored here as {writer!r}", operation="seal", uri=str(uri))
        now_s = time.time()
        if manifest is not None and manifest.state_at(now_s) == "open" and not even_if_open:
            raise ConfigError(
                f"the writer {writer!r} of {uri} was heard of {now_s - manifest.heartbeat_s:.0f} s ago: end it, which seals, or "
                "give --force, which stops it"
            )
        fence = Fence(store, uri.prefix, writer, lambda: scratch / secrets.token_hex(8))
        fence.take()
        courier = Courier(scratch, uri, writer, store, scratch)
        entries = {(one.path, one.generation): one for one in (manifest.files if manifest else ())}
        sealed: dict[str, FileEntry] = {one.name: one for one in entries.values() if one.state == "sealed"}
        works = list(_works(segments, entries))
        for work in works:
            size, crc = _seal_one(reader, courier, work)
            sealed[work.name] = FileEntry(work.path, work.name, "append", "sealed", work.generation, size, format_crc32c(crc))
            yield work.name, size
        fence.check()
        files = tuple(sealed[name] for name in sorted(sealed))
        closed = Manifest(writer, fence.epoch, "sealed", time.time(), 1.0, 0.0, 0, len(files), files)
        courier.send_text(manifest_name(writer), closed.to_json())
        done = {(work.path, work.generation) for work in works}
        newest = {work.path: max(one.generation for one in works if one.path == work.path) for work in works}
        for one in segments:
            if (one.path, one.generation) in done or one.generation < newest.get(one.path, 0):
                store.delete(one.key)


def _works(segments: list[Segment], entries: dict[tuple[str, int], FileEntry]) -> Iterator[_Work]:
    """What is to be sealed: of each file the newest generation, and those before it that were renamed and not yet sealed."""
    newest: dict[str, int] = {one.path: one.generation for one in segments}  # they come in order
    for (path, generation), group in groupby(segments, key=lambda one: (one.path, one.generation)):
        entry = entries.get((path, generation))
        state = entry.state if entry is not None else "live"
        if state == "deleted" or (state != "rotated" and generation != newest[path]):
            continue
        name, acked_bytes = (entry.name, entry.acked_bytes) if entry is not None else (path, 0)
        yield _Work(path, name, generation, tuple(group), acked_bytes)


def _seal_one(reader: MirrorReader, courier: Courier, work: _Work) -> tuple[int, int]:
    try:
        plain = reader.store.head(key_for(courier.prefix, work.name))
    except NotFoundError:
        plain = None
    found: Assembly = assemble(work.path, plain, work.segments)
    if not found.segments and found.plain is None:
        raise IntegrityError("its segments do not join", operation="seal", uri=work.path)
    path = courier.new_scratch()
    try:
        size = 0
        with open(path, "wb") as out:
            for chunk in reader.chunks(found):
                with closing(chunk):
                    for block in blocks(chunk.data):
                        size += out.write(block)
        # The segments are deleted afterwards: all of their bytes, and all that the writer says are here, must be in what is put.
        if size < work.acked_bytes or size <= max(one.start for one in work.segments):
            raise IntegrityError(
                f"its segments join up to byte {size} only, and there is more, so nothing of it was changed: look for the one "
                "that is missing with wherry mirror verify, or send it again with wherry mirror resume where the folder is",
                operation="seal",
                uri=work.path,
            )
        return size, courier.send_whole(work.name, path, size)
    finally:
        path.unlink(missing_ok=True)
