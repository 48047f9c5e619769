"""An agent has the environment of whoever started it; each job goes where its own caller's environment said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gate import kill, wait_until
from programs import Program
from servers.features import tell_spool
from servers.real import S3Server, Server
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.store.environment import with_environment

FIRST = """
import sys, wherry
with wherry.Uploader(sys.argv[1]) as uploader:
    uploader.open("first").close()
    uploader.flush()
    print("up", flush=True)
    sys.stdin.readline()
"""
SECOND = """
import os, signal, sys, wherry
uploader = wherry.Uploader(sys.argv[1])
for i in range(20):
    with uploader.open(f"environment/{i}") as file:
        file.write(b"%d" % i * 10000)
if sys.argv[2] == "wait":
    uploader.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _variables(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def test_an_agent_of_another_uses_our_endpoint_and_keys(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    wrong = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other-secret"}
    tell_spool(tmp_path / "spool", seaweedfs_server)
    spool = {**os.environ, "WHERRY_SPOOL": str(tmp_path / "spool")}
    command = [sys.executable, "-c", FIRST, str(tmp_path / "bucket")]
    with Program(command, env={**spool, **wrong}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert "up\n" == first.stdout.readline()
        second = [sys.executable, "-c", SECOND, f"s3://{seaweedfs_server.bucket}", "wait"]
        subprocess.run(second, env={**spool, **_variables(seaweedfs_server)}, check=True, timeout=60)
        first.stdin.close()
    assert 21 == Journal(tmp_path / "spool/journal.db").queries.counts().done


def test_an_agent_of_another_uses_our_emulator(tmp_path: Path, fake_gcs_server: Server) -> None:
    spool = {**os.environ, "WHERRY_SPOOL": str(tmp_path / "spool")}
    command = [sys.executable, "-c", FIRST, str(tmp_path / "bucket")]
    wrong = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
    with Program(command, env={**spool, **wrong}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert "up\n" == first.stdout.readline()
        second = [sys.executable, "-c", SECOND, f"gs://{fake_gcs_server.bucket}", "wait"]
        ours = {"STORAGE_EMULATOR_HOST": fake_gcs_server.url}
        subprocess.run(second, env={**spool, **ours}, check=True, timeout=60)
        first.stdin.close()
    assert 21 == Journal(tmp_path / "spool/journal.db").queries.counts().done


def test_drain_finishes_with_the_keys_of_its_own_environment(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    tell_spool(tmp_path / "spool", seaweedfs_server)
    spool = {**os.environ, "WHERRY_SPOOL": str(tmp_path / "spool")}
    second = [sys.executable, "-c", SECOND, f"s3://{seaweedfs_server.bucket}", "die"]
    done = subprocess.run(second, env={**spool, **_variables(seaweedfs_server)}, timeout=60)
    assert -signal.SIGKILL == done.returncode
    if (pid := pid_of_agent(Spool(tmp_path / "spool"))) is not None:
        kill(psutil.Process(pid))
    drain = [sys.executable, "-m", "wherry.cli", "drain", "--timeout", "30"]
    subprocess.run(drain, env={**spool, **_variables(seaweedfs_server)}, check=True, timeout=60)
    assert 20 == Journal(tmp_path / "spool/journal.db").queries.counts().done
    wait_until(lambda: pid_of_agent(Spool(tmp_path / "spool")) is None, what="the agent to leave")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, {"aws_access_key_id", "aws_secret_access_key"}),
        ({"endpoint_url": "http://other"}, {"aws_access_key_id", "aws_secret_access_key"}),
        ({"aws_access_key_id": "a", "aws_secret_access_key": "b"}, set()),
        ({"profile": "p"}, set()),
        ({"anonymous": True}, set()),
    ],
)
def test_what_is_given_comes_before_the_environment(given: dict[str, object], taken: set[str]) -> None:
    environ = {"AWS_ENDPOINT_URL": "e", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r"}
    found = with_environment("s3", given, environ)
    assert taken == set(found) - set(given)
    assert given == {name: found[name] for name in given}
