"""Objects to standard output, each when all of it is verified."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.arguments import parse_target, print_err
from wherry.cli.shell.verbosity import is_quiet, is_verbose
from wherry.cli.store_verbs.patterns import Rules, is_pattern
from wherry.cli.store_verbs.selection import Source, Stores, choose, or_folder

if TYPE_CHECKING:
    from wherry.uploader import Uploader
    from wherry.uri import StoreURI


def write_all(stores: Stores, uris: Sequence[str], rules: Rules, *, recursive: bool, verb: str) -> None:
    """Write what the URIs name to standard output, one object after another."""
    for uri in uris:
        may_be_live = not (recursive or is_pattern(parse_target(uri).prefix))
        for source in choose(stores, uri, rules, recursive=recursive, verb=verb):
            _write(source, stores.options(source.store.uri.scheme), verb, may_be_live=may_be_live)


def _write(source: Source, options: Mapping[str, object], verb: str, *, may_be_live: bool) -> None:
    import shutil
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="wherry-") as folder:
        path = Path(folder, "object")
        if not (may_be_live and _copy_live(source.store, source.name, path, options)):
            with or_folder(source, verb):
                source.fetch(path, progress_bar=not (sys.stdout.isatty() or is_quiet()))
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 2**20)
        sys.stdout.buffer.flush()
    if is_verbose():
        print_err(f"written {source.uri}")


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
