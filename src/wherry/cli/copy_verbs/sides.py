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
    """`sources` opens what is read, `dests` what is written to, with the same options unless SRC has its own."""

    sources: Stores
    dests: Stores
    #: Equal schemes mean one server and one login.
    are_one: bool


class _Stores(Stores):
    """Stores of which only those that are no local folders are opened with the options of the command line."""

    def options(self, scheme: str) -> Mapping[str, object]:
        """As its parent's."""
        return {} if scheme == "file" else super().options(scheme)


class _Sources(Stores):
    """Stores that are only read: links to files are followed wherever they lead, as `wherry put` follows them."""

    def __init__(self, given: Stores) -> None:
        super().__init__(None, None, given.spool, given.pace, given.bar)
        self._given = given

    def options(self, scheme: str) -> Mapping[str, object]:
        """As those given."""
        options = self._given.options(scheme)
        return {"links_within": "/", **options} if scheme == "file" else options


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
    are_one = not source_pairs and source_options_file is None
    with kind(pairs, options_file, spool, pace) as dests:
        given = dests if are_one else kind(source_pairs, source_options_file, spool, pace, dests.bar)
        with _Sources(given) as sources:
            yield Sides(sources, dests, are_one)
