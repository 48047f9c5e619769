"""Laws of objects joined from others."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import IntegrityError, NotFoundError
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, ObjectStore, PutOptions
from wherry.testing.conformance.suite import StoreSuite
from wherry.testing.conformance.support import get, joins, new_file, same, some_bytes


class JoinLaws(StoreSuite):
    """Laws of objects joined from others."""

    def test_join_is_its_sources(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """One or many sources, in the given order, with odd names, one twice. The object is replaced; the sources stay."""
        key = f"{prefix}/käse joined%20+?#"
        if (least := joins(store, key)) is None:
            return
        contents = [some_bytes(least), some_bytes(least + 1), b"the end"]
        names = [f"{prefix}/segments/0 1+%20ä?{n}" for n in range(3)]
        for name, data in zip(names, contents, strict=True):
            store.put_file(name, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        store.put_file(key, new_file(tmp_path, some_bytes(100_000)))
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
            assert same(data, get(store, key, tmp_path))
        assert all(same(data, get(store, name, tmp_path)) for data, name in zip(contents, names, strict=True))
        self.assert_nothing_else_is_left(store, prefix, {key, *names})

    def test_join_of_an_object_and_more_replaces_it(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The object itself may be the first source. If the join fails, the object has not changed."""
        key, more = f"{prefix}/joined", f"{prefix}/more"
        if (least := joins(store, key)) is None:
            return
        data = some_bytes(least)
        store.put_file(key, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        store.put_file(more, new_file(tmp_path, b"more"), PutOptions(crc32c=crc32c(b"more")))
        for _ in range(2):
            longer = data + b"more"
            with pytest.raises(IntegrityError):
                store.join(key, [key, more], len(longer), PutOptions(crc32c=crc32c(longer) ^ 1))
            assert same(data, get(store, key, tmp_path))
            store.join(key, [key, more], len(longer), PutOptions(crc32c=crc32c(longer)))
            assert same(longer, get(store, key, tmp_path))
            data = longer
        self.assert_nothing_else_is_left(store, prefix, {key, more})

    def test_join_of_other_bytes_changes_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A wrong CRC32C or size is found before anybody sees the object; the right ones work afterwards."""
        key = f"{prefix}/joined"
        if (least := joins(store, key)) is None:
            return
        contents = [some_bytes(least), b"the end"]
        names = [f"{prefix}/{n}" for n in range(2)]
        for name, data in zip(names, contents, strict=True):
            store.put_file(name, new_file(tmp_path, data), PutOptions(crc32c=crc32c(data)))
        whole = b"".join(contents)
        wrong = [(crc32c(whole) ^ 1, len(whole)), (crc32c(whole), len(whole) - 1), (None, len(whole) + 1)]
        for is_there in (False, True):
            for crc, size in wrong:
                with pytest.raises(IntegrityError):
                    store.join(key, names, size, PutOptions(crc32c=crc))
                if is_there:
                    assert get(store, key, tmp_path) == b"old"
                else:
                    with pytest.raises(NotFoundError):
                        store.head(key)
            store.put_file(key, new_file(tmp_path, b"old"))
        self.assert_nothing_else_is_left(store, prefix, {key, *names})
        store.join(key, names, len(whole), PutOptions(crc32c=crc32c(whole)))
        assert whole == get(store, key, tmp_path)

    def test_join_needs_every_source(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The first, the last, or the only one may be missing."""
        key, there = f"{prefix}/joined", f"{prefix}/there"
        if (least := joins(store, key)) is None:
            return
        store.put_file(there, new_file(tmp_path, some_bytes(least)))
        store.put_file(key, new_file(tmp_path, b"old"))
        for sources in ([f"{prefix}/missing", there], [there, f"{prefix}/missing"], [f"{prefix}/missing"]):
            with pytest.raises(self.missing_source_error):
                store.join(key, sources, 2 * least)
        assert get(store, key, tmp_path) == b"old"
        self.assert_nothing_else_is_left(store, prefix, {key, there})
