"""Whether the store itself saw to it that a name was free is said in the handle."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from servers.real import S3Server
from support import CALLER, file_of
from wherry import Uploader


@pytest.mark.parametrize(("overwrite", "expected"), [(False, True), (True, None)])
def test_a_folder_decides_itself_and_overwriting_asks_for_no_decision(
    tmp_path: Path, overwrite: bool, expected: bool | None
) -> None:
    with Uploader(tmp_path / "dest", spool=tmp_path / "spool", config=CALLER) as uploader:
        handle = uploader.put(file_of(tmp_path / "file", 10), "file", overwrite=overwrite)
        handle.result()
        assert expected is handle.is_exclusive


@pytest.mark.parametrize("conditional", [True, False])
def test_an_s3_server_decides_unless_it_is_told_not_to_be_trusted(
    tmp_path: Path, seaweedfs_server: S3Server, conditional: bool
) -> None:
    options = {**seaweedfs_server.options, "conditional_writes": conditional}
    uri = f"s3://{seaweedfs_server.bucket}/{uuid.uuid4().hex}"
    with Uploader(uri, storage_options=options, spool=tmp_path / "spool", config=CALLER) as uploader:
        handle = uploader.put(file_of(tmp_path / "file", 10), "file")
        assert handle.result().size_bytes == 10
        assert conditional is handle.is_exclusive


def test_a_file_system_that_cannot_decide_is_said_to(tmp_path: Path) -> None:
    with Uploader(f"memory://{uuid.uuid4().hex}", spool=tmp_path / "spool", config=CALLER) as uploader:
        handle = uploader.put(file_of(tmp_path / "file", 10), "file")
        handle.result()
        assert uploader.store.capabilities.conditional_put is handle.is_exclusive


def test_of_a_folder_of_files_the_weakest_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        file_of(tmp_path / "folder" / name, 10)
    with Uploader(tmp_path / "dest", spool=tmp_path / "spool", config=CALLER) as uploader:
        handle = uploader.put(tmp_path / "folder", "folder")
        handle.result()
        assert handle.is_exclusive is True
