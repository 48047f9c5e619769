"""Metrics come back as they were logged: from lines in chunks, from their end first, and from Parquet by ranges."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wherry.runs.columns.metrics as metrics_module
import wherry.runs.columns.metrics_file as metrics_file
from mirrors import Rig
from support import run_script
from wherry.backends.local.store import LocalStore
from wherry.errors import IntegrityError
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.loggers.files.parquet import write_parquet
from wherry.mirror import MirrorConfig
from wherry.mirror.format.layout import Assembly
from wherry.runs import Runs
from wherry.runs.columns.metrics_file import MetricsFile
from wherry.runs.columns.points import Columns, ColumnsFile
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.place import place_of
from wherry.runs.objects.reading_store import Tally
from wherry.uri import StoreURI, parse_uri


def lines(n: int, first: int = 0) -> str:
    """Metrics of `n` steps: one in each line, one in every third, one that is now and then no number."""
    made = []
    for step in range(first, first + n):
        line: dict[str, object] = {"t": 1e9 + step, "step": step, "loss": step / 7}
        if step % 3 == 0:
            line["val/acc"] = step * 2
        line["odd"] = "NaN" if step % 5 == 0 else "Infinity" if step % 5 == 1 else step
        made.append(json.dumps(line))
    return "".join(f"{one}\n" for one in made)


def check(run: Any, n: int) -> None:
    """That the run has the `n` steps of lines()."""
    loss, acc, odd = (run.series(key, whole=True) for key in ("loss", "val/acc", "odd"))
    assert (loss.n_total, loss.tail_only) == (n, False)
    assert (loss.step == np.arange(n)).all()
    assert (loss.value == np.arange(n) / 7).all()
    assert (loss.t == 1e9 + np.arange(n)).all()
    assert (acc.step == np.arange(0, n, 3)).all()
    assert (np.isnan(odd.value) == (np.arange(n) % 5 == 0)).all()
    assert np.isposinf(odd.value[np.arange(n) % 5 == 1]).all()


def test_columns_come_back_from_their_file(tmp_path: Path) -> None:
    columns = Columns()
    columns.add(lines(100).encode())
    (tmp_path / "columns").write_bytes(columns.to_bytes())
    with ColumnsFile(open(tmp_path / "columns", "rb")) as kept:
        assert set(kept.keys) == {"loss", "val/acc", "odd"}
        assert kept.last == (99, 1e9 + 99)
        for key in kept.keys:
            one, other = columns.points(key), kept.points(key)
            assert one is not None
            assert other is not None
            for name in ("step", "t", "value"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert kept.points("nothing") is None


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, (5).to_bytes(8, "little") + b"hello"])
def test_a_damaged_file_of_columns_is_refused(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "columns").write_bytes(damage)
    with pytest.raises((ValueError, KeyError)):
        ColumnsFile(open(tmp_path / "columns", "rb"))  # noqa: SIM115


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 2 kB, so that little data has many."""
    monkeypatch.setattr(metrics_file, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(metrics_file, "TAIL_BYTES", 1000)
    monkeypatch.setattr(metrics_file, "_OVERHANG_BYTES", 10)
    monkeypatch.setattr(metrics_module, "_SMALL_BYTES", 0)


@pytest.mark.usefixtures("small_chunks")
def test_a_long_file_shows_its_end_first_and_then_all(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    folder = tmp_path / "runs/a"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(lines(500))
    run = open_runs(tmp_path / "runs").run("a")
    early = run.series("loss")
    assert early.step[-1] == 499
    assert early.tail_only == (len(early.step) < 500)
    check(run, 500)
    for n in (510, 511, 700, 1500):  # it grows: a little, and by many chunks
        (folder / "metrics.jsonl").write_text(lines(n))
        run._list_s = 0.0
        assert run.refresh()
        check(run, n)
    check(open_runs(tmp_path / "runs").run("a"), 1500)  # another process: from the cache, where it helps
    runs = open_runs(tmp_path / "runs")
    check(runs.run("a"), 1500)
    n_chunks = (folder / "metrics.jsonl").stat().st_size // metrics_file.CHUNK_BYTES
    assert runs.usage().n_gets < 10 < n_chunks, "no request for a chunk that was parsed before"


@pytest.mark.usefixtures("small_chunks")
def test_chunks_are_kept_over_an_emptied_cache(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    folder = tmp_path / "runs/a"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(lines(300))
    run = open_runs(tmp_path / "runs").run("a")
    run.series("loss", whole=True)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    check(run, 300)


@pytest.mark.usefixtures("small_chunks")
def test_lines_that_cannot_be_read_are_counted(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    """A last line that is half written is none of them, nor is an empty one; a process that reads the cache counts the same."""
    folder = tmp_path / "runs/a"
    folder.mkdir(parents=True)
    damaged = lines(500).splitlines()
    for at, line in ((3, '{"step": 3, "lo\x00\x00\x00'), (250, "[1]"), (251, "  "), (499, '{"step": 499, "loss"')):
        damaged[at] = line
    (folder / "metrics.jsonl").write_text("\n".join(damaged))
    for _ in range(2):
        run = open_runs(tmp_path / "runs").run("a")
        assert 496 == run.series("loss", whole=True).n_total
        assert ("metrics.jsonl: 2 lines could not be read",) == run.truth().notes
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(": 1}\n" + lines(20, 500))
    run._list_s = 0.0
    assert run.refresh()
    assert ("metrics.jsonl: 2 lines could not be read",) == run.truth().notes


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.usefixtures("small_chunks")
def test_segments_and_the_sealed_object_say_the_same(compression: Any, tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    uri = parse_uri(tmp_path / "bucket/r")
    rig = Rig(tmp_path, MirrorConfig(compression=compression, segment_bytes=700), store=LocalStore(uri, {}), uri=uri)
    now = rig.clock.wall
    for at in range(0, 400, 40):
        rig.write("metrics.jsonl", lines(40, at))
        rig.flush()
    runs = open_runs(tmp_path / "bucket", now=now)
    run = runs.run("r")
    check(run, 400)
    assert run.truth().checksums_verified is True
    rig.write("metrics.jsonl", lines(40, 400))
    rig.flush()
    run._list_s = 0.0
    assert run.refresh()
    check(run, 440)
    rig.close()
    run._list_s = 0.0
    run.refresh()
    assert (run.truth().writer, run.truth().checksums_verified) == ("finished", True)
    check(run, 440)
    again = open_runs(tmp_path / "bucket", now=now).run("r")
    check(again, 440)
    assert again.truth().checksums_verified is True, again.truth().unverified_because
    sealed = tmp_path / "bucket/r/metrics.jsonl"
    data = bytearray(sealed.read_bytes())
    data[data.rindex(b"loss") - 20] ^= 1
    before = sealed.stat()
    with sealed.open("r+b") as file:
        file.write(data)
    os.utime(sealed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk damages it: the store's checksum stays
    damaged = open_runs(tmp_path / "bucket", now=now).run("r")
    damaged.series("loss", whole=True)
    assert damaged.truth().checksums_verified is False


def test_the_pages_of_a_parquet_file_are_compared(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "lines").write_text(lines(300))
    path = tmp_path / "r/metrics.parquet"
    write_parquet(tmp_path / "lines", path)
    run = open_runs(tmp_path).run("r")
    assert 300 == len(run.series("loss").step)
    truth = run.truth()
    assert (truth.checksums_verified, truth.complete_to_step) == (True, 299)
    metadata = pq.read_metadata(path)
    column = metadata.row_group(0).column(metadata.schema.names.index("loss"))
    data = bytearray(path.read_bytes())
    data[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    damaged = open_runs(tmp_path).run("r")
    with pytest.raises(IntegrityError):
        damaged.series("loss")
    assert damaged.truth().checksums_verified is False


def test_what_is_asked_for_once_does_not_fill_the_cache(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x").write_bytes(b"0123456789")
    uri = parse_uri(tmp_path / "b")
    place = place_of(
        StoreURI("far", "", uri.prefix),
        LocalStore(uri, {}),
        "",
        tally=Tally(),
        cache=DiskCache(tmp_path / "cache"),
        scratch=tmp_path,
    )
    try:
        (meta,) = place.store.list(f"{uri.prefix}/")
        for once, n_kept in ((True, 0), (False, 1)):
            assert place.fetch(meta, 2, 5, once=once) == b"234"
            assert len([one for one in (tmp_path / "cache").rglob("*") if one.is_file()]) == n_kept
    finally:
        place.close()


@pytest.mark.usefixtures("small_chunks")
def test_the_end_is_drawn_and_closing_waits_for_one_chunk_only(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines(500))
    uri = parse_uri(tmp_path)
    cache = DiskCache(tmp_path / "cache")
    place = place_of(uri, LocalStore(uri, {}), "", tally=Tally(), cache=cache, scratch=tmp_path)
    tasks: list[Callable[[], None]] = []
    (meta,) = place.store.list(f"{uri.prefix}/metrics")
    file = MetricsFile(place, cache, tasks.append)
    file.update(Assembly("metrics.jsonl", meta, ()))
    n_tasks = 0
    with ThreadPoolExecutor(1) as reader:
        while tasks:
            with file._lock:  # as while a chunk is fetched and parsed
                (points,) = reader.submit(file.points, "loss").result(60)
            assert (499, True) == (points.step[-1], len(points.step) < 50)
            tasks.pop(0)()
            n_tasks += 1
    assert (tmp_path / "metrics.jsonl").stat().st_size // metrics_file.CHUNK_BYTES <= n_tasks
    assert 500 == sum(len(one.step) for one in file.points("loss"))


def test_a_mirror_of_a_folder_of_runs_is_several_runs(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    uri = parse_uri(tmp_path / "bucket/all")
    rig = Rig(tmp_path, store=LocalStore(uri, {}), uri=uri)
    for name in ("a", "b"):
        rig.write(f"{name}/metrics.jsonl", lines(30))
        rig.write(f"{name}/hparams.json", json.dumps({"name": name}))
    rig.flush()
    now = rig.clock.wall
    rows = {row.id: row for row in open_runs(tmp_path / "bucket/all", now=now).rows()}
    assert {name: (row.state, row.hparams) for name, row in rows.items()} == {
        "a": ("live", {"name": "a"}),
        "b": ("live", {"name": "b"}),
    }
    check(open_runs(tmp_path / "bucket", now=now).run("all/a"), 30)
    inside = open_runs(tmp_path / "bucket/all/b", now=now)  # a URI inside of the mirror
    assert [row.hparams for row in inside.rows()] == [{"name": "b"}]
    check(inside.run("b"), 30)


def test_a_finished_run_is_read_from_parquet_by_columns(
    tmp_path: Path, open_runs: Callable[..., Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(metrics_module, "_MOST_KEPT_POINTS", 4000)  # one series, not two
    with RunFolderLogger(tmp_path / "r", now=lambda: 1e9) as log:
        for step in range(3000):
            values = {f"k{n}": float(step * n) for n in range(40)}
            log.log_metrics({**values, "odd": float("nan") if step % 7 == 0 else step} if step % 2 else values, step)
    runs = open_runs(tmp_path)
    run = runs.run("r")
    assert run.refresh()
    before = runs.usage()
    series = run.series("k7")
    assert runs.usage().n_gets - before.n_gets <= 2 * 1 + 1, "one request for steps and times, one for the metric, a footer"
    assert (series.value == 7 * np.arange(3000)).all()
    assert (series.step == np.arange(3000)).all()
    assert (series.t == 1e9).all()
    whole = (tmp_path / "r/metrics.parquet").stat().st_size
    assert runs.usage().n_bytes - before.n_bytes <= whole + 2 * 512 * 1024
    odd = run.series("odd")
    assert (odd.step % 2 == 1).all()
    assert np.isnan(odd.value[odd.step % 7 == 0]).all()
    assert np.shares_memory(run.series("k1").step, run.series("k2").step), "steps are kept once"
    assert (run.series("k7").value == 7 * np.arange(3000)).all()
    assert run.keys() == sorted([*(f"k{n}" for n in range(40)), "odd"])


def test_columns_of_any_numbers_are_read_with_what_is_missing(tmp_path: Path, open_runs: Callable[..., Runs]) -> None:
    (tmp_path / "r").mkdir()
    n = 1000
    seldom = [None if at % 3 else at for at in range(n)]
    columns = {
        "t": pa.array(np.arange(n) + 0.5, pa.float32()),
        "step": pa.array(np.arange(n)[::-1], pa.uint16()),
        "whole": pa.array(seldom, pa.int32()),
        "half": pa.array(seldom, pa.float16()),
        "flag": pa.array([None if at % 3 else at % 2 == 0 for at in range(n)], pa.bool_()),
        "none": pa.array([None] * n, pa.float64()),
        "text": pa.array(["x"] * n),
    }
    pq.write_table(pa.table(columns), tmp_path / "r/metrics.parquet", row_group_size=130)
    run = open_runs(tmp_path).run("r")
    assert ["flag", "half", "none", "whole"] == run.keys()
    there = np.arange(0, n, 3)
    for key, values in {"whole": there, "half": there.astype(np.float16), "flag": there % 2 == 0}.items():
        series = run.series(key)
        assert (series.value == values).all()
        assert (series.step == n - 1 - there).all()
        assert (series.t == there + 0.5).all()
    assert 0 == len(run.series("none").step)


def test_a_curve_from_parquet_takes_no_pandas(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path / "r") as log:
        log.log_metrics({"loss": 1.0}, 0)
    (tmp_path / "r/metrics.jsonl").unlink()
    program = f"""
import sys
from wherry.runs import Runs
with Runs({str(tmp_path)!r}) as runs:
    print(runs.run("r").series("loss").value, *sorted({{"pandas", "pyarrow.compute"}} & set(sys.modules)))
"""
    assert "[1.]" == run_script(program).strip()


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1" + b"\xff" * 5000 + b"PAR1", b"x" * 100])
def test_a_damaged_parquet_file_is_said(
    damage: bytes, tmp_path: Path, open_runs: Callable[..., Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "_SMALL_BYTES", 0)
    with RunFolderLogger(tmp_path / "r") as log:
        log.log_metrics({"loss": 1.0}, 0)
    (tmp_path / "r/metrics.parquet").write_bytes(damage)
    run = open_runs(tmp_path).run("r")
    assert run.keys() == ["loss"], "the lines are there"
    assert list(run.series("loss").value) == [1.0]
