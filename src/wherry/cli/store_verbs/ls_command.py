"""``wherry ls``: what stores have, as a stream."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import FileOption, JsonOption, PairsOption, SpoolOption, printable, spool_folder, storage_options
from wherry.cli.shell.narrow_table import shortened
from wherry.cli.shell.terminal_output import columns
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules
from wherry.cli.store_verbs.selection import Stores
from wherry.cli.store_verbs.uri_pages import Listing, entries
from wherry.config import TERMINAL_RETRY
from wherry.mirror.format.layout import MOST_BYTES
from wherry.mirror.report import printable as shown_name
from wherry.quantities import count_text, size_text, time_text

if TYPE_CHECKING:
    from wherry.store import ObjectMeta, Page

#: Terminals with fewer columns have no room for times beside names.
_WITH_TIMES = 64
#: A URI of all buckets.
_ALL_BUCKETS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

BytesOption = Annotated[bool, typer.Option("--bytes", "-b", help="Sizes as plain numbers of bytes.")]
LookedAtArgument = Annotated[
    list[str],
    typer.Argument(metavar="URI", help="A prefix, an object, a bucket, a pattern; s3:// for all buckets.", show_default=False),
]


def ls(
    uris: LookedAtArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="All objects below, not one level.")] = False,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    include_from: IncludeFileOption = None,
    exclude_from: ExcludeFileOption = None,
    in_bytes: BytesOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objects and folders: size, date, name.

    One level is listed, in the order of the store; names are relative to the
    URI, of several URIs they are whole. The last line has the totals. What is
    still queued for upload on this machine comes first, and is marked so.
    """
    rules = Rules(include, exclude, include_from, exclude_from)
    rows = _json_lines if as_json else _lines(is_whole=len(uris) > 1, in_bytes=in_bytes)
    totals = _Totals()
    with Stores(option, options_file, spool_folder(spool), retry=TERMINAL_RETRY) as stores:
        for uri in uris:
            if every := _ALL_BUCKETS.fullmatch(uri):
                totals.n_buckets += _list_buckets(every[1].lower(), option, options_file, as_json=as_json)
                continue
            listing = entries(stores, uri, rules, recursive=recursive)
            for page in listing.pages:
                totals.add(page)
                _write(rows(listing, page))
    _write([json.dumps({"summary": totals.as_dict()}) if as_json else totals.text(in_bytes=in_bytes)])


@dataclass
class _Totals:
    n_objects: int = 0
    n_bytes: int = 0
    n_folders: int = 0
    n_buckets: int = 0

    def add(self, page: Page) -> None:
        self.n_objects += len(page.objects)
        self.n_folders += len(page.folders)
        self.n_bytes += sum(meta.size_bytes for meta in page.objects if 0 <= meta.size_bytes <= MOST_BYTES)

    def as_dict(self) -> dict[str, int]:
        return {"objects": self.n_objects, "bytes": self.n_bytes, "folders": self.n_folders, "buckets": self.n_buckets}

    def text(self, *, in_bytes: bool) -> str:
        buckets, folders = (
            f"{count} {what}{'' if count == 1 else 's'}"
            for count, what in ((self.n_buckets, "bucket"), (self.n_folders, "folder"))
        )
        if self.n_buckets and not self.n_objects:
            return f"total: {buckets}"
        size = f"{self.n_bytes} bytes" if in_bytes else size_text(self.n_bytes)
        objects = f"{count_text(self.n_objects, 'object')}, {size}"
        return f"total: {objects}{f', {folders}' if self.n_folders else ''}"


def readable_size(meta: ObjectMeta) -> int | None:
    """The object's size; None where a listing gives none that can be."""
    return meta.size_bytes if 0 <= meta.size_bytes <= MOST_BYTES else None


def _shown_time(at_s: float | None) -> str:
    return _to_the_second(math.floor(at_s)) if at_s is not None and math.isfinite(at_s) else time_text(at_s)


#: Most objects of a page were written in a few seconds.
_to_the_second = lru_cache(4096)(time_text)


def _in_order(page: Page) -> Iterator[tuple[str, ObjectMeta | None]]:
    """The entries of a page by their names, folders among the objects."""
    objects: Iterator[tuple[str, ObjectMeta | None]] = ((meta.key, meta) for meta in page.objects)
    if not page.folders:
        return objects
    folders: list[tuple[str, ObjectMeta | None]] = [(folder, None) for folder in page.folders]
    return iter(sorted([*objects, *folders], key=lambda each: each[0]))


def line_of(size: str, time: str, name: str, width: int | None, mark: str = "") -> str:
    """A line of the listing. On a terminal of `width` columns the name loses its middle, and where it is narrow the time goes."""
    if width is None:
        return f"{size:>10}  {time:25}  {name}{mark}"
    head = f"{size:>10}  {time:25}  " if width >= _WITH_TIMES else f"{size:>10}  "
    return f"{head}{shortened(name, width - len(head) - len(mark))}{mark}"


def _lines(*, is_whole: bool, in_bytes: bool) -> Callable[[Listing, Page], list[str]]:
    width = columns()

    def row(listing: Listing, key: str, meta: ObjectMeta | None) -> str:
        name = printable(shown_name(listing.folder.uri_for(key) if is_whole else listing.name_of(key)))
        if meta is None:
            return line_of("folder", "", name, width)
        size_bytes = readable_size(meta)
        size = "?" if size_bytes is None else str(size_bytes) if in_bytes else size_text(size_bytes)
        mark = f"  ({listing.queued[key]})" if key in listing.queued else ""
        return line_of(size, _shown_time(meta.modified_s), name, width, mark)

    return lambda listing, page: [row(listing, key, meta) for key, meta in _in_order(page)]


def _json_lines(listing: Listing, page: Page) -> list[str]:
    def shown(key: str, meta: ObjectMeta | None) -> dict[str, object]:
        return {
            "uri": listing.folder.uri_for(key),
            "name": listing.name_of(key),
            "size_bytes": None if meta is None else readable_size(meta),
            "modified_s": None if meta is None else meta.modified_s,
            "state": "folder" if meta is None else listing.queued.get(key, "stored"),
        }

    return [json.dumps(shown(key, meta)) for key, meta in _in_order(page)]


def _list_buckets(scheme: str, option: list[str] | None, options_file: str | None, *, as_json: bool) -> int:
    """Write all buckets of the account that the credentials belong to; returns how many there are."""
    from wherry.store.account import list_buckets
    from wherry.uri import SCHEME_ALIASES

    scheme, width = SCHEME_ALIASES.get(scheme, scheme), columns()
    found = list_buckets(scheme, storage_options(scheme, option, options_file))
    for bucket in found:
        uri = f"{scheme}://{bucket.name}"
        shown = {"uri": uri, "name": bucket.name, "created_s": bucket.created_s, "state": "bucket"}
        _write([json.dumps(shown) if as_json else line_of("bucket", time_text(bucket.created_s), printable(uri), width)])
    return len(found)


def _write(lines: Sequence[str]) -> None:
    """Write lines at once: a page of a listing takes one call, not a thousand."""
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
