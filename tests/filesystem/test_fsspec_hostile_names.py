"""Objects whose names can have no file here: the others come all the same."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from chained import chained
from servers.gcs_server import GCSServer, strict_gcs
from wherry.errors import ConfigError
from wherry.filesystem.filesystem import WherryFileSystem


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture
def fs(server: GCSServer, tmp_path: Path) -> Iterator[WherryFileSystem]:
    with chained("gs", server.options, tmp_path / "spool") as fs:
        yield fs


@pytest.mark.parametrize(
    "hostile",
    ["../up.txt", "sub/../../up.txt", "/etc/x", "a//b", "nul\0.txt", f"{'n' * 300}.txt", "good/1.txt/below"],
    ids=["up", "up from below", "absolute", "empty part", "nul", "long", "below a file"],
)
def test_one_hostile_name_keeps_no_other_object_back(
    fs: WherryFileSystem, server: GCSServer, tmp_path: Path, hostile: str
) -> None:
    folder = str(uuid.uuid4())
    for name in ("good/1.txt", "good/2.txt", "last.txt", hostile):
        put(server, f"{folder}/{name}", b"bytes")
    with pytest.raises(ConfigError, match="1 of the objects"):
        fs.get(f"{server.bucket}/{folder}", str(tmp_path / "here"), recursive=True)
    there = [os.path.join(base, name) for base, _, names in os.walk(tmp_path / "here") for name in names]
    assert ["good/1.txt", "good/2.txt", "last.txt"] == sorted(os.path.relpath(one, tmp_path / "here") for one in there)
    assert {"here", "spool"} == set(os.listdir(tmp_path))


def test_a_single_hostile_name_is_refused_by_itself(fs: WherryFileSystem, server: GCSServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.\."):
        fs.get_file(f"{server.bucket}/a/../b", str(tmp_path / "here"))


def put(server: GCSServer, name: str, body: bytes) -> None:
    """As another program would, whose names follow no rule."""
    where = f"/upload/storage/v1/b/{server.bucket}/o?uploadType=media&name={quote(name, safe='')}"
    status, answer = server.request("POST", where, body)
    assert 200 == status, answer
