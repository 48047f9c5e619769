"""A spool that is not ours or cannot be written, and files that cannot be read: named, with a remedy, and nothing is left."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path

import pytest

import wherry
from support import CALLER, file_of, own_mounts, run_script
from wherry.errors import SpoolError


def folder_of_another_user(tmp_path: Path) -> Path:
    """As root a folder that is given to nobody; for everyone else one of root's."""
    if os.getuid() != 0:
        return Path("/usr")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    return folder


def test_the_spool_of_another_user_is_refused_by_name(tmp_path: Path) -> None:
    theirs = folder_of_another_user(tmp_path)
    before = sorted(os.listdir(theirs))
    owner = "nobody" if os.getuid() == 0 else "root"
    with pytest.raises(SpoolError, match=rf"{theirs} belongs to user ({owner}|65534), not to .*\$WHERRY_SPOOL"):
        wherry.Uploader(tmp_path / "dest", spool=theirs, config=CALLER)
    assert before == sorted(os.listdir(theirs))


def run_on_read_only_disk(text: str, tmp_path: Path) -> str:
    script = """
    import logging, os, subprocess, sys
    from pathlib import Path
    import wherry
    from support import CALLER
    from wherry.errors import SpoolError

    logging.getLogger("wherry").setLevel(logging.ERROR)  # the disk is made of memory, of which it warns
    disk, dest = Path(sys.argv[1]), Path(sys.argv[2])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
    remount = lambda how: subprocess.run(["mount", "-o", f"remount,bind,{how}", str(disk)], check=True)
    """
    (tmp_path / "disk").mkdir()
    (tmp_path / "dest").mkdir()
    whole = textwrap.dedent(script) + textwrap.dedent(text)
    return run_script(whole, tmp_path / "disk", tmp_path / "dest", prefix=own_mounts())


def test_a_read_only_spool_is_refused_whether_it_is_new_or_not(tmp_path: Path) -> None:
    text = """
    wherry.Uploader(dest, spool=disk / "old", config=CALLER).close()
    remount("ro")
    for name in ("old", "new"):
        try:
            wherry.Uploader(dest, spool=disk / name, config=CALLER)
        except SpoolError as error:
            print(error)
    """
    old, new = run_on_read_only_disk(text, tmp_path).splitlines()
    for line, name in ((old, "old"), (new, "new")):
        assert f"the spool {tmp_path / 'disk' / name} cannot be used" in line
        assert "$WHERRY_SPOOL" in line


def test_a_file_that_cannot_be_read_is_refused_by_name_and_nothing_is_left() -> None:
    # Root reads everything, so root becomes somebody else, once all that is needed has been imported.
    text = """
    import os, sys, tempfile
    from pathlib import Path
    import wherry.uploader, wherry.spool.drain, tqdm, wherry.backends.local.store
    from support import CALLER

    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        source = folder / "secret"
        source.write_bytes(b"x")
        source.chmod(0)
        with wherry.Uploader(folder / "dest", spool=folder / "spool", config=CALLER) as uploader:
            try:
                uploader.put(source, "a")
            except PermissionError as error:
                print(type(error).__name__, error.filename == str(source))
            closed = folder / "closed"
            closed.mkdir(mode=0)
            try:
                uploader.put(closed, "b")
            except PermissionError as error:
                print(type(error).__name__, error.filename == str(closed))
            closed.chmod(0o700)
            print(os.listdir(folder / "spool" / "objects"), uploader.counts().failed)
    """
    assert "PermissionError True\nPermissionError True\n[] 0\n" == run_script(text)


def test_a_spool_below_a_folder_that_is_closed_to_us_is_refused(tmp_path: Path) -> None:
    text = """
    import os, tempfile
    from pathlib import Path
    import wherry.uploader
    from wherry.errors import SpoolError

    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o500)
        try:
            wherry.Uploader(name, spool=Path(name) / "spool")
        except SpoolError as error:
            print(error)
        os.chmod(name, 0o700)
    """
    said = run_script(text)
    assert "cannot be used: Permission denied" in said
    assert "$WHERRY_SPOOL" in said


def test_a_spool_deeper_than_a_socket_address_works_with_the_agent(tmp_path: Path) -> None:
    text = """
    import sys
    from pathlib import Path
    import wherry
    from support import end_agent

    spool = Path(sys.argv[1]).joinpath(*["a-folder-with-a-long-name"] * 8)
    with end_agent(spool), wherry.Uploader(Path(sys.argv[1]) / "dest", spool=spool) as uploader:
        handle = uploader.put(sys.argv[2], "a")
        print(handle.result(60.0).size_bytes)
    """
    source = file_of(tmp_path / "source", 1000)
    assert "1000\n" == run_script(text, tmp_path, source)


def test_a_spool_that_is_removed_under_its_user_is_told_as_that(tmp_path: Path) -> None:
    """FileNotFoundError would mean the user's own file."""
    source = file_of(tmp_path / "source", 100)
    spool = tmp_path / "spool"
    uploader = wherry.Uploader(tmp_path / "dest", spool=spool, config=CALLER)
    writer = uploader.open("c")
    writer.write(b"written")
    shutil.rmtree(spool)
    calls = (
        lambda: uploader.put(source, "a"),
        lambda: uploader.put(source, "a", move=True),
        lambda: uploader.open("b"),
        writer.close,
    )
    for call in calls:
        with pytest.raises(SpoolError, match=rf"the spool {spool} was removed while it was in use.*open a new one") as caught:
            call()
        assert not isinstance(caught.value, FileNotFoundError)
    assert source.exists()
    uploader._closed = True
