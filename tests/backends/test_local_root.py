"""Who may write into a local store cannot make its readers and writers leave it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support import CALLER
from wherry import Uploader
from wherry.backends.local.root import _real
from wherry.backends.local.store import LocalStore
from wherry.checksum import crc32c
from wherry.errors import ConfigError, NotFoundError, PermanentError, UploadFailed
from wherry.store import Part
from wherry.uri import StoreURI

SECRET = b"root:x:0:0"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the store, with a secret."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    return tmp_path / "outside"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store's."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(b"data")
    return tmp_path / "store"


def opened(folder: Path, **options: object) -> LocalStore:
    return LocalStore(StoreURI("file", "", str(folder).strip("/")), options)


def key(folder: Path, name: str) -> str:
    return f"{folder}/{name}".lstrip("/")


@pytest.mark.parametrize("target", ["{outside}/secret", "../outside/secret"])
def test_a_symlink_object_reads_no_file_outside_of_its_store(
    folder: Path, outside: Path, spool_folder: Path, target: str
) -> None:
    """`target`: as text of the object, with and without its first slash."""
    text = target.format(outside=outside)
    for pointer in (text, text.strip("/")):
        (folder / "x.symlink").write_text(pointer)
        with Uploader(folder, spool=spool_folder, config=CALLER) as uploader, pytest.raises(PermanentError):
            uploader.get("x", folder.parent / "out")
        assert not (folder.parent / "out").exists()


def test_a_symlink_object_may_name_its_target_from_the_root_on(folder: Path, spool_folder: Path) -> None:
    (folder / "x.symlink").write_text(f"{folder}/a")
    with Uploader(folder, spool=spool_folder, config=CALLER) as uploader:
        uploader.get("x", folder.parent / "out")
    assert (folder.parent / "out").read_bytes() == b"data"


READERS: dict[str, Callable[[LocalStore, str, Path], object]] = {
    "get": lambda store, key, target: store.get_file(key, target),
    "head": lambda store, key, target: store.head(key),
}


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("name", ["link", "folder/secret"])
def test_a_link_that_leads_out_of_the_store_is_not_read(
    folder: Path, outside: Path, tmp_path: Path, verb: str, name: str
) -> None:
    (folder / "link").symlink_to(outside / "secret")
    (folder / "folder").symlink_to(outside)
    (tmp_path / "out").touch()
    with opened(folder) as store:
        with pytest.raises(PermanentError, match="links_within") as caught:
            READERS[verb](store, key(folder, name), tmp_path / "out")
        assert not isinstance(caught.value, NotFoundError)
        assert ["a"] == [Path(meta.key).name for meta in store.list(key(folder, ""))]
        with pytest.raises(PermanentError, match="links_within"):
            list(store.list(key(folder, "folder/")))
    assert (tmp_path / "out").read_bytes() == b""
    with opened(folder, links_within="/") as store:
        READERS[verb](store, key(folder, name), tmp_path / "out")
        assert ["a", "link"] == [Path(meta.key).name for meta in store.list(key(folder, ""))]


def test_a_link_that_leads_out_of_the_store_is_not_written_through(folder: Path, outside: Path, spool_folder: Path) -> None:
    """By a worker, which knows no more of the store than its record says."""
    (folder / "folder").symlink_to(outside)
    (folder.parent / "source").write_bytes(b"new")
    with Uploader(folder, spool=spool_folder, config=CALLER) as uploader:
        handle = uploader.put(folder.parent / "source", "folder/secret", overwrite=True)
        with pytest.raises(UploadFailed, match="links_within"):
            handle.result()
    assert (outside / "secret").read_bytes() == SECRET
    options = {"links_within": str(folder.parent)}
    with Uploader(folder, storage_options=options, spool=spool_folder, config=CALLER) as uploader:
        uploader.put(folder.parent / "source", "folder/secret", overwrite=True).result()
    assert (outside / "secret").read_bytes() == b"new"


def test_links_inside_of_a_store_and_to_the_store_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to("a")
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to(folder)
    (tmp_path / "way").symlink_to(folder)
    with opened(tmp_path / "way") as store:
        assert ["a", "link"] == [Path(meta.key).name for meta in store.list(key(tmp_path / "way", ""))]
        (tmp_path / "store2").mkdir()
        (tmp_path / "store2" / "b").touch()
        assert ["a", "link"] == [Path(meta.key).name for meta in store.list(key(tmp_path, "w"))]
        for name in ("a", "link", "deep/up/a"):
            assert store.head(key(tmp_path / "way", name)).size_bytes == 4


def test_a_file_that_is_replaced_while_it_is_open_stays_readable(folder: Path) -> None:
    """The kernel says that such a file is deleted; it was the store's all the same."""
    path = folder / "a"
    with opened(folder) as store, store._opened(key(folder, "a")) as fd:
        os.unlink(path)
        store._root.require_open(fd, path)


