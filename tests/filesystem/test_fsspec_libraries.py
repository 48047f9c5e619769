"""Real libraries that write and read through ``wherry::``, over S3."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileType, FSSpecHandler, PyFileSystem
from upath import UPath

from chained import chained, held
from servers.real import S3Server
from wherry.errors import ConfigError
from wherry.filesystem.filesystem import WherryFileSystem

if TYPE_CHECKING:
    import pandas as pd


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries") / "spool"


@pytest.fixture(scope="module")
def fs(seaweedfs_server: S3Server, spool: Path) -> Iterator[WherryFileSystem]:
    with chained("s3", seaweedfs_server.options, spool) as fs:
        yield fs


@pytest.fixture
def folder(seaweedfs_server: S3Server) -> str:
    return f"{seaweedfs_server.bucket}/{uuid.uuid4()}"


@pytest.fixture
def url(folder: str, fs: WherryFileSystem) -> str:
    """A folder in the bucket; `fs` is the file system that its options open, and it is closed at the end."""
    return f"wherry::s3://{folder}"


@pytest.fixture(scope="module")
def options(seaweedfs_server: S3Server, spool: Path) -> dict[str, Any]:
    return {"s3": seaweedfs_server.options, "wherry": {"spool": str(spool)}}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({"step": np.arange(1000), "loss": np.linspace(1, 0, 1000), "note": ["a", "b"] * 500})


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet", "log.json"])
def test_pandas_reads_what_it_wrote(
    fs: WherryFileSystem, spool: Path, url: str, folder: str, options: dict[str, Any], frame: pd.DataFrame, name: str
) -> None:
    import pandas as pd

    to: dict[str, Any] = {
        "csv": lambda path: frame.to_csv(path, index=False, storage_options=options),
        "parquet": lambda path: frame.to_parquet(path, storage_options=options),
        "json": lambda path: frame.to_json(path, storage_options=options, double_precision=15),
    }
    read: dict[str, Any] = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}
    kind = name.split(".")[1]
    with held(fs, spool, folder):
        to[kind](f"{url}/{name}")
        pd.testing.assert_frame_equal(frame, read[kind](f"{url}/{name}", storage_options=options))
    fs.flush()
    pd.testing.assert_frame_equal(frame, read[kind](f"{url}/{name}", storage_options=options))


def test_pyarrow_writes_reads_and_removes_a_dataset(fs: WherryFileSystem, folder: str, frame: pd.DataFrame) -> None:
    arrow = PyFileSystem(FSSpecHandler(fs))
    table = pa.Table.from_pandas(frame)
    arrow.create_dir(folder)
    pq.write_table(table, f"{folder}/one.parquet", filesystem=arrow, row_group_size=100)
    assert table.equals(pq.read_table(f"{folder}/one.parquet", filesystem=arrow))
    assert table.column("loss").equals(pq.read_table(f"{folder}/one.parquet", filesystem=arrow, columns=["loss"]).column(0))
    ds.write_dataset(table, f"{folder}/set", filesystem=arrow, format="parquet", partitioning=["note"])
    found = ds.dataset(f"{folder}/set", filesystem=arrow, format="parquet", partitioning=["note"])
    assert 500 == found.to_table(filter=ds.field("note") == "a").num_rows
    assert FileType.Directory == arrow.get_file_info(f"{folder}/set").type
    arrow.copy_file(f"{folder}/one.parquet", f"{folder}/two.parquet")
    arrow.move(f"{folder}/two.parquet", f"{folder}/three.parquet")
    assert table.equals(pq.read_table(f"{folder}/three.parquet", filesystem=arrow))
    arrow.delete_dir(f"{folder}/set")
    assert [FileType.NotFound, FileType.File] == [
        info.type for info in arrow.get_file_info([f"{folder}/set", f"{folder}/one.parquet"])
    ]
    with pytest.raises(ConfigError, match="written whole"):
        arrow.open_append_stream(f"{folder}/one.parquet")


def test_torch_saves_and_loads(fs: WherryFileSystem, spool: Path, url: str, folder: str, options: dict[str, Any]) -> None:
    import torch

    state = {"model": torch.nn.Linear(100, 100).state_dict(), "step": 7}
    with held(fs, spool, folder):
        with fsspec.open(f"{url}/ep0.pt", "wb", **options) as file:
            torch.save(state, file)
        with fsspec.open(f"{url}/ep0.pt", "rb", **options) as file:
            queued = torch.load(file, weights_only=True)
    fs.flush()
    with fsspec.open(f"{url}/ep0.pt", "rb", **options) as file:
        stored = torch.load(file, weights_only=True)
    for loaded in (queued, stored):
        assert 7 == loaded["step"]
        assert torch.equal(state["model"]["weight"], loaded["model"]["weight"])  # type: ignore[index]


def test_distributed_checkpoint_is_saved_and_loaded(
    fs: WherryFileSystem, spool: Path, url: str, folder: str, options: dict[str, Any]
) -> None:
    import torch
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    def save(state: dict[str, Any], **how: Any) -> None:
        save_distributed(state, storage_writer=FsspecWriter(f"{url}/dcp", thread_count=2, **options, **how), no_dist=True)

    def load() -> dict[str, Any]:
        state = {"model": {"weight": torch.zeros(1000), "bias": torch.zeros(3)}, "step": torch.tensor(0)}
        load_distributed(state, storage_reader=FsspecReader(f"{url}/dcp", **options), no_dist=True)
        return state

    first = {"model": {"weight": torch.arange(1000.0), "bias": torch.ones(3)}, "step": torch.tensor(1)}
    second = {"model": {"weight": torch.rand(1000), "bias": torch.ones(3)}, "step": torch.tensor(2)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        warnings.filterwarnings("ignore", "Detected an existing checkpoint", UserWarning)
        with held(fs, spool, folder):
            save(first)
            assert torch.equal(first["model"]["weight"], load()["model"]["weight"])  # type: ignore[index]
        fs.flush()
        assert torch.equal(first["model"]["weight"], load()["model"]["weight"])  # type: ignore[index]
        save(second)
        assert 2 == load()["step"]
    names = {path.rpartition("/")[2] for path in fs.find(f"{folder}/dcp")}
    assert ".metadata" in names
    assert ".metadata.tmp" not in names


def test_upath_is_a_path(url: str, folder: str, options: dict[str, Any]) -> None:
    root = UPath(url, **options)
    path = root / "logs" / "a.txt"
    assert 5 == path.write_text("words")
    assert (f"{folder}/logs/a.txt", "a.txt", ".txt") == (path.path, path.name, path.suffix)
    assert ("words", True, True, 5) == (path.read_text(), path.exists(), path.is_file(), path.stat().st_size)
    assert (True, [path], [path]) == (path.parent.is_dir(), list(path.parent.iterdir()), list(root.glob("**/*.txt")))
    with path.open("rb") as file:
        assert b"ords" == file.read()[1:]
    with pytest.raises(ZeroDivisionError), path.open("w") as file:
        file.write("half")
        raise ZeroDivisionError
    given = {name: value for name, value in options.items() if name != "protocol"}
    assert "words" == UPath(str(path), **given).read_text()
    assert f"{path.parent}/a.txt" == str(path)
    other = UPath(f"{path}.tmp", **given)
    other.write_text("another")
    assert ("words", "another", "a.txt.tmp") == (path.read_text(), other.read_text(), other.name)
    other.unlink()
    moved = path.rename(path.with_name("b.txt"))
    assert (False, "words") == (path.exists(), moved.read_text())
    root.joinpath("new").mkdir(parents=True, exist_ok=True)
    moved.unlink()
    assert not moved.exists()
