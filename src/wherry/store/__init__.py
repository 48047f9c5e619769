"""What any object store is: the contract of a backend, and what every store is wrapped in.

`contract.py` is offered here, so that a backend's author writes ``from wherry.store import ObjectStore``.
"""

from wherry.store.contract import (
    CRC32C_METADATA,
    PAGE_ENTRIES,
    RANGES_METADATA,
    TEMPORARY_MARK,
    TOKEN_METADATA,
    BucketMeta,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    ObjectStore,
    Page,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
)
from wherry.store.key_order import order_of, rest_after, start_within
from wherry.store.memory_file import file_in_memory

__all__ = [
    "CRC32C_METADATA",
    "PAGE_ENTRIES",
    "RANGES_METADATA",
    "TEMPORARY_MARK",
    "TOKEN_METADATA",
    "BucketMeta",
    "Capabilities",
    "MultipartStore",
    "ObjectMeta",
    "ObjectStore",
    "Page",
    "Part",
    "PendingUpload",
    "PutOptions",
    "StoredPart",
    "TakeBlock",
    "file_in_memory",
    "order_of",
    "rest_after",
    "start_within",
]
