"""Fault x store x size, for downloads by the real downloader from real servers behind the fault proxy.

A cell's oracle: the file is there, with the right bytes, or the right error and no file; nothing lies beside it; each row of
the plan has really acted; no more was fetched again than was lost.

`tests/servers/matrix.py` prints the table; docs/faults.md shows it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from servers.proxy import (
    Action,
    Answer,
    Corrupt,
    CutAnswer,
    Delay,
    Do,
    DropAnswer,
    Extend,
    Reset,
    Throttle,
    Truncate,
    When,
    fault_proxy,
)
from servers.worlds import IMPATIENCE_S, OTHER, RANGE_BYTES, SMALL_BYTES, World, slug, some_bytes, uploader_of
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, IntegrityError, NotFoundError, StoreError
from wherry.store import PutOptions
from wherry.store.registry import open_store
from wherry.uri import StoreURI


@pytest.fixture
def key() -> str:
    return f"matrix/{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Download:
    """One download to come, and the request that the fault is for: the first of a small object, the second of a large one."""

    world: World
    kind: Literal["small", "large"]
    key: str
    folder: Path

    @property
    def data(self) -> bytes:
        """The object: of one range, or of five, the last of one byte."""
        return some_bytes(SMALL_BYTES if self.kind == "small" else 4 * RANGE_BYTES + 1)

    @property
    def n_ranges(self) -> int:
        return -(-len(self.data) // RANGE_BYTES)

    @property
    def half(self) -> int:
        """Half of what the request asks for."""
        return min(len(self.data), RANGE_BYTES) // 2

    def at(self, action: Action, nth: int = 1, times: int = 1) -> When:
        """The action, for a request of a range."""
        return When(*self.world.get(self.key), action, nth + (self.kind == "large"), times)

    def look(self, action: Action, nth: int = 1) -> When:
        return When(*self.world.look(self.key), action, nth)

    def error(self, code: str, **options: object) -> Answer:
        return self.world.error(code, **options)

    def write(self, data: bytes) -> None:
        source = self.folder / "source"
        source.write_bytes(data)
        self.world.store.put_file(self.key, source, PutOptions(crc32c=crc32c(data)))
        source.unlink()

    def write_other(self) -> None:
        """Replace the object by another of the same size."""
        self.write(self.data[::-1])

    def delete(self) -> None:
        self.world.store.delete(self.key)


@dataclass(frozen=True)
class DownloadRow:
    """A fault, and how the download must end."""

    name: str
    plan: Callable[[Download], list[When]]
    fails: type[Exception] | None = None
    #: How many ranges may be fetched again for each request that was acted on. None: all of them.
    again: int | None = 1
    is_replaced: bool = False
    is_gone: bool = False
    is_slow: bool = False


DOWNLOADS = [
    DownloadRow("late answer", lambda d: [d.at(Delay(0.1))]),
    DownloadRow("slow line", lambda d: [d.at(Throttle(8 * d.half))]),
    DownloadRow("no answer: reset", lambda d: [d.at(DropAnswer())]),
    DownloadRow("no answer: closed", lambda d: [d.at(DropAnswer("close"))]),
    DownloadRow("no answer: silence", lambda d: [d.at(DropAnswer("hang"))], is_slow=True),
    DownloadRow("reset in the body", lambda d: [d.at(CutAnswer(d.half))]),
    DownloadRow("closed in the body", lambda d: [d.at(CutAnswer(d.half, "close"))]),
    DownloadRow("silence in the body", lambda d: [d.at(CutAnswer(d.half, "hang"))], is_slow=True),
    DownloadRow("body short", lambda d: [d.at(Truncate(1))]),
    DownloadRow("body short, length agrees", lambda d: [d.at(Truncate(1, rewrite_length=True))]),
    DownloadRow("body too long, length agrees", lambda d: [d.at(Extend(OTHER, rewrite_length=True))], again=None),
    DownloadRow("bytes after the body", lambda d: [d.at(Extend(OTHER))]),
    DownloadRow("a byte corrupted", lambda d: [d.at(Corrupt(d.half))], again=None),
    DownloadRow("a byte corrupted, and again", lambda d: [d.at(Corrupt(d.half), times=1000)], fails=IntegrityError, again=None),
    DownloadRow("503 SlowDown, twice", lambda d: [d.at(d.error("SlowDown"), times=2)]),
    DownloadRow("429, Retry-After: 1", lambda d: [d.at(d.error("TooManyRequests", retry_after_s=1))]),
    DownloadRow("500, three times", lambda d: [d.at(d.error("InternalError"), times=3)]),
    DownloadRow("200 without words", lambda d: [d.at(Answer(200))], again=None),
    DownloadRow("200 of somebody else", lambda d: [d.at(Answer(200, b"<html>Log in</html>"))], again=None),
    DownloadRow("200 of somebody else, long", lambda d: [d.at(Answer(200, b"<html>" * RANGE_BYTES))], again=None),
    DownloadRow("look: reset, 500", lambda d: [d.look(Reset()), d.look(d.error("InternalError"), 2)]),
    DownloadRow("replaced meanwhile", lambda d: [d.at(Do(d.write_other))], is_replaced=True, again=None),
    DownloadRow("replaced, then reset", lambda d: [d.at(Do(d.write_other)), d.at(Reset())], is_replaced=True, again=None),
    DownloadRow("deleted meanwhile", lambda d: [d.at(Do(d.delete))], fails=NotFoundError, is_gone=True),
    DownloadRow("403 AccessDenied", lambda d: [d.at(d.error("AccessDenied"))], fails=AccessDeniedError),
    DownloadRow("credentials expired", lambda d: [d.at(d.error("ExpiredToken"))], fails=AccessDeniedError),
]


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("store", ["S3", "GCS"])
@pytest.mark.parametrize("row", DOWNLOADS, ids=lambda row: slug(row.name))
def test_a_download_survives_the_fault_or_says_why_not(
    row: DownloadRow,
    store: str,
    kind: Literal["small", "large"],
    worlds: Callable[[str], World],
    key: str,
    tmp_path: Path,
    note_cell: Callable[..., None],
) -> None:
    note_cell("downloads", row.name, store, kind)
    cell = Download(worlds(store), kind, key, tmp_path)
    cell.write(cell.data)
    expected = cell.data[::-1] if row.is_replaced else cell.data
    destination = tmp_path / "down" / "file"
    with fault_proxy("127.0.0.1", cell.world.server.port, row.plan(cell)) as proxy:
        timeout_s = IMPATIENCE_S if row.is_slow else None
        with uploader_of(cell.world, key, tmp_path, proxy.url, timeout_s) as (uploader, name):
            if row.fails is None:
                assert crc32c(expected) == uploader.get(name, destination).crc32c
            else:
                with pytest.raises(row.fails):
                    uploader.get(name, destination)
                assert not destination.exists()
    assert row.plan(cell)[0].times == 1000 or [] == proxy.unfired
    if row.again is not None and not row.is_slow:  # a loaded machine lets requests time out that no fault has met
        assert len(proxy.requests(*cell.world.get(key))) <= cell.n_ranges + row.again * sum(proxy.fired)
    if row.is_gone:
        cell.write(expected)
    if row.fails is not None:  # over a way without faults it comes after all
        with uploader_of(cell.world, key, tmp_path, cell.world.server.url) as (uploader, name):
            uploader.get(name, destination)
    assert expected == destination.read_bytes()
    assert [destination] == list(destination.parent.iterdir())


@pytest.mark.parametrize("store", ["S3", "GCS"])
@pytest.mark.parametrize("action", [Extend(b"x" * 30, rewrite_length=True), Extend(b"x" * 30), Truncate(3), CutAnswer(3)])
def test_a_wrong_answer_never_writes_beside_its_range(
    store: str, action: Action, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    """The ranges beside it may be there already, and summed."""
    cell = Download(worlds(store), "small", key, tmp_path)
    cell.write(bytes(100))
    target = tmp_path / "target"
    target.write_bytes(b"." * 100)
    with fault_proxy("127.0.0.1", cell.world.server.port, [cell.at(action)]) as proxy:
        uri = StoreURI(cell.world.scheme, cell.world.server.bucket)
        with open_store(uri, cell.world.options(proxy.url, None)) as bare, suppress(StoreError):
            bare.get_file(key, target, start=40, end=50)
    assert [] == proxy.unfired
    found = target.read_bytes()
    assert (b"." * 40, b"." * 50) == (found[:40], found[50:])


def test_the_page_shows_every_row() -> None:
    """With how the download ends."""
    assert table() in (Path(__file__).parents[2] / "docs" / "faults.md").read_text()


def table() -> str:
    lines = ["| fault | S3 small, large | GCS small, large | ends |", "| --- | --- | --- | --- |"]
    for row in DOWNLOADS:
        ends = row.fails.__name__ if row.fails is not None else "the newer object arrives" if row.is_replaced else "arrives"
        lines.append(f"| {row.name} | both | both | {ends} |")
    return "\n".join(lines) + "\n"
