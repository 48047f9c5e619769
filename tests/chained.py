"""The file system ``wherry::`` over a real store, for the tests in tests/filesystem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fsspec

from support import end_agent
from wherry.config import Config
from wherry.filesystem import WherryFileSystem


@contextmanager
def chained(
    protocol: str, options: Mapping[str, object], spool: Path, config: Config | None = None
) -> Iterator[WherryFileSystem]:
    """A file system with a spool and an agent of its own, both ended after the block."""
    with end_agent(spool):
        fs = fsspec.filesystem("wherry", target_protocol=protocol, target_options=dict(options), spool=str(spool), config=config)
        try:
            yield fs
        finally:
            fs.close()
