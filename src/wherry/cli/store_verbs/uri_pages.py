"""What URIs name, page by page: the memory of a page, however many objects there are. For the verbs that only look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wherry.cli.arguments import bucket_hint, is_folder_like, parse_target, split_target
from wherry.cli.store_verbs.patterns import Rules, is_pattern, literal_start, matches, matches_folder_of
from wherry.cli.store_verbs.pruned import pages_below
from wherry.cli.store_verbs.selection import Stores
from wherry.cli.words import word
from wherry.errors import ConfigError, NotFoundError
from wherry.mirror.format.layout import key_for
from wherry.posix.thread_pool import DaemonThreadPool, result_of
from wherry.store import Page
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from wherry.spool.overlay import QueuedOverlay


@dataclass(frozen=True)
class Listing:
    """The objects, and the folders of one level, that a URI names."""

    folder: StoreURI
    #: What names are relative to: the beginning of keys, which ends in a slash or is empty.
    base: str
    pages: Iterator[Page]
    #: What is still queued for upload here: key -> word.
    queued: dict[str, str]

    def name_of(self, key: str) -> str:
        """What it is called below the folder; an object that is called like the folder by its last part."""
        return key[len(self.base) :] if key.startswith(self.base) else key.rpartition("/")[2]


def entries(stores: Stores, uri: str, rules: Rules, *, recursive: bool) -> Listing:
    """Look up a URI: the object of that name and what is below it, one level or all; or what is of a pattern.

    The pages raise NotFoundError if there is nothing, unless a whole bucket was named.
    """
    target = parse_target(uri)
    if is_pattern(target.root):
        raise ConfigError(f"{uri!r}: a pattern may stand for names in a bucket, not for buckets: name one")
    above, name = (target, "") if is_folder_like(uri) else split_target(uri)
    if is_pattern(target.prefix):
        fixed = literal_start(target.prefix).rpartition("/")[0]
        folder, base = replace(target, prefix=fixed), f"{fixed}/" if fixed else ""
    else:
        folder, base = above, f"{target.prefix}/" if target.prefix else ""
    store = stores.open(folder)
    view = store.view()
    if is_pattern(target.prefix):
        pages = _matching(view, base, target.prefix[len(base) :].split("/"), recursive=recursive)
        if uri.endswith("/") and not recursive:
            pages = (replace(page, objects=[]) for page in pages)
    elif name:
        below = pages_below(store, base, rules) if recursive else view.pages(base, one_level=True)
        pages = _named(view, key_for(folder.prefix, name), below)
    else:
        pages = pages_below(store, base, rules) if recursive else view.pages(base, one_level=True)
    queued = {job.key: word(job.state) for job in view.queued_under(folder.prefix)}
    listing = Listing(folder, base, pages, queued)
    return replace(listing, pages=_taken(listing, rules, uri))


def _named(view: QueuedOverlay, key: str, below: Iterator[Page]) -> Iterator[Page]:
    """The object `key`, which is the first of those that begin so, and what is `below` it."""
    first = next(view.pages(key, one_level=True), Page([]))
    if own := [meta for meta in first.objects if meta.key == key]:
        yield Page(own)
    if first.mark is not None or f"{key}/" in first.folders:
        yield from below


def _matching(view: QueuedOverlay, base: str, parts: list[str], *, recursive: bool) -> Iterator[Page]:
    """What is of the pattern below `base`: level by level, so that folders which cannot match are not read."""
    part, rest = parts[0], parts[1:]
    if rest and not is_pattern(part):
        yield from _matching(view, f"{base}{part}/", rest, recursive=recursive)
        return
    if part == "**":
        is_taken, pattern = matches_folder_of if recursive else matches, "/".join(parts)
        for page in view.pages(base):
            yield Page([meta for meta in page.objects if is_taken(pattern, meta.key[len(base) :])])
        return
    for page in view.pages(base + literal_start(part), one_level=True):
        objects = [meta for meta in page.objects if not rest and fnmatchcase(meta.key[len(base) :], part)]
        folders = [folder for folder in page.folders if fnmatchcase(folder[len(base) : -1], part)]
        yield Page(objects, folders if not rest and not recursive else [])
        for folder in folders if rest or recursive else []:
            yield from _matching(view, folder, rest, recursive=recursive) if rest else view.pages(folder)


def read_ahead(pages: Iterator[Page]) -> Iterator[Page]:
    """The same; while one page is worked on, the next is on its way."""
    pool = DaemonThreadPool(1, "wherry-pages")
    try:
        coming = pool.submit(next, pages, None)
        while (page := result_of(coming)) is not None:
            coming = pool.submit(next, pages, None)
            yield page
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _taken(listing: Listing, rules: Rules, uri: str) -> Iterator[Page]:
    """The pages, less what the rules leave out and the empty objects that consoles make in the place of folders."""
    is_any = is_taken = False
    for page in read_ahead(listing.pages):
        is_any = is_any or bool(page.objects or page.folders)
        objects = [meta for meta in page.objects if not (meta.key.endswith("/") and meta.size_bytes == 0)]
        folders = page.folders
        if rules:
            objects = [meta for meta in objects if rules.take(listing.name_of(meta.key))]
            folders = [folder for folder in folders if rules.take(listing.name_of(folder))]
        is_taken = is_taken or bool(objects or folders)
        yield replace(page, objects=objects, folders=folders)
    if is_any and not is_taken and rules:
        raise NotFoundError("nothing is taken by --include and --exclude", operation="list", uri=uri)
    if not is_any and parse_target(uri).prefix:
        is_glob = is_pattern(parse_target(uri).prefix)
        what = "there is nothing of this pattern" if is_glob else "there is no object of this name or below it"
        hint = "a character that is no pattern is written [*], [?] or [[]" if is_glob else bucket_hint(uri)
        raise NotFoundError(what, operation="list", uri=uri, hint=hint)
