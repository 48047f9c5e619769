"""The object store contract: six verbs, put_many(), delete_many(), pages(), five for stores that take parts, join(), copy().

Left out, each with its reason: append and seek (objects are whole), rename and folders (services have none),
storage classes and ACLs (options of a backend), async twins (concurrency comes from
threads and processes), retries, progress and sleeps (wrappers do those).

A backend is a class that is called with ``(uri: StoreURI, options: Mapping[str, object])``. It uses the URI's scheme and
root only: a key is always the whole path below the root. Every method may be called from several threads at once.
The suite `wherry.testing.StoreConformance` holds each guarantee below; the test's name stands beside it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from wherry.errors import PermanentError
from wherry.store.memory_file import file_in_memory
from wherry.uri import TEMPORARY_MARK as TEMPORARY_MARK

#: Metadata kept with each object we write: the upload's unique token and the whole object's CRC32C (8 hex digits).
TOKEN_METADATA = "wherry-token"  # noqa: S105  a name, no password
CRC32C_METADATA = "wherry-crc32c"
#: The CRC32Cs of its ranges, by which a download judges each by itself, of an object that has several: the bytes of a range, a
#: colon, then 4 bytes, big endian, for each range in base64url without padding (checksum.range_sums).
RANGES_METADATA = "wherry-crc32c-ranges"

_Self = TypeVar("_Self", bound="ObjectStore")

#: What read() hands each block to, with the block's offset in the object.
TakeBlock = Callable[[bytes | memoryview, int], object]


#: What read() fetches at once where a store has no read() of its own.
_READ_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20
#: Entries of a page that is made here; services give as many.
PAGE_ENTRIES = 1000


@dataclass(frozen=True)
class Capabilities:
    """What a store can do; wrappers, workers and tests read this and never a backend's name."""

    #: `if_absent` of put_file is decided by the store: of two writers exactly one wins.
    conditional_put: bool
    #: The same for `if_absent` of complete().
    conditional_complete: bool
    #: The store is a MultipartStore.
    multipart: bool
    #: The store itself compares the `crc32c` it is given with the bytes that it received.
    checks_crc32c: bool
    #: get_file() can fetch a range without fetching the whole object.
    ranged_get: bool
    #: Replacing an object never shows a reader a mixture or a gap.
    atomic_replace: bool
    #: `metadata` given to a put comes back from head().
    metadata: bool
    #: Objects are seen by this process only (``memory://``).
    process_local: bool = False
    #: Limits of parts. The last part may be smaller than the minimum.
    min_part_size_bytes: int = 5 * 2**20
    max_part_size_bytes: int = 5 * 2**30
    max_parts: int = 10_000
    #: put_file() takes at most this much; larger objects must go in parts. None: no limit.
    max_put_size_bytes: int | None = None
    #: An upload in parts is one stream, sent by one sender in order. list_parts() gives what is held as one part, number 1; what
    #: comes after its end is sent next, wherever that lies. What was sent once is not replaced. list_uploads() does not show such
    #: uploads: those that are left behind cost nothing and end by themselves.
    sequential_parts: bool = False
    #: join() works, of at most `max_parts` objects of at most `max_part_size_bytes`. So large must each of them be, but the last.
    #: None: it does not.
    min_joined_bytes: int | None = None
    #: delete_many() sends one request for so many keys.
    deleted_at_once: int = 1
    #: copy() works.
    copies: bool = False
    #: put_many() puts so many small objects at once; 1: it puts none.
    puts_at_once: int = 1


@dataclass(frozen=True)
class ObjectMeta:
    """What a store says of one object. `crc32c` is the store's own figure, else the one in our metadata, else None.

    `size_bytes` is -1 where a listing gives none that can be read; only head() and get_file() can tell then.
    """

    key: str
    size_bytes: int
    etag: str | None = None
    crc32c: int | None = None
    modified_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Answer of put_file() only: the object was made of the frozen file's very blocks (link, reflink), so it is equal to it.
    is_shared: bool = False
    #: Another digest of the whole object that the store surely vouches for, ``md5:<hex>`` (also sha1, sha256, crc32), where it
    #: has one: what a download of an object without `crc32c` is checked against. In the answer of put_file(): of what came.
    digest: str | None = None
    #: The media type that it was stored with, where head() says it.
    content_type: str | None = None

    @property
    def token(self) -> str | None:
        """The unique token of the upload that made this object, if wherry made it and the store keeps metadata."""
        return self.metadata.get(TOKEN_METADATA)


