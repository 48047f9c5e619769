"""The two sides of a copy: the stores that are read and those that are written to, and the options that open them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import parse_target
from wherry.cli.store_verbs.selection import Stores

if TYPE_CHECKING:
    from wherry.store.governor import Governor

SourcePairsOption = Annotated[
    list[str] | None,
    typer.Option("--source-option", metavar="KEY=VALUE", help="As --option, of SRC, where that is another server than DST."),
]
SourceFileOption = Annotated[
    str | None,
    typer.Option("--source-options-file", metavar="FILE", help="As --options-file, of SRC, where that is another server."),
]


@dataclass(frozen=True)
class Sides:
    """`sources` opens what is read, `dests` what is written to: one and the same unless SRC has options of its own."""

    sources: Stores
    dests: Stores

    @property
    def are_one(self) -> bool:
        """Whether equal schemes mean one server and one login."""
        return self.sources is self.dests


class _Stores(Stores):
    """Stores of which only those that are no local folders are opened with the options of the command line."""

    def options(self, scheme: str) -> Mapping[str, object]:
        """As its parent's."""
        return {} if scheme == "file" else super().options(scheme)


@contextmanager
def open_sides(
    places: Sequence[str],
    pairs: Sequence[str] | None,
    options_file: str | None,
    source_pairs: Sequence[str] | None,
    source_options_file: str | None,
    spool: Path,
    pace: Governor | None = None,
) -> Iterator[Sides]:
    """The sides of a command about `places`, its sources and its destination; `pace` holds for both together."""
    kind = _Stores if any(parse_target(place).scheme != "file" for place in places) else Stores
    with kind(pairs, options_file, spool, pace) as stores:
        if not source_pairs and source_options_file is None:
            yield Sides(stores, stores)
            return
        with kind(source_pairs, source_options_file, spool, pace, stores.bar) as sources:
            yield Sides(sources, stores)
