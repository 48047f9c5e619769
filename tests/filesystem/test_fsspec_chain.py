"""What ``wherry::`` adds to fsspec: accepted is not uploaded, and what is read shows what is queued."""

from __future__ import annotations

import io
import os
import pickle
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from upath import UPath

from chained import chained, held
from support import caller, file_of, run_script, without_waits
from wherry.config import SpoolConfig
from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError, SpoolError, UploadFailed
from wherry.filesystem.filesystem import WherryFileSystem


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "bucket")


@pytest.fixture
def fs(spool: Path) -> Iterator[WherryFileSystem]:
    with chained("file", {}, spool) as fs:
        yield fs


# Accepted, uploaded, read.


def test_close_returns_before_the_upload_and_flush_after_it(fs: WherryFileSystem, spool: Path, folder: str) -> None:
    with held(fs, spool, folder):
        with fsspec.open(f"wherry::file://{folder}/run/x.pt", "wb", wherry={"spool": str(spool)}) as file:
            file.write(b"bytes")
        assert not os.path.exists(folder)
    fs.flush()
    assert b"bytes" == Path(folder, "run/x.pt").read_bytes()


def test_every_way_of_reading_sees_what_is_queued(fs: WherryFileSystem, spool: Path, folder: str, tmp_path: Path) -> None:
    path = f"{folder}/run/x.pt"
    with held(fs, spool, folder):
        fs.pipe_file(path, b"0123456789")
        assert not os.path.exists(path)
        assert (True, True, True) == (fs.exists(path), fs.isfile(path), fs.isdir(f"{folder}/run"))
        assert (10, "file") == (fs.info(path)["size"], fs.info(path)["type"])
        assert [f"{folder}/run"] == fs.ls(folder, detail=False)
        assert [path] == fs.find(folder) == fs.glob(f"{folder}/**/*.pt") == fs.ls(path, detail=False)
        assert b"0123456789" == fs.cat_file(path) == fs.cat(path)
        assert (b"123", b"89", b"01234567", b"") == (
            fs.cat_file(path, 1, 4),
            fs.cat_file(path, -2),
            fs.cat_file(path, None, -2),
            fs.cat_file(path, 20, 30),
        )
        with fs.open(path) as file:
            assert (5, b"56", b"789") == (file.seek(5), file.read(2), file.read())
        with fs.open(path, "r") as text:
            assert "0123456789" == text.read()
        fs.get_file(path, str(tmp_path / "got"))
        assert b"0123456789" == (tmp_path / "got").read_bytes()
        fs.cp_file(path, f"{folder}/copy")
        assert b"0123456789" == fs.cat_file(f"{folder}/copy")
        assert fs.modified(path).timestamp() > 0


def test_queued_version_is_read_to_its_end_though_it_is_uploaded_and_replaced(
    fs: WherryFileSystem, spool: Path, folder: str
) -> None:
    path = f"{folder}/x"
    with held(fs, spool, folder):
        fs.pipe_file(path, b"first version")
        file = fs.open(path, block_size=1, cache_type="none")
        assert b"first" == file.read(5)
    fs.flush()
    fs.pipe_file(path, b"another, that is longer")
    fs.flush()
    assert b" version" == file.read()
    file.close()
    assert b"another, that is longer" == fs.cat_file(path)


def test_reader_of_a_stored_object_never_mixes_two_versions(fs: WherryFileSystem, folder: str) -> None:
    path = f"{folder}/x"
    fs.pipe_file(path, b"first version")
    fs.flush()
    with fs.open(path, block_size=1, cache_type="none") as file:
        assert b"first" == file.read(5)
        fs.pipe_file(path, b"other version")
        fs.flush()
        with pytest.raises(IntegrityError):
            file.read()


