"""How programs and tests are run with Composer's interpreter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from servers.real import S3Server
from support import end_agent

TRIALS = Path(__file__).parent


def environment(folder: Path, server: S3Server | None = None) -> dict[str, str]:
    keys = {}
    if server is not None:
        keys = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "S3_ENDPOINT_URL": server.url,
        }
    return {**os.environ, **keys, "WHERRY_SPOOL": str(folder / "spool"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def run_cases(name: str, python: Path, folder: Path, env: dict[str, str], *options: str) -> None:
    """Run a file of tests with Composer's interpreter; `options` are pytest's."""
    own = ["-p", "no:cacheprovider", "--noconftest", "-o", "filterwarnings=", "-m", "", "--basetemp", str(folder / "cases")]
    command = [str(python), "-m", "pytest", "-q", *own, *options, str(TRIALS / name)]
    with end_agent(folder / "spool"):
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert 0 == ended.returncode, ended.stdout[-8000:]
