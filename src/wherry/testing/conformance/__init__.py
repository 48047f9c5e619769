"""The laws of the object store contract, as tests. A backend's author writes:

    from wherry.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self):
            with MyStore(parse_uri("my://bucket"), {}) as store:
                yield store

Where a store's Capabilities say that it cannot do something, the weaker law of the contract is tested instead.
"""

import pytest

# Before the laws are imported: pytest rewrites their asserts then, so that they show what they compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("copies", "joins", "listing_laws", "objects", "part_laws", "suite", "support"))
)

from wherry.testing.conformance.copies import CopyLaws  # noqa: E402
from wherry.testing.conformance.joins import JoinLaws  # noqa: E402
from wherry.testing.conformance.listing_laws import ListingLaws  # noqa: E402
from wherry.testing.conformance.objects import ObjectLaws  # noqa: E402
from wherry.testing.conformance.part_laws import PartLaws  # noqa: E402


class StoreConformance(ObjectLaws, ListingLaws, PartLaws, JoinLaws, CopyLaws):
    """The suite. A subclass gives the fixture `store`, and may override what `StoreSuite` has."""
