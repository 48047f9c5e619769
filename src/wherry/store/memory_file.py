"""A file in memory, for bytes that are not to reach a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_in_memory() -> Iterator[Path]:
    """An empty file that takes no room on a disk; where the system has none in memory (macOS), a temporary one."""
    if not hasattr(os, "memfd_create"):
        import tempfile  # late: it loads compression libraries

        with tempfile.NamedTemporaryFile(prefix="wherry-read-") as file:
            yield Path(file.name)
        return
    descriptor = os.memfd_create("wherry-read", os.MFD_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
