"""Sealing without the folder, from what is in the store: for a writer that is gone with its machine.

Only the newest generation of a file gets the file's name. Only the writer has seen whether an earlier one was truncated, or
renamed and is still wanted: where its last manifest does not tell, it is kept as ``train.log.generation-0001``.

A file that cannot be sealed is reported and left as it is, and the others are sealed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from tempfile import NamedTemporaryFile

from wherry.checksum import crc32c_of_file, format_crc32c, parse_crc32c
from wherry.errors import BucketNotFoundError, ConfigError, IntegrityError, NotFoundError, PermanentError
from wherry.mirror.format.fence import Fence
from wherry.mirror.format.layout import Assembly, Segment, assemble, delete_segments, list_segments, manifest_name, name_problem
from wherry.mirror.format.manifest import FileEntry, Manifest, State
from wherry.mirror.reader.reader import MirrorReader
from wherry.mirror.reader.segment_contents import SegmentContents
from wherry.mirror.reader.snapshot import Snapshot
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.store import ObjectMeta, ObjectStore
from wherry.uri import StoreURI


@dataclass(frozen=True)
class Sealed:
    """A plain object that is there now. `note`: why its name is not the file's own."""

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Unsealed:
    """A generation of a file that could not be sealed, and why. Its segments are as they were."""

    path: str
    error: PermanentError | ConfigError

    @property
    def reason(self) -> str:
        """The error's words."""
        return self.error.message if isinstance(self.error, PermanentError) else str(self.error)


@dataclass(frozen=True)
class _SealTask:
    """One generation of one file. `name`: the name to seal it under; empty if the manifest has none."""

    path: str
    generation: int
    segments: tuple[Segment, ...]
    name: str
    #: What the manifest says of it.
    entry: FileEntry | None
    #: The generation that the plain object may be of whose place it takes; 0: none that is not among the works.
    displaced: int = 0


def writers(snapshot: Snapshot) -> dict[str, str]:
    """Who has segments or an open manifest here: name -> state as of now."""
    now_s = time.time()
    told = {name: str(one.state_at(now_s)) for name, one in snapshot.manifests.items() if one.state != "sealed"}
    return {**{name: "sealed" if name in snapshot.manifests else "lost" for name in snapshot.writers}, **told}


def seal(
    store: ObjectStore, uri: StoreURI, writer: str, scratch: Path, *, even_if_open: bool = False
) -> Iterator[Sealed | Unsealed]:
    """Make plain objects of a writer's segments, then remove the segments; yield each file that was sealed, or could not be.

    A process that still writes under that name is fenced, and stops by itself. So a writer with a recent manifest is refused with
    ConfigError, unless `even_if_open`. Files that were deleted in the folder stay segments. An earlier generation of a file is
    removed only if the manifest says that it was superseded, or sealed under another name; otherwise it is sealed under a name of
    its own. A plain object is replaced only by a newer state of the same file. The call may be interrupted and repeated. If the
    segments of a file do not join to their end, or cannot be read, nothing of that file is deleted, and the writer stays
    incomplete.
    """
    with MirrorReader(store, uri.prefix, scratch=scratch) as reader:
        snapshot = reader.snapshot()
        manifest = check_writer(snapshot, uri, writer, even_if_open=even_if_open)
        fence = Fence(store, uri.prefix, writer, scratch)
        fence.take()
        segments = list_segments(store, uri.prefix, writer)
        growing = {path for path, one in snapshot.files.items() if one.segments}
        sealer = _Sealer(
            reader, SegmentSender(scratch, uri, writer, store, scratch), growing | snapshot.broken.keys(), snapshot.plain
        )
        tasks, unneeded = _plan(segments, manifest, sealer.holds)
        told = manifest.files if manifest is not None else ()
        known = {(one.path, one.generation): one for one in told if one.state in ("sealed", "deleted")}
        failed: set[tuple[str, int]] = set()
        for task in tasks:
            displaced = max((generation for path, generation in failed if path == task.path), default=task.displaced)
            try:
                for entry, note in sealer.seal(replace(task, displaced=displaced)):
                    known[entry.path, entry.generation] = entry
                    if note is not None:
                        yield Sealed(entry.name, entry.acked_bytes, note)
            except BucketNotFoundError:
                raise
            except (PermanentError, ConfigError) as error:
                failed.add((task.path, task.generation))
                if task.entry is not None:
                    known[task.path, task.generation] = task.entry
                yield Unsealed(task.path, error)
        fence.check()
        state: State = "incomplete" if failed else "sealed"
        files = tuple(sorted(known.values(), key=lambda one: (one.name, -one.generation)))
        n_sealed = sum(one.state == "sealed" for one in files)
        closed = Manifest(writer, fence.epoch, state, time.time(), 1.0, 0.0, 0, n_sealed, files)
        sealer.sender.send_text(manifest_name(writer), closed.to_json())
        # Segments of which a plain object with another name has the bytes, or that are superseded, are deleted from their end on.
        done = [task for task in tasks if (task.path, task.generation) not in failed]
        own = [one for task in done if task.name == task.path for one in task.segments]
        others = [*unneeded, *(one for task in done if task.name != task.path for one in task.segments)]
        delete_segments(store, others, own)


