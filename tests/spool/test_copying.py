"""Snapshots on file systems that share blocks, and copies that are killed, interrupted, or find no room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from support import environment_with_tests, file_of, own_mounts, run_script, wait_until
from untested import UNTESTED
from wherry.errors import ConfigError
from wherry.posix.file_copy import copy_data, reflink
from wherry.spool.journal.journal import Journal
from wherry.spool.leftovers import sweep
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

#: Makes a file system of the kind argv[2] in the file argv[1], and mounts it at argv[3], in a mount namespace of its own.
MOUNT = """
import os, subprocess, sys
from pathlib import Path
import wherry
from support import CALLER, file_of
from wherry.errors import SpoolError
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

image, kind, disk, elsewhere = (Path(argument) for argument in sys.argv[1:5])
for command in ([f"mkfs.{kind}", "-q", image], ["mount", "-o", "loop", image, disk]):
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        sys.exit(print("CANNOT:", error))
    except subprocess.CalledProcessError as error:
        sys.exit(print("CANNOT:", error.stderr.strip()))
objects = lambda spool: sorted(path.name for path in spool.objects.iterdir())

def used_bytes():
    os.sync()
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
"""


def _places(kind: str, folder: Path) -> tuple[str, ...]:
    image, disk, elsewhere = folder / "image", folder / "disk", folder / "elsewhere"
    for place in (disk, elsewhere):
        place.mkdir(exist_ok=True)
    image.unlink(missing_ok=True)
    image.touch()
    os.truncate(image, 512 * 2**20)
    return str(image), kind, str(disk), str(elsewhere)


@pytest.fixture
def run_on(tmp_path: Path, record_property: Callable[[str, object], None]) -> Callable[[str, str], str | None]:
    """Run a script on a new file system: what it said. None, and a line at the end of the tests, where there can be none."""

    def run(kind: str, text: str) -> str | None:
        said = run_script(MOUNT + textwrap.dedent(text), *_places(kind, tmp_path), prefix=own_mounts())
        if not said.startswith("CANNOT:"):
            return said
        record_property(UNTESTED, f"{kind} cannot be mounted: {said.removeprefix('CANNOT:').strip()}")
        return None

    return run


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_snapshot_shares_blocks_where_it_can_and_depends_on_nothing(
    kind: str, run_on: Callable[[str, str], str | None]
) -> None:
    text = """
    spool = Spool(disk / "spool")
    source = file_of(disk / "source", 20_000_000)
    os.truncate(source, 100_000_000)  # a hole at its end
    before, used = source.read_bytes(), used_bytes()
    staged = [stage(spool, source, "1-me") for _ in range(5)]
    assert {"reflink"} == {one.method for one in staged}
    assert used_bytes() - used < 10_000_000, used_bytes() - used
    with open(source, "r+b") as file:
        file.write(b"later")
        os.fsync(file.fileno())
    os.truncate(source, 7)
    source.unlink()
    assert all(before == spool.path(one.object_id).read_bytes() for one in staged)
    spool.free([one.object_id for one in staged])

    small = file_of(elsewhere / "source", 3_000_000)  # on another file system
    assert "copy" == stage(spool, small, "1-me").method

    source = file_of(disk / "source", 5_000_000)
    with wherry.Uploader(disk / "bucket", spool=disk / "another", config=CALLER) as uploader:
        uploader.put(source, "a")
        uploader.get("a", elsewhere / "a")
    assert source.read_bytes() == (elsewhere / "a").read_bytes()
    """
    assert run_on(kind, text) in ("", None)


def test_a_file_system_that_shares_no_blocks_says_so_and_the_file_is_copied(tmp_path: Path) -> None:
    """The decision alone, by real refusals: between two file systems, and within one that cannot."""
    spool = Spool(tmp_path / "spool")
    source = file_of(Path("/dev/shm") / f"wherry-test-{os.getpid()}", 2_000_000)
    try:
        for target in (tmp_path / "target", source.with_suffix(".copy")):
            with open(source, "rb") as reader, open(target, "wb") as out:
                assert not reflink(reader.fileno(), out.fileno())
                assert 0 == os.fstat(out.fileno()).st_size
                copy_data(reader.fileno(), out.fileno(), 2_000_000)
            assert source.read_bytes() == target.read_bytes()
            target.unlink()
        assert "copy" == stage(spool, source, "1-me").method
    finally:
        source.unlink()


def test_a_copy_goes_on_in_small_blocks_where_the_kernel_refuses(tmp_path: Path) -> None:
    """sendfile(2) does not write to a file that is open for appending: EINVAL."""
    source = file_of(tmp_path / "source", 3_000_000)
    with open(source, "rb") as reader, open(tmp_path / "target", "ab") as out:
        with pytest.raises(OSError, match="Invalid argument"):
            os.sendfile(out.fileno(), reader.fileno(), 0, 1)
        copy_data(reader.fileno(), out.fileno(), 3_000_000)
    assert source.read_bytes() == (tmp_path / "target").read_bytes()


def test_a_used_up_quota_is_named_and_nothing_is_left(run_on: Callable[[str, str], str | None]) -> None:
    text = """
    subprocess.run(["btrfs", "quota", "enable", disk], check=True)
    subprocess.run(["btrfs", "subvolume", "create", disk / "mine"], check=True, stdout=subprocess.DEVNULL)
    spool = Spool(disk / "mine" / "spool")
    stage(spool, file_of(elsewhere / "small", 2_000_000), "1-me")
    before = objects(spool)
    subprocess.run(["btrfs", "qgroup", "limit", "20000000", disk / "mine"], check=True)
    try:
        stage(spool, file_of(elsewhere / "source", 100_000_000), "1-me")
    except SpoolError as error:
        print(error.errno, error)
    assert before == objects(spool)
    """
    said = run_on("btrfs", text)
    if said is not None:
        assert said.startswith("122 [Errno 122] no room in the spool"), said
        assert "your disk quota is used up. Free some space, or put the spool elsewhere" in said


FILL_MIDWAY = """
import os, subprocess, sys
from pathlib import Path
from support import file_of
from wherry.errors import SpoolError
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

