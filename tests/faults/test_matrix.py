"""Fault x store x request x overwrite, for uploads by the real uploader to real servers behind the fault proxy.

A cell's oracle: the upload ends as it must; under its name is the right object and no other; nothing of ours is left over in the
store or in the spool; each row of the plan has really acted; no more was sent again than was lost.

`tests/servers/matrix.py` prints the table; docs/faults.md shows it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from servers.proxy import (
    Action,
    Answer,
    BlackHole,
    Corrupt,
    CutAnswer,
    Delay,
    Do,
    DropAnswer,
    Extend,
    FaultProxy,
    Reset,
    Throttle,
    Truncate,
    When,
    fault_proxy,
)
from servers.real import S3Server
from servers.worlds import (
    DATA_STEPS,
    IMPATIENCE_S,
    MAKING_STEPS,
    OTHER,
    QUICK,
    SMALL_BYTES,
    STEPS,
    Step,
    World,
    object_of,
    slug,
    some_bytes,
    transfer_of,
    uploader_of,
)
from wherry import Uploader
from wherry.checksum import crc32c
from wherry.config import AgentConfig, Config
from wherry.errors import UploadFailed
from wherry.store import PutOptions


@pytest.fixture
def key() -> str:
    return f"matrix/{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Cell:
    """One upload to come: where, of what, and the request that the fault is for."""

    world: World
    step: Step
    overwrite: bool
    key: str
    folder: Path

    @property
    def data(self) -> bytes:
        """What is uploaded."""
        return some_bytes(SMALL_BYTES if self.step == "put" else self.world.large_bytes)

    @property
    def piece_bytes(self) -> int:
        """What one request carries, at most."""
        return min(len(self.data), self.world.part_size_bytes)

    def at(self, action: Action, nth: int = 1, times: int = 1) -> When:
        """The action, for the request of the step: the nth such."""
        method, target, first = self.world.request(self.step, self.key)
        return When(method, target, action, first + nth - 1, times)

    def look(self, action: Action, nth: int = 1) -> When:
        """The action, for a look at the object."""
        return When(*self.world.look(self.key), action, nth)

    def error(self, code: str, **options: object) -> Answer:
        return self.world.error(code, **options)

    def error_in_200(self, *, committed: bool = False) -> Answer:
        return replace(self.error("InternalError", committed=committed), status=200)

    def cleaning(self, action: Action, nth: int = 1) -> When:
        """The action, for what takes back an upload in parts."""
        return When(*self.world.cleaning(self.key), action, nth)

    def write_other(self) -> None:
        """Be another writer of the same name."""
        source = self.folder / "other"
        source.write_bytes(OTHER)
        self.world.store.put_file(self.key, source, PutOptions(crc32c=crc32c(OTHER)))

    @property
    def kept(self) -> bytes | None:
        """What is there when the upload fails: what was there before."""
        return OTHER if self.overwrite else None


@dataclass(frozen=True)
class Row:
    """A fault: what happens on the wire, in which cells, and how the upload must end."""

    name: str
    plan: Callable[[Cell], list[When]]
    steps: tuple[Step, ...] = STEPS
    stores: tuple[str, ...] = ("S3", "GCS")
    overwrite: tuple[bool, ...] = (False, True)
    #: The words of the error that must end it. None: it must succeed.
    fails: str | None = None
    #: The words of the error by which it waits for an operator, who has mended it then.
    waits: str | None = None
    #: Parts that were there are sent again: the store says that it has lost them.
    begins_again: bool = False
    #: It is noticed by a time-out.
    is_slow: bool = False


def then(*actions: Callable[[Cell], Action]) -> Callable[[Cell], list[When]]:
    """A plan: one fault after the other, each for the next attempt of the request."""
    return lambda cell: [cell.at(make(cell), nth) for nth, make in enumerate(actions, 1)]


UPLOADS = [
    Row("late answer", then(lambda c: Delay(0.1))),
    Row("slow line", then(lambda c: Throttle(8 * c.piece_bytes)), DATA_STEPS),
    Row("reset before the body", then(lambda c: Reset())),
    Row("reset in the body", then(lambda c: Reset(c.piece_bytes // 2)), DATA_STEPS),
    Row("reset at the last byte", then(lambda c: Reset(c.piece_bytes - 1)), DATA_STEPS),
    Row("answer lost: reset", then(lambda c: DropAnswer())),
    Row("answer lost: closed", then(lambda c: DropAnswer("close"))),
    Row("answer lost: silence", then(lambda c: DropAnswer("hang")), is_slow=True),
    Row("answer cut after its head", then(lambda c: CutAnswer(0))),
    Row("black hole", then(lambda c: BlackHole()), is_slow=True),
    Row("503 SlowDown, twice", lambda c: [c.at(c.error("SlowDown"), times=2)]),
    Row("429, Retry-After: 1", then(lambda c: c.error("TooManyRequests", retry_after_s=1)), MAKING_STEPS, overwrite=(False,)),
    Row("500, three times", lambda c: [c.at(c.error("InternalError"), times=3)]),
    Row("500, but done", then(lambda c: c.error("InternalError", committed=True))),
    Row("408 or RequestTimeout", then(lambda c: c.error("RequestTimeout")), DATA_STEPS),
    Row("409 conflict", then(lambda c: c.error("ConditionalRequestConflict")), MAKING_STEPS),
    Row("200 with an error", then(lambda c: c.error_in_200())),
    Row("200 with an error, but done", then(lambda c: c.error_in_200(committed=True))),
    Row("200 without words", then(lambda c: Answer(200))),
    Row("200 of somebody else", then(lambda c: Answer(200, b"<html>Log in</html>", (("Content-Type", "text/html"),)))),
    Row("answer short", then(lambda c: Truncate(20)), ("begin", "complete")),
    Row("answer short, length agrees", then(lambda c: Truncate(20, rewrite_length=True)), ("begin", "complete")),
    Row("answer too long", then(lambda c: Extend(rewrite_length=True))),
    Row("bytes after the answer", then(lambda c: Extend())),
    Row("answer garbled", then(lambda c: Corrupt(0)), ("begin", "complete")),
    Row("412, but done", then(lambda c: c.error("PreconditionFailed", committed=True)), MAKING_STEPS, overwrite=(False,)),
    Row("upload forgotten", then(lambda c: c.error("NoSuchUpload")), ("part", "complete"), stores=("S3",), begins_again=True),
    Row("parts forgotten", then(lambda c: c.error("NoSuchUpload")), ("complete",), stores=("GCS",), begins_again=True),
    Row("upload forgotten, but done", then(lambda c: c.error("NoSuchUpload", committed=True)), ("complete",)),
    Row("500, reset, answer lost", then(lambda c: c.error("InternalError"), lambda c: Reset(), lambda c: DropAnswer())),
    Row(
        "answer lost, then the look",
        lambda c: [c.at(DropAnswer()), c.look(DropAnswer()), c.look(c.error("SlowDown"), 2)],
        MAKING_STEPS,
        overwrite=(False,),
    ),
    Row("403 AccessDenied", then(lambda c: c.error("AccessDenied")), fails="by plan"),
    Row(
        "403, and cleaning is reset",
        lambda c: [c.at(c.error("AccessDenied")), c.cleaning(Reset()), c.cleaning(c.error("InternalError"), 2)],
        ("part", "complete"),
        fails="by plan",
    ),
    Row("credentials expired", then(lambda c: c.error("ExpiredToken")), waits="by plan.*credential"),
    # Beginning is tried without checksums when it is refused with them, so that it takes two.
    Row(
        "clock skewed",
        lambda c: [c.at(c.error("RequestTimeTooSkewed"), times=2 if c.step == "begin" else 1)],
        stores=("S3",),
        waits="clock differs",
    ),
]
RIVALS = [
    Row("another was first", lambda c: [c.at(Do(c.write_other))], MAKING_STEPS),
    Row("another was first, answer lost", lambda c: [c.at(Do(c.write_other)), c.at(DropAnswer())], MAKING_STEPS),
]


def upload_cells(rows: list[Row]) -> list[object]:
    """All cells of a table."""
    return [
        pytest.param(row, store, step, overwrite, id=f"{slug(row.name)}-{store}-{step}-{'over' if overwrite else 'new'}")
        for row in rows for store in row.stores for step in row.steps for overwrite in row.overwrite
    ]  # fmt: skip


def upload(cell: Cell, proxy: FaultProxy, timeout_s: float | None = None, waits: str | None = None) -> str | None:
    """Upload through the proxy, to the end; the words of the error, if that is one.

    `waits`: the words of the error that it must wait by first.
    """
    source = cell.folder / "source"
    source.write_bytes(cell.data)
    with uploader_of(cell.world, cell.key, cell.folder, proxy.url, timeout_s) as (uploader, name):
        handle = uploader.put(source, name, overwrite=cell.overwrite)
        if waits is not None:
            with pytest.raises(UploadFailed, match=waits):
                uploader.flush()
            uploader.journal.work.resume()  # it is mended
        try:
            meta = handle.result()
        except UploadFailed as error:
            return error.failures[0].error
        assert (len(cell.data), crc32c(cell.data)) == (meta.size_bytes, meta.crc32c)
        (job,) = uploader.journal.queries.jobs(ids=handle.ids)
        assert job.token == cell.world.store.head(cell.key).token
        assert [] == list((cell.folder / "spool" / "objects").iterdir())
        return None


def check_nothing_is_left(cell: Cell, proxy: FaultProxy) -> None:
    left = cell.world.leftovers(cell.key)
    assert [] == [upload for upload in left if not upload.endswith(": 0 parts")]
    assert len(left) <= cell.world.may_be_left(cell.key, proxy)


def check_bytes(cell: Cell, proxy: FaultProxy, *, is_slow: bool) -> None:
    """No more was sent again than what the faults have lost; with `is_slow`, than a piece for each time-out: load makes some."""
    requests = proxy.requests(*cell.world.data_requests(cell.key))
    n_lost = sum(proxy.fired) if cell.step in DATA_STEPS else 0
    if is_slow:
        n_lost = max(n_lost, len(requests) - -(-len(cell.data) // cell.piece_bytes))
    around = 1024 * len(requests)  # GCS wraps the bytes
    assert sum(one.request_bytes for one in requests) <= len(cell.data) + n_lost * cell.piece_bytes + around


@pytest.mark.pairwise
@pytest.mark.parametrize(("row", "store", "step", "overwrite"), upload_cells(UPLOADS))
def test_an_upload_survives_the_fault_or_says_why_not(
    row: Row,
    store: str,
    step: Step,
    overwrite: bool,
    worlds: Callable[[str], World],
    key: str,
    tmp_path: Path,
    note_cell: Callable[..., None],
) -> None:
    note_cell("uploads", row.name, store, step, "over" if overwrite else "new")
    cell = Cell(worlds(store), step, overwrite, key, tmp_path)
    if overwrite:
        cell.write_other()
    with fault_proxy("127.0.0.1", cell.world.server.port, row.plan(cell)) as proxy:
        error = upload(cell, proxy, IMPATIENCE_S if row.is_slow else None, row.waits)
    assert [] == proxy.unfired
    assert (row.fails is None) == (error is None), error
    assert re.search(row.fails or "", error or ""), error
    assert (cell.data if row.fails is None else cell.kept) == object_of(cell.world, key, tmp_path)
    check_nothing_is_left(cell, proxy)
    if not row.begins_again:
        check_bytes(cell, proxy, is_slow=row.is_slow)


@pytest.mark.pairwise
@pytest.mark.parametrize(("row", "store", "step", "overwrite"), upload_cells(RIVALS))
def test_of_two_writers_the_first_is_kept_unless_told_otherwise(
    row: Row,
    store: str,
    step: Step,
    overwrite: bool,
    worlds: Callable[[str], World],
    key: str,
    tmp_path: Path,
    note_cell: Callable[..., None],
) -> None:
    note_cell("uploads", row.name, store, step, "over" if overwrite else "new")
    cell = Cell(worlds(store), step, overwrite, key, tmp_path)
    with fault_proxy("127.0.0.1", cell.world.server.port, row.plan(cell)) as proxy:
        error = upload(cell, proxy)
    assert [] == proxy.unfired
    assert overwrite == (error is None), error
    assert error is None or "the object is there already" in error
    assert (cell.data if overwrite else OTHER) == object_of(cell.world, key, tmp_path)
    check_nothing_is_left(cell, proxy)


def test_a_wait_that_the_store_asks_for_is_kept(worlds: Callable[[str], World], key: str, tmp_path: Path) -> None:
    for world in (worlds("S3"), worlds("GCS")):
        cell = Cell(world, "put", True, key, tmp_path)
        plan = [cell.at(cell.error("TooManyRequests", retry_after_s=1))]
        with fault_proxy("127.0.0.1", world.server.port, plan) as proxy:
            assert upload(cell, proxy) is None
        first, second = proxy.requests(*world.data_requests(key))
        assert second.started_s - first.started_s >= 1


def test_expired_credentials_that_are_read_anew_keep_the_parts(
    seaweedfs_server: S3Server, worlds: Callable[[str], World], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that a file, a role or a program gives may be newer the next time; keys from the caller are not."""
    file = tmp_path / "credentials"
    keys = f"aws_access_key_id={seaweedfs_server.access_key}\naws_secret_access_key={seaweedfs_server.secret_key}\n"
    file.write_text(f"[default]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    cell = Cell(worlds("S3"), "complete", False, key, tmp_path)
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [cell.at(cell.error("ExpiredToken"))]) as proxy:
        (tmp_path / "source").write_bytes(cell.data)
        config = Config(transfer=transfer_of(cell.world), retry=QUICK, agent=AgentConfig(run_in="caller"))
        options: dict[str, object] = {"endpoint_url": proxy.url, "region": "us-east-1"}
        with Uploader(
            f"s3://{seaweedfs_server.bucket}", storage_options=options, spool=tmp_path / "spool", config=config
        ) as ours:
            ours.put(tmp_path / "source", key).result()
    assert [] == proxy.unfired
    assert cell.data == object_of(cell.world, key, tmp_path)
    check_nothing_is_left(cell, proxy)
    check_bytes(cell, proxy, is_slow=False)


def test_the_page_shows_every_row() -> None:
    """With the requests that it meets, and how the upload ends."""
    assert table() in (Path(__file__).parents[2] / "docs" / "faults.md").read_text()


def table() -> str:
    columns = [(store, step) for store in ("S3", "GCS") for step in STEPS]
    lines = [f"| fault | {' | '.join(f'{store} {step}' for store, step in columns)} | ends |", "| --- |" + " --- |" * 9]
    for row in [*UPLOADS, *RIVALS]:
        marks = [cell_mark(row, store, step) for store, step in columns]
        ends = (
            "fails"
            if row.fails is not None
            else "waits, then arrives"
            if row.waits is not None
            else "arrives"
            if row in UPLOADS
            else "first one kept, or replaced"
        )
        lines.append(f"| {row.name} | {' | '.join(marks)} | {ends} |")
    return "\n".join(lines) + "\n"


def cell_mark(row: Row, store: str, step: Step) -> str:
    if store not in row.stores or step not in row.steps:
        return "-"
    if len(row.overwrite) == 1:
        return "over" if row.overwrite[0] else "new"
    return "both" if step in MAKING_STEPS else "any"
