"""What a killed trial of a server has left in the store is removed by the next agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from lax_s3 import lax_server
from servers.proxy import Do, When, fault_proxy
from support import end_agent, file_of, wait_until
from wherry import Uploader
from wherry.config import AgentConfig, Config

TRAINER = """
import json, sys
from pathlib import Path
from support import CALLER
from wherry import Uploader
options, spool, file = json.loads(sys.stdin.read())
with Uploader("s3://bucket/run", storage_options=options, spool=spool, config=CALLER) as uploader:
    uploader.put(Path(file), "a").result()
"""


def test_what_a_killed_trial_has_left_is_removed_by_the_next_agent(tmp_path: Path) -> None:
    """Killed between the parts of its upload and its end: objects are there, and an upload in parts."""
    file, spool = file_of(tmp_path / "file", 10), tmp_path / "spool"
    trainers: list[subprocess.Popen[str]] = []
    kill = Do(lambda: os.kill(trainers[0].pid, signal.SIGKILL))
    with (
        lax_server() as server,
        fault_proxy("127.0.0.1", server.server_port, [When("PUT", "probe-parts.*uploadId", kill)]) as proxy,
    ):
        options = {"endpoint_url": proxy.url, "aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
        trainers.append(
            subprocess.Popen(
                [sys.executable, "-c", TRAINER],
                stdin=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            )
        )
        trainers[0].communicate(json.dumps([options, str(spool), str(file)]), timeout=60)
        assert trainers[0].returncode == -signal.SIGKILL
        wait_until(lambda: any("wherry-probe-object" in key for key in list(server.objects)))
        assert server.uploads
        config = Config(agent=AgentConfig(worker_idle_s=600.0))  # they are gone long before it leaves
        with end_agent(spool), Uploader("s3://bucket/run", storage_options=options, spool=spool, config=config) as uploader:
            uploader.put(file, "b", overwrite=True).result()
            wait_until(lambda: {"run/a", "run/b"} >= set(server.objects) and not server.uploads)
            wait_until(lambda: not list((spool / "trials").iterdir()))
