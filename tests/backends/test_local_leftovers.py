"""What a killed put has left beside its destination goes with the next attempt of its job, and with no other upload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wherry.backends.local.store import LocalStore
from wherry.errors import AlreadyExistsError
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, PutOptions
from wherry.uri import StoreURI

#: Killed in mid-copy, by SIGXFSZ, on a file system without files that have no name (O_TMPFILE), as NFS is.
KILLED_PUT = """
import resource, signal, sys
from pathlib import Path
from wherry.backends.local.store import LocalStore
from wherry.store import PutOptions
from wherry.uri import StoreURI
class Store(LocalStore):
    _o_tmpfile = 0
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
Store(StoreURI("file", ""), {}).put_file(sys.argv[1], Path(sys.argv[2]), PutOptions(metadata={"wherry-token": sys.argv[3]}))
"""


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(StoreURI("file", ""), {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"x" * 100_000)
    return path


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


def key(dest: Path) -> str:
    return str(dest / "a").lstrip("/")


def killed_put(dest: Path, source: Path, token: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_PUT, key(dest), source, token], check=False)
    assert -signal.SIGXFSZ == done.returncode


def temporary_files(dest: Path) -> list[str]:
    return [name for name in os.listdir(dest) if TEMPORARY_MARK in name]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_next_attempt_of_a_job_takes_away_what_a_killed_one_has_left(
    store: LocalStore, dest: Path, source: Path, frozen: bool
) -> None:
    for _ in range(2):
        killed_put(dest, source, "token of the job")
        assert 1 == len(temporary_files(dest))
    store.put_file(key(dest), source, PutOptions(metadata={TOKEN_METADATA: "token of the job"}, frozen=frozen))
    assert ["a"] == os.listdir(dest)
    assert b"x" * 100_000 == (dest / "a").read_bytes()


def test_an_attempt_that_finds_the_name_taken_takes_it_away_as_well(store: LocalStore, dest: Path, source: Path) -> None:
    killed_put(dest, source, "token of the job")
    (dest / "a").write_bytes(b"another's")
    with pytest.raises(AlreadyExistsError):
        store.put_file(key(dest), source, PutOptions(if_absent=True, metadata={TOKEN_METADATA: "token of the job"}))
    assert ["a"] == os.listdir(dest)


def test_what_another_upload_is_making_stays(store: LocalStore, dest: Path, source: Path) -> None:
    killed_put(dest, source, "token of another job")
    store.put_file(key(dest), source, PutOptions(metadata={TOKEN_METADATA: "token of the job"}))
    store.put_file(key(dest), source)
    assert 1 == len(temporary_files(dest))
    (upload,) = store.list_uploads(key(dest))
    store.abort(upload.key, upload.upload_id)
    assert ["a"] == os.listdir(dest)