def check_writer(snapshot: Snapshot, uri: StoreURI, writer: str, *, even_if_open: bool) -> Manifest | None:
    """The writer's manifest, if there is one. An error if it has written nothing, or may not be sealed."""
    if writer in snapshot.refused:
        raise IntegrityError(snapshot.refused[writer], operation="seal", uri=str(uri))
    manifest = snapshot.manifests.get(writer)
    if manifest is None and writer not in snapshot.writers:
        raise NotFoundError(f"nobody has mirrored here as {writer!r}", operation="seal", uri=str(uri))
    now_s = time.time()
    if manifest is not None and manifest.state_at(now_s) == "open" and not even_if_open:
        raise ConfigError(
            f"the writer {writer!r} of {uri} was heard of {now_s - manifest.heartbeat_s:.0f} s ago: end it, which seals, or "
            "give --force, which stops it"
        )
    return manifest


def _plan(
    segments: list[Segment], manifest: Manifest | None, holds: Callable[[FileEntry], bool]
) -> tuple[list[_SealTask], list[Segment]]:
    """What is to be sealed, by path and generation, and the segments that the manifest proves to be of no use any more.

    `holds`: whether an object that the manifest calls sealed still exists under its name.
    """
    entries = {(one.path, one.generation): one for one in (manifest.files if manifest else ())}
    is_closed = manifest is not None and manifest.state == "sealed"
    told = dict(sorted(entries))
    newest = {one.path: one.generation for one in segments}  # they come in order
    first = {one.path: one for one in reversed(segments)}
    tasks: list[_SealTask] = []
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
            is_renamed = entry is not None and entry.state == "rotated" and not name_problem(entry.name)
            name = entry.name if entry is not None and is_renamed else path if is_newest and not was_elsewhere else ""
            displaced = first[path].generation - 1 if first[path].start == 0 else 0
            tasks.append(_SealTask(path, generation, tuple(group), name, entry, displaced))
    return tasks, unneeded


