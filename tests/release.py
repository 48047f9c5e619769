"""Builds wheel and sdist from the last commit and tries both as users get them: ``make release-check``. Publishes nothing.

docs/releasing.md lists the steps. The two files stay in dist/. The first error ends the script with 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from servers.ui_assets import packed_names

ROOT = Path(__file__).resolve().parent.parent
#: What the build writes into the sdist beside the files of the repository.
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|src/wherry\.egg-info/.*|wherry\.egg-info/.*")
#: Each file of these folders must be in the sdist, so that it can be built and tested from it.
SHIPPED = ("src/", "backends/", "tests/", "benchmarks/", "docs/", "examples/")
#: What git has by name and hash only, but is in both packages: uPlot.
FETCHED = {f"src/{name}" for name in packed_names()}
#: With nothing but the base install: a file there and back, and what users import first.
SMOKE = """
import pathlib, wherry, wherry.loggers, wherry.testing
pathlib.Path("file").write_bytes(b"0123456789" * 1000)
with wherry.Uploader("bucket") as uploader:
    uploader.put("file", "remote")
    uploader.flush()
    uploader.get("remote", "back")
assert pathlib.Path("back").read_bytes() == pathlib.Path("file").read_bytes()
print(wherry.__version__)
"""


class ReleaseError(Exception):
    """Something that must be mended before a release."""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """What the program prints; its failure ends the check."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def source_version(root: Path) -> str:
    """The version as it is written in the source, its only place."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', (root / "src/wherry/__init__.py").read_text(), re.MULTILINE)
    return str(version)


def check_names(version: str, changelog: str, tags: Mapping[str, bool]) -> str:
    """Compare version, changelog and tags; what is still to do before the release, in words.

    Args:
        version: of the source.
        changelog: the text of CHANGELOG.md.
        tags: name of each tag -> whether it is at the commit that is built.

    """
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    here = [tag for tag, is_here in tags.items() if is_here and tag.startswith("v")]
    if any(tag != f"v{version}" for tag in here):
        raise ReleaseError(f"this commit is tagged {', '.join(here)}, but the version is {version}")
    if tags.get(f"v{version}") is False:
        raise ReleaseError(f"v{version} is already released, from another commit: raise __version__ in src/wherry/__init__.py")
    is_dated = any(re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading) for heading in headings)
    if here and not is_dated:
        raise ReleaseError(f"v{version} is tagged, but CHANGELOG.md has no '## {version} (YYYY-MM-DD)'")
    if not is_dated:
        return f"to do: date the heading in CHANGELOG.md, '## {version} (YYYY-MM-DD)', then tag v{version}"
    return f"to do: tag v{version}" if not here else "tagged and dated"


def tags_here() -> dict[str, bool]:
    """Each tag, and whether it is at HEAD."""
    here = run("git", "tag", "--points-at", "HEAD").split()
    return {tag: tag in here for tag in run("git", "tag").split()}


def check_sdist(names: set[str], tracked: set[str]) -> None:
    """Nothing that git does not track, and everything that is needed to build and test."""
    if extra := {name for name in names - tracked if not GENERATED.fullmatch(name)}:
        raise ReleaseError(f"in the sdist, but not in git: {', '.join(sorted(extra))}")
    wanted = {name for name in tracked if name.startswith(SHIPPED)} | {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"}
    if missing := wanted - names:
        raise ReleaseError(f"not in the sdist: {', '.join(sorted(missing))}")


def check_wheel(names: set[str], tracked: set[str]) -> None:
    """The package's own files, the metadata, and nothing else."""
    packages = (re.sub("^backends/", "wherry/backends/", name.removeprefix("src/")) for name in tracked)
    ours = {name for name in packages if name.startswith("wherry/")}
    found = {name for name in names if not re.match(r"wherry-[^/]+\.dist-info/", name)}
    if found != ours:
        raise ReleaseError(f"in the wheel or in git only: {', '.join(sorted(found ^ ours))}")


def try_out(package: Path, version: str, folder: Path) -> None:
    """Install it into a fresh environment, as pip does it for users, and use it outside of the repository."""
    folder.mkdir()
    run(sys.executable, "-m", "venv", folder / "env")
    programs = folder / "env" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    run(*pip, "-c", ROOT / "constraints.txt", package)
    run(programs / "python", "-m", "pip", "check")
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "WHERRY_SPOOL": str(folder / "spool")}
    (folder / "file").write_text("from the command line")
    said = run(programs / "wherry", "--version", cwd=folder, env=clean)
    run(programs / "wherry", "--help", cwd=folder, env=clean)
    run(programs / "wherry", "put", "file", "./bucket/by-command", cwd=folder, env=clean)
    run(programs / "wherry", "get", "bucket/by-command", "back", cwd=folder, env=clean)
    (folder / "back").unlink()
    imported = run(programs / "python", "-c", SMOKE, cwd=folder, env=clean)
    if (said, imported) != (f"wherry {version}\n", f"{version}\n"):
        raise ReleaseError(f"{package.name} calls itself {said.strip()!r} and {imported.strip()!r}, not {version}")


def check() -> None:
    """All steps in order."""
    version = source_version(ROOT)
    print(f"version {version}: {check_names(version, (ROOT / 'CHANGELOG.md').read_text(), tags_here())}", flush=True)
    if run("git", "status", "--porcelain"):
        print("the working tree has changes: what is built is the last commit, without them")
    with tempfile.TemporaryDirectory(prefix="wherry-release-") as name:
        folder = Path(name)
        tree = folder / "tree"
        run("git", "archive", "--prefix", "tree/", "--output", folder / "tree.tar", "HEAD")
        run("tar", "-xf", folder / "tree.tar", "-C", folder)
        shutil.copytree(ROOT / "src/wherry/web/uplot", tree / "src/wherry/web/uplot")
        # The link to backends/ is for editors only.
        tracked = set(run("git", "ls-tree", "-r", "--name-only", "HEAD").splitlines()) - {"src/wherry/backends"} | FETCHED
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        run(sys.executable, "-m", "build", "--outdir", dist, tree)
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        with zipfile.ZipFile(wheel) as archive:
            check_wheel({entry.filename for entry in archive.infolist() if not entry.is_dir()}, tracked)
        with tarfile.open(sdist) as archive_of_source:
            check_sdist({member.name.partition("/")[2] for member in archive_of_source if not member.isdir()}, tracked)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        run(Path(sys.executable).parent / "check-wheel-contents", wheel)
        for package in (wheel, sdist):
            print(f"{package.name}, {package.stat().st_size / 1000:.0f} kB: built and checked; installing it", flush=True)
            try_out(package, version, folder / package.suffix.strip("."))
    print("release-check passed")


if __name__ == "__main__":
    try:
        check()
    except ReleaseError as error:
        sys.exit(f"release-check: {error}")
