"""docs/comparison.md: each command of wherry's column runs, on a folder in the place of the bucket."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import CommandLine, is_plain
from servers.features import tell_spool
from servers.real import S3Server
from support import file_of

PAGE = (Path(__file__).parent.parent.parent / "docs/comparison.md").read_text()
COMMANDS = [command.replace("\\|", "|") for command in re.findall(r"\| `([^`]*\bwherry [^`]*)`[^|]*\|$", PAGE, re.MULTILINE)]


def test_every_row_of_the_first_table_has_a_command() -> None:
    rows = PAGE.partition("| --- |")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, line: CommandLine, request: pytest.FixtureRequest) -> None:
    for name in ("ep1.pt", "ep3.pt", "latest.pt", "old.tmp", "logs/a.log"):
        file_of(line.folder / "bucket/run1" / name, 1000)
    (line.folder / "bucket/run1/metrics.json").write_text("{}\n")
    (line.folder / "rules.txt").write_text("*.tmp\n")
    (line.folder / "train.sh").write_text("echo loss 1 >> runs/7/train.log\n")
    (line.folder / "runs/7").mkdir(parents=True)
    file_of(line.folder / "model.pt", 1000)
    environment = dict(line.environment)
    if "s3://" in command.split():
        server: S3Server = request.getfixturevalue("seaweedfs_server")
        tell_spool(line.spool, server)
        environment |= {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": server.access_key}
        environment |= {"AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": "us-east-1"}
    command = command.replace("s3://my-bucket", str(line.folder / "bucket"))
    if is_plain(command) and "--show-completion" not in command:  # which looks for the shell that has started it
        assert "Traceback" not in line.run(*shlex.split(command)[1:], env=environment)[1]
        return
    shell = f'wherry() {{ {shlex.join([sys.executable, "-m", "wherry.cli"])} "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        cwd=line.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert 0 == done.returncode, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
