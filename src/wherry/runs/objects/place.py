"""Place: one URI that was given to a reader of runs, and what was fetched from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wherry.config import TERMINAL_RETRY, TransferConfig
from wherry.errors import IntegrityError
from wherry.mirror.reader.reader import MirrorReader
from wherry.runs.objects.disk_cache import DiskCache, RecentBytes
from wherry.runs.objects.reading_store import ReadingStore, Tally, read_bytes
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.environment import public_environment, with_environment
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import endpoint_key, open_store, split_options
from wherry.store.wrappers import LimitStore, RetryStore, WrappedStore
from wherry.uri import StoreURI

_RECENT_BYTES = 64 * 2**20
#: What is read whole and kept in memory: summaries, hyperparameters, manifests.
MOST_SMALL_BYTES = 64 * 2**20


@dataclass(eq=False)
class Place:
    """The store of `uri`, which cannot be written, and what is kept of it on this machine's disk. Any thread may call.

    `cache` is None where reading again is as cheap: for local folders.
    """

    uri: StoreURI
    store: ObjectStore
    cache: DiskCache | None
    #: For temporary files.
    scratch: Path
    #: What names the store in the cache: another server may have the same URI.
    ident: str
    #: Reads segments, 32 at a time, and compares them with their checksums.
    segments: MirrorReader
    recent: RecentBytes = field(default_factory=lambda: RecentBytes(_RECENT_BYTES))
    #: The storage options that were given and are no secret: commands that read the place again name them.
    options: Mapping[str, object] = field(default_factory=dict)

    def typed(self, key: str) -> str:
        """The URI of a folder of this store as a person types it: of a local one its path."""
        return f"/{key}" if self.is_local else self.uri.uri_for(key)

    def close(self) -> None:
        """Wait for what is under way, and free connections."""
        self.segments.close()
        self.store.close()

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine, which costs nothing to look at."""
        return self.uri.scheme == "file"

    def fetch(self, meta: ObjectMeta, start: int = 0, end: int | None = None, *, once: bool = False) -> bytes:
        """Bytes of one version of an object, from the disk if they were read before. IntegrityError if it was replaced.

        `once`: do not keep them.
        """
        end = meta.size_bytes if end is None else end
        name = self.cache_name(meta, f"{start}-{end}")
        if name is not None and self.cache is not None and (known := self.cache.get(name)) is not None:
            return known
        data = read_bytes(self.store, meta.key, start, end, if_match=None if self.is_local else meta.etag)
        if name is not None and self.cache is not None and not once:
            self.cache.put(name, data)
        return data

    def fetch_small(self, meta: ObjectMeta) -> bytes:
        """All of a small object. IntegrityError for one that is none."""
        if meta.size_bytes > MOST_SMALL_BYTES:
            words = f"it has {meta.size_bytes} bytes, and at most {MOST_SMALL_BYTES} of such an object are read"
            raise IntegrityError(words, operation="get", uri=meta.key)
        return self.fetch(meta)

    def stored_crc32c(self, meta: ObjectMeta) -> int | None:
        """The CRC32C that the store has of this version of an object, by its listing or a request; None for none. StoreError."""
        name = self.cache_name(meta, "crc32c")
        if meta.crc32c is not None or name is None:
            return meta.crc32c
        known = self.recent.get(name)
        if known is None and self.cache is not None:
            known = self.cache.get(name)
        if known is None:
            there = self.store.head(meta.key)
            is_same = there.size_bytes == meta.size_bytes and (meta.etag is None or there.etag == meta.etag)
            known = b"%d" % there.crc32c if is_same and there.crc32c is not None else b""
            self.recent.put(name, known)
            if self.cache is not None:
                self.cache.put(name, known)
        return int(known) if known.isdigit() else None

    def cache_name(self, meta: ObjectMeta, what: str) -> str | None:
        """The name in the cache of something that was made of this version of an object; None if nothing tells its version."""
        if meta.etag is None and meta.modified_s is None:
            return None
        return f"{self.ident} {meta.key} {version_of(meta)} {what}"


def version_of(meta: ObjectMeta) -> str:
    """What tells one version of an object from another."""
    return meta.etag or f"{meta.size_bytes} {meta.modified_s}"


def open_place(
    uri: StoreURI,
    options: Mapping[str, object],
    *,
    tally: Tally,
    cache: DiskCache,
    scratch: Path,
    in_flight: int = MOST_IN_FLIGHT,
) -> Place:
    """Open a store for reading: with short retries, as somebody waits for it. ConfigError, MissingExtraError."""
    given = with_environment(uri.scheme, options, os.environ)
    bare = open_store(uri, given, stall_timeout_s=TransferConfig().stall_timeout_s)
    endpoint = endpoint_key(uri.scheme, given, public_environment(uri.scheme))
    place = place_of(uri, bare, endpoint, tally=tally, cache=cache, scratch=scratch, in_flight=in_flight)
    return replace(place, options=split_options(uri.scheme, options)[0])


def place_of(
    uri: StoreURI,
    bare: ObjectStore,
    endpoint: str,
    *,
    tally: Tally,
    cache: DiskCache,
    scratch: Path,
    in_flight: int = MOST_IN_FLIGHT,
) -> Place:
    """The place of a store that is open."""
    is_local = uri.scheme == "file"
    reading = ReadingStore(bare, tally, is_free=is_local)
    store = RetryStore(LimitStore(reading, in_flight), TERMINAL_RETRY)
    is_kept = not is_local and not bare.capabilities.process_local
    segments = MirrorReader(store, "", scratch=scratch, in_flight=in_flight)
    return Place(uri, store, cache if is_kept else None, scratch, f"{uri.store} {endpoint}", segments)


class ListedStore(WrappedStore):
    """A place's store as a listing showed it: list() asks nobody, and whole objects of it come from the cache if they can."""

    def __init__(self, place: Place, objects: Sequence[ObjectMeta]) -> None:
        super().__init__(place.store)
        self._place = place
        self._objects = objects
        self._by_key = {meta.key: meta for meta in objects}

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Of the objects that were listed."""
        return (meta for meta in self._objects if meta.key.startswith(prefix) and meta.key > start_after)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the place's, by its cache where the whole of a small listed object is asked for."""
        meta = self._by_key.get(key)
        if meta is None or start or end is not None or meta.size_bytes > MOST_SMALL_BYTES:
            return super().get_file(key, path, start=start, end=end, if_match=if_match)
        with open(path, "r+b") as file:
            file.write(self._place.fetch(meta))
        return None
