"""What a reader shows of runs is what was logged: in folders, in buckets, and while a mirror runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gate import wait_until
from run_folders import lines_of, log_all_kinds
from servers.real import S3Server
from wherry.errors import ConfigError, NotFoundError, PermanentError
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.loggers.run.state import State
from wherry.mirror import Mirror, MirrorConfig
from wherry.runs import Run, RunRow, Runs
from wherry.store import PutOptions
from wherry.uploader import Uploader


def make_run(folder: Path, name: str, n_steps: int = 20, lr: float = 0.1) -> RunFolderLogger:
    """A run that is closed, with a loss that falls from 10 to 10 - n_steps * lr."""
    with RunFolderLogger(folder / name, state=State(run_name=f"job {name}")) as run:
        run.log_hyperparameters({"lr": lr, "seed": 1})
        for step in range(n_steps):
            run.log_metrics({"train/loss": 10 - step * lr, "grad": float("nan") if step % 5 == 0 else step}, step)
    return run


def by_id(runs: Runs) -> dict[str, RunRow]:
    return {row.id: row for row in runs.rows()}


def test_rows_say_what_was_logged(tmp_path: Path, open_runs: Any) -> None:
    for number, name in enumerate(("a", "b", "c")):
        make_run(tmp_path / "runs", name, lr=0.1 * (number + 1))
    rows = by_id(open_runs(tmp_path / "runs"))
    assert set(rows) == {"a", "b", "c"}
    row = rows["b"]
    assert (row.name, row.state, row.attempt, row.trouble, row.hparams) == ("job b", "finished", 1, None, {"lr": 0.2, "seed": 1})
    loss, grad = row.metrics["train/loss"], row.metrics["grad"]
    assert loss.last == pytest.approx(6.2)
    assert (loss.last_step, loss.min_step, loss.max, loss.n_points, loss.is_partial) == (19, 19, 10.0, 20, False)
    assert (grad.n_nan, grad.last, grad.max_step) == (4, 19.0, 19)
    assert row.size_bytes >= sum(path.stat().st_size for path in (tmp_path / "runs/b").rglob("*.jsonl"))
    assert row.cost_per_day_usd == 0.0


@pytest.mark.parametrize("lost", [("wherry-summary.json",), ("wherry-summary.json", "hparams.json")])
def test_a_run_without_a_summary_is_read_from_its_files(lost: tuple[str, ...], tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "a")
    for name in lost:
        (tmp_path / "runs/a" / name).unlink()
    row = by_id(open_runs(tmp_path / "runs"))["a"]
    assert (row.metrics["train/loss"].n_points, row.metrics["grad"].n_nan, row.state) == (20, 4, "finished")
    assert row.hparams == ({} if "hparams.json" in lost else {"lr": 0.1, "seed": 1})


def test_the_uri_may_be_a_run_itself_and_several_may_be_given(tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path / "more", "a")
    assert set(by_id(open_runs(tmp_path / "runs/a"))) == {"a"}
    both = open_runs(tmp_path / "runs", tmp_path / "more")
    rows = by_id(both)
    assert len(rows) == 2
    assert {row.uri for row in rows.values()} == {str(tmp_path / "runs/a"), str(tmp_path / "more/a")}
    for run_id, row in rows.items():
        assert both.run(run_id).uri == row.uri


def test_a_run_shows_all_that_was_logged(tmp_path: Path, open_runs: Any) -> None:
    with RunFolderLogger(tmp_path / "runs/x") as log:
        log_all_kinds(log, 7)
        log.log_images(np.zeros((4, 4)), "seg", masks={"tissue": np.ones((4, 4), np.uint8)}, mask_class_labels={1: "fat"}, step=8)
    (tmp_path / "runs/x/logs-rank0.txt").write_text("one\ntwo\nthree")
    (tmp_path / "runs/x/logs-rank1.txt").write_text("other\n")
    run: Run = open_runs(tmp_path / "runs").run("x")
    assert run.keys() == ["loss", "val/acc"]
    assert run.hparams() == {"lr": 0.1, "model": {"depth": 3}}
    kinds = {item.kind: item for item in run.media()}
    assert set(kinds) == {"image", "audio", "video", "point_cloud", "mask"}
    assert kinds["mask"].classes == {"1": "fat"}
    assert kinds["mask"].image == run.media(key="seg")[0].path
    assert run.media(step=7, key="pictures")[0].path == "media/images/pictures/7.png"
    for item in run.media():
        assert run.read_file(item.path) == (tmp_path / "runs/x" / item.path).read_bytes()
    assert run.read_file("media/images/pictures/7.png", 1, 3) == b"PNG"
    assert [(one.key, one.text) for one in run.texts()] == [("notes", "größer\nthan")]
    assert [(one.key, sum(one.counts)) for one in run.histograms("weights")] == [("weights", 1000)]
    assert [table.name for table in run.tables()] == ["scores"]
    columns, rows = run.table_rows("scores", first=1)
    assert (columns[2:], [row[2:] for row in rows]) == (["name", "score"], [["b", None]])
    log_ = run.log()
    assert (log_.text, log_.ranks, log_.after, log_.is_cut) == ("one\ntwo\n", (0, 1), 8, False)
    with (tmp_path / "runs/x/logs-rank0.txt").open("a") as file:
        file.write("\nfour\n")
    run._list_s = 0.0  # a look is due
    assert run.refresh()
    assert run.log(0, after=log_.after).text == "three\nfour\n"
    assert run.log(1).text == "other\n"
    assert run.log(max_bytes=6).text == "four\n"
    with pytest.raises(NotFoundError, match="rank 7"):
        run.log(7)
    with pytest.raises(NotFoundError, match="nothing"):
        run.series("nothing")


def test_a_resumed_run_keeps_its_overwritten_branch(tmp_path: Path, open_runs: Any) -> None:
    for first, value in ((0, 1.0), (5, 2.0), (3, 3.0)):
        with RunFolderLogger(tmp_path / "r") as log:
            for step in range(first, 8):
                log.log_metrics({"loss": value}, step)
    series = open_runs(tmp_path).run("r").series("loss")
    assert series.restarts == [5, 3]
    shown = {(int(s), float(v)) for s, v, gone in zip(series.step, series.value, series.overwritten, strict=True) if not gone}
    assert shown == {*((s, 1.0) for s in range(3)), *((s, 3.0) for s in range(3, 8))}
    assert series.n_total == 8 + 3 + 5


def test_attempts_and_ranks_belong_to_their_run(tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "r", 5)
    make_run(tmp_path / "runs/r", "attempt-2", 7)
    make_run(tmp_path / "runs/r", "rank1", 3)
    make_run(tmp_path / "runs/ranks", "rank0", 4)
    runs = open_runs(tmp_path / "runs")
    rows = by_id(runs)
    assert set(rows) == {"r", "ranks"}
    assert (rows["r"].attempt, rows["r"].metrics["train/loss"].n_points, rows["r"].metrics["train/loss"].last_step) == (2, 7, 6)
    assert rows["r"].metrics["rank1/train/loss"].n_points == 3
    series = runs.run("r").series("train/loss")
    assert (series.restarts, int(series.overwritten.sum())) == ([0], 5)
    assert {"rank1/grad", "grad"} <= set(runs.run("r").keys())


def test_a_run_that_is_written_is_live_and_seen_to_grow(tmp_path: Path, open_runs: Any) -> None:
    with RunFolderLogger(tmp_path / "r") as log:
        log.log_metrics({"loss": 1.0}, 0)
        run: Run = open_runs(tmp_path).run("r")
        assert run.refresh()
        assert run.row.state == "live"
        assert run.truth().writer == "alive"
        log.log_metrics({"loss": 2.0}, 1)
        run._list_s = 0.0
        assert run.refresh()
        assert list(run.series("loss").value) == [1.0, 2.0]
        assert not run.refresh()
    run._list_s = 0.0
    assert run.refresh()
    assert run.truth().writer == "finished"


def test_a_killed_run_is_lost(tmp_path: Path, open_runs: Any) -> None:
    log = RunFolderLogger(tmp_path / "r")
    log.log_metrics({"loss": 1.0}, 0)
    lock = (tmp_path / "r/.lock").read_text()
    log.close()
    (tmp_path / "r/wherry-summary.json").unlink()
    (tmp_path / "r/.lock").write_text(lock.replace(lock.split()[1], str(2**22 - 7)))
    assert by_id(open_runs(tmp_path))["r"].state == "lost"


def test_nothing_can_be_written(tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "r", 2)
    runs = open_runs(tmp_path / "runs")
    store = runs._places[0].store
    calls: dict[str, tuple[object, ...]] = {
        "put_file": ("x", tmp_path / "runs/r/metrics.jsonl", PutOptions()),
        "delete": ("x",),
        "delete_many": (["x"],),
        "join": ("x", ["y"], 1),
        "begin": ("x", 1),
    }
    for name, arguments in calls.items():
        with pytest.raises(PermanentError):
            getattr(store, name)(*arguments)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "media\\x", "", "a//b", "./x"])
def test_no_path_leaves_the_run(path: str, tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "r", 2)
    (tmp_path / "x").write_text("secret")
    (tmp_path / "runs/r/media").mkdir()
    line = {"t": 1, "step": 1, "key": "k", "kind": "image", "path": path, "size_bytes": 1}
    (tmp_path / "runs/r/media/index.jsonl").write_text(json.dumps(line) + "\n")
    run = open_runs(tmp_path / "runs").run("r")
    assert run.media() == []
    with pytest.raises(ConfigError):
        run.read_file(path)


def test_no_link_leads_out_of_the_run(tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "r", 2)
    make_run(tmp_path / "runs", "other", 2)
    (tmp_path / "x").write_text("secret")
    (tmp_path / "runs/r/own.jsonl").symlink_to("metrics.jsonl")
    (tmp_path / "runs/r/far.jsonl").symlink_to("../other/metrics.jsonl")
    (tmp_path / "runs/r/folder").symlink_to("../other")
    (tmp_path / "runs/r/out").symlink_to(tmp_path / "x")
    run = open_runs(tmp_path / "runs").run("r")
    assert run.read_file("metrics.jsonl") == run.read_file("own.jsonl")
    for name in ("far.jsonl", "folder/metrics.jsonl", "out"):
        with pytest.raises(ConfigError, match="leads out of the run"):
            run.read_file(name)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, open_runs: Any) -> None:
    runs = open_runs(tmp_path / "no/such/folder")
    with pytest.raises(NotFoundError, match=r"no/such/folder: there is no such folder"):
        list(runs.rows())


def test_an_unknown_run_is_told_with_a_remedy(tmp_path: Path, open_runs: Any) -> None:
    make_run(tmp_path / "runs", "r", 2)
    with pytest.raises(NotFoundError, match="wherry runs"):
        open_runs(tmp_path / "runs").run("nothing")
    with pytest.raises(ConfigError):
        Runs()


def test_a_live_mirror_is_read_without_pull(tmp_path: Path, seaweedfs_server: S3Server, open_runs: Any) -> None:
    """From segments while it runs, with new ones as they come, and from plain objects when it has ended."""
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
    config = MirrorConfig(max_lag_s=1.0, settle_s=0.2)
    folder = tmp_path / "runs"
    runs = open_runs(uri, options=seaweedfs_server.options)
    mirrored = Mirror(
        folder / "r", f"{uri}/r", storage_options=seaweedfs_server.options, spool=tmp_path / "spool", config=config, writer="w"
    )
    with mirrored as mirror, RunFolderLogger(folder / "r") as log:
        log.log_hyperparameters({"lr": 0.1})
        (folder / "r/logs-rank0.txt").write_text("begun\n")
        for step in range(100):
            log.log_metrics({"loss": step / 100}, step)
            if step == 50:
                mirror.flush()  # two segments tell the pace: the third is looked for within seconds
        mirror.flush()
        row = by_id(runs)["r"]
        assert (row.state, row.metrics["loss"].n_points, row.hparams) == ("live", 100, {"lr": 0.1})
        assert row.lag_s is not None
        assert row.cost_per_day_usd > 0
        run: Run = runs.run("r")
        assert run.refresh()
        assert (len(run.series("loss").step), run.truth().writer, run.truth().complete_to_step) == (100, "alive", 99)
        assert run.truth().checksums_verified is True
        assert run.log().text == "begun\n"
        assert [one.state for one in run.uploads().writers] == ["alive"]
        listed = runs.usage().n_lists
        for step in range(100, 150):
            log.log_metrics({"loss": step / 100}, step)
        mirror.flush()
        wait_until(lambda: run.refresh() and len(run.series("loss").step) == 150, what="the new segment to be seen")
        assert runs.usage().n_lists == listed, "the segment was found by its name"
    run._list_s = 0.0
    assert run.refresh()
    assert run.row.state == "finished"
    assert len(run.series("loss").step) == 150
    expected = [line["loss"] for line in lines_of(folder / "r/metrics.jsonl")]
    assert list(run.series("loss").value) == expected
    assert runs.usage().usd > 0
    sealed = open_runs(uri, options=seaweedfs_server.options).run("r")
    for one in (run, sealed):
        assert (one.truth().checksums_verified, one.truth().unverified_because) == (True, "")


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path, seaweedfs_server: S3Server, open_runs: Any) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
    with Uploader(uri, storage_options=seaweedfs_server.options, spool=tmp_path / "spool") as uploader:
        for name in ("a", "b", "c"):
            make_run(tmp_path / "runs", name)
        uploader.put(tmp_path / "runs", "runs")
    first = open_runs(f"{uri}/runs", options=seaweedfs_server.options)
    rows = by_id(first)
    assert len(rows) == 3
    assert first.usage().n_gets == 3, "one summary a run"
    assert first.run("a").series("train/loss").n_total == 20
    second = open_runs(f"{uri}/runs", options=seaweedfs_server.options)
    assert {name: row.metrics for name, row in by_id(second).items()} == {name: row.metrics for name, row in rows.items()}
    assert second.usage().n_gets == 0
    for file in (tmp_path / "cache/runs").rglob("*"):
        if file.is_file() and b'"rows"' not in file.read_bytes():
            file.unlink()
    third = open_runs(f"{uri}/runs", options=seaweedfs_server.options)
    assert set(rows) == {row.id for row in third.rows_of_before()[0]}
    assert third.usage().n_lists == 0
    assert {name: row.metrics for name, row in by_id(third).items()} == {name: row.metrics for name, row in rows.items()}
    assert third.usage().n_gets == 0, "one file of the cache has them all"
