"""A mirrored prefix, opened for a command that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from wherry.cli.arguments import open_target

if TYPE_CHECKING:
    from wherry.mirror.reader.reader import MirrorReader
    from wherry.store import ObjectStore
    from wherry.uri import StoreURI


@contextmanager
def reader_of(
    uri: str, option: list[str] | None, options_file: str | None
) -> Iterator[tuple[MirrorReader, StoreURI, ObjectStore]]:
    """A reader of a mirrored prefix, with a scratch folder of its own."""
    from wherry.mirror.reader.pull import open_for_reading
    from wherry.mirror.reader.reader import MirrorReader

    target, options = open_target(uri, option, options_file)
    with (
        TemporaryDirectory(prefix="wherry-") as scratch,
        open_for_reading(target, options) as store,
        MirrorReader(store, target.prefix, scratch=Path(scratch)) as reader,
    ):
        yield reader, target, store
