"""The storage that Ray Train gets, called as Ray calls it; tests/extra has the same with Ray itself."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, FileType, PyFileSystem, copy_files

import wherry
from support import end_agent
from wherry.checkpoints.world import World
from wherry.errors import AlreadyExistsError, ConfigError
from wherry.integrations.ray_sets import not_recorded, step_and_version, take_up
from wherry.integrations.ray_storage import RayStorage

_EMPTY = '{"checkpoint_results": [], "latest_checkpoint_result": null}'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def begin(place: Path) -> RayStorage:
    """The storage of one start of the job."""
    with wherry.Checkpoints(place / "bucket", "run", world=World()) as checkpoints:
        _ = checkpoints.attempt
        return RayStorage(pickle.dumps(checkpoints))


def other(storage: RayStorage) -> RayStorage:
    """The same in another process."""
    found: RayStorage = pickle.loads(pickle.dumps(storage))  # noqa: S301
    return found


def upload(storage: RayStorage, place: Path, folder: str, **files: str) -> None:
    """What a worker does in report()."""
    local = place / "local" / folder
    local.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (local / name).write_text(text)
    system = PyFileSystem(other(storage))
    system.create_dir(f"{storage.run}/{folder}")
    copy_files(str(local), f"{storage.run}/{folder}", destination_filesystem=system)


def read(storage: RayStorage, place: Path, folder: str) -> dict[str, str]:
    """What `Checkpoint.to_directory` brings."""
    local = place / "back"
    local.mkdir()
    copy_files(f"{storage.run}/{folder}", str(local), source_filesystem=PyFileSystem(storage))
    found = {path.name: path.read_text() for path in local.iterdir()}
    for path in local.iterdir():
        path.unlink()
    local.rmdir()
    return found


def record(storage: RayStorage, *folders: str) -> None:
    """Write what Ray writes of the checkpoints that it keeps."""
    results = [{"checkpoint_dir_name": folder, "metrics": {"loss": 0.5}} for folder in folders]
    content = {"checkpoint_results": results, "latest_checkpoint_result": results[-1]}
    with PyFileSystem(storage).open_output_stream(f"{storage.run}/checkpoint_manager_snapshot.json") as file:
        file.write(json.dumps(content).encode())


def sets(place: Path) -> list[tuple[int, dict[str, float]]]:
    with wherry.Checkpoints(place / "bucket", "run") as checkpoints:
        return [(one.step, dict(one.metrics)) for one in checkpoints.list()]


def test_a_checkpoint_of_two_workers_is_one_set(place: Path) -> None:
    storage = begin(place)
    upload(storage, place, "checkpoint_000007", a="one")
    upload(storage, place, "checkpoint_000007", b="two")
    assert [] == sets(place)
    storage.commit("checkpoint_000007", {"loss": 0.5, "words": "none", "bad": float("nan")})
    assert [(7, {"loss": 0.5})] == sets(place)
    assert {"a": "one", "b": "two"} == read(storage, place, "checkpoint_000007")
    with wherry.Checkpoints(place / "bucket", "run") as checkpoints:
        restored = checkpoints.restore("latest", place / "restored")
    assert {"a", "b"} == {path.name for path in restored.iterdir()}


def test_a_later_start_reads_the_checkpoint_of_an_earlier_one(place: Path) -> None:
    first = begin(place)
    upload(first, place, "checkpoint_1", a="first")
    first.commit("checkpoint_1", {})
    second = begin(place)
    assert {"a": "first"} == read(second, place, "checkpoint_1")
    upload(second, place, "checkpoint_1", a="second")
    assert {"a": "first"} == read(second, place, "checkpoint_1")  # until the other is a set
    second.commit("checkpoint_1", {})
    assert {"a": "second"} == read(second, place, "checkpoint_1")


def test_what_is_a_set_is_not_written_again(place: Path) -> None:
    storage = begin(place)
    upload(storage, place, "checkpoint_1", a="one")
    upload(storage, place, "checkpoint_1", a="again")  # a worker died before all had reported
    storage.commit("checkpoint_1", {})
    with pytest.raises(AlreadyExistsError, match="checkpoint_dir_name of its own"):
        upload(storage, place, "checkpoint_1", a="changed")
    assert {"a": "again"} == read(storage, place, "checkpoint_1")


def test_a_deleted_checkpoint_stays_until_a_newer_one_is_a_set(place: Path) -> None:
    storage = begin(place)
    system = PyFileSystem(storage)
    for step in (1, 2):
        upload(storage, place, f"checkpoint_{step}", a=str(step))
        if step == 2:
            PyFileSystem(other(storage)).delete_dir(f"{storage.run}/checkpoint_1")
            assert [1] == [found for found, _ in sets(place)]
        storage.commit(f"checkpoint_{step}", {})
        storage.delete()
    assert [2] == [found for found, _ in sets(place)]
    with pytest.raises(ConfigError, match="deleted together"):
        system.delete_file(f"{storage.run}/checkpoint_2/a")


def test_a_start_takes_up_what_ray_has_recorded(place: Path) -> None:
    killed = begin(place)
    for step in (1, 2, 3):
        upload(killed, place, f"checkpoint_{step}", a=str(step))
    killed.commit("checkpoint_1", {})
    record(killed, "checkpoint_2", "checkpoint_3")  # and killed before it committed 2 and 3, and deleted 1
    with wherry.Checkpoints(place / "bucket", "run") as checkpoints:
        recorded = take_up(checkpoints.catalog)
        assert {"checkpoint_2", "checkpoint_3"} == recorded
        assert [(1, {}), (2, {"loss": 0.5}), (3, {"loss": 0.5})] == sets(place)
        begin(place).delete(not_recorded(checkpoints.catalog, recorded))
    assert [2, 3] == [step for step, _ in sets(place)]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"checkpoint_results": [{}], "latest_checkpoint_result": null}', "\xff", _EMPTY]
)
def test_a_record_that_is_none_takes_up_nothing(place: Path, text: str) -> None:
    storage = begin(place)
    upload(storage, place, "checkpoint_1", a="one")
    storage.commit("checkpoint_1", {})
    with PyFileSystem(storage).open_output_stream(f"{storage.run}/checkpoint_manager_snapshot.json") as file:
        file.write(text.encode("latin-1"))
    with wherry.Checkpoints(place / "bucket", "run") as checkpoints:
        assert take_up(checkpoints.catalog) is None
    assert [1] == [step for step, _ in sets(place)]


def test_a_run_without_a_record_takes_up_nothing(place: Path) -> None:
    begin(place)
    with wherry.Checkpoints(place / "bucket", "run") as checkpoints:
        assert take_up(checkpoints.catalog) is None


def test_the_listing_of_a_checkpoint_shows_its_files_alone(place: Path) -> None:
    storage = begin(place)
    upload(storage, place, "checkpoint_1", a="one", b="three")
    storage.commit("checkpoint_1", {})
    top = f"{storage.run}/checkpoint_1"
    system = PyFileSystem(storage)
    found = system.get_file_info(FileSelector(top, recursive=True))
    assert {(f"{top}/a", 3), (f"{top}/b", 5)} == {(one.path, one.size) for one in found}
    assert FileType.Directory == system.get_file_info(top).type
    assert FileType.NotFound == system.get_file_info(f"{storage.run}/checkpoint_2").type


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("checkpoint_000100", (100, 1)),
        ("epoch=3-step=40", (40, 1)),
        ("checkpoint_2026-11-23_04-05-06.789012", (261123040506, 790)),
        ("checkpoint_2026-11-23_04-05-06.999999", (261123040506, 999)),
        (".validate_storage_marker", None),
        ("checkpoint_manager_snapshot.json", None),
    ],
)
def test_the_step_is_the_number_at_the_end(folder: str, expected: Any) -> None:
    assert expected == step_and_version(folder)


def test_a_number_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="is its step"):
        step_and_version("checkpoint_" + "9" * 13)


def test_other_stores_are_refused(place: Path) -> None:
    with (
        wherry.Checkpoints("ftp://host/place", "run", storage_options={"username": "me"}) as checkpoints,
        pytest.raises(ConfigError, match="a folder"),
    ):
        RayStorage(pickle.dumps(checkpoints))
