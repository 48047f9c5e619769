"""Fetches uPlot into the package: ``make ui-assets``. Its name, version and hash are in `src/wherry/web/uplot.json`.

The npm client brings the archive; nothing in it is run. The files that are named there are unpacked, nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
WEB = ROOT / "src/wherry/web"


class AssetsError(Exception):
    """The archive is not the one that is wanted."""


def wanted() -> dict[str, Any]:
    """What `uplot.json` says."""
    found: dict[str, Any] = json.loads((WEB / "uplot.json").read_text())
    return found


def packed_names() -> set[str]:
    """The files of uPlot as they are named in a wheel."""
    return {f"wherry/web/uplot/{PurePosixPath(name).name}" for name in wanted()["files"]}


def fetch(folder: Path) -> None:
    """Put the files into `folder`. AssetsError if the archive's hash is not the one in git."""
    asked = wanted()
    with tempfile.TemporaryDirectory() as name:
        command = [
            "npm",
            "pack",
            "--silent",
            "--ignore-scripts",
            "--pack-destination",
            name,
            f"{asked['name']}@{asked['version']}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=name)
        if done.returncode != 0:
            raise AssetsError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        (archive,) = Path(name).glob("*.tgz")
        unpack(archive, asked["integrity"], asked["files"], folder)


def unpack(archive: Path, integrity: str, names: list[str], folder: Path) -> None:
    """Check the archive's hash, and take the files `names` out of it. AssetsError for another hash."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != integrity:
        raise AssetsError(f"{archive.name} has {found}, but uplot.json says {integrity}: it is not what was reviewed")
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as files:
        for name in names:
            file = files.extractfile(f"package/{name}")
            assert file is not None, name
            (folder / PurePosixPath(name).name).write_bytes(file.read())


if __name__ == "__main__":
    try:
        fetch(WEB / "uplot")
    except (AssetsError, FileNotFoundError) as error:
        sys.exit(f"ui-assets: {error}")
