"""Listings of local folders that do not enter what --exclude leaves out: it may be closed to us, and it may be huge.

A store's listing costs one request for a thousand names, whatever folders they are in: there all of it is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from wherry.cli.store_verbs.patterns import Rules
from wherry.errors import AccessDeniedError
from wherry.store import PAGE_ENTRIES, ObjectMeta, Page, order_of

if TYPE_CHECKING:
    from wherry.spool.overlay import QueuedOverlay
    from wherry.uploader import Uploader

_SPECIAL = re.compile(r"([\\*?\[\]!# ])")


def pages_below(store: Uploader, base: str, rules: Rules, start: str = "") -> Iterator[Page]:
    """Pages of all keys that begin with `base` and `start`; `folders` are those left out. Rules see what follows `base`.

    Of a local folder that may not be read, AccessDeniedError has the rule that leaves it out.
    """
    view = store.view()
    if store.uri.scheme != "file":
        yield from view.pages(base + start)
        return
    try:
        if not rules.may_leave_out:
            yield from view.pages(base + start)
            return
        found = _walk(view, base + start, len(base), rules)
        while some := list(islice(found, PAGE_ENTRIES)):
            yield Page([each for each in some if not isinstance(each, str)], [each for each in some if isinstance(each, str)])
    except AccessDeniedError as error:
        error.hint = error.hint or _remedy(error.uri, base)
        raise


def objects_below(store: Uploader, base: str, rules: Rules, left_out: list[str], start: str = "") -> Iterator[ObjectMeta]:
    """As Uploader.list(), in the order of names; `base` is a name, too. Folders that were not entered are added to `left_out`."""
    if store.uri.scheme != "file":
        yield from store.list(base + start)
        return
    above = f"{store.uri.prefix}/" if store.uri.prefix else ""
    for page in pages_below(store, above + base, rules, start):
        left_out += page.folders
        for meta in page.objects:
            yield replace(meta, key=store.uri.name_for(meta.key))


def _walk(view: QueuedOverlay, prefix: str, n_base: int, rules: Rules) -> Iterator[ObjectMeta | str]:
    """The objects in the order of their keys, and the folders that are not entered."""
    for page in view.pages(prefix, one_level=True):
        found: list[tuple[str, ObjectMeta | str]] = [(meta.key, meta) for meta in page.objects]
        found += [(folder, folder) for folder in page.folders]
        for key, each in sorted(found, key=lambda one: order_of(one[0])):
            if not isinstance(each, str) or rules.leave_out(key[n_base:]):
                yield each
            else:
                yield from _walk(view, key, n_base, rules)


def _remedy(uri: str, base: str) -> str:
    """What to do about a folder that is closed to us; `uri` ends in a slash."""
    name = uri.removeprefix(f"file:///{base}")
    if name in ("", uri):
        return "let this user read it"
    rule = "/" + _SPECIAL.sub(r"\\\1", name)
    quoted = shlex.quote(rule) if "'" in rule else f"'{rule}'"
    return f"let this user read it, or leave it out: --exclude {quoted}"
