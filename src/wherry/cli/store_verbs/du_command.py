"""``wherry du``: how much room objects take, by folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import FileOption, JsonOption, PairsOption, SpoolOption, print_out, printable, spool_folder
from wherry.cli.shell.narrow_table import shortened
from wherry.cli.shell.terminal_output import columns
from wherry.cli.store_verbs.ls_command import BytesOption, LookedAtArgument, readable_size
from wherry.cli.store_verbs.patterns import ExcludeFileOption, ExcludeOption, IncludeFileOption, IncludeOption, Rules
from wherry.cli.store_verbs.selection import Stores
from wherry.cli.store_verbs.uri_pages import Listing, entries
from wherry.config import TERMINAL_RETRY
from wherry.errors import AccessDeniedError, PermanentError
from wherry.mirror.report import printable as shown_name
from wherry.quantities import count_text, size_text, time_text

if TYPE_CHECKING:
    from wherry.store import ObjectMeta, PendingUpload


def du(
    uris: LookedAtArgument,
    depth: Annotated[
        int | None,
        typer.Option("--depth", "-d", metavar="N", min=0, help="Folders down to N levels; default 1, of several URIs 0."),
    ] = None,
    summarize: Annotated[bool, typer.Option("--summarize", "-s", help="A total for each URI, as --depth 0.")] = False,
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
    """Show how much room folders take: size, objects, name; the largest first.

    All objects below are listed for that, once. The last lines have the total
    and, where the store can tell, the uploads in parts that nobody completed:
    they take room, too, and are in no total.
    """
    levels = 0 if summarize else depth if depth is not None else 1 if len(uris) == 1 else 0
    rules = Rules(include, exclude, include_from, exclude_from)
    total, rows, pending = _Sum(""), dict[str, _Sum](), _Pending()
    with Stores(option, options_file, spool_folder(spool), retry=TERMINAL_RETRY) as stores:
        for uri in uris:
            listing = entries(stores, uri, rules, recursive=True)
            for page in listing.pages:
                for meta in page.objects:
                    total.add(meta)
                    for name, whole in _sums_of(listing, meta, levels, uri):
                        rows.setdefault(whole, _Sum(name if len(uris) == 1 else whole)).add(meta)
            pending.look(stores, listing)
    _show(rows, total, pending, in_bytes=in_bytes, as_json=as_json)


@dataclass
class _Sum:
    name: str
    n_objects: int = 0
    n_bytes: int = 0

    def add(self, meta: ObjectMeta) -> None:
        self.n_objects += 1
        self.n_bytes += readable_size(meta) or 0


@dataclass
class _Pending:
    """Uploads in parts that are under way or were left behind."""

    uploads: set[PendingUpload] = field(default_factory=set)
    #: False where a store cannot say, or may not.
    is_known: bool = True

    def look(self, stores: Stores, listing: Listing) -> None:
        view = stores.open(listing.folder).view()
        found: set[PendingUpload] = set()
        is_known = False
        if view.capabilities.multipart and not view.capabilities.sequential_parts:
            with suppress(AccessDeniedError, PermanentError):
                found = set(view.list_uploads(listing.base))
                is_known = True
        self.uploads |= found
        self.is_known = self.is_known and is_known

    def text(self) -> str:
        """Empty where there is nothing to say."""
        if not self.uploads:
            return ""
        count = count_text(len(self.uploads), "incomplete upload")
        oldest = time_text(min(upload.begun_s for upload in self.uploads))
        return f"not counted: {count} in parts, the oldest begun {oldest}; old ones of wherry's go by wherry doctor --clean URI"


def _sums_of(listing: Listing, meta: ObjectMeta, levels: int, uri: str) -> Iterator[tuple[str, str]]:
    """What an object counts to: the name and the URI of each folder above it, or of all."""
    if levels == 0:
        yield uri, uri
        return
    parts = listing.name_of(meta.key).split("/")[:-1][:levels]
    for n in range(1, len(parts) + 1):
        name = "/".join(parts[:n]) + "/"
        yield name, listing.folder.uri_for(listing.base + name)


def _show(rows: dict[str, _Sum], total: _Sum, pending: _Pending, *, in_bytes: bool, as_json: bool) -> None:
    width = columns()
    for uri, row in sorted(rows.items(), key=lambda each: (-each[1].n_bytes, each[0])):
        if as_json:
            print_out(json.dumps({"uri": uri, "name": row.name, "size_bytes": row.n_bytes, "objects": row.n_objects}))
        else:
            size = str(row.n_bytes) if in_bytes else size_text(row.n_bytes)
            head = f"{size:>10}  {row.n_objects:>9}  "
            print_out(head + shortened(printable(shown_name(row.name)), None if width is None else width - len(head)))
    if as_json:
        n_pending = len(pending.uploads) if pending.is_known else None
        print_out(json.dumps({"summary": {"objects": total.n_objects, "bytes": total.n_bytes, "incomplete_uploads": n_pending}}))
        return
    size = f"{total.n_bytes} bytes" if in_bytes else size_text(total.n_bytes)
    print_out(f"total: {count_text(total.n_objects, 'object')}, {size}")
    if words := pending.text():
        print_out(words)
