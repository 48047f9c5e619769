"""Restoring: one download a node, what goes on after a kill, what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wherry
from checkpoint_sets.restores import SET_BYTES, SHARD_BYTES, RestoreJob, contents_of, fetched_bytes, saved_set
from servers.features import tell_spool
from servers.proxy import When, fault_proxy, s3_error
from servers.real import S3Server
from support import CALLER, own_mounts, run_script
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.checkpoints.restore import DamagedSetError, FolderRestore, make_own
from wherry.checkpoints.world import World
from wherry.errors import ConfigError


@pytest.fixture
def run(bucket: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    """Saves without an agent, which a restore does not need."""
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder, config=CALLER) as checkpoints:
        yield checkpoints


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_folder_that_holds_the_set_stays(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    name = saved_set(run, tmp_path / "a")
    first = run.restore("latest", tmp_path / "back")
    before = (first / "model.bin").stat().st_ino
    (bucket / f"run1/checkpoints/data/{name}/model.bin").unlink()  # so that a download would fail
    assert run.restore(10, tmp_path / "back") == first
    assert (first / "model.bin").stat().st_ino == before


@pytest.mark.parametrize("change", ["another byte", "another file", "a link to a folder", "a file less"])
def test_a_folder_that_holds_something_else_is_refused(run: Checkpoints, tmp_path: Path, change: str) -> None:
    saved_set(run, tmp_path / "a")
    back = run.restore("latest", tmp_path / "back")
    if change == "another byte":
        with open(back / "model.bin", "r+b") as file:
            file.write(b"X")
    elif change == "another file":
        (back / "mine.txt").write_text("mine")
    elif change == "a link to a folder":
        (back / "mine").symlink_to(tmp_path)
    else:
        (back / "small.bin").unlink()
    with pytest.raises(FileExistsError, match="not empty"):
        run.restore("latest", tmp_path / "back")
    assert hidden(tmp_path) == []


def test_ranks_with_folders_of_their_own_copy(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    name = saved_set(run, tmp_path / "a")
    first = run.restore("latest", tmp_path / "rank0")
    (bucket / f"run1/checkpoints/data/{name}/model.bin").unlink()  # so that a download would fail
    second = run.restore(10, tmp_path / "rank1")
    assert contents_of(second) == contents_of(first)
    assert {path.stat().st_nlink for path in second.iterdir()} == {1}
    with open(second / "model.bin", "r+b") as file:  # a rank that writes to its file changes no other's
        file.write(b"X")
    assert contents_of(first) == contents_of(tmp_path / "a")


def test_a_copy_that_its_rank_has_changed_is_fetched(run: Checkpoints, tmp_path: Path) -> None:
    saved_set(run, tmp_path / "a")
    first = run.restore("latest", tmp_path / "rank0")
    with open(first / "model.bin", "r+b") as file:
        file.write(b"X")
    assert contents_of(run.restore("latest", tmp_path / "rank1")) == contents_of(tmp_path / "a")


@pytest.fixture
def remote(seaweedfs_server: S3Server, tmp_path: Path) -> tuple[str, S3Server]:
    """A set in a bucket on a server, and its URI."""
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}-{os.getpid()}"
    spool, options = tmp_path / "first", seaweedfs_server.options
    tell_spool(spool, seaweedfs_server)
    with wherry.Checkpoints(uri, "run1", spool=spool, storage_options=options, config=CALLER) as run:
        saved_set(run, tmp_path / "a")
    return uri, seaweedfs_server


@pytest.mark.parametrize("folders", ["one folder", "folders of their own"])
def test_ranks_of_a_node_download_once(remote: tuple[str, S3Server], tmp_path: Path, folders: str) -> None:
    uri, server = remote
    with fault_proxy("127.0.0.1", server.port) as proxy:
        options = {**server.options, "endpoint_url": proxy.url}
        targets = [tmp_path / ("back" if folders == "one folder" else f"rank{n}") for n in range(3)]
        jobs = [RestoreJob().start(uri, options, tmp_path / "spool", target) for target in targets]
        assert [job.finish() for job in jobs] == [0] * 3
        assert fetched_bytes(proxy) == SET_BYTES
    assert all(contents_of(target) == contents_of(tmp_path / "a") for target in targets)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("folders", ["one folder", "folders of their own"])
def test_a_killed_rank_holds_up_nobody(remote: tuple[str, S3Server], tmp_path: Path, folders: str) -> None:
    uri, server = remote
    killed, other = RestoreJob(), RestoreJob()
    targets = [tmp_path / "rank0", tmp_path / ("rank0" if folders == "one folder" else "rank1")]
    with fault_proxy("127.0.0.1", server.port, [killed.kill_at("optimizer.bin")]) as proxy:
        options = {**server.options, "endpoint_url": proxy.url}
        killed.start(uri, options, tmp_path / "spool", targets[0])
        assert killed.finish() == -signal.SIGKILL
        assert not targets[0].exists()
        other.start(uri, options, tmp_path / "spool", targets[1])
        assert other.finish() == 0
    assert contents_of(targets[1]) == contents_of(tmp_path / "a")


def test_what_a_killed_restore_has_is_not_fetched_again(remote: tuple[str, S3Server], tmp_path: Path) -> None:
    uri, server = remote
    staging = tmp_path / f".back.{set_names(uri, server, tmp_path)[0]}.wherry-restore"
    staging.mkdir()
    (staging / "model.bin").write_bytes((tmp_path / "a" / "model.bin").read_bytes())
    (staging / "optimizer.bin").write_bytes(b"x" * SHARD_BYTES)  # as after a power cut
    with fault_proxy("127.0.0.1", server.port) as proxy:
        options = {**server.options, "endpoint_url": proxy.url}
        job = RestoreJob().start(uri, options, tmp_path / "spool", tmp_path / "back")
        assert job.finish() == 0
        assert fetched_bytes(proxy) == SET_BYTES - SHARD_BYTES
    assert contents_of(tmp_path / "back") == contents_of(tmp_path / "a")


def set_names(uri: str, server: S3Server, tmp_path: Path) -> list[SetName]:
    with wherry.Checkpoints(uri, "run1", spool=tmp_path / "look", storage_options=server.options) as run:
        return [one.set for one in run.list()]


def test_a_bucket_that_may_only_be_read(remote: tuple[str, S3Server], tmp_path: Path) -> None:
    uri, server = remote
    denied = [When(method, "", s3_error(403, "AccessDenied"), times=1000) for method in ("PUT", "POST", "DELETE")]
    with fault_proxy("127.0.0.1", server.port, denied) as proxy:
        job = RestoreJob().start(uri, {**server.options, "endpoint_url": proxy.url}, tmp_path / "spool", tmp_path / "back")
        assert job.finish() == 0
    assert contents_of(tmp_path / "back") == contents_of(tmp_path / "a")


#: Mounts a disk of 1 MB at argv[1]; while a set of 600 kB comes from the server on port argv[2], another program fills the disk.
FULL_DISK = """
import json, subprocess, sys
from pathlib import Path
import wherry
from checkpoint_sets.restores import contents_of
from servers.proxy import Do, When, fault_proxy