@dataclass(frozen=True)
class Page:
    """Some entries of a listing, each kind in the store's order."""

    objects: Sequence[ObjectMeta]
    #: What keys of the next levels begin with, up to and with the slash.
    folders: Sequence[str] = ()
    #: With it a listing goes on behind this page; None: this is the last one.
    mark: str | None = None

    @classmethod
    def of_level(cls, metas: Sequence[ObjectMeta], prefix: str) -> Page:
        """Objects whose keys begin with `prefix`, as one level shows them."""
        folders = [folder_of(meta.key, prefix) for meta in metas]
        objects = [meta for meta, folder in zip(metas, folders, strict=True) if not folder]
        return cls(objects, list(dict.fromkeys(filter(None, folders))))

    def without_temporary(self) -> Page:
        """The page without what carries TEMPORARY_MARK."""
        shown = [meta for meta in self.objects if TEMPORARY_MARK not in meta.key]
        return replace(self, objects=shown, folders=[folder for folder in self.folders if TEMPORARY_MARK not in folder])


def folder_of(key: str, prefix: str) -> str:
    """What one level of `prefix` shows for a key: the key up to its next slash; empty for an object of that level."""
    name, slash, _ = key[len(prefix) :].partition("/")
    return f"{prefix}{name}/" if slash and key.startswith(prefix) else ""


@dataclass(frozen=True)
class BucketMeta:
    """What a service says of a bucket."""

    name: str
    created_s: float | None


@dataclass(frozen=True)
class PutOptions:
    """How to store an object; the same record goes to put_file(), begin(), complete() and join().

    >>> store.put_file("run1/model.pt", path, PutOptions(if_absent=True))
    """

    #: An object that is there already stays untouched, and AlreadyExistsError is raised. join() replaces whatever this says.
    if_absent: bool = False
    #: The CRC32C of the whole object, where the caller knows it.
    crc32c: int | None = None
    #: Kept with the object by a store whose capabilities say `metadata`.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: The media type; None: the store's own default. Kept where `metadata` is.
    content_type: str | None = None
    #: put_file() only: nobody writes to the file any more (deleting it is fine), so that a store on the same file system may link
    #: or reflink it in place of a copy.
    frozen: bool = False


