"""What is built is what is in the tree: a forgotten sub-package would be left out of the wheel without a word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import wherry
from support import without_waits

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from it."""
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("build") / "tree"
    # A copy: setuptools writes beside what it builds, and takes what an earlier build left there.
    shutil.copytree(
        ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "*.egg-info")
    )
    command = [sys.executable, "-W", "ignore", "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert 0 == done.returncode, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what its core requires, and nothing else; its folder of programs.

    What is required is linked from this environment, so that nothing is downloaded.
    """
    environment = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    python = environment / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True, timeout=60).stdout.strip())
    for name in _closure(set(_without_extras(metadata.get_all("Requires-Dist", [])))):
        _link(name, site)
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=60)
    return environment / "bin"


def _without_extras(requirements: list[str]) -> list[str]:
    """The names that are required whatever extra is asked for."""
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line]


def _closure(names: set[str]) -> set[str]:
    """The distributions that `names` need, themselves included, as far as they are installed here."""
    done: set[str] = set()
    while names:
        name = names.pop()
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:  # for another Python or another system
            continue
        done.add(name)
        names.update(set(_without_extras(needed)) - done)
    return done


def _link(name: str, site: Path) -> None:
    found = distribution(name)
    for top in {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(str(found.locate_file(top)))


def _run(installed: Path, tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the fresh environment; nothing of this one, nor the tree, is in its way."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"WHERRY_SPOOL": str(tmp_path / "spool")}
    return subprocess.run(
        [str(installed / command[0]), *command[1:]], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


def _sources() -> set[str]:
    ours = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/wherry").rglob("*.py") if "backends" not in path.parts
    }
    return ours | {f"wherry/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "backends").rglob("*.py")}


def test_every_folder_of_modules_is_a_package_of_the_project() -> None:
    """A folder that is left out gets into the wheel only as data of its parent, which setuptools deprecates."""
    listed = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    folders = {os.path.dirname(name).replace("/", ".") for name in _sources()}
    assert folders == set(re.findall(r'"([\w.]+)"', listed[1]))


def test_wheel_has_every_module_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert _sources() == {name for name in names if name.endswith(".py")}
    assert {"wherry/py.typed", "wherry/__init__.pyi", "wherry/loggers/__init__.pyi"} <= names


def test_sdist_mirrors_the_repository(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "backends/local/store.py",
        "src/wherry/uploader.py",
        "tests/gate.py",
    } <= names


def test_metadata_says_what_wherry_is(metadata: Message) -> None:
    assert {
        "s3",
        "gcs",
        "torch",
        "media",
        "mirror",
        "wandb",
        "mlflow",
        "dev",
        "dev-extra",
        "dev-release",
        "test",
        "system",
        "ui",
        "all",
    } == set(metadata.get_all("Provides-Extra", []))
    assert ("wherry", wherry.__version__, "Apache-2.0") == (metadata["Name"], metadata["Version"], metadata["License-Expression"])


def test_core_requires_no_vendor_library(metadata: Message) -> None:
    heavy = {"boto3", "botocore", "google-auth", "numpy", "torch"}
    assert set() == heavy & _closure(set(_without_extras(metadata.get_all("Requires-Dist", []))))


def test_installed_wheel_has_its_command(installed: Path, tmp_path: Path) -> None:
    done = _run(installed, tmp_path, "wherry", "--version")
    assert (0, f"wherry {wherry.__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


def test_installed_wheel_works_without_the_tree_and_the_extras(installed: Path, tmp_path: Path) -> None:
    script = f"""
import wherry, wherry.loggers, wherry.testing
assert not wherry.__file__.startswith({str(ROOT)!r}), wherry.__file__
with wherry.Uploader({str(tmp_path / "bucket")!r}) as uploader:
    with uploader.open("a") as file:
        file.write(b"from the wheel")
    uploader.get("a", {str(tmp_path / "b")!r})
"""
    done = _run(installed, tmp_path, "python", "-c", script)
    assert (0, "") == (done.returncode, without_waits(done.stderr))
    assert b"from the wheel" == (tmp_path / "bucket/a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("uri", "extra"), [("s3://bucket", "s3"), ("gs://bucket", "gcs")])
def test_missing_extra_is_named(installed: Path, tmp_path: Path, uri: str, extra: str) -> None:
    (tmp_path / "file").write_text("x")
    done = _run(installed, tmp_path, "wherry", "put", "file", f"{uri}/file")
    assert 2 == done.returncode, done.stderr
    assert f"pip install 'wherry[{extra}]'" in done.stderr


def test_everything_of_the_development_set_is_pinned(metadata: Message) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {re.split("==| ", line)[0] for line in lines if line and not line.startswith("#")}
    asked = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in metadata.get_all("Requires-Dist", [])} - {"wherry"}
    needed = {re.sub(r"[-_.]+", "-", name).lower() for name in _closure(asked)}
    unpinned = {name for name in needed - pinned if not name.startswith(("cuda-", "nvidia-", "triton"))}
    assert set() == unpinned, "renew constraints.txt: it says how"
