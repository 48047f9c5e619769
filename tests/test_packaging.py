"""What is built is what is in the tree: a forgotten sub-package would be left out of the wheel without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-W", "ignore", "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert 0 == done.returncode, done.stdout + done.stderr
    return folder


def _sources() -> set[str]:
    ours = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/wherry").rglob("*.py") if "backends" not in path.parts
    }
    return ours | {f"wherry/backends/{path.name}" for path in (ROOT / "backends").glob("*.py")}


def test_wheel_has_every_module(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert _sources() == {name for name in names if name.endswith(".py")}
    assert "wherry/py.typed" in names


def test_sdist_mirrors_the_repository(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "backends/local.py", "src/wherry/uploader.py", "tests/gate.py"} <= names


def test_extras_are_declared(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    metadata = archive.read(name).decode()
    for extra in ("s3", "gcs", "torch", "dev", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_installed_wheel_works_without_the_tree(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=60)
    script = f"""
import sys
sys.path.insert(0, {str(site)!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import wherry
assert wherry.__file__.startswith({str(site)!r}), wherry.__file__
with wherry.Uploader({str(tmp_path / "bucket")!r}) as uploader:
    with uploader.open("a") as file:
        file.write(b"from the wheel")
    uploader.get("a", {str(tmp_path / "b")!r})
"""
    environment = {**os.environ, "PYTHONPATH": str(site), "WHERRY_SPOOL": str(tmp_path / "spool")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert b"from the wheel" == (tmp_path / "bucket/a").read_bytes() == (tmp_path / "b").read_bytes()
