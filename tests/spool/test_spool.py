"""What a snapshot promises, which files are taken, and what is cleaned away."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import file_of, open_files, wait_until
from wherry.checksum import crc32c
from wherry.config import SpoolConfig
from wherry.errors import ConfigError, SourceChangedError, SpoolError
from wherry.posix.file_copy import copy_out
from wherry.posix.locks import is_free
from wherry.spool.file_system import file_system, file_system_warnings
from wherry.spool.presence import dead_sessions, forget, living_sessions, pid_of_agent, register
from wherry.spool.spool import Spool
from wherry.spool.staging import Staged, finish_writer, open_writer, release_source, stage

CLIENT = "1-client"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return file_of(tmp_path / "source", 300_000)


@pytest.fixture
def other_file_system() -> Iterator[Path]:
    """A folder on another file system than the temporary folder's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def staged_bytes(spool: Spool, staged: Staged) -> bytes:
    return spool.path(staged.object_id).read_bytes()


def objects(spool: Spool) -> list[str]:
    return sorted(path.name for path in spool.objects.iterdir())


# -- snapshots


def test_a_snapshot_holds_what_the_file_held(spool: Spool, source: Path) -> None:
    before = source.read_bytes()
    staged = stage(spool, source, CLIENT)
    assert staged.method in {"reflink", "copy"}
    assert (300_000, before) == (staged.size_bytes, staged_bytes(spool, staged))
    assert before == source.read_bytes()


def test_the_checksum_of_a_small_copy_is_known_and_right(spool: Spool, other_file_system: Path) -> None:
    for size_bytes in (0, 1, 300_000, 2**20):
        source = file_of(other_file_system / "source", size_bytes)
        assert crc32c(source.read_bytes()) == stage(spool, source, CLIENT).crc32c
    assert stage(spool, file_of(other_file_system / "large", 2**20 + 1), CLIENT).crc32c is None


def test_a_snapshot_from_another_file_system_is_a_copy(spool: Spool, other_file_system: Path) -> None:
    source = file_of(other_file_system / "source", 300_000)
    assert source.stat().st_dev != spool.folder.stat().st_dev
    for move in (False, True):
        staged = stage(spool, source, CLIENT, move=move)
        assert "copy" == staged.method
        assert source.read_bytes() == staged_bytes(spool, staged)


def write_in_place(source: Path) -> None:
    with open(source, "r+b") as file:
        file.write(b"later")


@pytest.mark.parametrize(
    "change",
    [write_in_place, lambda source: os.truncate(source, 7), Path.unlink, lambda source: source.write_bytes(b"another")],
    ids=["rewritten in place", "truncated", "deleted", "replaced"],
)
def test_a_snapshot_does_not_depend_on_what_happens_to_the_file(spool: Spool, source: Path, change: object) -> None:
    before = source.read_bytes()
    staged = stage(spool, source, CLIENT)
    change(source)  # type: ignore[operator]
    assert before == staged_bytes(spool, staged)


def test_an_empty_file_is_a_file(spool: Spool, tmp_path: Path) -> None:
    for move in (False, True):
        staged = stage(spool, file_of(tmp_path / f"empty{move}", 0), CLIENT, move=move)
        assert (0, b"") == (staged.size_bytes, staged_bytes(spool, staged))


def test_durability_power_makes_the_same_snapshot(tmp_path: Path, source: Path) -> None:
    spool = Spool(tmp_path / "spool", SpoolConfig(durability="power"))
    for move in (False, True):
        staged = stage(spool, source, CLIENT, move=move)
        assert source.read_bytes() == staged_bytes(spool, staged)


# -- files that are given away


def test_a_moved_file_keeps_its_name_until_it_is_released(spool: Spool, source: Path) -> None:
    before = source.read_bytes()
    staged = stage(spool, source, CLIENT, move=True)
    assert "move" == staged.method
    assert source.exists()
    release_source(source)
    assert not source.exists()
    assert before == staged_bytes(spool, staged)
    release_source(source)


