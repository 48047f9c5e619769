"""Whatever a bucket holds, and whatever happens to it meanwhile: the other runs are shown, and nothing is taken on trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mirrors import Rig
from wherry.backends.local.store import LocalStore
from wherry.errors import AccessDeniedError, StoreError, TransientError
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.mirror.format.layout import manifest_name
from wherry.runs import Runs
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.place import place_of
from wherry.runs.objects.reading_store import Tally
from wherry.store import ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI, parse_uri

LINE = '{"t": 1.0, "step": 1, "loss": 1.0}\n'


def run_with(folder: Path, **files: str | bytes) -> Path:
    """A run folder of these files; ``__`` in a name is a dot."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    "metrics",
    [
        b"",
        b'{"t": 1.0, "st',
        b"\0" * 1000,
        b"\xff\xfe\n" * 10,
        b"[" * 100_000 + b"\n",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
        b"1" * 5000 + b"\n",
        b'{"step": ' + b"9" * 5000 + b', "loss": 1}\n',
        b'{"step": "x", "loss": "y", "t": []}\n',
        b'[1, 2]\n"text"\nnull\n',
        b'{"loss": 1e999, "step": 1e999}\n',
        b"x" * (17 * 2**20),
    ],
)
def test_damaged_metrics_cost_their_lines_only(metrics: bytes, tmp_path: Path, open_runs: Any) -> None:
    run_with(tmp_path / "runs/a", metrics__jsonl=LINE.encode() + metrics)
    run_with(tmp_path / "runs/b", metrics__jsonl=metrics)
    runs = open_runs(tmp_path / "runs")
    rows = {row.id: row for row in runs.rows()}
    assert set(rows) == {"a", "b"}
    if len(metrics) < 2**20:  # of a longer file without a summary the end is read
        assert rows["a"].metrics["loss"].min == 1.0
    assert runs.run("a").series("loss", whole=True).value[0] == 1.0
    assert runs.run("b").keys() in ([], ["loss"])


def test_files_that_are_no_json_are_said(tmp_path: Path, open_runs: Any) -> None:
    run_with(tmp_path / "runs/a", metrics__jsonl="garbage\nmore\n", hparams__json="[1")
    run_with(tmp_path / "runs/b", metrics__jsonl=LINE + '{"t": 1.0, "st')
    run_with(tmp_path / "runs/c", metrics__jsonl='{"t": 1.0, "st')
    runs = open_runs(tmp_path / "runs")
    rows = {row.id: row.trouble for row in runs.rows()}
    assert rows == {
        "a": "hparams.json: it is no JSON object; metrics.jsonl: no line of it is a JSON object",
        "b": None,
        "c": None,
    }
    assert runs.run("a").row.trouble == rows["a"]


@pytest.mark.parametrize(
    "summary",
    [
        b"{",
        b"[]",
        b'{"format": "wherry-run-summary", "version": 2}',
        b'{"format": "wherry-run-summary", "version": 1}',
        b'{"format": "wherry-run-summary", "version": 1, "metrics": {"a": [1]}, "hparams": 7, "name": [], "metrics_bytes": -5}',
        b'{"format": "wherry-run-summary", "version": 1, "metrics": [], "metrics_bytes": 1e99, "state": {}}',
        b'{"format": "wherry-run-summary", "version": 1, "metrics_bytes": 999999, "metrics": {"loss": [5, 1, 5, 1, 5, 1, 1, 0]}}',
    ],
)
def test_a_damaged_summary_is_a_missing_one(summary: bytes, tmp_path: Path, open_runs: Any) -> None:
    run_with(tmp_path / "runs/a", metrics__jsonl=LINE, **{"wherry-summary__json": summary})
    row = next(open_runs(tmp_path / "runs").rows())
    assert (row.metrics["loss"].last, row.metrics["loss"].n_points, row.hparams) == (1.0, 1, {})


