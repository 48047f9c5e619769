"""Laws of puts, gets and ranges."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wherry.checksum import crc32c
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, PermanentError, StoreError
from wherry.store import TOKEN_METADATA, ObjectStore, PutOptions
from wherry.testing.conformance.suite import StoreSuite
from wherry.testing.conformance.support import KIB, at_once, checks_crc32c, get, new_file, same, some_bytes

_SIZES = (0, 1, 4 * KIB - 1, 64 * KIB, 1024 * KIB + 1)
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


class ObjectLaws(StoreSuite):
    """Laws of puts, gets and ranges."""

    @pytest.mark.parametrize("size", _SIZES)
    def test_put_then_get(self, store: ObjectStore, prefix: str, tmp_path: Path, size: int) -> None:
        """When a put returns, the whole object is there."""
        data, key = some_bytes(size), f"{prefix}/folder/object.bin"
        answer = store.put_file(key, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        assert (key, size) == (answer.key, answer.size_bytes)
        assert answer.crc32c in (None, crc32c(data))
        assert same(data, get(store, key, tmp_path))
        described = store.head(key)
        assert (key, size) == (described.key, described.size_bytes)
        assert answer.etag in (None, described.etag)
        assert [(key, size)] == [(meta.key, meta.size_bytes) for meta in store.list(f"{prefix}/")]

    def test_put_replaces_the_whole_object(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A shorter object leaves nothing of a longer one; the etag tells them apart."""
        key = f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, some_bytes(100_000)), PutOptions(metadata={TOKEN_METADATA: "one"}))
        first = store.head(key)
        store.put_file(key, new_file(tmp_path, b"short"), PutOptions(metadata={TOKEN_METADATA: "two"}))
        second = store.head(key)
        assert get(store, key, tmp_path) == b"short"
        assert second.token in (("two",) if store.capabilities.metadata else ("two", None))
        assert first.etag is None or first.etag != second.etag

    @pytest.mark.parametrize("frozen", [True, False])
    def test_put_takes_the_bytes_of_the_moment(self, store: ObjectStore, prefix: str, tmp_path: Path, frozen: bool) -> None:
        """Deleting a frozen file, or rewriting another in place, does not reach the object."""
        key, path = f"{prefix}/object", new_file(tmp_path, some_bytes(10_000))
        answer = store.put_file(key, path, PutOptions(frozen=frozen))
        if frozen:
            path.unlink()
        else:
            assert not answer.is_shared
            with open(path, "r+b") as file:
                file.write(b"other bytes")
        assert same(some_bytes(10_000), get(store, key, tmp_path))

    def test_failed_put_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A put that raises leaves the old object or none."""
        with pytest.raises((StoreError, OSError)):
            store.put_file(f"{prefix}/object", tmp_path / "missing")
        with pytest.raises(NotFoundError):
            store.head(f"{prefix}/object")
        store.put_file(f"{prefix}/object", new_file(tmp_path, b"old"))
        with pytest.raises((StoreError, OSError)):
            store.put_file(f"{prefix}/object", tmp_path / "missing")
        assert get(store, f"{prefix}/object", tmp_path) == b"old"
        assert {f"{prefix}/object"} == self.raw_names(store, prefix)

    def test_wrong_checksum_is_refused(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A store that checks stores nothing. Any other may refuse, too, or must not return the wrong checksum as its own."""
        data, key = some_bytes(5_000), f"{prefix}/object"
        checks = checks_crc32c(store, f"{prefix}/first", tmp_path)
        try:
            answer = store.put_file(key, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data) ^ 1))
        except IntegrityError:
            assert {f"{prefix}/first"} == self.raw_names(store, prefix)
        else:
            assert not checks
            assert answer.crc32c in (None, crc32c(data))
            assert same(data, get(store, key, tmp_path))

    def test_odd_names_are_kept(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """No character of a key but the slash has a meaning. A name that the store cannot keep is refused."""
        for name in _ODD_NAMES:
            key, data = f"{prefix}/{name}", name.encode()
            if name in self.refused_names:
                with pytest.raises(PermanentError, match="use another name"):
                    store.put_file(key, new_file(tmp_path, data), PutOptions(if_absent=True))
                assert list(store.list(prefix)) == [], name
                continue
            store.put_file(key, new_file(tmp_path, data), PutOptions(if_absent=True))
            assert key == store.head(key).key
            assert [key] == [meta.key for meta in store.list(f"{prefix}/")]
            assert [key] == [meta.key for meta in store.list(key)]
            assert same(data, get(store, key, tmp_path)), name
            store.delete(key)
            assert list(store.list(f"{prefix}/")) == [], name

    def test_long_names_are_kept(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Keys of 900 bytes, and parts of 255, work everywhere."""
        longest = self.longest_part_bytes
        left = 900 - len(prefix.encode())
        name = "".join("/" + "n" * min(longest - 1, left - start - 1) for start in range(0, left, longest))
        for key in (f"{prefix}{name}", f"{prefix}/{'x' * longest}", f"{prefix}/{'ü' * (longest // 2)}"):
            store.put_file(key, new_file(tmp_path, b"long"))
            store.put_file(key, new_file(tmp_path, b"longer"))
            assert get(store, key, tmp_path) == b"longer"
            assert key in {meta.key for meta in store.list(f"{prefix}/")}

    def test_if_absent_keeps_the_first(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The second put is refused and the first object is untouched."""
        key = f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, b"first", "first"), PutOptions(if_absent=True))
        before = store.head(key)
        for frozen in (True, False):
            with pytest.raises(AlreadyExistsError):
                store.put_file(key, new_file(tmp_path, b"second", "second"), PutOptions(if_absent=True, frozen=frozen))
        assert get(store, key, tmp_path) == b"first"
        assert before == store.head(key)
        assert {key} == self.raw_names(store, prefix)

    def test_many_small_files_are_put(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """What put_many() names is there as put_file() makes it; what it leaves out, put_file() puts."""
        files = {f"{prefix}/many/{number}": some_bytes(number * 2500) for number in range(16)}
        puts = [
            (key, new_file(tmp_path, data, str(number)), PutOptions(crc32c=crc32c(data), metadata={TOKEN_METADATA: str(number)}))
            for number, (key, data) in enumerate(files.items())
        ]
        made = dict(store.put_many(puts, 7))
        assert made.keys() <= set(range(len(puts)))
        for place, put in enumerate(puts):
            answer = made[place] if place in made else store.put_file(*put)
            assert (put[0], len(files[put[0]])) == (answer.key, answer.size_bytes)
            assert answer.crc32c in (None, put[2].crc32c)
            assert files[put[0]] == get(store, put[0], tmp_path)
            described = store.head(put[0])
            assert answer.etag in (None, described.etag)
            assert described.token in ((str(place),) if store.capabilities.metadata else (str(place), None))

    def test_many_puts_keep_what_is_there(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With if_absent an object that is there is untouched, and its place is not named."""
        keys = [f"{prefix}/many/{number}" for number in range(12)]
        store.put_file(keys[5], new_file(tmp_path, b"first", "first"))
        puts = [(key, new_file(tmp_path, b"second", "second"), PutOptions(if_absent=True)) for key in keys]
        made = dict(store.put_many(puts, 3))
        assert 5 not in made
        assert get(store, keys[5], tmp_path) == b"first"
        assert {keys[5], *(keys[place] for place in made)} <= self.raw_names(store, prefix) <= set(keys)

    def test_of_two_writers_one_wins(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_put exactly one, 20 times; else at least one. The object is never a mixture."""

        def put(key_and_path: tuple[str, Path]) -> bool:
            try:
                store.put_file(*key_and_path, PutOptions(if_absent=True))
            except AlreadyExistsError:
                return False
            return True

        contents = [bytes([value]) * 20_000 for value in (1, 2)]
        paths = [new_file(tmp_path, data, f"writer{n}") for n, data in enumerate(contents)]
        for round_ in range(20):
            key = f"{prefix}/{round_}"
            won = at_once(put, [(key, path) for path in paths])
            assert any(won)
            found = get(store, key, tmp_path)
            if store.capabilities.conditional_put:
                assert won.count(True) == 1
                assert same(contents[won.index(True)], found)
            else:
                assert found in contents
        assert {f"{prefix}/{round_}" for round_ in range(20)} == self.raw_names(store, prefix)

    def test_ranges_join_to_the_whole(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Ranges may be fetched side by side, in any order and again; bytes outside of them are left alone."""
        size = 300_007
        data, key = some_bytes(size), f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, data))
        cuts = [0, 1, 4096, 100_000, 100_001, 299_999, size]
        ranges = list(itertools.pairwise(cuts))
        ranges += [(50, 60), (size, size), (7, 7)]
        random.Random(5).shuffle(ranges)
        target = new_file(tmp_path, b"\xff" * (size + 10), "target")
        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(lambda piece: store.get_file(key, target, start=piece[0], end=piece[1]), ranges))
        assert same(data + b"\xff" * 10, target.read_bytes())
        assert all(crc in (None, crc32c(data[start:end])) for crc, (start, end) in zip(sums, ranges, strict=True))

        tail = new_file(tmp_path, b"", "tail")
        store.get_file(key, tail, start=size - 5)
        assert (data[-5:], size) == (tail.read_bytes()[-5:], tail.stat().st_size)

    def test_read_hands_over_the_bytes_in_order(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """read() gives each byte of a range once, with its offset, and holds to `if_match`; an empty range has none."""
        size = 3 * 2**20 + 7
        data, key = some_bytes(size), f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, data))
        for start, end in ((0, size), (0, None), (5, 2**20 + 5), (size - 1, size), (size, size), (7, 7), (size - 5, None)):
            found, at_next = bytearray(), start

            def take(block: bytes | memoryview, at: int) -> None:
                nonlocal at_next
                assert at_next == at
                found.extend(block)  # noqa: B023
                at_next += len(block)

            store.read(key, take, start=start, end=end)
            assert same(data[start:end], bytes(found))
        with pytest.raises(StoreError):
            store.read(key, lambda *_: None, start=5, end=size + 1)
        with pytest.raises(NotFoundError):
            store.read(f"{prefix}/missing", lambda *_: None)
        if (etag := store.head(key).etag) is not None:
            store.read(key, lambda *_: None, start=3, end=9, if_match=etag)
            store.put_file(key, new_file(tmp_path, b"another version"))
            with pytest.raises(IntegrityError):
                store.read(key, lambda *_: None, start=3, end=9, if_match=etag)

    def test_range_beyond_the_end_is_an_error(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Fewer bytes than were asked for are never a success."""
        key = f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, b"0123456789"))
        for start, end in ((0, 11), (5, 20), (10, 12), (20, 30)):
            with pytest.raises(StoreError):
                store.get_file(key, new_file(tmp_path, b"", "target"), start=start, end=end)

    def test_get_needs_an_existing_file(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """get_file() neither creates nor truncates."""
        key = f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, b"0123456789"))
        with pytest.raises((StoreError, OSError)):
            store.get_file(key, tmp_path / "missing")
        assert not (tmp_path / "missing").exists()

    def test_changed_object_does_not_match(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With `if_match`, only an object of that etag is read. A store without etags promises nothing."""
        key = f"{prefix}/object"
        store.put_file(key, new_file(tmp_path, b"version one"))
        etag = store.head(key).etag
        if etag is None:  # a store that cannot tell versions apart says so
            return
        target = new_file(tmp_path, b"", "target")
        store.get_file(key, target, start=3, if_match=etag)
        store.put_file(key, new_file(tmp_path, b"version two"))
        with pytest.raises(IntegrityError):
            store.get_file(key, target, start=3, if_match=etag)
        store.get_file(key, target, if_match=store.head(key).etag)
        assert target.read_bytes() == b"version two"