def test_large_object_is_read_whole_and_in_pieces(fs: WherryFileSystem, folder: str, tmp_path: Path) -> None:
    data = file_of(tmp_path / "source", 17 * 2**20).read_bytes()  # more than one range of a download
    fs.put_file(str(tmp_path / "source"), f"{folder}/x")
    fs.flush()
    assert data == fs.cat_file(f"{folder}/x")
    with fs.open(f"{folder}/x") as file:
        assert data == file.read()
    with fs.open(f"{folder}/x") as file:
        assert data == b"".join(iter(lambda: file.read(2**20), b""))
    fs.cp_file(f"{folder}/x", f"{folder}/y")
    assert data == fs.cat_file(f"{folder}/y")


def test_rm_takes_back_what_is_queued(fs: WherryFileSystem, spool: Path, folder: str) -> None:
    with held(fs, spool, folder):
        fs.pipe({f"{folder}/run/{n}": b"x" for n in range(3)})
        fs.rm(f"{folder}/run/0")
        assert [f"{folder}/run/1", f"{folder}/run/2"] == fs.find(folder)
        fs.rm(f"{folder}/run", recursive=True)
        assert not fs.exists(f"{folder}/run")
    fs.flush()
    assert not os.path.exists(folder)


def test_failed_upload_is_told_by_flush(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe_file(f"{folder}/x", b"a file")
    fs.flush()
    fs.pipe_file(f"{folder}/x/y", b"below a file, where there is no place")
    with pytest.raises(UploadFailed, match="x/y"):
        fs.flush()


def test_uploads_are_drained_at_exit(spool: Path, folder: str) -> None:
    script = """
    import fsspec, sys
    with fsspec.open(f"wherry::file://{sys.argv[1]}/x", "wb", wherry={"spool": sys.argv[2]}) as file:
        file.write(b"bytes")
    """
    assert "" == without_waits(run_script(script, folder, spool))
    assert b"bytes" == Path(folder, "x").read_bytes()


def test_required_objects_come_first(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe_file(f"{folder}/shard", b"data")
    fs.pipe_file(f"{folder}/latest", b"shard", requires=[f"{folder}/shard"])
    with fs.open(f"{folder}/never", "wb", requires=[f"{folder}/nothing"]) as file:
        file.write(b"x")
    fs.rm(f"{folder}/never")
    fs.flush()
    assert ["latest", "shard"] == sorted(os.listdir(folder))


def test_examples_of_the_documentation_run(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs/fsspec.md").read_text()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        if '"s3": {' not in example:  # it opens nothing yet
            example = example.replace("s3://my-bucket", f"file://{tmp_path}/bucket{number}")
        assert "" == without_waits(run_script(example, env={"WHERRY_SPOOL": str(tmp_path / "spool")}))


# Writing.


def _raise(file: Any) -> None:
    file.write("half" if isinstance(file, io.TextIOBase) else b"half")
    raise ZeroDivisionError


WAYS: dict[str, Callable[[WherryFileSystem, str], Any]] = {
    "fs.open": lambda fs, path: fs.open(path, "wb"),
    "fs.open text": lambda fs, path: fs.open(path, "w"),
    "fs.open compressed": lambda fs, path: fs.open(path, "wb", compression="gzip"),
    "fs.open compressed text": lambda fs, path: fs.open(path, "wt", compression="bz2"),
    "fsspec.open": lambda fs, path: fsspec.core.OpenFile(fs, path, "wb"),
    "fsspec.open text": lambda fs, path: fsspec.core.OpenFile(fs, path, "w", encoding="utf8"),
    "fsspec.open compressed": lambda fs, path: fsspec.core.OpenFile(fs, path, "wb", compression="gzip"),
    "fsspec.open compressed text": lambda fs, path: fsspec.core.OpenFile(fs, path, "wt", compression="xz"),
}


@pytest.mark.parametrize("way", WAYS)
def test_block_that_fails_leaves_the_old_version(fs: WherryFileSystem, folder: str, way: str) -> None:
    """Half a file is never handed over under the final name."""
    fs.pipe_file(f"{folder}/x", b"whole")
    with pytest.raises(ZeroDivisionError), WAYS[way](fs, f"{folder}/x") as file:
        _raise(file)
    fs.flush()
    assert b"whole" == fs.cat_file(f"{folder}/x")
    assert ["x"] == os.listdir(folder)


@pytest.mark.parametrize("way", WAYS)
def test_block_inside_an_exception_handler_is_handed_over(fs: WherryFileSystem, folder: str, way: str) -> None:
    """An emergency checkpoint is written while an exception is being handled; that one is not the block's own."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with WAYS[way](fs, f"{folder}/x") as file:
            file.write("saved" if "text" in way else b"saved")
    compression = "gzip" if way.endswith("compressed") else {"fs": "bz2", "fsspec": "xz"}[way.partition(".")[0]]
    with fs.open(f"{folder}/x", compression=compression if "compressed" in way else None) as file:
        assert b"saved" == file.read()


def test_all_files_of_a_failed_block_are_thrown_away(fs: WherryFileSystem, folder: str) -> None:
    paths = [f"{folder}/a", f"{folder}/b"]
    files = fsspec.core.OpenFiles([fsspec.core.OpenFile(fs, path, "wb") for path in paths], mode="wb", fs=fs)
    with pytest.raises(ZeroDivisionError), files as opened:
        opened[0].write(b"whole")
        _raise(opened[1])
    assert [] == fs.find(folder)


def test_forgotten_file_is_not_uploaded_and_says_so(fs: WherryFileSystem, folder: str) -> None:
    for mode, data in (("wb", b"half"), ("w", "half")):
        file = fs.open(f"{folder}/x", mode)
        file.write(data)
        with pytest.warns(ResourceWarning, match="never closed"):
            del file
    assert not fs.exists(f"{folder}/x")


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "r+", "a+b"])
def test_changing_an_object_is_refused(fs: WherryFileSystem, folder: str, mode: str) -> None:
    fs.pipe_file(f"{folder}/x", b"whole")
    with pytest.raises(ConfigError, match="written whole and never changed"):
        fs.open(f"{folder}/x", mode)


def test_writer_can_be_sought_in_and_read_back(fs: WherryFileSystem, folder: str) -> None:
    with fs.open(f"{folder}/x", "w+b") as file:
        file.write(b"0123456789")
        file.seek(2)
        file.write(b"__")
        file.seek(0)
        assert (b"01__456789", 10) == (file.read(), file.tell())
        file.truncate(4)
    assert b"01__" == fs.cat_file(f"{folder}/x")


def test_exclusive_modes_refuse_a_taken_name_at_once(fs: WherryFileSystem, spool: Path, folder: str, tmp_path: Path) -> None:
    source = str(file_of(tmp_path / "source", 3))
    with held(fs, spool, folder):
        fs.pipe_file(f"{folder}/x", b"queued")
        calls: list[Callable[[], object]] = [
            lambda: fs.open(f"{folder}/x", "xb"),
            lambda: fs.open(f"{folder}/x", "x"),
            lambda: fs.pipe_file(f"{folder}/x", b"other", mode="create"),
            lambda: fs.put_file(source, f"{folder}/x", mode="create"),
        ]
        for call in calls:
            with pytest.raises(AlreadyExistsError):
                call()
    fs.flush()
    assert b"queued" == Path(folder, "x").read_bytes()


def test_of_two_exclusive_writers_one_wins_and_the_other_is_told(fs: WherryFileSystem, folder: str) -> None:
    with fs.open(f"{folder}/x", "xb") as first, fs.open(f"{folder}/x", "xb") as second:
        first.write(b"first")
        second.write(b"second")
    with pytest.raises(UploadFailed, match=f"{folder}/x") as caught:
        fs.flush()
    assert isinstance(caught.value, AlreadyExistsError)
    assert b"second" == fs.cat_file(f"{folder}/x")  # the inner block ends first


def test_transaction_hands_all_over_at_its_end_or_nothing(fs: WherryFileSystem, folder: str) -> None:
    with fs.transaction:
        fs.pipe({f"{folder}/a": b"1", f"{folder}/b": b"2"})
        assert [] == fs.find(folder)
    assert [f"{folder}/a", f"{folder}/b"] == fs.find(folder)
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file(f"{folder}/c", b"3")
        raise ZeroDivisionError
    assert not fs.exists(f"{folder}/c")


def test_full_spool_is_an_error_and_leaves_nothing(spool: Path, folder: str) -> None:
    with chained("file", {}, spool, caller(SpoolConfig(max_spool_bytes=10, when_full="raise"))) as fs:
        source = file_of(spool.parent / "source", 100)
        with pytest.raises(SpoolError):
            fs.put_file(str(source), f"{folder}/x")
        assert not fs.exists(f"{folder}/x")


# Folders, moving and removing.


def test_folders_are_their_objects(fs: WherryFileSystem, folder: str) -> None:
    fs.makedirs(f"{folder}/a/b", exist_ok=True)
    fs.mkdir(f"{folder}/c")
    assert not fs.exists(f"{folder}/a")
    fs.rmdir(f"{folder}/a")
    fs.pipe_file(f"{folder}/a/b/x", b"1")
    assert {"name": f"{folder}/a", "size": 0, "type": "directory"} == fs.info(f"{folder}/a")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{folder}/a")
    assert [(folder, ["a"], []), (f"{folder}/a", ["b"], []), (f"{folder}/a/b", [], ["x"])] == list(fs.walk(folder))
    assert {f"{folder}/a", f"{folder}/a/b", f"{folder}/a/b/x"} == set(fs.find(f"{folder}/a", withdirs=True))
    assert 1 == fs.du(folder)


@pytest.mark.parametrize("call", ["info", "ls", "cat_file", "open", "rm", "rm_file", "size", "modified"])
def test_missing_object_is_file_not_found(fs: WherryFileSystem, folder: str, call: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(fs, call)(f"{folder}/nothing")


def test_rm_of_a_folder_needs_to_be_told(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe({f"{folder}/a/x": b"1", f"{folder}/b": b"2"})
    with pytest.raises(IsADirectoryError, match="recursive"):
        fs.rm([f"{folder}/b", f"{folder}/a"])
    assert 2 == len(fs.find(folder))
    fs.rm(folder, recursive=True, maxdepth=1)
    assert [f"{folder}/a/x"] == fs.find(folder)


def test_rm_file_takes_its_path_literally(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe({f"{folder}/x[1]": b"1", f"{folder}/x1": b"2", f"{folder}/*": b"3"})
    fs.rm_file(f"{folder}/x[1]")
    fs.rm_file(f"{folder}/*")
    assert [f"{folder}/x1"] == fs.find(folder)


def test_mv_moves_and_never_onto_itself(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe_file(f"{folder}/x", b"bytes")
    fs.mv(f"{folder}/x", f"wherry::file://{folder}/x")
    fs.mv(f"{folder}/x", f"file://{folder}/x/")
    assert b"bytes" == fs.cat_file(f"{folder}/x")
    fs.mv(f"{folder}/x", f"{folder}/y")
    fs.mv(folder, f"{folder}2", recursive=True)
    fs.flush()
    assert ([], [f"{folder}2/y"]) == (fs.find(folder), fs.find(f"{folder}2"))


@pytest.mark.parametrize(
    ("source", "target"), [("run", "run/archive"), ("run/", "run/a/b/"), ("ru*", "run"), (["x", "run"], ["y", "run/archive"])]
)
def test_a_folder_is_never_moved_into_itself(fs: WherryFileSystem, folder: str, source: Any, target: Any) -> None:
    fs.pipe(dict.fromkeys([f"{folder}/run/a", f"{folder}/run/b/c", f"{folder}/rux/d", f"{folder}/x"], b"1"))
    before = fs.find(folder)
    old, new = (
        [f"{folder}/{one}" for one in each] if isinstance(each, list) else f"{folder}/{each}" for each in (source, target)
    )
    with pytest.raises(OSError, match=r"into itself.*run"):
        fs.mv(old, new, recursive=True)
    fs.flush()
    assert before == fs.find(folder)


def test_rename_of_a_path_into_itself_is_refused(fs: WherryFileSystem, spool: Path, folder: str) -> None:
    path = UPath(f"wherry::file://{folder}/run", wherry={"spool": str(spool)})
    (path / "a").write_text("1")
    with pytest.raises(OSError, match="into itself"), pytest.warns(DeprecationWarning, match="recursive"):
        path.rename(path / "old", recursive=True)
    assert "1" == (path / "a").read_text()
    path.fs.close()


def test_mv_deletes_only_what_it_has_copied(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe({f"{folder}/ckpt1/a": b"1", f"{folder}/ckpt2/a": b"2"})
    fs.mv(f"{folder}/ckpt*", f"{folder}/ckpt_old/", recursive=True)  # the target looks like a source once it is there
    fs.flush()
    assert {f"{folder}/ckpt_old/ckpt1/a": b"1", f"{folder}/ckpt_old/ckpt2/a": b"2"} == fs.cat(fs.find(folder))
    fs.mv(f"{folder}/ckpt_old/ckpt1/a", f"{folder}/ckpt_old/ckpt1/")  # where it is already
    assert b"1" == fs.cat_file(f"{folder}/ckpt_old/ckpt1/a")
    fs.mv(f"{folder}/ckpt_old", f"{folder}/ckpt_old/top", recursive=True, maxdepth=1)  # has no objects of its own
    with pytest.raises(IsADirectoryError):
        fs.mv(f"{folder}/ckpt_old", f"{folder}/other")
    assert 2 == len(fs.find(folder))


def test_mv_replaces_nothing_that_is_to_be_moved_as_well(fs: WherryFileSystem, folder: str) -> None:
    both = [f"{folder}/a", f"{folder}/b"]
    fs.pipe({both[0]: b"1", both[1]: b"2"})
    with pytest.raises(OSError, match="moved as well"):
        fs.mv(both, both[::-1])
    assert {both[0]: b"1", both[1]: b"2"} == fs.cat(both)


def test_mapper_keeps_a_mapping(fs: WherryFileSystem, folder: str) -> None:
    mapper = fs.get_mapper(f"{folder}/store")
    mapper["a/b"] = b"1"
    mapper["c"] = b"2"
    assert (["a/b", "c"], b"1", b"none") == (sorted(mapper), mapper["a/b"], mapper.get("d", b"none"))
    del mapper["c"]
    assert ["a/b"] == list(mapper)


# Instances, processes, other file systems.


def test_equal_options_share_one_instance_and_threads_share_its_uploads(fs: WherryFileSystem, spool: Path, folder: str) -> None:
    assert fs is fsspec.filesystem("wherry", target_protocol="file", target_options={}, spool=str(spool))
    same, path = fsspec.url_to_fs(f"wherry::file://{folder}/x", wherry={"spool": str(spool)})
    assert (f"{folder}/x", f"wherry::file://{folder}/x") == (path, same.unstrip_protocol(path))
    errors: list[BaseException] = []

    def write() -> None:
        try:
            own, _ = fsspec.url_to_fs(f"wherry::file://{folder}", wherry={"spool": str(spool)})
            own.pipe_file(f"{folder}/{threading.get_ident()}", b"x")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == errors
    clients = [entry for entry in (spool / "clients").iterdir() if entry.suffix != ".bell"]
    assert 1 == len(clients)
    same.flush()
    assert 4 == len(os.listdir(folder))


def test_file_systems_and_files_go_to_other_processes(fs: WherryFileSystem, folder: str, tmp_path: Path) -> None:
    fs.pipe_file(f"{folder}/parent", b"parent")
    (tmp_path / "pickle").write_bytes(pickle.dumps((fs, fsspec.core.OpenFile(fs, f"{folder}/pickled", "wb"))))
    script = """
    import pickle, sys
    fs, file = pickle.load(open(sys.argv[1], "rb"))
    with file as opened:
        opened.write(b"x")
    fs.pipe_file(sys.argv[2], b"x")
    """
    assert "" == without_waits(run_script(script, tmp_path / "pickle", f"{folder}/child"))
    fs.flush()
    assert ["child", "parent", "pickled"] == sorted(os.listdir(folder))


def test_forked_child_signs_on_by_itself(fs: WherryFileSystem, spool: Path, folder: str) -> None:
    """Not with its parent's uploader: the parent's close() would not wait for what the child has handed over."""
    script = """
    import fsspec, os, sys
    folder, spool = sys.argv[1:]
    fs, _ = fsspec.url_to_fs(f"wherry::file://{folder}", wherry={"spool": spool})
    fs.pipe_file(f"{folder}/parent", b"x")
    if (child := os.fork()) == 0:
        fs.pipe_file(f"{folder}/child", b"x")
        now = {name.partition("-")[0] for name in os.listdir(f"{spool}/clients")}
        fs.close()
        os._exit(now != {str(os.getpid()), str(os.getppid())} or not os.path.exists(f"{folder}/child"))
    print(os.waitpid(child, 0)[1])
    """
    assert "0\n" == without_waits(run_script(script, folder, spool))
    assert ["child", "parent"] == sorted(os.listdir(folder))


def test_reader_can_be_pickled(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe_file(f"{folder}/x", b"bytes")
    with fs.open(f"{folder}/x") as file, pickle.loads(pickle.dumps(file)) as again:  # noqa: S301
        assert b"bytes" == again.read() == file.read()


def test_file_system_goes_through_json(fs: WherryFileSystem, folder: str) -> None:
    fs.pipe_file(f"{folder}/x", b"bytes")
    assert b"bytes" == fsspec.AbstractFileSystem.from_json(fs.to_json()).cat_file(f"{folder}/x")


def test_other_file_systems_stand_on_it(fs: WherryFileSystem, spool: Path, folder: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"wherry": {"spool": str(spool)}}
    with fs.open(f"{folder}/x.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inner.txt", b"zipped")
    with fsspec.open(f"zip://inner.txt::wherry::file://{folder}/x.zip", "rb", **how) as file:
        assert b"zipped" == file.read()
    cache = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    with fsspec.open(f"simplecache::wherry::file://{folder}/x.zip", "rb", **how, **cache) as file:
        assert b"PK" == file.read(2)


def test_store_of_one_process_needs_no_spool() -> None:
    with fsspec.open("wherry::memory://fsspec-chain/x", "wb") as file:
        file.write(b"bytes")
    assert b"bytes" == fsspec.filesystem("memory").cat_file("/fsspec-chain/x")
    fs, path = fsspec.url_to_fs("wherry::memory://fsspec-chain/x")
    assert ("/fsspec-chain/x", ["/fsspec-chain/x"], b"bytes") == (path, fs.find("/fsspec-chain"), fs.cat_file(path))
    fs.close()


@pytest.mark.parametrize(
    ("url", "how", "words"),
    [
        ("wherry://bucket/x", {}, "stands before the URL of a store"),
        ("wherry::simplecache::file:///tmp/x", {}, "write simplecache::wherry::"),
        ("wherry::file:///tmp/x", {"endpoint_url": "http://x"}, "unknown option.*endpoint_url.*spool and config"),
        ("wherry::file:///tmp/x", {"file": {"colour": "red"}}, "colour"),
    ],
)
def test_wrong_urls_and_options_say_what_is_right(url: str, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fsspec.open(url, **how)


def test_relative_paths_are_local_in_a_url_and_refused_elsewhere(
    fs: WherryFileSystem, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fs.pipe_file("wherry::bucket/x", b"1")
    assert (folder, f"{folder}/x") == (fs._strip_protocol("wherry::bucket/"), fsspec.url_to_fs("wherry::bucket/x")[1])
    assert b"1" == fs.cat_file(f"{folder}/x")
    with pytest.raises(ConfigError, match="is relative"):
        fs.pipe_file("x", b"")
