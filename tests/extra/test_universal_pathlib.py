"""universal-pathlib's own suite for implementations, all of it, on ``wherry::file`` and ``wherry::s3``.

It comes with the source distribution of the version that is installed, from where packages come from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from servers.real import S3Server

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]

CASES = """
import os, uuid
from pathlib import Path
import pytest
from upath import UPath
from wherry.filesystem.upath import WherryPath
from .cases import BaseTests
from .utils import OverrideMeta, overrides_base


class TestFile(BaseTests, metaclass=OverrideMeta):
    SUPPORTS_EMPTY_DIRS = False

    @pytest.fixture(autouse=True)
    def path(self, local_testdir):
        self.path = UPath(f"wherry::file://{local_testdir}")

    @overrides_base
    def test_is_correct_class(self):
        assert isinstance(self.path, WherryPath)


class TestS3(BaseTests, metaclass=OverrideMeta):
    SUPPORTS_EMPTY_DIRS = False

    @pytest.fixture(autouse=True)
    def path(self, local_testdir):
        self.path = UPath(f"wherry::s3://{os.environ['BUCKET']}/{uuid.uuid4()}")
        for file in Path(local_testdir).rglob("*.txt"):
            self.path.joinpath(str(file.relative_to(local_testdir))).write_bytes(file.read_bytes())

    @overrides_base
    def test_is_correct_class(self):
        assert isinstance(self.path, WherryPath)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The folder above the package of their tests, with ours among them."""
    wanted = f"universal_pathlib=={version('universal_pathlib')}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--dest",
        str(tmp_path),
        wanted,
    ]
    subprocess.run(pip, check=True, timeout=300)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "source", filter="data")
    (tests,) = (tmp_path / "source").glob("*/upath/tests")
    folder = tmp_path / "suite" / "upath_tests"
    shutil.copytree(tests, folder)
    cases = folder / "cases.py"
    cases.write_text(cases.read_text().replace("upath.tests.", "upath_tests."))
    others = folder / "conftest.py"  # imports a client for Windows shares that nothing here needs
    others.write_text(
        re.sub(r"^from fsspec.implementations.smb import \w+$", "SMBFileSystem = None", others.read_text(), flags=re.M)
    )
    (folder / "test_wherry.py").write_text(CASES)
    return folder.parent


def test_all_of_the_suite_passes(suite: Path, seaweedfs_server: S3Server, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": seaweedfs_server.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key,
        "AWS_ENDPOINT_URL": seaweedfs_server.url,
        "AWS_REGION": "us-east-1",
        "BUCKET": seaweedfs_server.bucket,
        "WHERRY_SPOOL": str(tmp_path / "spool"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(suite)]
    command += ["-W", "error::pytest.PytestUnraisableExceptionWarning", str(suite / "upath_tests" / "test_wherry.py")]
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=500)
    assert 0 == done.returncode, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\b246 passed in", done.stdout), done.stdout[-300:]
