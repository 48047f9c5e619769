"""What a store's author gives to the suite."""

from __future__ import annotations

import uuid

import pytest

from wherry.errors import NotFoundError, StoreError
from wherry.store import MultipartStore, ObjectStore


class StoreSuite:
    """What the laws ask of a subclass: `store` must be given; the others may be. Each test writes below its own prefix only."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The store under test, new for each test; the fixture closes it."""
        raise NotImplementedError("a subclass of StoreConformance gives the fixture 'store'")

    @pytest.fixture
    def prefix(self) -> str:
        """A key prefix, without a slash at its end, that nothing else uses."""
        return f"conformance/{uuid.uuid4().hex}"

    #: Names that the store cannot hold, by a limit of its own; they must be refused, never changed.
    refused_names: frozenset[str] = frozenset()
    #: The longest part of a key between two slashes. Override it only for a server that takes less than a file system.
    longest_part_bytes = 255
    #: What join() raises if a source is missing. Override it for a server that answers with another error.
    missing_source_error: type[StoreError] = NotFoundError

    #: copy() keeps its conditions. Override it for a server that ignores them.
    keeps_conditions_of_copies = True

    def raw_names(self, store: ObjectStore, prefix: str) -> set[str]:
        """All keys below the prefix, temporary ones too. Override it where the medium shows more than list() does."""
        return {meta.key for meta in store.list(f"{prefix}/")}

    def decides_races_of_completes(self, store: ObjectStore) -> bool:
        """Whether of two complete() at one moment exactly one wins. Override it for a server that does not."""
        return store.capabilities.conditional_complete

    def assert_nothing_else_is_left(self, store: ObjectStore, prefix: str, names: set[str]) -> None:
        """No other name, temporary ones included, and no upload in parts."""
        assert names == self.raw_names(store, prefix)
        if isinstance(store, MultipartStore) and store.capabilities.multipart:
            assert list(store.list_uploads(f"{prefix}/")) == []
