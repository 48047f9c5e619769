"""wherry checkpoints, as a script uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoint_sets import save_set, write_part
from command_line import CommandLine
from servers.real import S3Server
from wherry.backends.local.store import LocalStore
from wherry.backends.s3.store import S3Store
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.uri import StoreURI

#: Sets in `run`: three whole ones, one of two ranks that lacks rank 0, a newer attempt that went back to step 10.
STEPS = (10, 20, 30)


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "bucket/run1"
    store, keys = stored(path)
    for step in STEPS:
        save_set(store, keys, step, world=2, metrics={"loss": 1 / step})
    write_part(store, keys, SetName("000000001", 40), rank=1, world=3)
    save_set(store, keys, 15, attempt="000000002_00aa", parent=SetName("000000001", 10))
    return path


def stored(run: Path) -> tuple[LocalStore, RunKeys]:
    run.parent.mkdir(exist_ok=True)
    return LocalStore(StoreURI("file", "", str(run.parent).strip("/")), {}), RunKeys(f"{str(run).strip('/')}/checkpoints")


def test_sets_are_listed_with_their_state(line: CommandLine, run: Path) -> None:
    (run / "checkpoints/data/000000001_000000000020/rank1.bin").unlink()
    line.run("checkpoints", "pin", run, "--step", 30)
    out, _ = line.run("checkpoints", run)
    rows = {text.split()[0]: text for text in out.splitlines()}
    assert rows["STEP"].split()[:4] == ["STEP", "ATTEMPT", "AGE", "SIZE"]
    assert rows["STEP"].split()[6:] == ["loss", "STATE", "VERIFIED", "PROOF"]
    assert "0.1  " in rows["10"]
    assert "0.033333 best" in rows["30"]
    assert "complete" in rows["10"]
    assert "1 of 2 objects missing" in rows["20"]
    assert rows["30"].endswith("pinned")
    assert rows["40"].endswith("1 of 3 receipts; missing: rank 0, 2")
    assert rows["15"].endswith("latest; after 000000001_000000000010")
    assert out.count("\n") == line.run("checkpoints", "list", f"{run}/")[0].count("\n")
    shown = [json.loads(text) for text in line.run("checkpoints", "list", run, "--json")[0].splitlines()]
    assert [(10, "complete"), (20, "damaged"), (30, "complete"), (40, "incomplete"), (15, "complete")] == [
        (one["step"], one["state"]) for one in shown
    ]
    assert [0, 2] == shown[3]["missing_ranks"]
    assert shown[4]["latest"] and shown[4]["parent"] == shown[0]["set"]
    assert not line.spool.exists(), "reading makes no spool"
    (run / "checkpoints/data/000000001_000000000020/rank0.bin").write_text("")
    assert "1 of 2 objects missing, 1 of 2 objects of another size" in line.run("checkpoints", run)[0]


def test_what_a_hostile_bucket_holds_is_listed_as_unreadable(line: CommandLine, run: Path) -> None:
    (run / "checkpoints/manifests/000000001_000000000020.json").write_text('{"format": "wherry-checkpoint", "version": 99}')
    (run / "checkpoints/manifests/000000001_000000000030.json").write_text("\x1b[31m")
    (run / "checkpoints/data/..x").mkdir()
    (run / "checkpoints/data/..x/y").write_text("")
    out, _ = line.run("checkpoints", run)
    assert ["unreadable", "unreadable"] == [word for text in out.splitlines() for word in text.split() if word == "unreadable"]
    assert "\x1b" not in out


def test_the_latest_is_named(line: CommandLine, run: Path) -> None:
    assert ("000000002_00aa_000000000015\n", "") == line.run("checkpoints", "latest", run)
    assert 15 == json.loads(line.run("checkpoints", "latest", run, "--json")[0])["step"]


def test_a_uri_that_is_no_run_names_those_below_it(line: CommandLine, run: Path) -> None:
    save_set(*stored(run.with_name("run2")), 1)
    assert "run1, run2" in line.refuse("checkpoints", run.parent, expected=3)
    assert "no checkpoint sets" in line.refuse("checkpoints", "latest", run / "nothing", expected=3)
    assert not (run / "nothing").exists()
    write_part(*stored(run.with_name("run3")), SetName("000000001", 1), world=2)
    assert "the run has no complete set" in line.refuse("checkpoints", "latest", run.with_name("run3"), expected=3)
    assert "names no run" in line.refuse("checkpoints", "s3://bucket", expected=2)
    assert "give one of them" in line.refuse("checkpoints", "verify", run, "--step", 1, "--which", "latest", expected=2)
    assert "names no set" in line.refuse("checkpoints", "verify", run, "--which", "newest", expected=2)
    assert "names no bucket" in line.refuse("checkpoints", "s3://", expected=2)


def test_a_set_that_is_not_there_is_told_with_what_to_do(line: CommandLine, run: Path) -> None:
    for verb in ("verify", "pin", "delete"):
        said = line.refuse("checkpoints", verb, run, "--step", 40, expected=3)
        assert f"find file://{run}: there is no complete set of step 40 (wherry checkpoints file://{run} shows" in said
    said = line.refuse("checkpoints", "verify", run, "--which", "000000001_000000000040", expected=3)
    assert "the set 000000001_000000000040 is not complete, or not there (wherry checkpoints" in said
    assert "no complete set has the metric of 'best:acc', only: loss" in line.refuse(
        "checkpoints", "verify", run, "--which", "best:acc", expected=3
    )


def test_a_number_is_a_step_for_which_as_well(line: CommandLine, run: Path, tmp_path: Path) -> None:
    assert "000000001_000000000030" in line.run("checkpoints", "restore", run, "back", "--which", "30")[0]
    assert (tmp_path / "back/rank1.bin").exists()


def test_a_manifest_that_is_damaged_is_told_once_with_the_remedy(line: CommandLine, run: Path) -> None:
    path = run / "checkpoints/manifests/000000001_000000000020.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    out, err = line.run("checkpoints", "prune", run, "--keep-last", 9, "--yes")
    assert (1, 1) == (err.count("000000001_000000000020 is left alone"), err.count("delete this object, then prune"))
    out, err = line.run("checkpoints", "verify", run, "--all", expected=7)
    assert "wrong" in out and "000000001_000000000020: manifest: it is no JSON" in err
    said = line.refuse("checkpoints", "restore", run, "back", "--step", 20, expected=7)
    assert f"read file://{path}: it is no JSON" in said
    path.unlink()
    assert "committed   000000001_000000000020" in line.run("checkpoints", "prune", run, "--abandon-days", 0, "--yes")[0]
    assert whole == path.read_bytes()


def test_a_set_is_restored(line: CommandLine, run: Path, tmp_path: Path) -> None:
    out, _ = line.run("checkpoints", "restore", run, "back")
    assert out.startswith("restored") and "000000002_00aa_000000000015" in out
    line.run("checkpoints", "restore", run, "best", "--which", "best:loss")
    assert "000000001_000000000030 1" == (tmp_path / "best/rank1.bin").read_text()
    line.refuse("checkpoints", "restore", run, "best", "--step", 10, expected=4)
    assert [] == list((run / "checkpoints/readers").iterdir())


def verified(line: CommandLine, run: Path) -> set[str | None]:
    shown = [json.loads(text) for text in line.run("checkpoints", run, "--json")[0].splitlines()]
    assert all((one["verified"] in ("right", "wrong")) == (one["verified_s"] is not None) for one in shown)
    return {one["verified"] for one in shown}


def test_every_byte_is_verified(line: CommandLine, run: Path) -> None:
    assert {None, "when stored"} == verified(line, run)
    out, _ = line.run("checkpoints", "verify", run, "--all")
    assert 4 == out.count("right")
    assert {None, "right"} == verified(line, run)
    path = run / "checkpoints/data/000000001_000000000020/rank1.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    _, err = line.run("checkpoints", "verify", run, "--step", 20, expected=7)
    assert "rank1.bin" in err and "CRC32C" in err
    shown = json.loads(line.run("checkpoints", "verify", run, "--step", 20, "--json", expected=7)[0])
    assert (False, ["rank1.bin"]) == (shown["right"], [one["name"] for one in shown["wrong"]])
    assert {None, "right", "wrong"} == verified(line, run)
    assert {"right", "wrong"} == {
        word for word in line.run("checkpoints", run)[0].split() if word in ("right", "wrong", "stored")
    }
    next((run / "checkpoints/data/000000001_000000000020/_ranks").iterdir()).write_text("{}")
    line.run("checkpoints", "verify", run, "--step", 20, expected=7)
    (run / "checkpoints/verified/000000001_000000000020.json").write_text("{}")  # what is no record says nothing
    assert {None, "when stored", "right"} == verified(line, run)


def test_sets_are_pruned(line: CommandLine, run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    out, _ = line.run("checkpoints", "prune", run, "--keep-last", 1, "--dry-run")
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    words = {text.split()[1]: text.split()[0] for text in out.splitlines()}
    assert {
        "000000001_000000000010": "kept",  # the newest set's job was resumed from it
        "000000001_000000000020": "pruned",
        "000000001_000000000030": "pruned",
        "000000001_000000000040": "incomplete",
        "000000002_00aa_000000000015": "kept",
    } == words
    assert "--yes" in line.refuse("checkpoints", "prune", run, "--keep-last", 1, expected=2)
    line.run("checkpoints", "prune", run, "--keep-best", 1, "--metric", "loss", "--yes", "--grace-hours", 0, "--abandon-days", 0)
    assert ["000000001_000000000010", "000000001_000000000030", "000000002_00aa_000000000015"] == sorted(
        path.name for path in (run / "checkpoints/data").iterdir() if any(path.rglob("*.json"))
    )
    shown = json.loads(line.run("checkpoints", "prune", run, "--json")[0])
    assert 3 == len(shown["kept"])
    assert "belong together" in line.refuse("checkpoints", "prune", run, "--keep-best", 1, expected=2)
    assert "runs below it" in line.refuse("checkpoints", "prune", run.parent, expected=3)


def test_one_set_is_deleted(line: CommandLine, run: Path) -> None:
    line.run("checkpoints", "pin", run, "--step", 20)
    assert "pinned" in line.refuse("checkpoints", "delete", run, "--step", 20, "--yes", expected=2)
    line.run("checkpoints", "unpin", run, "--step", 20)
    line.refuse("checkpoints", "delete", run, "--step", 20, expected=2)
    line.run("checkpoints", "delete", run, "--step", 20, "--yes")
    assert "pruned" in line.refuse("checkpoints", "pin", run, "--which", "000000001_000000000020", expected=3)
    assert "name the set" in line.refuse("checkpoints", "delete", run, expected=2)


def test_sets_in_a_bucket(line: CommandLine, seaweedfs_server: S3Server, tmp_path: Path) -> None:
    name = tmp_path.name
    options = tmp_path / "options.json"
    options.write_text(json.dumps(seaweedfs_server.options))
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        for step in STEPS:
            save_set(store, RunKeys(f"{name}/run1/checkpoints"), step)
    uri = f"s3://{seaweedfs_server.bucket}/{name}/run1"
    assert 3 == line.run("checkpoints", uri, "--options-file", options)[0].count("complete")
    line.run("checkpoints", "restore", uri, "back", "--options-file", options)
    assert (tmp_path / "back/rank0.bin").read_text().startswith("000000001_000000000030")
    out, _ = line.run("checkpoints", "prune", uri, "--keep-last", 1, "--yes", "--options-file", options)
    assert 2 == out.count("pruned")
