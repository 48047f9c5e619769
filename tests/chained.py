"""The file system ``wherry::`` over a real store, for the tests in tests/filesystem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fsspec

from support import end_agent, stopped_agent, wait_until
from wherry.config import Config
from wherry.filesystem.filesystem import WherryFileSystem
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool


@contextmanager
def chained(
    protocol: str, options: Mapping[str, object], spool: Path, config: Config | None = None
) -> Iterator[WherryFileSystem]:
    """A file system with a spool and an agent of its own, both ended after the block."""
    own: dict[str, object] = {"spool": str(spool)} if config is None else {"spool": str(spool), "config": config}
    with end_agent(spool):
        fs = fsspec.filesystem("wherry", target_protocol=protocol, target_options=dict(options), **own)
        try:
            yield fs
        finally:
            fs.close()


@contextmanager
def held(fs: WherryFileSystem, spool: Path, path: str) -> Iterator[None]:
    """Nothing is uploaded inside the block: the agent and its workers are stopped. `path` is anywhere in the store."""
    fs.exists(path)  # signs on, which starts the agent
    wait_until(lambda: pid_of_agent(Spool(spool)) is not None, what="the agent")
    with stopped_agent(spool):
        yield
