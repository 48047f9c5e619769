"""Laws of head, list and delete, of many threads, and of what is left."""

from __future__ import annotations

import random
import threading
import uuid
from pathlib import Path

import pytest

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import AlreadyExistsError, NotFoundError
from wherry.store import CRC32C_METADATA, TEMPORARY_MARK, TOKEN_METADATA, ObjectStore, PutOptions
from wherry.testing.conformance.suite import StoreSuite
from wherry.testing.conformance.support import at_once, get, new_file, same, some_bytes


class ListingLaws(StoreSuite):
    """Laws of head, list and delete, of many threads, and of what is left."""

    def test_missing_object(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A missing object is a NotFoundError, also if there is an object with a longer key."""
        store.put_file(f"{prefix}/folder/object", new_file(tmp_path, b"data"))
        target = new_file(tmp_path, b"untouched", "target")
        for key in (f"{prefix}/missing", f"{prefix}/folder", f"{prefix}/missing/object", f"{prefix}/folder/obj"):
            with pytest.raises(NotFoundError):
                store.head(key)
            with pytest.raises(NotFoundError):
                store.get_file(key, target)
            with pytest.raises(NotFoundError):
                store.get_file(key, target, start=1, end=2)
        assert target.read_bytes() == b"untouched"

    def test_metadata_comes_back(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A store without the capability may lose it, but never returns that of another object."""
        data, key = some_bytes(3_000), f"{prefix}/object"
        given = {TOKEN_METADATA: uuid.uuid4().hex, CRC32C_METADATA: format_crc32c(crc32c(data))}
        store.put_file(key, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data), metadata=given))
        found = store.head(key)
        if store.capabilities.metadata:
            assert given == dict(found.metadata)
            assert (given[TOKEN_METADATA], crc32c(data)) == (found.token, found.crc32c)
        else:
            assert dict(found.metadata) in ({}, given)
            assert found.crc32c in (None, crc32c(data))

    def test_head_tells_when(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """modified_s are seconds since the epoch (a day off at most: servers have clocks of their own)."""
        path = new_file(tmp_path, b"data")
        store.put_file(f"{prefix}/object", path)
        modified = store.head(f"{prefix}/object").modified_s
        assert modified is None or abs(modified - path.stat().st_mtime) < 86_400

    def test_list_is_sorted(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By the keys' UTF-8 bytes: "a-b" before "a/b", U+FF5E before U+1F600 (UTF-16 would have it the other way)."""
        names = ["a-b", "a.b", "a/b", "a/b-", "a/b.c/d", "a0", "B", "b/c/d/e", "ab", "z", "é", "\uff5e", "\U0001f600", "a/c"]
        shuffled = random.Random(3).sample(names, len(names))
        at_once(lambda name: store.put_file(f"{prefix}/{name}", new_file(tmp_path, name.encode(), uuid.uuid4().hex)), shuffled)
        found = list(store.list(f"{prefix}/"))
        expected = sorted((f"{prefix}/{name}" for name in names), key=str.encode)
        assert expected == [meta.key for meta in found]
        assert [len(key[len(prefix) + 1 :].encode()) for key in expected] == [meta.size_bytes for meta in found]

    def test_prefix_is_a_plain_string(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """It may end inside a name. The listing is empty if no key starts with it."""
        for name in ("run1/a", "run1/b/c", "run10/a", "run2/a", "other"):
            store.put_file(f"{prefix}/{name}", new_file(tmp_path, b"x"))

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

    def test_listing_starts_after_any_key(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """In the middle, at a key that is there and at one that is not, after the last, before the prefix, beyond ASCII."""
        inside, mark = f"{prefix}/in", f"ab{TEMPORARY_MARK}1"
        names = ["B", "a", "ab", "ab0", "b", "z", "é", "\uff5e", "\U0001f600"]
        self._put_all(store, inside, [*names, mark], tmp_path)
        self._put_all(store, f"{inside}-other", ["a", "z"], tmp_path)
        keys = [f"{inside}/{name}" for name in names]
        between = [f"{inside}/{name}" for name in ("A", "aa", "ab.", "abc", mark, "a\uff5e", "\ue000", "\U0001f601")]
        outside = ["", "\U0010ffff", inside, f"{inside}-other/a", f"{inside}-other/z", f"{inside}/", f"{inside}0"]
        for start_after in [*keys, *between, *outside]:
            self._check_later(store, f"{inside}/", start_after, keys)
        for start_after in keys:  # a prefix that is no folder
            self._check_later(store, f"{inside}/ab", start_after, keys)
            self._check_later(store, f"{inside}/é", start_after, keys)
        self._check_later(store, f"{inside}/nothing", f"{inside}/nothing0", keys)
        store.delete(f"{inside}/{mark}")

    def test_listing_starts_after_any_key_of_folders(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A folder's keys are compared byte by byte as all others: "a-b/c" comes before "a/b"."""
        names = ["a-b/c", "a.b", "a/b-", "a/b.c/d", "a/b/e/f", "a/c", "a0/b", "a00", "b/-/c", "b/c/d/e", "é/a-b", "é/a/b"]
        self._put_all(store, prefix, names, tmp_path)
        keys = [f"{prefix}/{name}" for name in names]
        starts = {key[:end] for key in keys for end in range(len(prefix) + 1, len(key) + 1)}
        for start_after in sorted({*starts, *(f"{start}~" for start in starts), f"{prefix}/a/b/e/f/g", f"{prefix}/x/y/z"}):
            self._check_later(store, f"{prefix}/", start_after, keys)
        for folder in ("a", "a/", "a/b", "b/c/"):
            inside = [key for key in keys if key.startswith(f"{prefix}/{folder}")]
            for start_after in {keys[0], *inside, keys[-1]}:
                self._check_later(store, f"{prefix}/{folder}", start_after, keys)

    def test_pages_have_what_a_listing_has(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """In the store's own order, and nothing that is temporary; a mark goes on behind its page."""
        self._put_all(store, prefix, ["a-b/c", "a/b", "a/b-", "a/c/d", "a0", "b", "é/a", f"c{TEMPORARY_MARK}1"], tmp_path)
        for start in ("/", "/a", "/a/", "/a/b", "/none"):
            pages = list(store.pages(prefix + start))
            found = [meta.key for page in pages for meta in page.objects]
            listed = [meta.key for meta in store.list(prefix + start)]
            assert sorted(listed) == sorted(found), start
            assert [folder for page in pages for folder in page.folders] == []
            for n, page in enumerate(pages[:-1]):
                later = [meta.key for rest in store.pages(prefix + start, mark=page.mark) for meta in rest.objects]
                assert [meta.key for rest in pages[n + 1 :] for meta in rest.objects] == later
        store.delete(f"{prefix}/c{TEMPORARY_MARK}1")

    def test_a_level_has_objects_and_folders(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Each once; a folder is what keys begin with, up to their next slash. The prefix may end inside a name."""
        names = ["a-b/c", "a.b", "a/b", "a/b-", "a/c/d", "a/c/e", "a0", "b/c/d/e", "b/􏿿􏿿", "é/a", "z"]
        self._put_all(store, prefix, [*names, f"c{TEMPORARY_MARK}1"], tmp_path)

        def level(start: str) -> tuple[list[str], list[str]]:
            pages = list(store.pages(f"{prefix}/{start}", one_level=True))
            objects = sorted(meta.key.removeprefix(f"{prefix}/") for page in pages for meta in page.objects)
            return objects, sorted(folder.removeprefix(f"{prefix}/") for page in pages for folder in page.folders)

        assert level("") == (["a.b", "a0", "z"], ["a-b/", "a/", "b/", "é/"])
        assert level("a/") == (["a/b", "a/b-"], ["a/c/"])
        assert level("a") == (["a.b", "a0"], ["a-b/", "a/"])
        assert level("a/c/") == (["a/c/d", "a/c/e"], [])
        assert level("z") == (["z"], [])
        assert level("none/") == ([], [])
        above, _, own = prefix.rpartition("/")
        folders = [folder for page in store.pages(f"{above}/", one_level=True) for folder in page.folders]
        assert folders.count(f"{above}/{own}/") == 1
        store.delete(f"{prefix}/c{TEMPORARY_MARK}1")

    @staticmethod
    def _put_all(store: ObjectStore, prefix: str, names: list[str], tmp_path: Path) -> None:
        path = new_file(tmp_path, b"x")
        at_once(lambda name: store.put_file(f"{prefix}/{name}", path), names)

    @staticmethod
    def _check_later(store: ObjectStore, prefix: str, start_after: str, keys: list[str]) -> None:
        found = [meta.key for meta in store.list(prefix, start_after=start_after)]
        later = [key for key in keys if key.startswith(prefix) and key.encode() > start_after.encode()]
        assert sorted(later, key=str.encode) == found, (prefix, start_after)

    def test_temporary_names_are_not_listed(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A name with TEMPORARY_MARK is that of our own unfinished object."""
        store.put_file(f"{prefix}/folder/.object{TEMPORARY_MARK}1", new_file(tmp_path, b"x"))
        store.put_file(f"{prefix}/object", new_file(tmp_path, b"x"))
        assert [f"{prefix}/object"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.delete(f"{prefix}/folder/.object{TEMPORARY_MARK}1")

    def test_delete_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Deleting what is not there is no error."""
        key = f"{prefix}/folder/object"
        store.put_file(key, new_file(tmp_path, b"data"))
        store.put_file(f"{key}-2", new_file(tmp_path, b"data"))
        store.delete(key)
        store.delete(key)
        store.delete(f"{prefix}/never/was")
        with pytest.raises(NotFoundError):
            store.head(key)
        assert [f"{key}-2"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.put_file(key, new_file(tmp_path, b"new"), PutOptions(if_absent=True))
        assert get(store, key, tmp_path) == b"new"

    def test_many_objects_are_deleted_and_no_other(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Also with odd names, and some that are not there."""
        path = new_file(tmp_path, b"x")
        odd = ["a b", "a&b<c>\"d'", "a%20b", "\u00e9/\U0001f600", "a+b", "a#b?c"]
        gone = [f"{prefix}/gone/{name}" for name in (*odd, *map(str, range(10)))]
        at_once(lambda key: store.put_file(key, path), [*gone, f"{prefix}/gone-not"])
        store.delete_many([*gone, f"{prefix}/never/was", *(f"{prefix}/gone/missing-{number}" for number in range(30))])
        assert [f"{prefix}/gone-not"] == [meta.key for meta in store.list(f"{prefix}/")]
        store.delete_many(gone)
        store.delete_many([])
        assert [f"{prefix}/gone-not"] == [meta.key for meta in store.list(f"{prefix}/")]

    def test_requests_are_counted(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """In stores that can count them, each call counts at least one, also if it fails."""
        if (before := store.n_requests) is None:
            return
        with pytest.raises(NotFoundError):
            store.head(f"{prefix}/missing")
        after_head = store.n_requests
        assert after_head is not None
        assert after_head > before
        store.put_file(f"{prefix}/object", new_file(tmp_path, b"x"))
        after_put = store.n_requests
        assert after_put is not None
        assert after_put > after_head

    def test_threads_share_a_store(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Eight threads put, get, list and delete side by side."""

        def work(n: int) -> bytes:
            key = f"{prefix}/{n}/object"
            target = f"target{n}"
            for _ in range(3):
                store.put_file(key, new_file(tmp_path, some_bytes(70_000 + n), f"source{n}"))
                found = get(store, key, tmp_path, target)
                assert key in {meta.key for meta in store.list(f"{prefix}/{n}/")}
                store.delete(key)
            return found

        assert all(map(same, [some_bytes(70_000 + n) for n in range(8)], at_once(work, range(8))))
        assert set() == self.raw_names(store, prefix)

    def test_replacing_shows_no_mixture(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With atomic_replace a reader always finds one whole version; without, at least the last one is whole."""
        key = f"{prefix}/object"
        versions = [bytes([n]) * 50_000 for n in range(12)]
        store.put_file(key, new_file(tmp_path, versions[0]))
        written = threading.Event()

        def write() -> None:
            try:
                for n, data in enumerate(versions[1:]):
                    store.put_file(key, new_file(tmp_path, data, f"version{n}"))
            finally:
                written.set()

        def read() -> None:
            while True:
                last = written.is_set()
                if store.capabilities.atomic_replace:
                    assert get(store, key, tmp_path, "reader") in versions
                    assert store.head(key).size_bytes == 50_000
                if last or not store.capabilities.atomic_replace:
                    return

        at_once(lambda part: part(), [write, read])
        assert versions[-1] == get(store, key, tmp_path)
        assert {key} == self.raw_names(store, prefix)

    def test_nothing_temporary_is_left(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """After puts, refused puts and replacements there is what list() shows, and no more."""
        names = {f"{prefix}/{name}" for name in ("a", "b/c", "x" * self.longest_part_bytes)}
        for key in names:
            store.put_file(key, new_file(tmp_path, b"one"), PutOptions(if_absent=True))
            store.put_file(key, new_file(tmp_path, b"two"))
            store.put_file(key, new_file(tmp_path, b"three", "frozen"), PutOptions(frozen=True))
            with pytest.raises(AlreadyExistsError):
                store.put_file(key, new_file(tmp_path, b"four"), PutOptions(if_absent=True))
        assert names == self.raw_names(store, prefix)
        assert names == {meta.key for meta in store.list(f"{prefix}/")}

    def test_close_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Closing again is fine."""
        store.put_file(f"{prefix}/object", new_file(tmp_path, b"x"))
        store.close()
        store.close()
