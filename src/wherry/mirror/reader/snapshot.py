"""A snapshot of a mirrored prefix: a listing and the manifests, sorted into files, writers, and what cannot be right.

Whatever is wrong with one object is one entry about that object; everything else is read as if it were not there.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from wherry.errors import BucketNotFoundError, IntegrityError, PermanentError
from wherry.mirror.format.layout import Assembly, Listed, assemble, manifest_name
from wherry.mirror.format.manifest import FileEntry, Manifest, NewerFormatError, check_manifest_size, read_manifest
from wherry.posix.thread_pool import result_of
from wherry.store import ObjectMeta, ObjectStore

_Version = tuple[str | None, float | None, int]


@dataclass(frozen=True)
class Snapshot:
    """One listing of a mirrored prefix, and its manifests.

    `broken`: files that cannot be put together, with the reason. It may be a seal under way: take another snapshot first.
    `flawed`: objects that cannot be right, by name, with the reason: another snapshot does not help. `contested`: files that more
    than one writer has segments of; the last one counts. `refused`: writers whose objects are of a newer format, with the
    reason: nothing of theirs is in `files`. `plain`: all plain objects, by name.
    """

    files: dict[str, Assembly] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    flawed: dict[str, str] = field(default_factory=dict)
    contested: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    plain: dict[str, ObjectMeta] = field(default_factory=dict)
    #: Names in the mirror's own folder that no object of this format has.
    unknown: tuple[str, ...] = ()
    #: All that have segments here.
    writers: frozenset[str] = frozenset()
    n_segments: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no object at all."""
        return not (self.files or self.trouble or self.manifests or self.unknown or self.writers)

    @property
    def is_mirror(self) -> bool:
        """Whether something here was made by a mirror."""
        return bool(self.manifests or self.writers or self.refused)

    @property
    def is_sealed(self) -> bool:
        """Whether there is a writer, and the manifest of each says that it has sealed."""
        return bool(self.manifests) and all(one.state == "sealed" for one in self.manifests.values())

    @property
    def trouble(self) -> dict[str, str]:
        """What cannot be read, by name, with the reason."""
        return {**self.flawed, **self.broken}

    def entry(self, found: Assembly) -> FileEntry | None:
        """What the manifest of its writer says of a file that has segments, if it speaks of this generation."""
        manifest = self.manifests.get(found.writer or "")
        entries = manifest.files if manifest is not None else ()
        return next((one for one in entries if (one.path, one.generation) == (found.path, found.generation)), None)


class SnapshotReader:
    """Takes snapshots of one prefix; manifests that have not changed are not fetched again. For one thread.

    `pool` fetches manifests side by side; temporary files lie in `scratch`.
    """

    def __init__(self, store: ObjectStore, prefix: str, pool: Executor) -> None:
        self._store = store
        self._prefix = prefix
        self._pool = pool
        self._known: dict[str, tuple[_Version | None, Manifest | PermanentError]] = {}

    def snapshot(self, scratch: Path | None) -> Snapshot:
        """List all below the prefix, and read the manifests that have changed."""
        listed = Listed(self._store, self._prefix)
        segments = [one for group in listed.segments.values() for one in group]
        snapshot = Snapshot(
            flawed=listed.flawed,
            plain=listed.plain,
            unknown=tuple(sorted(listed.unknown)),
            writers=frozenset(one.writer for one in segments),
            n_segments=len(segments),
        )
        for writer, found in self._manifests(listed, scratch).items():
            if isinstance(found, Manifest):
                snapshot.manifests[writer] = found
                continue
            reason = snapshot.flawed[manifest_name(writer)] = f"{found.message}: {found.hint}" if found.hint else found.message
            if isinstance(found, NewerFormatError):
                snapshot.refused[writer] = reason
        newest = {
            (one.writer, entry.path): max(entry.generation, 1)
            for one in snapshot.manifests.values()
            for entry in sorted(one.files, key=lambda entry: entry.generation)
            if entry.rule == "append"
        }
        for path in sorted({*listed.plain, *listed.segments}):
            group = [one for one in listed.segments.get(path, ()) if one.generation >= newest.get((one.writer, path), 0)]
            group = [one for one in group if one.writer not in snapshot.refused]
            if len(writers := {one.writer for one in group}) > 1:
                snapshot.contested[path] = tuple(sorted(writers))
            try:
                found_file = assemble(path, listed.plain.get(path), group)
            except IntegrityError as error:
                snapshot.broken[path] = error.message
                continue
            if found_file.plain is not None or found_file.segments:
                snapshot.files[path] = found_file
        return snapshot

    def _manifests(self, listed: Listed, scratch: Path | None) -> dict[str, Manifest | PermanentError]:
        """By writer; for one that cannot be read, or is none, the error."""
        wanted: dict[str, tuple[_Version, Future[Manifest | None]]] = {}
        for writer, meta in listed.manifests.items():
            version: _Version = (meta.etag, meta.modified_s, meta.size_bytes)
            if self._known.get(writer, (None,))[0] != version:
                wanted[writer] = version, self._pool.submit(_fetch_manifest, self._store, meta, writer, scratch)
        for writer, (version, future) in wanted.items():
            self._known.pop(writer, None)
            try:
                if (manifest := result_of(future)) is not None:
                    self._known[writer] = (version, manifest)
            except BucketNotFoundError:
                raise
            except PermanentError as error:  # a damaged one, or one that we may not read: it is a help and no need
                # Its content stays what it is until it is replaced; the right to read it may be given at any time.
                self._known[writer] = (version if isinstance(error, IntegrityError) else None, error)
        self._known = {writer: one for writer, one in self._known.items() if writer in listed.manifests}
        return {writer: one for writer, (_, one) in self._known.items()}


def _fetch_manifest(store: ObjectStore, meta: ObjectMeta, writer: str, scratch: Path | None) -> Manifest | None:
    check_manifest_size(meta.size_bytes, meta.key)
    manifest = read_manifest(store, meta.key, scratch)
    if manifest is not None and manifest.writer != writer:
        raise IntegrityError("it is the manifest of another writer", operation="read", uri=meta.key)
    return manifest
