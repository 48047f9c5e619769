"""Copies of stores in memory: what many cases begin with is made once."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

from wherry.backends.memory import MemoryStore
from wherry.uri import StoreURI


def copy_of(store: MemoryStore, uri: StoreURI) -> MemoryStore:
    """Return a store with the same objects, which changes without the other."""
    copied = MemoryStore(uri, {})
    numbers = itertools.count(next(store._root.numbers) + 1)  # etags are numbers: none is given twice
    copied._root = replace(store._root, objects=dict(store._root.objects), numbers=numbers, lock=threading.Lock())
    return copied