@pytest.mark.parametrize(
    "name", ["", "a", "deep", "deep/up", "deep/up/deep", "no/such", "loop/x", "out", "out/no", "odd (deleted)"]
)
def test_where_a_folder_is_is_told_as_realpath_tells_it(folder: Path, outside: Path, name: str) -> None:
    (folder / "deep").mkdir()
    (folder / "odd (deleted)").mkdir()
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "loop").symlink_to("loop")
    (folder / "out").symlink_to(outside)
    assert os.path.realpath(folder / name) == _real(str(folder / name))


def test_a_link_that_was_made_after_the_store_was_opened_is_not_followed_out(folder: Path, outside: Path, tmp_path: Path) -> None:
    (folder / "deep").mkdir()
    (tmp_path / "source").write_bytes(b"new")
    with opened(folder) as store:
        store.put_file(key(folder, "deep/a"), tmp_path / "source")
        (folder / "deep").rename(folder / "old")
        (folder / "deep").symlink_to(outside)
        with pytest.raises(PermanentError, match="links_within"):
            store.put_file(key(folder, "deep/secret"), tmp_path / "source")
    assert SECRET == (outside / "secret").read_bytes()


@pytest.mark.parametrize("value", ["relative", 1, True])
def test_a_wrong_folder_for_links_is_refused(folder: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="links_within"):
        opened(folder, links_within=value)


@pytest.mark.parametrize(
    "record", ["[" * 3500, "[4, {mtime_ns}, 1e400, {{}}]", "[4, {mtime_ns}, -5, {{}}]", f"[4, {{mtime_ns}}, {10**30}, {{{{}}}}]"]
)
def test_a_record_that_somebody_else_wrote_says_nothing(folder: Path, record: str) -> None:
    path = folder / "a"
    os.setxattr(path, "user.wherry", record.replace("{mtime_ns}", str(path.stat().st_mtime_ns)).replace("{{}}", "{}").encode())
    assert opened(folder).head(key(folder, "a")).crc32c is None


def planted_upload(folder: Path) -> Path:
    """The folder of an upload in parts, as somebody else makes it, without its receipts."""
    path = folder / f".b.wherry-tmp-{0:032x}"
    path.mkdir()
    (path / "data").touch()
    return path


@pytest.mark.parametrize("header", [b"[" * 8000, b'[null, {}, "x"]', b"pipe"])
def test_a_planted_upload_neither_ends_nor_delays_those_who_tidy_up(folder: Path, header: bytes) -> None:
    receipts = planted_upload(folder) / "receipts"
    if header == b"pipe":
        os.mkfifo(receipts)  # to open it for reading waits for a writer
    else:
        receipts.write_bytes(header)
    (found,) = opened(folder).list_uploads(key(folder, ""))
    assert key(folder, "b") == found.key


def test_no_part_is_written_through_a_planted_link(folder: Path, outside: Path, tmp_path: Path) -> None:
    store, source = opened(folder), tmp_path / "source"
    source.write_bytes(b"x" * 10)
    upload = store.begin(key(folder, "b"), 10)
    (temporary,) = folder.glob(".b.wherry-tmp-*")
    inode = (outside / "secret").stat().st_ino
    (temporary / "data").unlink()
    (temporary / "data").symlink_to(outside / "secret")
    (temporary / "receipts").write_text(json.dumps([key(folder, "b"), 10, inode]).ljust(8192))
    with pytest.raises(PermanentError):
        store.put_part(key(folder, "b"), upload, source, Part(1, 0, 10, crc32c(b"x" * 10)))
    assert SECRET == (outside / "secret").read_bytes()