disk, source = (Path(argument) for argument in sys.argv[1:3])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", disk], check=True)
spool = Spool(disk / "spool")
"""


def test_a_disk_that_fills_during_a_copy_leaves_nothing_half_copied(tmp_path: Path) -> None:
    text = """
    def fill(n_bytes):
        with open(disk / "filler", "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(2**20))
            except OSError:
                pass

    try:
        stage(spool, source, "1-me", advance=fill)
    except SpoolError as error:
        print(error.errno, error)
    assert [] == list(spool.objects.iterdir())
    """
    (tmp_path / "disk").mkdir()
    source = file_of(tmp_path / "source", 100_000_000)
    said = run_script(FILL_MIDWAY + textwrap.dedent(text), tmp_path / "disk", source, prefix=own_mounts())
    assert said.startswith("28 [Errno 28] no room in the spool"), said
    assert "100000000 bytes are needed" in said
    assert "move=True takes no room" in said


def test_a_spool_that_became_read_only_is_named(tmp_path: Path) -> None:
    text = """
    stage(spool, source, "1-me")
    before = sorted(spool.objects.iterdir())
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        stage(spool, source, "1-me")
    except SpoolError as error:
        print(error.errno, error)
    assert before == sorted(spool.objects.iterdir())
    """
    (tmp_path / "disk").mkdir()
    source = file_of(tmp_path / "source", 2_000_000)
    said = run_script(FILL_MIDWAY + textwrap.dedent(text), tmp_path / "disk", source, prefix=own_mounts())
    assert said.startswith("30 [Errno 30] the spool"), said
    assert "cannot be used: Read-only file system. It must be a folder that you can write" in said


def test_a_file_without_a_size_is_refused(tmp_path: Path) -> None:
    """The kernel makes up what is in /proc as it is read; a snapshot of its 0 bytes would be no snapshot."""
    spool = Spool(tmp_path / "spool")
    with pytest.raises(ConfigError, match="/proc/meminfo says that it has 0 bytes, and has more"):
        stage(spool, Path("/proc/meminfo"), "1-me")
    assert [] == list(spool.objects.iterdir())


# -- interrupted


def test_ctrl_c_ends_a_copy_between_two_calls_and_leaves_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    source = file_of(tmp_path / "source", 70_000_000)
    told: list[int] = []

    def interrupt(n_bytes: int) -> None:
        told.append(n_bytes)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stage(spool, source, "1-me", advance=interrupt)
    assert [64 * 2**20] == told
    assert [] == list(spool.objects.iterdir())


#: Stages one file over and over, as the session argv[3], and says which snapshots are whole.
STAGING = """
import os, sys
from pathlib import Path
from wherry.spool.presence import register
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

spool = Spool(sys.argv[1])
register(spool, sys.argv[3])
while True:
    print(stage(spool, Path(sys.argv[2]), sys.argv[3]).object_id, flush=True)
"""


def kill_during_a_copy(spool: Spool, source: Path) -> None:
    """Kill programs that copy `source`, until one is killed with half a file in the spool, and clean up after it."""
    whole = source.read_bytes()

    def half_made() -> list[Path]:
        return [path for path in spool.objects.glob("*.half") if path.stat().st_size]

    for number in range(20):
        name = f"1-dead{number}"
        run = [sys.executable, "-c", STAGING, str(spool.folder), str(source), name]
        with subprocess.Popen(run, stdout=subprocess.PIPE, env=environment_with_tests(), text=True) as program:
            assert program.stdout is not None
            first = program.stdout.readline().strip()
            wait_until(half_made, what="a copy to begin")
            program.kill()
            said = [first, *program.stdout.read().split()]
        left = half_made()
        kept = {path.name: path.read_bytes() for path in spool.objects.iterdir() if path.suffix != ".half"}
        assert set(said) <= set(kept)
        assert {whole} == set(kept.values())
        assert all(path.stat().st_size <= len(whole) for path in left)
        journal = Journal(spool.journal_path)
        assert len(list(spool.objects.glob("*.half"))) == sweep(spool, journal)
        journal.close()
        assert [] == list(spool.objects.iterdir())
        if left:
            return
    raise AssertionError("20 programs were killed, and none in the middle of a copy")


def test_a_program_that_is_killed_during_a_copy_leaves_nothing_half_made(tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 30_000_000)
    kill_during_a_copy(Spool(tmp_path / "spool"), source)
    assert file_of(tmp_path / "again", 30_000_000).read_bytes() == source.read_bytes()