@dataclass(frozen=True)
class Part:
    """One part of a large object: bytes [start, end) of the file. `number` counts from 1; `etag` is the store's receipt."""

    number: int
    start: int
    end: int
    crc32c: int
    etag: str | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes the part has."""
        return self.end - self.start


@dataclass(frozen=True)
class StoredPart:
    """A part that the store says it holds, as list_parts() finds it."""

    number: int
    size_bytes: int
    etag: str
    crc32c: int | None = None


@dataclass(frozen=True)
class PendingUpload:
    """An upload in parts that was begun, and neither completed nor aborted, as abort() takes it."""

    key: str
    #: What the id that begin() gave ends with.
    upload_id: str
    #: When it was begun, or was last seen to get on, by the store's clock.
    begun_s: float
    #: Its name shows that wherry made it. Else only who has begun it can know, by its journal.
    is_ours: bool


class ObjectStore(ABC):
    """A flat map from keys to immutable byte strings."""

    capabilities: Capabilities
    #: Names the server for what probe() finds out, equal for all stores that it keeps; None: there is nothing to find out.
    endpoint: str | None = None

    @property
    def n_requests(self) -> int | None:
        """The requests that this object has sent to the server, failed ones included; None: it does not count them.

        It only grows (test_requests_are_counted). One call may take several requests.
        """
        return None

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        """Find out by trial what the server really honours, and assume() it. Trials go below `key_prefix`, and are deleted.

        The answer means something to assume() only; it may be kept for as long as the server stays the same. Raises a
        StoreError when the trial is refused or the server is not there: then nothing is known, and the store is as careful
        as it was before.
        """
        return {}

    def assume(self, findings: Mapping[str, bool]) -> None:  # noqa: B027  most stores have nothing to find out
        """Take over what an earlier probe() of the same endpoint found; names that are unknown are ignored."""

    def can_share(self, key: str, path: Path) -> bool:
        """Whether put_file() of this file, frozen, is likely to make the object of its very blocks: then parts gain nothing.

        True whenever it may link the file: a file that other uploads need is not frozen then.
        """
        return False

    @abstractmethod
    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Store the bytes of the file `path` as the object `key`.

        The answer's `crc32c` is the store's own figure or None, never an echo of what was sent.

        Bytes that are not those of `put.crc32c` are an IntegrityError, and nothing is stored, where `checks_crc32c`; other
        stores may refuse them too, or store what the file has.

        Guarantees: when it returns, the whole object is readable under `key` (test_put_then_get); no partial object
        is ever visible (test_failed_put_leaves_nothing); with `put.if_absent` an existing object is untouched and
        AlreadyExistsError is raised (test_if_absent_keeps_the_first).
        """

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """Put small files from one thread, at most `most` at once: an element of `puts` is what put_file() would be given.

        Yields the place in `puts` and the answer of put_file() for each object that is stored, as the store says so. It may leave
        any of them out, all after the first trouble, and may raise what put_file() raises. Those may be stored or not: put them
        by put_file(), which says what is wrong. This implementation leaves out all.

        Guarantees: those of put_file() for each object that it names (test_many_small_files_are_put,
        test_many_puts_keep_what_is_there).
        """
        return iter(())

    @abstractmethod
    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """Write bytes [start, end) of the object into the existing file `path`, at those same offsets.

        Returns their CRC32C where the store has summed them on their way, which is cheaper than reading them again; else None.

        `end=None` means up to the object's end. The file is neither created nor truncated, so ranges may be fetched side by side
        and again. `if_match` is an etag from head(): IntegrityError if the object was replaced.

        Guarantees: returns only when every byte asked for was written, else an error: a truncated answer is a
        TransientError (test_ranges_join_to_the_whole). NotFoundError if absent (test_missing_object).
        """

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """Hand bytes [start, end) of the object to `take(block, at)`, in order; nothing is written to a disk.

        `at` is the offset of the block in the object. A wrapper that makes the call again hands all blocks over again: whoever
        takes them begins anew when `at` is `start`. The rest is as in get_file().

        This implementation fetches piece by piece into memory, and the whole object at once from a store without `ranged_get`:
        such a store should have its own.

        Guarantees: every byte asked for is handed over once, else an error (test_read_hands_over_the_bytes_in_order).
        """
        end = self.head(key).size_bytes if end is None else end
        step = _READ_BYTES if self.capabilities.ranged_get else max(1, end - start)
        for first in range(start, end, step) or (start,):  # no bytes are asked for as well: the object may not be there
            last = min(first + step, end)
            with file_in_memory() as path:
                self.get_file(key, path, start=first, end=last, if_match=if_match)
                with open(path, "rb", buffering=0) as file:
                    for at in range(first, last, _BLOCK_BYTES):
                        take(os.pread(file.fileno(), min(_BLOCK_BYTES, last - at), at), at)

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """Describe one object; NotFoundError if absent, AccessDeniedError if the store will not say (test_missing_object)."""

    @abstractmethod
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects whose key starts with `prefix` and sorts after `start_after`, in the order of their UTF-8 keys.

        A prefix is a plain string, no folder. `start_after` may be any string: no object needs to have that key, and it need
        not start with `prefix`; "" leaves out nothing. Only keys that are strictly greater are shown. `crc32c` and `metadata`
        may be missing here. Names that carry TEMPORARY_MARK are not shown::

            newer = [meta.key for meta in store.list("run1/", start_after="run1/step-000100")]

        The store is asked for the later keys only, where it can be; else the earlier ones are read and left out.

        Guarantees: the order (test_list_is_sorted), and no key that is later is left out
        (test_listing_starts_after_any_key, test_listing_starts_after_any_key_of_folders).
        """

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """Yield what list() yields in pages, in the store's own order: nothing but a page is held where the store lists so.

        With `one_level` keys that go on behind a slash are not shown: what they begin with, up to that slash, is a folder of a
        page. Folders without objects may be among them. With the `mark` of an earlier page, what comes after that page.
        This implementation reads all of list() for it.

        Guarantees: all objects (test_pages_have_what_a_listing_has), each object and each folder once
        (test_a_level_has_objects_and_folders).
        """
        listed, last_folder = self.list(prefix, start_after=mark or ""), folder_of(mark or "", prefix)
        while metas := list(islice(listed, PAGE_ENTRIES)):
            page = Page(metas, mark=metas[-1].key)
            if one_level:
                level = Page.of_level(metas, prefix)
                folders = [folder for folder in level.folders if folder != last_folder]
                page, last_folder = replace(level, folders=folders, mark=page.mark), folder_of(metas[-1].key, prefix)
            yield page

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; no error when it is absent (test_delete_twice)."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects, in no order; no error for those that are absent (test_many_objects_are_deleted_and_no_other).

        After an error some of them are gone, and any others may still be there; it may be called again.
        """
        for key in keys:
            self.delete(key)

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Make one object of objects that are here already, in that order, inside the store: none of their bytes is sent.

        The sources are one at least, `key` itself may be one of them, and their sizes are those that `capabilities` names; a
        store that says `min_joined_bytes=None` raises PermanentError. It may be called again after any error. A process that is
        killed in the middle may leave what list_uploads() shows and abort() removes.

        Guarantees: an object under `key` is replaced as put_file() does it, and the other sources stay (test_join_is_its_sources,
        test_join_of_an_object_and_more_replaces_it);
        IntegrityError if what came of it is not of that size and CRC32C, which the store itself computes, and then nothing has
        changed (test_join_of_other_bytes_changes_nothing); the same with NotFoundError if a source is not there
        (test_join_needs_every_source).
        """
        raise PermanentError(
            f"{type(self).__name__} joins nothing",
            operation="join",
            uri=key,
            hint="read capabilities.min_joined_bytes first, and use put_file()",
        )

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        """Make the object `key` of `source` inside the server: an object of this store, or of the store `root` there.

        None of its bytes is sent. `source` is what head() or list() of that store said. The copy has its metadata, its media type
        and whatever else the server carries over. It may be called again after any error; a process that is killed in the middle
        may leave what list_uploads() shows. A store whose `capabilities` say no raises PermanentError.

        The answer is of the copy, as the server describes it; the caller compares it with `source`.

        Guarantees: the whole object is readable under `key` and the source stays (test_copy_is_its_source); with `if_absent` an
        existing object is untouched and AlreadyExistsError is raised (test_copy_if_absent_keeps_what_is_there); NotFoundError if
        the source is not there, IntegrityError if it was replaced since, and then nothing has changed
        (test_copy_of_what_was_replaced_changes_nothing).
        """
        raise PermanentError(
            f"{type(self).__name__} copies nothing",
            operation="copy",
            uri=key,
            hint="read capabilities.copies first, and use read()",
        )

    def close(self) -> None:  # noqa: B027  most stores hold nothing that needs closing
        """Free connections. No call may follow; closing again is fine."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class MultipartStore(ObjectStore):
    """A store that takes a large object in parts, which nobody sees before complete()."""

    @abstractmethod
    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """Open an upload and return its id, which stays valid over crashes of the client.

        `put` is what complete() is going to be given, for stores that must know it now. `put.if_absent` decides nothing here: a
        store that sees the name taken may raise AlreadyExistsError at once, but a name that is free now may be taken by then.
        """

    @abstractmethod
    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """Send bytes [part.start, part.end) of `path`. Sending a number again replaces that part (test_part_sent_twice)."""

    @abstractmethod
    def list_parts(self, key: str, upload_id: str) -> list[StoredPart]:
        """The parts that the store holds, by number, which need not be sent again (test_upload_goes_on_from_what_is_held).

        NotFoundError if the upload is unknown, done or aborted.
        """

    @abstractmethod
    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """Join the parts, in the order of their numbers, into the object (test_parts_join_in_order).

        `put` is what begin() was given, again. The guarantees of put_file() hold.
        """

    @abstractmethod
    def abort(self, key: str, upload_id: str) -> None:
        """Forget the upload and free its parts; no error when it is unknown (test_abort_leaves_nothing)."""

    @abstractmethod
    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """Yield the uploads in parts of keys that start with `prefix` that are under way or left behind, in no order.

        One that was completed or aborted is not among them (test_uploads_are_listed_until_they_end).
        """