@pytest.mark.parametrize("hparams", [b"{", b"[" * 100_000, b'"x"', b'{"a": NaN}', b"\xff"])
def test_damaged_hyperparameters_are_none(hparams: bytes, tmp_path: Path, open_runs: Any) -> None:
    run_with(tmp_path / "runs/a", metrics__jsonl=LINE, hparams__json=hparams)
    row = next(open_runs(tmp_path / "runs").rows())
    assert row.metrics["loss"].last == 1.0
    assert set(row.hparams) <= {"a"}


def test_a_million_metrics_are_cut_and_said(tmp_path: Path, open_runs: Any) -> None:
    line = json.dumps({"step": 1, "t": 1.0, **{f"k{n}": n for n in range(30_000)}}) + "\n"
    run_with(tmp_path / "runs/a", metrics__jsonl=line * 2)
    runs = open_runs(tmp_path / "runs")
    row = next(runs.rows())
    assert (len(row.metrics), "20000" in (row.trouble or "")) == (20_000, True)
    run = runs.run("a")
    assert len(run.keys()) == 20_000
    assert any("20000" in note for note in run.truth().notes)


def test_a_newer_format_is_not_read_and_said(tmp_path: Path, open_runs: Any) -> None:
    uri = parse_uri(tmp_path / "bucket/r")
    rig = Rig(tmp_path, store=LocalStore(uri, {}), uri=uri)
    rig.write("metrics.jsonl", LINE)
    rig.flush()
    path = Path("/", uri.key_for(manifest_name("rank0")))
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    run_with(tmp_path / "bucket/other", metrics__jsonl=LINE)
    runs = open_runs(tmp_path / "bucket")
    rows = {row.id: row for row in runs.rows()}
    assert "update wherry" in (rows["r"].trouble or "")
    assert rows["other"].metrics["loss"].last == 1.0
    assert any("update wherry" in note for note in runs.run("r").truth().notes)


def test_a_missing_segment_is_said(tmp_path: Path, open_runs: Any) -> None:
    uri = parse_uri(tmp_path / "bucket/r")
    rig = Rig(tmp_path, store=LocalStore(uri, {}), uri=uri)
    for step in range(4):
        rig.write("metrics.jsonl", f'{{"t": {step}.0, "step": {step}, "loss": 1.0}}\n')
        rig.flush()
    segments = sorted(Path("/", uri.key_for("_mirror/rank0/segments/metrics.jsonl")).iterdir())
    assert len(segments) == 4
    run = open_runs(tmp_path / "bucket").run("r")
    assert (run.truth().complete_to_step, run.truth().segments_missing) == (3, 0)
    segments[2].unlink()
    run = open_runs(tmp_path / "bucket").run("r")
    assert (run.truth().complete_to_step, run.truth().segments_missing) == (1, 1)
    segments[0].unlink()
    run = open_runs(tmp_path / "bucket").run("r")
    truth = run.truth()
    assert (truth.complete_to_step, truth.segments_missing) == (None, 1)
    assert truth.notes


def test_wrong_bytes_in_a_segment_are_told(tmp_path: Path, open_runs: Any) -> None:
    uri = parse_uri(tmp_path / "bucket/r")
    rig = Rig(tmp_path, store=LocalStore(uri, {}), uri=uri)
    rig.write("metrics.jsonl", LINE)
    rig.flush()
    (segment,) = Path("/", uri.key_for("_mirror/rank0/segments/metrics.jsonl")).iterdir()
    data = bytearray(segment.read_bytes())
    data[-4] ^= 1
    with segment.open("r+b") as file:  # in place: the size stays, and the store's checksum with it
        file.write(data)
    run = open_runs(tmp_path / "bucket").run("r")
    assert run.truth().checksums_verified is not True


class Refusing(WrappedStore):
    """Refuses keys with some part, once it is told to."""

    def __init__(self, inner: ObjectStore, part: str, error: type[StoreError]) -> None:
        super().__init__(inner)
        self.part = part
        self.error = error
        self.refuses_lists = False

    def _call(self, operation: str, key: str, call: Any) -> Any:
        if self.part and self.part in key and (operation != "list" or self.refuses_lists):
            raise self.error("no", operation=operation, uri=key)
        return call()


