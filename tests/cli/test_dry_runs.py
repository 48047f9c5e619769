"""--dry-run says what would be done and changes nothing; --json says what was done."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoint_sets import save_set
from command_line import CommandLine
from support import file_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.errors import UploadFailed
from wherry.uploader import Uploader
from wherry.uri import StoreURI


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def sets(line: CommandLine) -> CommandLine:
    store = LocalStore(StoreURI("file", "", str(line.folder).strip("/")), {})
    for step in (10, 20):
        save_set(store, RunKeys(f"{str(line.folder / 'run').strip('/')}/checkpoints"), step, world=1, metrics={"loss": 1.0})
    return line


@pytest.fixture
def failed(line: CommandLine) -> CommandLine:
    """Two uploads that failed, as their names were taken."""
    with suppress(UploadFailed), Uploader(line.folder / "taken", spool=line.spool) as uploader:
        for name in ("a", "b"):
            file_of(line.folder / "taken" / name, 10)
            uploader.put(file_of(line.folder / "new", 20), name)
    return line


def states(out: str) -> list[tuple[str, str]]:
    return [(one["state"], one.get("plan", "")) for one in map(json.loads, out.splitlines()) if "state" in one]


def test_put_names_each_object_that_it_would_make(line: CommandLine) -> None:
    for name in ("folder/a", "folder/b/c"):
        file_of(line.folder / name, 100)
    out, _ = line.run("put", "folder", "./dest/", "--dry-run")
    assert [True, True] == [f"dest/folder/{name}" in out for name in ("a", "b/c")]
    assert "would be uploaded: 2 files, 200 B" in out
    assert [("planned", "uploaded")] * 2 == states(line.run("put", "folder", "./dest/", "-n", "--json")[0])
    assert not (line.folder / "dest").exists()
    assert not line.spool.exists()
    file_of(line.folder / "dest/folder/a", 1)
    assert "already" in line.refuse("put", "folder", "./dest/", "-n", expected=4)


def test_uploads_that_failed_are_named_and_stay(failed: CommandLine) -> None:
    for verb, done in (("retry", "queued"), ("discard", "discarded")):
        out, _ = failed.run(verb, "--all", "--dry-run")
        assert 2 == out.count(f"would be {done}  "), out
        assert [("planned", done)] * 2 == states(failed.run(verb, "--all", "-n", "--json")[0])
    assert 2 == json.loads(failed.run("status", "--json")[0])["failed"]
    assert {"discarded": 2, "deleted_files": 2, "ended_before": 0} == json.loads(
        failed.run("discard", "--all", "--yes", "--json")[0]
    )


def test_retry_and_drain_say_what_they_did(failed: CommandLine) -> None:
    (failed.folder / "taken/a").unlink()
    (failed.folder / "taken/b").unlink()
    assert {"queued": 2, "dropped": 0, "left": 0, "unfinished": 0} == json.loads(failed.run("retry", "--all", "--json")[0])
    failed.run("drain")
    assert {"uploaded": 0, "left": 0, "failed": 0, "bytes_left": 0} == json.loads(failed.run("drain", "--json")[0])


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        (("restore", "run", "back"), "restored"),
        (("pin", "run", "--step", 10), "pinned"),
        (("unpin", "run", "--step", 10), "unpinned"),
        (("delete", "run", "--step", 10, "--yes"), "deleted"),
    ],
)
def test_verbs_about_a_set(sets: CommandLine, arguments: tuple[object, ...], done: str) -> None:
    before = tree(sets.folder / "run")
    out, _ = sets.run("checkpoints", *arguments, "--dry-run")
    assert out.startswith(f"would be {done}  ")
    assert [("planned", done)] == states(sets.run("checkpoints", *arguments, "-n", "--json")[0])
    assert before == tree(sets.folder / "run")
    assert not (sets.folder / "back").exists()
    assert [(done, "")] == states(sets.run("checkpoints", *arguments, "--json")[0])


def test_a_pinned_set_is_not_to_be_deleted_either(sets: CommandLine) -> None:
    sets.run("checkpoints", "pin", "run", "--step", 10)
    assert "pinned" in sets.refuse("checkpoints", "delete", "run", "--step", 10, "-n", expected=2)


def test_seal_names_the_files_with_segments(line: CommandLine) -> None:
    file_of(line.folder / "logs/train.log", 1000)
    line.run("mirror", "resume", "logs", "dest", "--writer", "rank0", "--no-seal")
    before = tree(line.folder / "dest")
    out, _ = line.run("mirror", "seal", "dest", "--dry-run")
    assert ["would", "be", "sealed", "1000", "B", "train.log"] == out.split()
    assert before == tree(line.folder / "dest")
    assert [("sealed", "")] == states(line.run("mirror", "seal", "dest", "--yes", "--json")[0])
    assert 1000 == (line.folder / "dest/train.log").stat().st_size
