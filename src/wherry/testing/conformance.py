"""The laws of the object store contract, as tests. A backend's author writes:

    from wherry.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self):
            with MyStore(parse_uri("my://bucket"), {}) as store:
                yield store

What a store cannot do is read from its Capabilities; then the weaker law that the contract states is tested instead.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import (
    AlreadyExistsError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
)
from wherry.store import (
    CRC32C_METADATA,
    TEMPORARY_MARK,
    TOKEN_METADATA,
    MultipartStore,
    ObjectMeta,
    ObjectStore,
    Part,
    PutOptions,
    StoredPart,
)

_A = TypeVar("_A")
_R = TypeVar("_R")

_KIB = 1024
_SIZES = (0, 1, 4 * _KIB - 1, 64 * _KIB, 1024 * _KIB + 1)
#: Not the backslash: SeaweedFS takes it for a slash.
_ODD_NAMES = (
    "two words",
    " spaces at both ends ",
    "100%",
    "a%20b",
    "a+b",
    "what?is#this&that=1",
    "käse/näme",
    "日本語",
    "boat⛵",
    "quote'\"quote",
    "[x]*?{y}",
    "semi;colon:comma,at@dollar$",
    "tilde~/.hidden",
    "dots..in/a...name.",
    "<tag>&amp;",
    "UPPER/upper",
)


class StoreConformance:
    """The suite. `store` must be given; `prefix` may be; each test writes below its own prefix only."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The store under test, new for each test; the fixture closes it."""
        raise NotImplementedError("a subclass of StoreConformance gives the fixture 'store'")

    @pytest.fixture
    def prefix(self) -> str:
        """A key prefix, without a slash at its end, that nothing else uses."""
        return f"conformance/{uuid.uuid4().hex}"

    #: What must fit between two slashes. Override it only for a server that is known to be worse than a file system.
    #: Names that the store cannot hold, by a limit of its own; they must be refused, never changed.
    refused_names: frozenset[str] = frozenset()
    longest_part_bytes = 255
    #: What a join of an object that is not there raises. Override it for a server that says it as if it were its own trouble.
    missing_source_error: type[StoreError] = NotFoundError

    def raw_names(self, store: ObjectStore, prefix: str) -> set[str]:
        """All keys below the prefix, temporary ones too. Override it where the medium shows more than list() does."""
        return {meta.key for meta in store.list(f"{prefix}/")}

    def decides_races_of_completes(self, store: ObjectStore) -> bool:
        """Whether of two complete() at one moment exactly one wins. Override it for a server that breaks its own word."""
        return store.capabilities.conditional_complete

    # put and get

    @pytest.mark.parametrize("size", _SIZES)
    def test_put_then_get(self, store: ObjectStore, prefix: str, tmp_path: Path, size: int) -> None:
        """When a put returns, the whole object is there."""
        data, key = _bytes(size), f"{prefix}/folder/object.bin"
        answer = store.put_file(key, _file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        assert (key, size) == (answer.key, answer.size_bytes)
        assert answer.crc32c in (None, crc32c(data))
        assert data == _get(store, key, tmp_path)
        described = store.head(key)
        assert (key, size) == (described.key, described.size_bytes)
        assert answer.etag in (None, described.etag)
        assert [(key, size)] == [(meta.key, meta.size_bytes) for meta in store.list(f"{prefix}/")]

    def test_put_replaces_the_whole_object(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A shorter object leaves nothing of a longer one; the etag tells them apart."""
        key = f"{prefix}/object"
        store.put_file(key, _file(tmp_path, _bytes(100_000)), PutOptions(metadata={TOKEN_METADATA: "one"}))
        first = store.head(key)
        store.put_file(key, _file(tmp_path, b"short"), PutOptions(metadata={TOKEN_METADATA: "two"}))
        second = store.head(key)
        assert _get(store, key, tmp_path) == b"short"
        assert second.token in (("two",) if store.capabilities.metadata else ("two", None))
        assert first.etag is None or first.etag != second.etag

    @pytest.mark.parametrize("frozen", [True, False])
    def test_put_takes_the_bytes_of_the_moment(self, store: ObjectStore, prefix: str, tmp_path: Path, frozen: bool) -> None:
        """Deleting a frozen file, or rewriting another in place, does not reach the object."""
        key, path = f"{prefix}/object", _file(tmp_path, _bytes(10_000))
        answer = store.put_file(key, path, PutOptions(frozen=frozen))
        if frozen:
            path.unlink()
        else:
            assert not answer.is_shared
            with open(path, "r+b") as file:
                file.write(b"other bytes")
        assert _bytes(10_000) == _get(store, key, tmp_path)

    def test_failed_put_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A put that raises leaves the old object or none."""
        with pytest.raises((StoreError, OSError)):
            store.put_file(f"{prefix}/object", tmp_path / "missing")
        with pytest.raises(NotFoundError):
            store.head(f"{prefix}/object")
        store.put_file(f"{prefix}/object", _file(tmp_path, b"old"))
        with pytest.raises((StoreError, OSError)):
            store.put_file(f"{prefix}/object", tmp_path / "missing")
        assert _get(store, f"{prefix}/object", tmp_path) == b"old"
        assert {f"{prefix}/object"} == self.raw_names(store, prefix)

    def test_wrong_checksum_is_refused(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A store that checks stores nothing; any other may refuse too, or else never gives the wrong figure back as its own."""
        data, key = _bytes(5_000), f"{prefix}/object"
        checks = _checks_crc32c(store, f"{prefix}/first", tmp_path)
        try:
            answer = store.put_file(key, _file(tmp_path, data), PutOptions(crc32c=crc32c(data) ^ 1))
        except IntegrityError:
            assert {f"{prefix}/first"} == self.raw_names(store, prefix)
        else:
            assert not checks
            assert answer.crc32c in (None, crc32c(data))
            assert data == _get(store, key, tmp_path)

    @pytest.mark.parametrize("name", _ODD_NAMES)
    def test_odd_names_are_kept(self, store: ObjectStore, prefix: str, tmp_path: Path, name: str) -> None:
        """No character of a key means anything, but for the slash of folders; a name that cannot be kept is refused."""
        key, data = f"{prefix}/{name}", name.encode()
        if name in self.refused_names:
            with pytest.raises(PermanentError, match="use another name"):
                store.put_file(key, _file(tmp_path, data), PutOptions(if_absent=True))
            assert list(store.list(prefix)) == []
            return
        store.put_file(key, _file(tmp_path, data), PutOptions(if_absent=True))
        assert key == store.head(key).key
        assert [key] == [meta.key for meta in store.list(f"{prefix}/")]
        assert [key] == [meta.key for meta in store.list(key)]
        assert data == _get(store, key, tmp_path)
        store.delete(key)
        assert list(store.list(f"{prefix}/")) == []

    def test_long_names_are_kept(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Keys of 900 bytes, and parts of 255, work everywhere."""
        longest = self.longest_part_bytes
        left = 900 - len(prefix.encode())
        name = "".join("/" + "n" * min(longest - 1, left - start - 1) for start in range(0, left, longest))
        for key in (f"{prefix}{name}", f"{prefix}/{'x' * longest}", f"{prefix}/{'ü' * (longest // 2)}"):
            store.put_file(key, _file(tmp_path, b"long"))
            store.put_file(key, _file(tmp_path, b"longer"))
            assert _get(store, key, tmp_path) == b"longer"
            assert key in {meta.key for meta in store.list(f"{prefix}/")}

    # if_absent

    def test_if_absent_keeps_the_first(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The second put is refused and the first object is untouched."""
        key = f"{prefix}/object"
        store.put_file(key, _file(tmp_path, b"first", "first"), PutOptions(if_absent=True))
        before = store.head(key)
        for frozen in (True, False):
            with pytest.raises(AlreadyExistsError):
                store.put_file(key, _file(tmp_path, b"second", "second"), PutOptions(if_absent=True, frozen=frozen))
        assert _get(store, key, tmp_path) == b"first"
        assert before == store.head(key)
        assert {key} == self.raw_names(store, prefix)

    def test_of_two_writers_one_wins(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_put exactly one, 20 times; else at least one. The object is never a mixture."""

        def put(key_and_path: tuple[str, Path]) -> bool:
            try:
                store.put_file(*key_and_path, PutOptions(if_absent=True))
            except AlreadyExistsError:
                return False
            return True

        contents = [bytes([value]) * 20_000 for value in (1, 2)]
        paths = [_file(tmp_path, data, f"writer{n}") for n, data in enumerate(contents)]
        for round_ in range(20):
            key = f"{prefix}/{round_}"
            won = _at_once(put, [(key, path) for path in paths])
            assert any(won)
            found = _get(store, key, tmp_path)
            if store.capabilities.conditional_put:
                assert won.count(True) == 1
                assert contents[won.index(True)] == found
            else:
                assert found in contents
        assert {f"{prefix}/{round_}" for round_ in range(20)} == self.raw_names(store, prefix)

    # ranges

    def test_ranges_join_to_the_whole(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Ranges may be fetched side by side, in any order and again; bytes outside of them are left alone."""
        size = 300_007
        data, key = _bytes(size), f"{prefix}/object"
        store.put_file(key, _file(tmp_path, data))
        cuts = [0, 1, 4096, 100_000, 100_001, 299_999, size]
        ranges = list(itertools.pairwise(cuts))
        ranges += [(50, 60), (size, size), (7, 7)]
        random.Random(5).shuffle(ranges)
        target = _file(tmp_path, b"\xff" * (size + 10), "target")
        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(lambda piece: store.get_file(key, target, start=piece[0], end=piece[1]), ranges))
        assert data + b"\xff" * 10 == target.read_bytes()
        assert all(crc in (None, crc32c(data[start:end])) for crc, (start, end) in zip(sums, ranges, strict=True))

        tail = _file(tmp_path, b"", "tail")
        store.get_file(key, tail, start=size - 5)
        assert (data[-5:], size) == (tail.read_bytes()[-5:], tail.stat().st_size)

    def test_read_hands_over_the_bytes_in_order(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """read() gives each byte of a range once, with its offset, and holds to `if_match`; an empty range has none."""
        size = 3 * 2**20 + 7
        data, key = _bytes(size), f"{prefix}/object"
        store.put_file(key, _file(tmp_path, data))
        for start, end in ((0, size), (0, None), (5, 2**20 + 5), (size - 1, size), (size, size), (7, 7), (size - 5, None)):
            found, at_next = bytearray(), start

            def take(block: bytes | memoryview, at: int) -> None:
                nonlocal at_next
                assert at_next == at
                found.extend(block)  # noqa: B023
                at_next += len(block)

            store.read(key, take, start=start, end=end)
            assert data[start:end] == bytes(found)
        with pytest.raises(StoreError):
            store.read(key, lambda *_: None, start=5, end=size + 1)
        with pytest.raises(NotFoundError):
            store.read(f"{prefix}/missing", lambda *_: None)
        if (etag := store.head(key).etag) is not None:
            store.read(key, lambda *_: None, start=3, end=9, if_match=etag)
            store.put_file(key, _file(tmp_path, b"another version"))
            with pytest.raises(IntegrityError):
                store.read(key, lambda *_: None, start=3, end=9, if_match=etag)

    def test_range_beyond_the_end_is_an_error(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Fewer bytes than were asked for are never a success."""
        key = f"{prefix}/object"
        store.put_file(key, _file(tmp_path, b"0123456789"))
        for start, end in ((0, 11), (5, 20), (10, 12), (20, 30)):
            with pytest.raises(StoreError):
                store.get_file(key, _file(tmp_path, b"", "target"), start=start, end=end)

    def test_get_needs_an_existing_file(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """get_file() neither creates nor truncates."""
        key = f"{prefix}/object"
        store.put_file(key, _file(tmp_path, b"0123456789"))
        with pytest.raises((StoreError, OSError)):
            store.get_file(key, tmp_path / "missing")
        assert not (tmp_path / "missing").exists()

    def test_changed_object_does_not_match(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """`if_match` lets the object of that etag through and no other. A store without etags promises nothing."""
        key = f"{prefix}/object"
        store.put_file(key, _file(tmp_path, b"version one"))
        etag = store.head(key).etag
        if etag is None:  # a store that cannot tell versions apart says so
            return
        target = _file(tmp_path, b"", "target")
        store.get_file(key, target, start=3, if_match=etag)
        store.put_file(key, _file(tmp_path, b"version two"))
        with pytest.raises(IntegrityError):
            store.get_file(key, target, start=3, if_match=etag)
        store.get_file(key, target, if_match=store.head(key).etag)
        assert target.read_bytes() == b"version two"

    # head, list, delete

    def test_missing_object(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """What is not there is a NotFoundError, also where a longer key is there."""
        store.put_file(f"{prefix}/folder/object", _file(tmp_path, b"data"))
        target = _file(tmp_path, b"untouched", "target")
        for key in (f"{prefix}/missing", f"{prefix}/folder", f"{prefix}/missing/object", f"{prefix}/folder/obj"):
            with pytest.raises(NotFoundError):
                store.head(key)
            with pytest.raises(NotFoundError):
                store.get_file(key, target)
            with pytest.raises(NotFoundError):
                store.get_file(key, target, start=1, end=2)
        assert target.read_bytes() == b"untouched"

    def test_metadata_comes_back(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Without the capability it may be missing, but is never another's."""
        data, key = _bytes(3_000), f"{prefix}/object"
        given = {TOKEN_METADATA: uuid.uuid4().hex, CRC32C_METADATA: format_crc32c(crc32c(data))}
        store.put_file(key, _file(tmp_path, data), PutOptions(crc32c=crc32c(data), metadata=given))
        found = store.head(key)
        if store.capabilities.metadata:
            assert given == dict(found.metadata)
            assert (given[TOKEN_METADATA], crc32c(data)) == (found.token, found.crc32c)
        else:
            assert dict(found.metadata) in ({}, given)
            assert found.crc32c in (None, crc32c(data))

    def test_head_tells_when(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """modified_s are seconds since the epoch (a day off at most: servers have clocks of their own)."""
        path = _file(tmp_path, b"data")
        store.put_file(f"{prefix}/object", path)
        modified = store.head(f"{prefix}/object").modified_s
        assert modified is None or abs(modified - path.stat().st_mtime) < 86_400

    def test_list_is_sorted(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By the keys' UTF-8 bytes: "a-b" before "a/b", U+FF5E before U+1F600 (UTF-16 would have it the other way)."""
        names = ["a-b", "a.b", "a/b", "a/b-", "a/b.c/d", "a0", "B", "b/c/d/e", "ab", "z", "é", "\uff5e", "\U0001f600", "a/c"]
        shuffled = random.Random(3).sample(names, len(names))
        _at_once(lambda name: store.put_file(f"{prefix}/{name}", _file(tmp_path, name.encode(), uuid.uuid4().hex)), shuffled)
        found = list(store.list(f"{prefix}/"))
        expected = sorted((f"{prefix}/{name}" for name in names), key=str.encode)
        assert expected == [meta.key for meta in found]
        assert [len(key[len(prefix) + 1 :].encode()) for key in expected] == [meta.size_bytes for meta in found]

    def test_prefix_is_a_plain_string(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """It may end inside a name, and finds nothing where nothing starts with it."""
        for name in ("run1/a", "run1/b/c", "run10/a", "run2/a", "other"):
            store.put_file(f"{prefix}/{name}", _file(tmp_path, b"x"))

        def below(start: str) -> list[str]:
            return [meta.key.removeprefix(f"{prefix}/") for meta in store.list(f"{prefix}/{start}")]

        assert below("run") == ["run1/a", "run1/b/c", "run10/a", "run2/a"]
        assert below("run1") == ["run1/a", "run1/b/c", "run10/a"]
        assert below("run1/") == ["run1/a", "run1/b/c"]
        assert below("run1/b") == ["run1/b/c"]
        assert below("run1/b/c") == ["run1/b/c"]
        assert below("run3") == []
        assert below("run1/a/") == []
        assert below("missing/folder/") == []

    def test_temporary_names_are_not_listed(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A name that carries TEMPORARY_MARK is ours and half-made."""
        store.put_file(f"{prefix}/folder/.object{TEMPORARY_MARK}1", _file(tmp_path, b"x"))
        store.put_file(f"{prefix}/object", _file(tmp_path, b"x"))
        assert [f"{prefix}/object"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.delete(f"{prefix}/folder/.object{TEMPORARY_MARK}1")

    def test_delete_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Deleting what is not there is no error."""
        key = f"{prefix}/folder/object"
        store.put_file(key, _file(tmp_path, b"data"))
        store.put_file(f"{key}-2", _file(tmp_path, b"data"))
        store.delete(key)
        store.delete(key)
        store.delete(f"{prefix}/never/was")
        with pytest.raises(NotFoundError):
            store.head(key)
        assert [f"{key}-2"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.put_file(key, _file(tmp_path, b"new"), PutOptions(if_absent=True))
        assert _get(store, key, tmp_path) == b"new"

    def test_many_objects_are_deleted_and_no_other(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Also with odd names, more of them than go in one request, and some that are not there."""
        path = _file(tmp_path, b"x")
        odd = ["a b", "a&b<c>\"d'", "a%20b", "\u00e9/\U0001f600", "a+b", "a#b?c"]
        gone = [f"{prefix}/gone/{name}" for name in (*odd, *map(str, range(30)))]
        _at_once(lambda key: store.put_file(key, path), [*gone, f"{prefix}/gone-not"])
        store.delete_many([*gone, f"{prefix}/never/was", *(f"{prefix}/gone/missing-{number}" for number in range(1000))])
        assert [f"{prefix}/gone-not"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.delete_many(gone)
        store.delete_many([])
        assert [f"{prefix}/gone-not"] == [meta.key for meta in store.list(f"{prefix}/")]

    def test_requests_are_counted(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By stores that can; each call counts one at least, also one that fails."""
        if (before := store.n_requests) is None:
            return
        with pytest.raises(NotFoundError):
            store.head(f"{prefix}/missing")
        after_head = store.n_requests
        assert after_head is not None
        assert after_head > before
        store.put_file(f"{prefix}/object", _file(tmp_path, b"x"))
        after_put = store.n_requests
        assert after_put is not None
        assert after_put > after_head

    # many threads

    def test_threads_share_a_store(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Eight threads put, get, list and delete side by side."""

        def work(n: int) -> bytes:
            key = f"{prefix}/{n}/object"
            target = f"target{n}"
            for _ in range(3):
                store.put_file(key, _file(tmp_path, _bytes(70_000 + n), f"source{n}"))
                found = _get(store, key, tmp_path, target)
                assert key in {meta.key for meta in store.list(f"{prefix}/{n}/")}
                store.delete(key)
            return found

        assert [_bytes(70_000 + n) for n in range(8)] == _at_once(work, range(8))
        assert set() == self.raw_names(store, prefix)

    def test_replacing_shows_no_mixture(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With atomic_replace a reader always finds one whole version; without, at least the last one is whole."""
        key = f"{prefix}/object"
        versions = [bytes([n]) * 50_000 for n in range(12)]
        store.put_file(key, _file(tmp_path, versions[0]))
        written = threading.Event()

        def write() -> None:
            try:
                for n, data in enumerate(versions[1:]):
                    store.put_file(key, _file(tmp_path, data, f"version{n}"))
            finally:
                written.set()

        def read() -> None:
            while True:
                last = written.is_set()
                if store.capabilities.atomic_replace:
                    assert _get(store, key, tmp_path, "reader") in versions
                    assert store.head(key).size_bytes == 50_000
                if last or not store.capabilities.atomic_replace:
                    return

        _at_once(lambda part: part(), [write, read])
        assert versions[-1] == _get(store, key, tmp_path)
        assert {key} == self.raw_names(store, prefix)

    # parts

    def test_parts_join_in_order(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Whatever the order they are sent and named in; nothing is to be seen before complete()."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        metadata = {TOKEN_METADATA: "token", CRC32C_METADATA: format_crc32c(crc32c(data))}
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data), metadata=metadata))
        assert parts.list_parts(key, upload_id) == []
        pieces = _pieces(store, data)
        if store.capabilities.sequential_parts:
            sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        else:
            sent = _at_once(lambda piece: parts.put_part(key, upload_id, path, piece), pieces[::-1])
        with pytest.raises(NotFoundError):
            parts.head(key)
        assert list(parts.list(f"{prefix}/")) == []
        if not store.capabilities.sequential_parts:
            held = parts.list_parts(key, upload_id)
            assert [(piece.number, piece.size_bytes) for piece in pieces] == [(part.number, part.size_bytes) for part in held]
            assert {part.number: part.etag for part in sent} == {part.number: part.etag for part in held}
        answer = parts.complete(key, upload_id, sent, PutOptions(crc32c=crc32c(data), metadata=metadata))
        assert (key, len(data)) == (answer.key, answer.size_bytes)
        assert answer.crc32c in (None, crc32c(data))
        assert data == _get(store, key, tmp_path)
        found = store.head(key)
        assert (len(data), answer.etag) == (found.size_bytes, found.etag)
        if store.capabilities.metadata:
            assert ("token", crc32c(data)) == (found.token, found.crc32c)
        with pytest.raises(NotFoundError):
            parts.list_parts(key, upload_id)

    def test_upload_goes_on_from_what_is_held(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """What list_parts() tells is kept; the rest is sent, in a stream from the byte after it on, and joins it."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data)))
        pieces = _pieces(store, data)
        parts.put_part(key, upload_id, path, pieces[0])
        held = parts.list_parts(key, upload_id)
        if store.capabilities.sequential_parts:
            assert [part.number for part in held] == [1]
            assert 0 < held[0].size_bytes <= pieces[0].size_bytes
            pieces = [Part(2, held[0].size_bytes, len(data), crc32c(data[held[0].size_bytes :]))]
        else:
            assert [(1, pieces[0].size_bytes)] == [(part.number, part.size_bytes) for part in held]
            pieces = pieces[1:]
        sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        parts.complete(key, upload_id, [*held, *sent], PutOptions(crc32c=crc32c(data)))
        assert data == _get(store, key, tmp_path)

    def test_part_sent_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The later one counts, but for a stream; sending it again is how a lost answer is repaired."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        other = _file(tmp_path, data[::-1], "other")
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data)))
        pieces = _pieces(store, data)
        first = pieces[0]
        if not store.capabilities.sequential_parts:
            parts.put_part(key, upload_id, other, Part(1, first.start, first.end, crc32c(data[::-1][: first.end])))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        again = parts.put_part(key, upload_id, path, first)
        parts.complete(key, upload_id, [again, *sent[1:]], PutOptions(crc32c=crc32c(data)))
        assert data == _get(store, key, tmp_path)

    def test_one_part_is_enough(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The last part may be smaller than the minimum, and the first may be the last."""
        key = f"{prefix}/small"
        if (parts := _parts_of(store, key)) is None:
            return
        path = _file(tmp_path, b"small")
        upload_id = parts.begin(key, 5, PutOptions(crc32c=crc32c(b"small")))
        sent = parts.put_part(key, upload_id, path, Part(1, 0, 5, crc32c(b"small")))
        parts.complete(key, upload_id, [sent], PutOptions(crc32c=crc32c(b"small")))
        assert _get(store, key, tmp_path) == b"small"

    def test_abort_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Parts are freed, and aborting again, or what never was, is no error."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        upload_id = parts.begin(key, len(data))
        parts.put_part(key, upload_id, path, _pieces(store, data)[0])
        parts.abort(key, upload_id)
        parts.abort(key, upload_id)
        with pytest.raises(NotFoundError):
            parts.list_parts(key, upload_id)
        with pytest.raises(NotFoundError):
            parts.head(key)
        assert set() == self.raw_names(store, prefix)

    def test_refused_complete_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A part whose receipt is wrong is no part of the object."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        upload_id = parts.begin(key, len(data))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in _pieces(store, data)]
        forged = StoredPart(sent[0].number, sent[0].size_bytes, '"00000000000000000000000000000000"')
        with pytest.raises(StoreError):
            parts.complete(key, upload_id, [forged, *sent[1:]])
        with pytest.raises(NotFoundError):
            parts.head(key)
        parts.abort(key, upload_id)

    def test_wrong_checksum_of_a_part_is_refused(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Only by a store that checks; from any other, and of a stream, the right checksum of the whole is what counts."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        checks = _checks_crc32c(store, f"{prefix}/first", tmp_path)
        upload_id = parts.begin(key, len(data))
        piece = _pieces(store, data)[0]
        wrong = Part(piece.number, piece.start, piece.end, piece.crc32c ^ 1)
        if checks and not store.capabilities.sequential_parts:
            with pytest.raises(IntegrityError):
                parts.put_part(key, upload_id, path, wrong)
        else:
            assert piece.size_bytes == parts.put_part(key, upload_id, path, wrong).size_bytes
        parts.abort(key, upload_id)

    def test_uploads_are_listed_until_they_end(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By key and id; `begun_s` is a time of today, give or take the store's clock."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        completed, aborted = (parts.begin(name, len(data), PutOptions(crc32c=crc32c(data))) for name in (key, f"{key}-2"))
        sent = [parts.put_part(key, completed, path, piece) for piece in _pieces(store, data)]
        found = {(upload.key, upload.upload_id): upload for upload in parts.list_uploads(prefix)}
        if store.capabilities.sequential_parts:  # known to whoever has begun them only
            assert found == {}
            parts.abort(f"{key}-2", aborted)
        else:
            assert [key, f"{key}-2"] == sorted(name for name, _ in found)
        assert all((completed if name == key else aborted).endswith(listed) for name, listed in found)
        assert all(abs(upload.begun_s - time.time()) < 86_400 for upload in found.values())
        assert list(parts.list_uploads(f"{prefix}/other")) == []
        parts.complete(key, completed, sent, PutOptions(crc32c=crc32c(data)))
        for name, listed in found:
            if name != key:
                parts.abort(name, listed)  # as it is listed, not as begin() gave it
        assert list(parts.list_uploads(prefix)) == []

    def test_complete_if_absent_keeps_the_first(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_complete; without, the second may win, whole. A begin() may see that the name is taken."""
        key = f"{prefix}/large"
        if (parts := _parts_of(store, key)) is None:
            return
        path, data = _large(store, tmp_path)
        upload_id = parts.begin(key, len(data), PutOptions(if_absent=True, crc32c=crc32c(data)))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in _pieces(store, data)]
        store.put_file(key, _file(tmp_path, b"first", "first"))
        try:
            parts.abort(key, parts.begin(key, 5, PutOptions(if_absent=True)))
        except AlreadyExistsError:
            assert _get(store, key, tmp_path) == b"first"
        if store.capabilities.conditional_complete:
            with pytest.raises(AlreadyExistsError):
                parts.complete(key, upload_id, sent, PutOptions(if_absent=True, crc32c=crc32c(data)))
            assert _get(store, key, tmp_path) == b"first"
            parts.abort(key, upload_id)
        else:
            try:
                parts.complete(key, upload_id, sent, PutOptions(if_absent=True, crc32c=crc32c(data)))
            except AlreadyExistsError:
                parts.abort(key, upload_id)
                assert _get(store, key, tmp_path) == b"first"
            else:
                assert data == _get(store, key, tmp_path)

    def test_of_two_completes_one_wins(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_complete exactly one, 5 times; else at least one. The object is never a mixture."""
        if (parts := _parts_of(store, f"{prefix}/0")) is None:
            return
        contents = [bytes([value]) * 20_000 for value in (1, 2)]
        for round_ in range(5):
            key = f"{prefix}/{round_}"

            def begin(data: bytes, key: str = key) -> Callable[[], ObjectMeta | None]:
                checksum = crc32c(data)
                upload_id = parts.begin(key, len(data), PutOptions(if_absent=True, crc32c=checksum))
                piece = Part(1, 0, len(data), checksum)
                sent = parts.put_part(key, upload_id, _file(tmp_path, data, uuid.uuid4().hex), piece)

                def complete() -> ObjectMeta | None:
                    try:
                        return parts.complete(key, upload_id, [sent], PutOptions(if_absent=True, crc32c=checksum))
                    except AlreadyExistsError:
                        parts.abort(key, upload_id)
                        return None

                return complete

            won = [meta is not None for meta in _at_once(lambda complete: complete(), [begin(data) for data in contents])]
            assert any(won)
            found = _get(store, key, tmp_path)
            if self.decides_races_of_completes(store):
                assert won.count(True) == 1
                assert contents[won.index(True)] == found
            else:
                assert found in contents

    # joins

    def test_join_is_its_sources(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """One or many, in the order given, under odd names, the same one twice; it replaces what was there, and they stay."""
        key = f"{prefix}/käse joined%20+?#"
        if (least := _joins(store, key)) is None:
            return
        contents = [_bytes(least), _bytes(least + 1), b"the end"]
        names = [f"{prefix}/segments/0 1+%20ä?{n}" for n in range(3)]
        for name, data in zip(names, contents, strict=True):
            store.put_file(name, _file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        store.put_file(key, _file(tmp_path, _bytes(100_000)))
        n_many = 33 if least < 2**20 else 4  # 32 is what GCS composes at once
        for order in ([2], [0, 1, 2], [n % 2 for n in range(n_many - 1)] + [2]):
            data = b"".join(contents[n] for n in order)
            given = {TOKEN_METADATA: uuid.uuid4().hex, CRC32C_METADATA: format_crc32c(crc32c(data))}
            answer = store.join(key, [names[n] for n in order], len(data), PutOptions(crc32c=crc32c(data), metadata=given))
            assert (key, len(data)) == (answer.key, answer.size_bytes)
            assert answer.crc32c in (None, crc32c(data))
            found = store.head(key)
            assert (len(data), answer.etag, crc32c(data)) == (found.size_bytes, found.etag, found.crc32c)
            assert dict(found.metadata) in ([given] if store.capabilities.metadata else [{}, given])
            assert data == _get(store, key, tmp_path)
        assert contents == [_get(store, name, tmp_path) for name in names]
        self._nothing_else_is_left(store, prefix, {key, *names})

    def test_join_of_an_object_and_more_replaces_it(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Its own old bytes may be the first piece; where that fails it is as it was."""
        key, more = f"{prefix}/joined", f"{prefix}/more"
        if (least := _joins(store, key)) is None:
            return
        data = _bytes(least)
        store.put_file(key, _file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        store.put_file(more, _file(tmp_path, b"more"), PutOptions(crc32c=crc32c(b"more")))
        for _ in range(2):
            longer = data + b"more"
            with pytest.raises(IntegrityError):
                store.join(key, [key, more], len(longer), PutOptions(crc32c=crc32c(longer) ^ 1))
            assert data == _get(store, key, tmp_path)
            store.join(key, [key, more], len(longer), PutOptions(crc32c=crc32c(longer)))
            assert longer == _get(store, key, tmp_path)
            data = longer
        self._nothing_else_is_left(store, prefix, {key, more})

    def test_join_of_other_bytes_changes_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A wrong CRC32C or size is found before anybody sees the object; the right ones work afterwards."""
        key = f"{prefix}/joined"
        if (least := _joins(store, key)) is None:
            return
        contents = [_bytes(least), b"the end"]
        names = [f"{prefix}/{n}" for n in range(2)]
        for name, data in zip(names, contents, strict=True):
            store.put_file(name, _file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        whole = b"".join(contents)
        wrong = [(crc32c(whole) ^ 1, len(whole)), (crc32c(whole), len(whole) - 1), (None, len(whole) + 1)]
        for is_there in (False, True):
            for crc, size in wrong:
                with pytest.raises(IntegrityError):
                    store.join(key, names, size, PutOptions(crc32c=crc))
                if is_there:
                    assert _get(store, key, tmp_path) == b"old"
                else:
                    with pytest.raises(NotFoundError):
                        store.head(key)
            store.put_file(key, _file(tmp_path, b"old"))
        self._nothing_else_is_left(store, prefix, {key, *names})
        store.join(key, names, len(whole), PutOptions(crc32c=crc32c(whole)))
        assert whole == _get(store, key, tmp_path)

    def test_join_needs_every_source(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The first, the last, or the only one may be missing."""
        key, there = f"{prefix}/joined", f"{prefix}/there"
        if (least := _joins(store, key)) is None:
            return
        store.put_file(there, _file(tmp_path, _bytes(least)))
        store.put_file(key, _file(tmp_path, b"old"))
        for sources in ([f"{prefix}/missing", there], [there, f"{prefix}/missing"], [f"{prefix}/missing"]):
            with pytest.raises(self.missing_source_error):
                store.join(key, sources, 2 * least)
        assert _get(store, key, tmp_path) == b"old"
        self._nothing_else_is_left(store, prefix, {key, there})

    def _nothing_else_is_left(self, store: ObjectStore, prefix: str, names: set[str]) -> None:
        assert names == self.raw_names(store, prefix)
        if isinstance(store, MultipartStore) and store.capabilities.multipart:
            assert list(store.list_uploads(f"{prefix}/")) == []

    # the end

    def test_nothing_temporary_is_left(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """After puts, refused puts and replacements there is what list() shows, and no more."""
        names = {f"{prefix}/{name}" for name in ("a", "b/c", "x" * self.longest_part_bytes)}
        for key in names:
            store.put_file(key, _file(tmp_path, b"one"), PutOptions(if_absent=True))
            store.put_file(key, _file(tmp_path, b"two"))
            store.put_file(key, _file(tmp_path, b"three", "frozen"), PutOptions(frozen=True))
            with pytest.raises(AlreadyExistsError):
                store.put_file(key, _file(tmp_path, b"four"), PutOptions(if_absent=True))
        assert names == self.raw_names(store, prefix)
        assert names == {meta.key for meta in store.list(f"{prefix}/")}

    def test_close_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Closing again is fine."""
        store.put_file(f"{prefix}/object", _file(tmp_path, b"x"))
        store.close()
        store.close()


def _bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _file(folder: Path, data: bytes, name: str = "source") -> Path:
    """A new file (a new inode) with these bytes."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def _get(store: ObjectStore, key: str, folder: Path, name: str = "got") -> bytes:
    path = _file(folder, b"", name)
    store.get_file(key, path)
    return path.read_bytes()


def _checks_crc32c(store: ObjectStore, key: str, folder: Path) -> bool:
    """The capability, asked after a first put: a store may learn only from an answer that its server ignores checksums."""
    data = b"the first object"
    store.put_file(key, _file(folder, data, "first"), PutOptions(crc32c=crc32c(data)))
    return store.capabilities.checks_crc32c


def _parts_of(store: ObjectStore, key: str) -> MultipartStore | None:
    """The store as one that takes parts; None, once it was seen to refuse them, if it says that it does not."""
    if not store.capabilities.multipart:
        if isinstance(store, MultipartStore):  # a wrapper
            with pytest.raises(PermanentError):
                store.begin(key, 1)
        return None
    assert isinstance(store, MultipartStore)
    return store


def _joins(store: ObjectStore, key: str) -> int | None:
    """The smallest size of a source; None, once join() was seen to be refused, of a store that says that it joins nothing."""
    if store.capabilities.min_joined_bytes is None:
        with pytest.raises(PermanentError, match="min_joined_bytes"):
            store.join(key, [f"{key}-source"], 1)
    return store.capabilities.min_joined_bytes


def _large(store: ObjectStore, folder: Path) -> tuple[Path, bytes]:
    """A file that makes two full parts and a bit."""
    data = _bytes(2 * _part_size(store) + 1_001)
    return _file(folder, data, "large"), data


def _part_size(store: ObjectStore) -> int:
    return max(store.capabilities.min_part_size_bytes, 64 * _KIB)


def _pieces(store: ObjectStore, data: bytes) -> list[Part]:
    size = _part_size(store)
    starts = range(0, len(data), size)
    return [Part(n, at, min(at + size, len(data)), crc32c(data[at : at + size])) for n, at in enumerate(starts, 1)]


def _at_once(call: Callable[[_A], _R], arguments: Sequence[_A]) -> list[_R]:
    """Call with each argument in a thread of its own, all starting together; the results, in order."""
    start = threading.Barrier(len(arguments))

    def run(argument: _A) -> _R:
        start.wait(30)
        return call(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))