@pytest.mark.parametrize("error", [AccessDeniedError, TransientError])
def test_a_refusal_in_the_middle_is_one_row(error: type[StoreError], tmp_path: Path, open_runs: Any) -> None:
    for name in ("a", "b", "c"):
        run_with(tmp_path / f"runs/{name}", metrics__jsonl=LINE, hparams__json='{"lr": 1}')
    runs = open_runs(tmp_path / "runs")
    uri = parse_uri(tmp_path / "runs")
    refusing = Refusing(LocalStore(uri, {}), "/b/", error)
    runs._places = [place_of(uri, refusing, "", tally=Tally(), cache=DiskCache(tmp_path / "cache"), scratch=tmp_path)]
    rows = {row.id: row for row in runs.rows()}
    assert (rows["a"].trouble, rows["c"].trouble) == (None, None)
    assert "no" in (rows["b"].trouble or "")
    run = runs.run("a")
    assert run.refresh()
    refusing.part = "/a/"
    run._list_s = 0.0
    run.refresh()  # what is known stays
    assert len(run.series("loss").step) == 1
    refusing.refuses_lists = True
    run._list_s = 0.0
    assert run.refresh(), "that it is refused is news"
    run.refresh()  # nothing is due
    assert run.truth().notes == ("no",)
    refusing.part = ""
    run._list_s = 0.0
    run.refresh()
    assert run.truth().notes == ()


def test_a_run_that_grows_while_it_is_read_is_read_to_where_it_was(tmp_path: Path, open_runs: Any) -> None:
    with RunFolderLogger(tmp_path / "r") as log:
        log.log_metrics({"loss": 0.0}, 0)
        run = open_runs(tmp_path).run("r")
        for step in range(1, 60):
            log.log_metrics({"loss": float(step)}, step)
            run._list_s = 0.0
            run.refresh()
            values = list(run.series("loss").value)
            assert values == [float(one) for one in range(len(values))]
            assert len(values) == step + 1


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path: Path, open_runs: Any) -> None:
    folder = run_with(tmp_path / "runs/a", metrics__jsonl=LINE * 5)
    run = open_runs(tmp_path / "runs").run("a")
    assert len(run.series("loss").step) == 5
    (folder / "metrics.jsonl").write_text('{"t": 2.0, "step": 1, "other": 5.0}\n' * 9)
    run._list_s = 0.0
    assert run.refresh()
    assert (run.keys(), len(run.series("other").step)) == (["other"], 9)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.binary(max_size=80) | st.sampled_from([LINE.encode(), b'{"step": 2, "loss": "NaN"}\n']), max_size=12))
def test_any_bytes_are_read(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("fuzz")
    data = b"".join(pieces)
    run_with(base / "runs/a", metrics__jsonl=data, hparams__json=data, **{"wherry-summary__json": data, "text__jsonl": data})
    with Runs(base / "runs", cache_dir=base / "cache") as runs:
        (row,) = runs.rows()
        run = runs.run("a")
        for key in run.keys():  # noqa: SIM118  a list
            assert (~run.series(key).overwritten).sum() == row.metrics[key].n_points
        run.texts()
        run.truth()


def test_the_cache_is_bounded_and_private(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", most_bytes=10_000)
    for number in range(30):
        cache.put(f"name {number}", bytes(1000))
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10_000
    assert cache.get("name 29") == bytes(1000)
    assert cache.get("name 0") is None
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file/cache")
    cache.put("a", b"x")
    assert cache.get("a") is None
    assert StoreURI("file", "", "x").prefix == "x"


def test_a_run_that_is_deleted_is_said_and_stays_as_it_was_read(tmp_path: Path, open_runs: Any) -> None:
    folder = run_with(tmp_path / "runs/a", metrics__jsonl=LINE)
    run = open_runs(tmp_path / "runs").run("a")
    assert run.refresh()
    (folder / "metrics.jsonl").unlink()
    run._list_s = 0.0
    assert run.refresh(), "it is news"
    assert any("no object of this run is left" in note for note in run.truth().notes)
    assert list(run.series("loss").value) == [1.0]
    (folder / "metrics.jsonl").write_text(LINE * 2)
    run._list_s = 0.0
    assert run.refresh()
    assert (len(run.series("loss").step), run.truth().notes) == (2, ())