def test_a_moved_file_shares_no_bytes_with_names_that_were_not_given_away(spool: Spool, source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    latest = tmp_path / "latest"
    os.link(source, latest)
    staged = stage(spool, source, CLIENT, move=True)
    release_source(source)
    write_in_place(latest)
    assert before == staged_bytes(spool, staged)


def test_moving_a_symbolic_link_gives_away_the_link_and_not_its_file(spool: Spool, source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    staged = stage(spool, link, CLIENT, move=True)
    release_source(link)
    assert not link.is_symlink()
    write_in_place(source)
    assert source.read_bytes() != staged_bytes(spool, staged)


def test_a_symbolic_link_is_read_through(spool: Spool, source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    assert source.read_bytes() == staged_bytes(spool, stage(spool, link, CLIENT))


# -- large files, which the kernel copies


def test_a_sparse_file_stays_sparse(spool: Spool, other_file_system: Path) -> None:
    gib = 2**30
    for data_at in ([], [0], [50 * gib], [0, 64 * 2**20 - 4096, 99 * gib], [100 * gib - 4096]):
        source = other_file_system / "sparse"
        source.write_bytes(b"")
        os.truncate(source, 100 * gib)
        with open(source, "r+b") as file:
            for at in data_at:
                file.seek(at)
                file.write(b"data" * 1024)
        staged = stage(spool, source, CLIENT)
        path = spool.path(staged.object_id)
        assert 100 * gib == staged.size_bytes == path.stat().st_size
        assert path.stat().st_blocks * 512 <= 2**20
        with open(path, "rb") as file:
            for at in range(0, 100 * gib, gib):
                file.seek(at)
                assert (b"data" if at in data_at else bytes(4)) == file.read(4)
            for at in data_at:
                file.seek(at)
                assert b"data" * 1024 == file.read(4096)
        spool.free([staged.object_id])


def test_a_copy_by_the_kernel_has_the_files_bytes(spool: Spool, other_file_system: Path) -> None:
    for size_bytes in (2**20 + 1, 64 * 2**20 + 1):
        source = file_of(other_file_system / "source", size_bytes)
        staged = stage(spool, source, CLIENT)
        assert source.read_bytes() == staged_bytes(spool, staged)
        spool.free([staged.object_id])


# -- files that change meanwhile


@pytest.mark.parametrize("shrinks", [False, True], ids=["grows", "shrinks and grows"])
def test_a_file_that_keeps_changing_is_refused_and_nothing_is_left(spool: Spool, tmp_path: Path, shrinks: bool) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(100_000_000))  # long enough to copy for its writer to have many turns
    stop = threading.Event()

    def keep_changing() -> None:
        with open(source, "ab", buffering=0) as file:
            while not stop.is_set():
                if shrinks and os.fstat(file.fileno()).st_size > 99_000_000:
                    file.truncate(98_000_000)
                file.write(bytes(1000))

    writer = threading.Thread(target=keep_changing)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    writer.start()
    try:
        wait_until(lambda: source.stat().st_size != 100_000_000, what="the first change")
        with pytest.raises(SourceChangedError, match=r"changed while|shrank while"):
            stage(spool, source, CLIENT)
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        writer.join()
    assert [] == objects(spool)


# -- what is refused


def test_a_missing_file_is_named(spool: Spool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        stage(spool, tmp_path / "missing", CLIENT)
    with pytest.raises(FileNotFoundError, match="missing"):
        stage(spool, tmp_path / "missing", CLIENT, move=True)


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("kind", ["a folder", "a FIFO", "a socket", "a device"])
def test_what_is_no_regular_file_is_refused_without_being_opened(spool: Spool, tmp_path: Path, kind: str, move: bool) -> None:
    path = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "a folder":
            path.mkdir()
        elif kind == "a FIFO":
            os.mkfifo(path)
        elif kind == "a socket":
            listener.bind(str(path))
        else:
            path = Path("/dev/null")
        with pytest.raises(ConfigError, match=f"{path} is {kind}: only regular files"):
            stage(spool, path, CLIENT, move=move)
    assert [] == objects(spool)


def test_a_source_that_cannot_be_read_keeps_its_own_error(spool: Spool, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop") as caught:
        stage(spool, loop, CLIENT)
    assert not isinstance(caught.value, SpoolError)


# -- the folder


def test_everything_in_the_spool_is_private(spool: Spool, source: Path) -> None:
    source.chmod(0o666)
    moved = file_of(source.with_name("moved"), 10)
    moved.chmod(0o666)
    stage(spool, source, CLIENT)
    stage(spool, moved, CLIENT, move=True)
    object_id, file = open_writer(spool, CLIENT)
    finish_writer(spool, object_id, file)
    file.close()
    assert [0o700] * 3 == [stat.S_IMODE(folder.stat().st_mode) for folder in (spool.folder, spool.objects, spool.clients)]
    assert object_id in objects(spool)
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in spool.objects.iterdir()}


def test_a_spool_that_is_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 1)
    with pytest.raises(SpoolError, match=r"cannot be used.*\$WHERRY_SPOOL"):
        Spool(path)


def test_a_spool_below_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 1)
    with pytest.raises(SpoolError, match=r"cannot be used.*\$WHERRY_SPOOL"):
        Spool(path / "spool")


def test_a_spool_in_memory_is_warned_of(other_file_system: Path, tmp_path: Path) -> None:
    (warning,) = file_system_warnings(Spool(other_file_system / "spool"))
    assert "in memory" in warning
    assert "tmpfs" == file_system(Spool(other_file_system / "spool"))


# -- clients and sweeping


def test_a_living_client_is_known_and_a_dead_one_forgotten(spool: Spool) -> None:
    one, two = register(spool, "one"), register(spool, "two")
    (spool.clients / "two.bell").touch()
    assert {"one", "two"} == living_sessions(spool)
    os.close(two)  # as the kernel does when its process dies
    assert ({"one"}, {"two"}) == (living_sessions(spool), dead_sessions(spool))
    forget(spool, "two")
    assert ["one"] == [path.name for path in spool.clients.iterdir()]
    os.close(one)


def test_a_client_that_registers_while_somebody_looks_is_not_taken_for_dead(spool: Spool) -> None:
    announcement = spool.clients / "new"
    announcement.touch()
    looker = os.open(announcement, os.O_RDWR)
    fcntl.flock(looker, fcntl.LOCK_EX)  # living_clients() holds each lock for an instant
    registrations: list[int] = []
    thread = threading.Thread(target=lambda: registrations.append(register(spool, "new")))
    thread.start()
    wait_until(lambda: 2 == [target for _, target in open_files()].count(str(announcement)))
    announcement.unlink()  # it takes the client, which has no lock yet, for a dead one
    os.close(looker)
    thread.join()
    assert {"new"} == living_sessions(spool)
    os.close(registrations[0])


def test_a_file_can_be_freed_twice(spool: Spool, source: Path) -> None:
    staged = stage(spool, source, CLIENT)
    spool.free([staged.object_id, ""])
    spool.free([staged.object_id])
    assert [] == objects(spool)


def test_two_files_of_one_client_never_share_a_place(spool: Spool, source: Path) -> None:
    ids = {stage(spool, source, CLIENT).object_id for _ in range(20)}
    assert 20 == len(ids)


def test_a_lock_of_the_spool_is_held_by_one_at_a_time(spool: Spool) -> None:
    with spool.locked("some.lock"):
        assert not is_free(spool.folder / "some.lock")
    assert is_free(spool.folder / "some.lock")


def test_a_spool_without_an_agent_says_so(spool: Spool) -> None:
    assert pid_of_agent(spool) is None
    with spool.locked("agent.lock"):
        assert pid_of_agent(spool) is None
        (spool.folder / "agent.lock").write_text("42")
        assert 42 == pid_of_agent(spool)


def test_copying_out_gives_the_staged_bytes(spool: Spool, source: Path, tmp_path: Path) -> None:
    staged = stage(spool, source, CLIENT)
    with open(tmp_path / "out", "wb") as out, open(spool.open_staged(staged.object_id), "rb") as reader:
        copy_out(reader.fileno(), out.fileno())
    assert source.read_bytes() == (tmp_path / "out").read_bytes()


def test_a_large_file_that_is_freed_keeps_its_blocks_until_its_descriptor_is_closed(spool: Spool, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 64 * 2**20)  # a hole: it takes no room
    staged = [stage(spool, path, CLIENT, move=True).object_id for path in (large, file_of(tmp_path / "small", 1000))]
    held = spool.hold_large([*staged, "gone"])
    spool.free(staged)
    try:
        assert list(spool.objects.iterdir()) == []
        assert [os.fstat(descriptor).st_size for descriptor in held[:-1]] == [64 * 2**20]  # the last has a lock
    finally:
        for descriptor in held:
            os.close(descriptor)
