"""Tools for tests of your own: a conformance suite for stores, and a store that fails by plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.testing.faulty import Fault, FaultyStore

if TYPE_CHECKING:
    from wherry.testing.conformance import StoreConformance

__all__ = ["Fault", "FaultyStore", "StoreConformance"]


def __getattr__(name: str) -> object:
    # Late, because the suite needs pytest, and FaultyStore does not.
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    pytest.register_assert_rewrite("wherry.testing.conformance")
    from wherry.testing.conformance import StoreConformance

    return StoreConformance