disk, port, uri, options, saved = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]), Path(sys.argv[5])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)

def fill():
    with open(disk / "other", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            print("full")

def try_once(which, folder):
    try:
        return run.restore(which, folder)
    except (OSError, wherry.ConfigError) as error:
        print(type(error).__name__, error)
        assert not (disk / "back").exists()

with fault_proxy("127.0.0.1", port, [When("GET", "/optimizer.bin", Do(fill))]) as proxy:
    run = wherry.Checkpoints(uri, "run1", spool=disk.parent / "spool", storage_options={**options, "endpoint_url": proxy.url})
    try_once("latest", disk)
    try_once("latest", disk / "back")
    try_once("latest", disk / "back")
    (disk / "other").unlink()
    try_once("latest", disk / "back")
    run.close()
assert contents_of(disk / "back") == contents_of(saved)
assert [path.name for path in disk.iterdir()] == ["back"]
"""


def test_a_full_disk_leaves_nothing_half_written_and_the_next_call_goes_on(remote: tuple[str, S3Server], tmp_path: Path) -> None:
    uri, server = remote
    (tmp_path / "disk").mkdir()
    arguments = (str(server.port), uri, json.dumps(server.options), tmp_path / "a")
    said = run_script(FULL_DISK, tmp_path / "disk", *arguments, prefix=own_mounts()).splitlines()
    assert "is a mount point" in said[0] and str(tmp_path / "disk" / "set") in said[0]
    assert said[1] == "full"
    assert f"[Errno {errno.ENOSPC}] the disk is full, so the set" in said[2]
    assert f"[Errno {errno.ENOSPC}] no room for the set" in said[3] and "bytes are to come, " in said[3]
    assert len(said) == 4, said


def test_many_files_are_copied_at_once_from_another_rank(run: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(50):
        (tmp_path / "set" / f"{number}.bin").write_bytes(bytes([number]) * 100)
    run.save(10, tmp_path / "set").wait(60)
    run.restore("latest", tmp_path / "a")
    assert contents_of(run.restore("latest", tmp_path / "b")) == contents_of(tmp_path / "set")


def test_another_users_folder_is_not_taken(tmp_path: Path) -> None:
    theirs, uid = Path("/"), 0
    if os.geteuid() == 0:
        theirs, uid = tmp_path / "theirs", 12345
        theirs.mkdir()
        os.chown(theirs, uid, uid)
    with pytest.raises(PermissionError, match=f"it belongs to uid {uid}, who has begun to restore here"):
        make_own(theirs)


def test_what_is_in_the_place_of_the_hidden_folder_is_not_followed(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    name = saved_set(run, tmp_path / "a")
    staging = tmp_path / f".back.{name}.wherry-restore"
    (tmp_path / "elsewhere").mkdir()
    staging.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="no folder"):
        run.restore("latest", tmp_path / "back")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    staging.unlink()
    assert run.restore("latest", tmp_path / "back").is_dir()


def test_only_some_ranks_objects(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    ranks = [wherry.Checkpoints(bucket, "run1", attempt=1, world=World(rank, 3, rank), spool=spool_folder) for rank in range(3)]
    for rank, one in enumerate(ranks):
        (tmp_path / f"part{rank}.txt").write_text(str(rank))
        one.save(5, tmp_path / f"part{rank}.txt")
    with ThreadPoolExecutor() as pool:
        list(pool.map(Checkpoints.close, ranks))
    later = wherry.Checkpoints(bucket, "run1", attempt=2, world=World(2, 3, 2), spool=spool_folder)
    assert [path.name for path in later.restore(5, tmp_path / "own", ranks="own").iterdir()] == ["part2.txt"]
    assert sorted(path.name for path in later.restore(5, tmp_path / "two", ranks=[0, 1]).iterdir()) == ["part0.txt", "part1.txt"]
    with pytest.raises(ConfigError, match="from 0 to 2"):
        later.restore(5, tmp_path / "three", ranks=[3])
    later.close()
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as alone, pytest.raises(ConfigError, match="saved by 3 ranks"):
        alone.restore(5, tmp_path / "none", ranks="own")


def test_without_torch_a_rank_never_falls_back_alone(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as first:
        saved_set(first, tmp_path / "a")
        name = saved_set(first, tmp_path / "b", step=20)
    ranks = [wherry.Checkpoints(bucket, "run1", attempt=2, world=World(rank, 2, rank), spool=spool_folder) for rank in range(2)]
    flip(bucket / f"run1/checkpoints/data/{name}/model.bin")
    for rank, one in enumerate(ranks):
        with pytest.raises(DamagedSetError, match=str(name)):
            one.restore("latest", tmp_path / f"back{rank}")
        assert not (tmp_path / f"back{rank}").exists()
        assert one.restore(10, tmp_path / f"back{rank}").is_dir()
        one.close()


@pytest.mark.parametrize("damage", ["a flipped bit", "swapped objects", "a shrunk object", "an object less", "a cut receipt"])
def test_damage_is_found_and_the_set_before_is_restored(run: Checkpoints, bucket: Path, tmp_path: Path, damage: str) -> None:
    saved_set(run, tmp_path / "a")
    name = saved_set(run, tmp_path / "b", step=20)
    data = bucket / f"run1/checkpoints/data/{name}"
    if damage == "a flipped bit":
        flip(data / "model.bin")
    elif damage == "swapped objects":
        (data / "model.bin").rename(data / "x")
        (data / "optimizer.bin").rename(data / "model.bin")
        (data / "x").rename(data / "optimizer.bin")
    elif damage == "a shrunk object":
        os.truncate(data / "model.bin", SHARD_BYTES - 1)
    elif damage == "an object less":
        (data / "model.bin").unlink()
    else:
        (receipt,) = (data / "_ranks").iterdir()
        receipt.write_bytes(receipt.read_bytes()[:-5])
    with pytest.raises(DamagedSetError, match=str(name)):
        run.restore(20, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert contents_of(run.restore("latest", tmp_path / "back")) == contents_of(tmp_path / "a")
    assert hidden(tmp_path) == []


def test_a_link_to_an_empty_folder_is_that_folder(run: Checkpoints, tmp_path: Path) -> None:
    saved_set(run, tmp_path / "a")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert contents_of(run.restore("latest", tmp_path / "link")) == contents_of(tmp_path / "a")
    assert (tmp_path / "link").is_symlink()


def test_a_long_name_and_another_file_system(run: Checkpoints, tmp_path: Path) -> None:
    saved_set(run, tmp_path / "a")
    assert contents_of(run.restore("latest", tmp_path / ("x" * 250))) == contents_of(tmp_path / "a")
    elsewhere = Path("/dev/shm") / f"wherry-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        assert contents_of(run.restore("latest", elsewhere / "back")) == contents_of(tmp_path / "a")
    finally:
        subprocess.run(["rm", "-rf", str(elsewhere)], check=False)


def test_older_beginnings_in_the_same_place_are_removed(run: Checkpoints, tmp_path: Path) -> None:
    saved_set(run, tmp_path / "a")
    mine = tmp_path / ".back.000000001_abcd_000000000003.wherry-restore"
    others = tmp_path / ".back.two.000000001_abcd_000000000003.wherry-restore"
    mine.mkdir()
    others.mkdir()
    run.restore("latest", tmp_path / "back")
    assert not mine.exists() and others.exists()


def flip(path: Path) -> None:
    with open(path, "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("options", [{"exchange": "yes"}, {"ranks": []}, {"ranks": [-1]}])
def test_bad_options_are_refused(run: Checkpoints, tmp_path: Path, options: dict[str, Any]) -> None:
    saved_set(run, tmp_path / "a")
    with pytest.raises(ConfigError, match=next(iter(options))):
        run.restore("latest", tmp_path / "back", **options)
    assert not (tmp_path / "back").exists()


def test_names_that_are_a_file_and_a_folder_are_damage(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    name = saved_set(run, tmp_path / "a")
    (receipt,) = (bucket / f"run1/checkpoints/data/{name}/_ranks").iterdir()
    content = Receipt.from_bytes(receipt.read_bytes(), receipt.name, name)
    objects = (*content.objects, replace(content.objects[0], name="model.bin/x"))
    keyed = [(one.name, one) for one in objects]
    with pytest.raises(DamagedSetError, match="a file and a folder"):
        FolderRestore(keyed, tmp_path / "back", set_name=str(name), fetch=lambda key, path: pytest.fail("fetched")).run()
    assert not (tmp_path / "back").exists() and hidden(tmp_path) == []


def test_ctrl_c_ends_a_restore_with_the_ranges_under_way(tmp_path: Path) -> None:
    """It does not wait until objects of many gigabytes have come."""
    keyed = [(name, SetObject(name, 1, 0)) for name in "ab"]

    def fetch(key: str, path: Path) -> Any:
        while True:
            restore.advance(1)
            if key == "b":
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                key = "b, which has struck"
            time.sleep(0.001)

    restore = FolderRestore(keyed, tmp_path / "back", set_name=str(SetName("000000001", 1)), fetch=fetch)
    with pytest.raises(KeyboardInterrupt):
        restore.run()
    assert not (tmp_path / "back").exists()


def test_a_set_that_has_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    keyed = [("a", SetObject("a", 2**62, 0))]
    restore = FolderRestore(keyed, tmp_path / "back", set_name="set", fetch=lambda key, path: pytest.fail("fetched"))
    with pytest.raises(OSError, match="no room for the set"):
        restore.run()
    assert [] == os.listdir(tmp_path)
