"""A forked child that ends while its parent has files open: what a process did not open it neither accepts nor discards."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import wherry
from support import run_script, wait_until

#: Ways to open a name for writing.
OPENERS = {
    "uploader": "uploader.open('{name}')",
    "fsspec": "fsspec.open(url, 'wb')",
    "fsspec compressed": "fsspec.open(url, 'wb', compression='gzip')",
    "fsspec as text": "fsspec.open(url, 'w')",
    "fsspec as compressed text": "fsspec.open(url, 'w', compression='gzip')",
    "fsspec in a transaction": "in_transaction(url)",
}
#: Ways in which a forked child ends; the statement, and the exit status.
ENDS = {
    "sys.exit": ("sys.exit()", 0),
    "its end": ("pass", 0),
    "an exception": ("raise SystemError", 1),
    "garbage": ("del file; gc.collect(); sys.exit()", 0),
}

PARENT = """
import contextlib, fsspec, gc, os, sys, warnings, wherry

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on

@contextlib.contextmanager
def in_transaction(url):
    fs, path = fsspec.url_to_fs(url)
    with fs.transaction, fs.open(path, "wb") as file:
        yield file

uploader = wherry.Uploader(sys.argv[1])
part = {part!r}
child = -1
"""
#: One way to end: the file is written by the parent, before and after the end of the child.
FILE = """
if child != 0:
    url = "wherry::file://" + sys.argv[1] + "/{name}"
    with {opening} as file:
        file.write(part)  # less than a buffer holds, and the child has a copy of it
        if (child := os.fork()) == 0:
            {end}
        else:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
            file.write(part)
"""
CLOSE = """
if child != 0:
    uploader.close()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"WHERRY_SPOOL": str(tmp_path / "spool"), "TMPDIR": str(tmp_path)}


@pytest.mark.parametrize("opening", OPENERS.values(), ids=OPENERS.keys())
def test_a_forked_childs_end_leaves_the_parents_file_alone(tmp_path: Path, environment: dict[str, str], opening: str) -> None:
    """Each way to end, one after the other."""
    bucket, part = tmp_path / "bucket", "half of it, "
    script = PARENT.format(part=part if "'w'" in opening else part.encode())
    for number, (end, status) in enumerate(ENDS.values()):
        script += FILE.format(name=number, opening=opening.format(name=number), end=end, status=status)
    script += CLOSE
    said = run_script(script, bucket, env=environment)
    assert "Exception ignored" not in said
    with wherry.Uploader(bucket, spool=tmp_path / "spool") as uploader:
        uploader.flush(60.0)
    assert {f"{number}" for number in range(len(ENDS))} == {path.name for path in bucket.iterdir()}
    for path in bucket.iterdir():
        stored = path.read_bytes()
        assert (2 * part).encode() == (gzip.decompress(stored) if "gzip" in opening else stored)
    wait_until(lambda: not list((tmp_path / "spool" / "objects").iterdir()), what="the end of the last staged file")


def test_a_forked_child_is_told_that_it_cannot_write_its_parents_file(tmp_path: Path, environment: dict[str, str]) -> None:
    said = run_script(
        """
        import os, sys, wherry
        with wherry.Uploader(sys.argv[1]) as uploader, uploader.open("x") as file:
            if os.fork() == 0:
                assert file.closed
                file.write(b"mine")
            os.wait()
        """,
        tmp_path / "bucket",
        env=environment,
    )
    assert "ValueError: x was opened by the process that this one was forked from: only that one can write it" in said
    assert b"" == (tmp_path / "bucket" / "x").read_bytes()


def test_a_forked_childs_end_leaves_temporary_folders_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """Those of reads that are under way in another thread, say."""
    script = """
    import os, sys, threading
    from wherry.posix.fork import temporary_folder

    inside, forked = threading.Event(), threading.Event()

    def read():
        with temporary_folder() as folder:
            (folder / "text").write_text("text")
            inside.set()
            assert forked.wait(60)
            print((folder / "text").read_text())

    reader = threading.Thread(target=read)
    reader.start()
    inside.wait()
    if (child := os.fork()) == 0:
        sys.exit()
    os.waitpid(child, 0)
    forked.set()
    reader.join()
    """
    assert "text" == run_script(script, env=environment).splitlines()[-1]
    assert [] == list(tmp_path.iterdir())
