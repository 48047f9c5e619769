"""``wherry cat``: objects to standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.arguments import FileOption, PairsOption, SpoolOption, parse_target, spool_folder
from wherry.cli.store_verbs.get_command import UrisArgument
from wherry.cli.store_verbs.patterns import Rules, is_pattern
from wherry.cli.store_verbs.selection import Source, Stores, choose, or_folder

if TYPE_CHECKING:
    from wherry.uploader import Uploader
    from wherry.uri import StoreURI


def cat(
    uris: UrisArgument,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
) -> None:
    """Write objects to standard output, one after another, verified.

    Each is downloaded into a temporary file first ($TMPDIR): a program that
    reads the output gets nothing before all of it is known to be right. A file
    that is being mirrored is put together from its segments, as far as it goes.

    Example: wherry cat s3://my-bucket/run1/metrics.json
    """
    with Stores(option, options_file, spool_folder(spool)) as stores:
        for uri in uris:
            for source in choose(stores, uri, Rules(), recursive=False, verb="cat"):
                write_out(source, stores.options(source.store.uri.scheme), may_be_live=not is_pattern(parse_target(uri).prefix))


def write_out(source: Source, options: Mapping[str, object], *, may_be_live: bool = True) -> int:
    """Write one object to standard output when all of it is verified; its size."""
    import shutil
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="wherry-") as folder:
        path = Path(folder, "object")
        if not (may_be_live and _copy_live(source.store, source.name, path, options)):
            with or_folder(source, "cat"):
                source.store.get(source.name, path, progress_bar=not sys.stdout.isatty())
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 2**20)
        sys.stdout.buffer.flush()
        return path.stat().st_size


def _copy_live(uploader: Uploader, name: str, path: Path, options: Mapping[str, object]) -> bool:
    """Assemble a file from the segments of a mirror; False if no mirror has any at or above its place.

    A plain object of its name may be there, too: of an earlier seal, without what came since.
    """
    from wherry.mirror.reader.pull import open_for_reading
    from wherry.mirror.reader.reader import MirrorReader, find_mirror

    folder: StoreURI = uploader.uri
    key, is_local = folder.key_for(name), folder.scheme == "file"
    if (prefix := _local_mirror(key) if is_local else find_mirror(uploader.view(), key)) is None:
        return False
    # A local store shows nothing above its own folder, where the mirror's may be.
    opened = open_for_reading(replace(folder, prefix=prefix), options) if is_local else nullcontext(uploader.view())
    with opened as store, MirrorReader(store, prefix, scratch=path.parent) as reader:
        path_there = key.removeprefix(f"{prefix}/") if prefix else key
        look = reader.snapshot()
        if path_there not in look.broken and not (path_there in look.files and look.files[path_there].segments):
            return False
        with open(path, "wb") as out:
            for block in reader.read(path_there):
                out.write(block)
    return True


def _local_mirror(key: str) -> str | None:
    """The innermost folder above a local file that a mirror writes to, as a prefix."""
    from wherry.mirror.format.layout import FOLDER

    above = (str(folder).strip("/") for folder in Path("/", key).parents)
    return next((prefix for prefix in above if os.path.isdir(f"/{prefix}/{FOLDER}")), None)
