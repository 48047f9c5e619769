"""``UPath("wherry::...")`` is a path like those of the store itself. universal-pathlib's own suite: tests/extra."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from servers.features import tell_spool
from servers.real import S3Server
from support import end_agent


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, seaweedfs_server: S3Server, tmp_path: Path) -> Iterator[UPath]:
    """A folder with two objects. The bucket has the name of a protocol, wherry."""
    own: dict[str, Any] = {"wherry": {"spool": str(tmp_path / "spool")}}
    tell_spool(tmp_path / "spool", seaweedfs_server)
    with end_agent(tmp_path / "spool"):
        if request.param == "file":
            root = UPath(f"wherry::file://{tmp_path}/store", **own)
        else:
            keys = {"aws_access_key_id": {"from_env": "STORE_KEY"}, "aws_secret_access_key": {"from_env": "STORE_SECRET"}}
            patch = request.getfixturevalue("monkeypatch")
            patch.setenv("STORE_KEY", seaweedfs_server.access_key)
            patch.setenv("STORE_SECRET", seaweedfs_server.secret_key)
            assert "wherry" == seaweedfs_server.bucket
            root = UPath(f"wherry::s3://wherry/{uuid.uuid4()}", s3={**seaweedfs_server.options, **keys}, **own)
        (root / "a" / "one.txt").write_text("one")
        (root / "two.txt").write_text("two")
        yield root
        root.fs.close()


def plain(root: UPath) -> UPath:
    """The same path of the store itself, without wherry."""
    return UPath(str(root).removeprefix("wherry::"))


def test_parts_are_those_of_the_store(root: UPath) -> None:
    for path, other in ((root, plain(root)), (root / "a" / "one.txt", plain(root) / "a" / "one.txt")):
        expected = (other.drive, other.root, other.anchor, tuple(other.parts), other.path)
        assert expected == (path.drive, path.root, path.anchor, tuple(path.parts), path.path)
        assert [one.path for one in other.parents] == [one.path for one in path.parents]


def test_a_path_made_of_a_path_is_equal(root: UPath) -> None:
    path = root / "two.txt"
    for same in (UPath(path), root.joinpath("two.txt"), (root / "a").parent / "two.txt", pickle.loads(pickle.dumps(path))):  # noqa: S301
        assert (path, str(path), path.drive, path.root, path.parts) == (same, str(same), same.drive, same.root, same.parts)
        assert dict(path.storage_options) == dict(same.storage_options) == dict(path.fs.storage_options)


def test_names_found_are_relative_to_where_they_were_looked_for(root: UPath) -> None:
    assert [root / "a" / "one.txt", root / "two.txt"] == sorted(root.glob("**/*.txt"), key=str)
    assert ["a", "two.txt"] == sorted(one.name for one in root.iterdir())
    assert [(".", ["a"], ["two.txt"]), ("a", [], ["one.txt"])] == [
        (str(folder.relative_to(root)), folders, files) for folder, folders, files in root.walk()
    ]


def test_a_file_is_renamed_to_an_absolute_path_without_a_protocol(root: UPath) -> None:
    moved = (root / "two.txt").rename((root / "three.txt").path)
    assert (root / "three.txt", "two", False) == (moved, moved.read_text(), (root / "two.txt").exists())
    assert root / "four.txt" == moved.rename(UPath((root / "four.txt").path))


def test_a_folder_that_is_there_is_not_made_again(root: UPath) -> None:
    with pytest.raises(FileExistsError):
        (root / "a").mkdir()
    with pytest.raises(FileExistsError):
        (root / "two.txt").mkdir(exist_ok=True)
    (root / "a").mkdir(exist_ok=True)
    (root / "new").mkdir()


def test_a_bucket_may_have_the_name_of_a_protocol(root: UPath) -> None:
    top = root.parents[-1]
    assert (root.anchor, True) == (top.path, root.is_relative_to(top))
    assert top == top.parent
