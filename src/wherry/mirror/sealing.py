"""Sealing without the folder: for a writer who is gone with his machine, from what he has sent.

Of a file that was begun anew only the newest generation gets its name. Whether an earlier one was truncated, or renamed and is
still wanted, only the writer has seen: what his last manifest does not tell is kept, as ``train.log.generation-0001``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path

from wherry.checksum import crc32c_of_file, format_crc32c, parse_crc32c
from wherry.errors import ConfigError, IntegrityError, NotFoundError
from wherry.mirror.fence import Fence
from wherry.mirror.layout import Assembly, Segment, assemble, key_for, list_segments, manifest_name
from wherry.mirror.manifest import FileEntry, Manifest
from wherry.mirror.reader import Look, MirrorReader, blocks
from wherry.mirror.sender import Courier
from wherry.store import ObjectMeta, ObjectStore
from wherry.uri import StoreURI


@dataclass(frozen=True)
class Sealed:
    """A plain object that is there now. `note`: why it has another name than one would think."""

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class _Work:
    """One generation of one file. `name` is what it shall be called; empty: the manifest does not say."""

    path: str
    generation: int
    segments: tuple[Segment, ...]
    name: str
    #: What the manifest says is here.
    acked_bytes: int
    #: The generation that the plain object may be of whose place it takes; 0: none that is not among the works.
    displaced: int = 0


def writers(look: Look) -> dict[str, str]:
    """Who has segments or an open manifest here: name -> state as of now."""
    now_s = time.time()
    found = {name: str(one.state_at(now_s)) for name, one in look.manifests.items() if one.state != "sealed"}
    for one in look.files.values():
        for segment in one.segments:
            if segment.writer not in found:
                found[segment.writer] = "sealed" if segment.writer in look.manifests else "lost"
    return found


def seal(store: ObjectStore, uri: StoreURI, writer: str, scratch: Path, *, even_if_open: bool = False) -> Iterator[Sealed]:
    """Make plain objects of a writer's segments, then remove those; yields each file when it is there.

    A process that still writes under that name is fenced: it stops by itself. So a writer who was heard of lately is refused with
    ConfigError, unless `even_if_open`. Files that were deleted in the folder stay segments. An earlier generation of a file goes
    only where the manifest says that it was superseded, or sealed under another name; else it is sealed under a name of its own.
    Nothing that is there under a plain name is replaced but by a newer state of the same file. It may be interrupted and made
    again. IntegrityError, and nothing is deleted, where the segments of a file do not join to their end.
    """
    with MirrorReader(store, uri.prefix, scratch=scratch) as reader:
        look = reader.look()
        manifest = look.manifests.get(writer)
        if manifest is None and not list_segments(store, uri.prefix, writer):
            raise NotFoundError(f"nobody has mirrored here as {writer!r}", operation="seal", uri=str(uri))
        now_s = time.time()
        if manifest is not None and manifest.state_at(now_s) == "open" and not even_if_open:
            raise ConfigError(
                f"the writer {writer!r} of {uri} was heard of {now_s - manifest.heartbeat_s:.0f} s ago: end it, which seals, or "
                "give --force, which stops it"
            )
        fence = Fence(store, uri.prefix, writer, lambda: scratch / secrets.token_hex(8))
        fence.take()
        segments = list_segments(store, uri.prefix, writer)
        growing = {path for path, one in look.files.items() if one.segments}
        sealer = _Sealer(reader, Courier(scratch, uri, writer, store, scratch), growing | look.broken.keys())
        works, unneeded = _plan(segments, manifest, sealer.holds)
        told = manifest.files if manifest is not None else ()
        known = {(one.path, one.generation): one for one in told if one.state in ("sealed", "deleted")}
        for work in works:
            for entry, note in sealer.seal(work):
                known[entry.path, entry.generation] = entry
                yield Sealed(entry.name, entry.acked_bytes, note)
        fence.check()
        files = tuple(sorted(known.values(), key=lambda one: (one.name, -one.generation)))
        n_files = sum(one.state == "sealed" for one in files)
        closed = Manifest(writer, fence.epoch, "sealed", time.time(), 1.0, 0.0, 0, n_files, files)
        sealer.courier.send_text(manifest_name(writer), closed.to_json())
        # A reader never finds a gap: those that a plain object of another name has, or nobody needs, go from their end on.
        own = [one for work in works if work.name == work.path for one in work.segments]
        others = [*unneeded, *(one for work in works if work.name != work.path for one in work.segments)]
        for one in [*reversed(others), *own]:
            store.delete(one.key)


def _plan(
    segments: list[Segment], manifest: Manifest | None, holds: Callable[[FileEntry], bool]
) -> tuple[list[_Work], list[Segment]]:
    """What is to be sealed, by path and generation, and the segments that the manifest proves to be of no use any more.

    `holds`: whether what the manifest says was sealed is there still, under the name that it says.
    """
    entries = {(one.path, one.generation): one for one in (manifest.files if manifest else ())}
    is_closed = manifest is not None and manifest.state == "sealed"
    told = dict(sorted(entries))
    newest = {one.path: one.generation for one in segments}  # they come in order
    first = {one.path: one for one in reversed(segments)}
    works: list[_Work] = []
    unneeded: list[Segment] = []
    for (path, generation), group in groupby(segments, key=lambda one: (one.path, one.generation)):
        entry = entries.get((path, generation))
        is_newest = generation == newest[path]
        was_elsewhere = entry is not None and entry.state == "sealed" and entry.name != path
        is_elsewhere = entry is not None and was_elsewhere and holds(entry)
        is_superseded = entry is not None and entry.state == "superseded" and not is_newest
        if is_elsewhere or is_superseded or (is_closed and generation < told.get(path, 0)):
            unneeded += group
        elif entry is None or entry.state != "deleted" or not is_newest:
            is_renamed = entry is not None and entry.state == "rotated"
            name = entry.name if entry is not None and is_renamed else path if is_newest and not was_elsewhere else ""
            displaced = first[path].generation - 1 if first[path].start == 0 else 0
            works.append(_Work(path, generation, tuple(group), name, entry.acked_bytes if entry is not None else 0, displaced))
    return works, unneeded


class _Sealer:
    """Makes plain objects; `growing` are names that will be those of other files."""

    def __init__(self, reader: MirrorReader, courier: Courier, growing: set[str]) -> None:
        self._reader = reader
        self._growing = growing
        self.courier = courier

    def seal(self, work: _Work) -> Iterator[tuple[FileEntry, str]]:
        """Yield what the plain object is from now on, with a note; before it, that of a file whose place it takes."""
        plain = self._head(work.path)
        found = assemble(work.path, plain, work.segments)
        if not found.segments and found.plain is None:
            raise IntegrityError("its segments do not join", operation="seal", uri=work.path)
        path = self.courier.new_scratch()
        try:
            size = self._fetch(found, path)
            # The segments are deleted afterwards: all of their bytes, and all that the writer says are here, must be in it.
            if size < work.acked_bytes or size <= max(one.start for one in work.segments):
                raise IntegrityError(
                    f"its segments join up to byte {size} only, and there is more, so nothing of it was changed: look for the "
                    "one that is missing with wherry mirror verify; where the folder is, wherry mirror resume sends it again",
                    operation="seal",
                    uri=work.path,
                )
            if work.name == work.path and work.displaced and plain is not None:
                yield from self._keep(work, plain, size, crc32c_of_file(path))
            yield self._put(work, path, size)
        finally:
            path.unlink(missing_ok=True)

    def holds(self, entry: FileEntry) -> bool:
        """Whether there is a plain object as the entry says."""
        there = self._head(entry.name)
        return there is not None and (there.size_bytes, there.crc32c) == (entry.acked_bytes, parse_crc32c(entry.crc32c))

    def _keep(self, work: _Work, plain: ObjectMeta, size: int, crc: int) -> Iterator[tuple[FileEntry, str]]:
        """What was sealed of an earlier generation has the name that another file is about to get."""
        if (plain.size_bytes, plain.crc32c) == (size, crc):  # it has it already: a seal was interrupted
            return
        path = self.courier.new_scratch()
        try:
            n_bytes = self._fetch(Assembly(work.path, plain, ()), path)
            yield self._put(_Work(work.path, work.displaced, (), "", n_bytes), path, n_bytes)
        finally:
            path.unlink(missing_ok=True)

    def _fetch(self, found: Assembly, path: Path) -> int:
        size = 0
        with open(path, "wb") as out:
            for chunk in self._reader.chunks(found):
                with closing(chunk):
                    for block in blocks(chunk.data):
                        size += out.write(block)
        return size

    def _put(self, work: _Work, path: Path, size: int) -> tuple[FileEntry, str]:
        crc = crc32c_of_file(path)
        name, note = self._name(work, size, crc)
        self.courier.send_whole(name, path, is_there=True)
        return FileEntry(work.path, name, "append", "sealed", work.generation, size, format_crc32c(crc)), note

    def _name(self, work: _Work, size: int, crc: int) -> tuple[str, str]:
        """The name that it gets, and why if it is none of the folder's."""
        if work.name == work.path or (work.name and self._is_free(work.name, size, crc)):
            return work.name, ""
        own = f"{work.path}.generation-{work.generation:04d}"
        names = (own if number == 1 else f"{own}-{number}" for number in count(1))
        note = (
            f"an earlier {work.path}, renamed to {work.name}, which is another file here"
            if work.name
            else f"an earlier {work.path}: whether it was renamed or begun anew its writer could not say any more"
        )
        return next(name for name in names if self._is_free(name, size, crc)), note

    def _is_free(self, name: str, size: int, crc: int) -> bool:
        """Whether no other file has the name. One with the same bytes is ours: a seal was interrupted."""
        there = self._head(name)
        return name not in self._growing and (there is None or (there.size_bytes, there.crc32c) == (size, crc))

    def _head(self, name: str) -> ObjectMeta | None:
        try:
            return self._reader.store.head(key_for(self.courier.prefix, name))
        except NotFoundError:
            return None
