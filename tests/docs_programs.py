"""The programs in docs/attaching.md and docs/checkpoints.md, for tests that run them as they are, but for the bucket."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from programs import Program

_DOCS = Path(__file__).parent.parent / "docs"


def program(name: str, page: str = "attaching") -> str:
    """The program that follows the mark ``<!-- run: name -->``."""
    (found,) = re.findall(rf"<!-- run: {name} -->\n\n```python\n(.*?)```", (_DOCS / f"{page}.md").read_text(), re.DOTALL)
    return str(found)


def names(page: str = "attaching") -> list[str]:
    """Those of all programs of the page."""
    return re.findall(r"<!-- run: (\w+) -->", (_DOCS / f"{page}.md").read_text())


def script_of(name: str, folder: Path, page: str = "attaching") -> Path:
    """Write it down in `folder`, with the folder ``bucket`` for a bucket."""
    text = program(name, page)
    assert "s3://my-bucket" in text
    script = folder / "train.py"
    script.write_text(text.replace("s3://my-bucket", str(folder / "bucket")))
    return script


def run_program(name: str, folder: Path, *launcher: str, page: str = "attaching", **variables: str) -> str:
    """Run it in `folder`, with the folder ``bucket`` for a bucket, and return what it printed."""
    script = script_of(name, folder, page)
    environment = {**os.environ, "WHERRY_SPOOL": str(folder / "spool"), "OMP_NUM_THREADS": "1", **variables}
    with Program(
        [sys.executable, *launcher, str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=120)
        finally:
            process.terminate()  # torchrun ends its ranks then; SIGKILL would leave them
    assert 0 == process.returncode, said
    return str(said)


def files_below(folder: Path) -> set[str]:
    """Their names, relative."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