@dataclass(frozen=True)
class _Sealer:
    """Makes plain objects; `growing` are names that will be those of other files, `plain` the objects that are there, by name."""

    reader: MirrorReader
    sender: SegmentSender
    growing: Collection[str]
    plain: Mapping[str, ObjectMeta]

    def seal(self, task: _SealTask) -> Iterator[tuple[FileEntry, str | None]]:
        """Yield what the plain object is from now on, with a note; before it, that of a file whose place it takes.

        The note is None for an object that was there already, under another name.
        """
        if reason := name_problem(task.path):
            raise ConfigError(reason)
        with NamedTemporaryFile(dir=self.sender.scratch) as file:
            path = Path(file.name)
            try:
                size = self._join(task, path)
            except IntegrityError:
                name = SegmentContents(self.reader, task.path, task.segments).find_object(
                    self.plain, task.entry.name if task.entry else ""
                )
                if name is None:
                    raise
                size = self._fetch(Assembly(task.path, self.plain[name], ()), path)
                if name != task.path and name not in self.growing:  # it stays, and so it is sealed already
                    yield _entry(task, name, path, size), None
                    return
            plain = self.sender.head(task.path)
            if task.name == task.path and task.displaced and plain is not None:
                yield from self._keep(task, plain, size, crc32c_of_file(path))
            yield self._put(task, path, size)

    def _join(self, task: _SealTask, path: Path) -> int:
        """Put a file together in `path`; its size. IntegrityError if it is not whole."""
        plain = self.sender.head(task.path)
        found = assemble(task.path, plain, task.segments)
        if not found.segments and found.plain is None:
            raise IntegrityError("its segments do not join", operation="seal", uri=task.path)
        # What has the name by now may be another file than the one that these segments go on with.
        if found.plain is not None and not SegmentContents(self.reader, task.path, task.segments).agree_with(found.plain):
            words = f"its segments go on with another file than the object {task.path} is"
            raise IntegrityError(words, operation="seal", uri=task.path)
        size = self._fetch(found, path)
        acked_bytes = task.entry.acked_bytes if task.entry is not None else 0
        # The segments are deleted afterwards: all of their bytes, and all that the writer says are here, must be in it.
        if size < acked_bytes or size <= max(one.start for one in task.segments):
            raise IntegrityError(
                f"its segments join up to byte {size} only, and there is more, so nothing of it was changed: look for the "
                "one that is missing with wherry mirror verify; where the folder is, wherry mirror resume sends it again",
                operation="seal",
                uri=task.path,
            )
        return size

    def holds(self, entry: FileEntry) -> bool:
        """Whether there is a plain object as the entry says."""
        return not name_problem(entry.name) and self.sender.holds(entry.name, entry.acked_bytes, parse_crc32c(entry.crc32c))

    def _keep(self, task: _SealTask, plain: ObjectMeta, size: int, crc: int) -> Iterator[tuple[FileEntry, str | None]]:
        """Seal the object of an earlier generation again, under another name: this file is about to get its name."""
        if (plain.size_bytes, plain.crc32c) == (size, crc):  # it has it already: a seal was interrupted
            return
        with NamedTemporaryFile(dir=self.sender.scratch) as file:
            n_bytes = self._fetch(Assembly(task.path, plain, ()), Path(file.name))
            yield self._put(_SealTask(task.path, task.displaced, (), "", None), Path(file.name), n_bytes)

    def _fetch(self, found: Assembly, path: Path) -> int:
        with open(path, "wb") as out:
            return sum(out.write(block) for block in self.reader.bytes_of(found))

    def _put(self, task: _SealTask, path: Path, size: int) -> tuple[FileEntry, str]:
        name, note = self._name(task, size, crc32c_of_file(path))
        self.sender.send_whole(name, path, is_there=True)
        return _entry(task, name, path, size), note

    def _name(self, task: _SealTask, size: int, crc: int) -> tuple[str, str]:
        """The name that it gets, and why if it is none of the folder's."""
        if task.name == task.path or (task.name and self._is_free(task.name, size, crc)):
            return task.name, ""
        own = f"{task.path}.generation-{task.generation:04d}"
        names = (own if number == 1 else f"{own}-{number}" for number in count(1))
        note = (
            f"an earlier {task.path}, renamed to {task.name}, which is another file here"
            if task.name
            else f"an earlier {task.path}: whether it was renamed or begun anew its writer could not say any more"
        )
        return next(name for name in names if self._is_free(name, size, crc)), note

    def _is_free(self, name: str, size: int, crc: int) -> bool:
        """Whether no other file has the name. One with the same bytes is ours: a seal was interrupted."""
        there = self.sender.head(name)
        return name not in self.growing and (there is None or (there.size_bytes, there.crc32c) == (size, crc))


def _entry(task: _SealTask, name: str, path: Path, size: int) -> FileEntry:
    """What the manifest says of a file that is the plain object `name`, and whose bytes are in `path`."""
    return FileEntry(task.path, name, "append", "sealed", task.generation, size, format_crc32c(crc32c_of_file(path)))
