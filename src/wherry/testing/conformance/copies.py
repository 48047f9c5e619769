"""Laws of objects copied inside a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, PermanentError
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, ObjectMeta, ObjectStore, PutOptions
from wherry.testing.conformance.suite import StoreSuite
from wherry.testing.conformance.support import KIB, get, new_file, same, some_bytes


class CopyLaws(StoreSuite):
    """Laws of objects copied inside a store."""

    def test_copy_is_its_source(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Bytes, metadata and media type, of an empty object, too, and with odd names; what was there is replaced."""
        if not copies(store, f"{prefix}/refused"):
            return
        for n, size in enumerate((0, 1, 300 * KIB)):
            key, data = f"{prefix}/cöpied slowly%20+?#{n}", some_bytes(size)
            name = f"{prefix}/a folder/0 1+%20ä?{n}"
            given = {TOKEN_METADATA: "t" * 32, CRC32C_METADATA: format_crc32c(crc32c(data))}
            put = PutOptions(crc32c=crc32c(data), metadata=given, content_type="text/x-tested")
            store.put_file(name, new_file(tmp_path, data), put)
            store.put_file(key, new_file(tmp_path, b"old"))
            source = store.head(name)
            answer = store.copy(key, source)
            found = store.head(key)
            assert (key, size) == (answer.key, answer.size_bytes) == (found.key, found.size_bytes)
            assert answer.etag == found.etag
            assert answer.crc32c in (None, crc32c(data))
            assert dict(source.metadata) == dict(found.metadata)
            assert source.content_type == found.content_type
            assert found.content_type == "text/x-tested" or not store.capabilities.metadata
            assert same(data, get(store, key, tmp_path))
            assert same(data, get(store, name, tmp_path))

    def test_copy_if_absent_keeps_what_is_there(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """A free name is taken, one that is taken is not replaced."""
        key, name = f"{prefix}/copied", f"{prefix}/source"
        if not (copies(store, key) and self.keeps_conditions_of_copies):
            return
        store.put_file(name, new_file(tmp_path, b"first"))
        store.copy(key, store.head(name), if_absent=True)
        store.put_file(name, new_file(tmp_path, b"second"))
        with pytest.raises(AlreadyExistsError):
            store.copy(key, store.head(name), if_absent=True)
        assert get(store, key, tmp_path) == b"first"

    def test_copy_of_what_was_replaced_changes_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Nor does one of what is not there."""
        key, name = f"{prefix}/copied", f"{prefix}/source"
        if not (copies(store, key) and self.keeps_conditions_of_copies):
            return
        store.put_file(key, new_file(tmp_path, b"old"))
        store.put_file(name, new_file(tmp_path, b"first"))
        before = store.head(name)
        store.put_file(name, new_file(tmp_path, b"other"))
        for if_absent in (False, True):
            with pytest.raises((AlreadyExistsError, IntegrityError) if if_absent else IntegrityError):
                store.copy(key, before, if_absent=if_absent)
        with pytest.raises(IntegrityError):
            store.copy(f"{prefix}/free", before, if_absent=True)
        with pytest.raises(NotFoundError):
            store.copy(key, replace(before, key=f"{prefix}/missing"))
        assert get(store, key, tmp_path) == b"old"
        self.assert_nothing_else_is_left(store, prefix, {key, name})


def copies(store: ObjectStore, key: str) -> bool:
    """Whether the store copies. If its capabilities deny it: False, after a check that it refuses to."""
    if not store.capabilities.copies:
        with pytest.raises(PermanentError, match=r"capabilities\.copies"):
            store.copy(key, ObjectMeta(f"{key}-source", 1))
    return store.capabilities.copies
