"""For the fault matrix: its servers, and the tables that are printed when the run is over. A plugin of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from servers.gcs_server import strict_gcs
from servers.real import S3Server, fast_folder
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from servers.worlds import World

#: The property that a cell's test records: (table, row, column, variant).
CELL = "fault-matrix-cell"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table for each half of the matrix that was run: a row a fault, a column a kind of transfer."""
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for outcome, mark in (("passed", "ok"), ("failed", "FAILED")):
        for report in terminalreporter.getreports(outcome):
            for name, value in getattr(report, "user_properties", ()):
                if name == CELL and report.when == "call":
                    table, row, column, variant = value
                    marks = found.setdefault(table, {}).setdefault(row, {}).setdefault(column, [])
                    marks.append(f"{variant} {mark}".strip())
    for table, rows in found.items():
        columns = sorted({column for cells in rows.values() for column in cells})
        lines = [["", *columns]]
        lines += [[row, *(" ".join(cells.get(column, ["-"])) for column in columns)] for row, cells in rows.items()]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
        terminalreporter.section(f"fault matrix: {table}")
        for line in lines:
            terminalreporter.line("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


@pytest.fixture
def worlds(request: pytest.FixtureRequest) -> Callable[[str], World]:
    """A world by its name, "S3" or "GCS"; its server runs from its first use on.

    The request is the test's own: one that was kept may ask for a world that was torn down, when xdist gives a worker more to do
    after what was to be its last test.
    """
    return lambda name: request.getfixturevalue(f"{name.lower()}_world")


# The vendors' libraries are imported late: this plugin is loaded in every run.


@pytest.fixture(scope="session")
def s3_world(seaweedfs_server: S3Server) -> Iterator[World]:
    from servers.worlds import S3World
    from wherry.backends.s3.store import S3Store

    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        yield S3World(seaweedfs_server, store)


@pytest.fixture(scope="session")
def gcs_world() -> Iterator[World]:
    from servers.worlds import GCSWorld
    from wherry.backends.gcs.store import GCSStore

    with (
        fast_folder() as folder,
        strict_gcs(folder) as server,
        GCSStore(StoreURI("gs", server.bucket), server.options) as store,
    ):
        yield GCSWorld(server, store)


@pytest.fixture
def note_cell(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Tell the tables which cell a test is."""

    def note_cell(table: str, row: str, store: str, kind: str, variant: str = "") -> None:
        record_property(CELL, (table, row, f"{store} {kind}", variant))

    return note_cell
