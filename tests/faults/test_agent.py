"""The agent as a process: one a spool, no secrets on disk, no work of the training process, no idling at cost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gate import DRAIN, Gate, kill, wait_until
from servers.features import tell_spool
from servers.real import S3Server
from support import spool_texts
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_a_second_agent_leaves_at_once(gate: Gate) -> None:
    process = gate.script("import wherry; wherry.Uploader('gated://x').open('a').close()")
    first = gate.agent()
    command = [sys.executable, "-m", "wherry.agent", "--spool", str(gate.spool)]
    second = subprocess.run(command, env=gate.environment, capture_output=True, text=True, timeout=60)
    assert 0 == second.returncode
    assert "another agent has the spool" in second.stderr
    assert first.pid == gate.agent().pid
    gate.open()
    with process:
        assert 0 == process.wait(60)


def test_training_process_gets_no_sdk_no_threads_and_no_children(gate: Gate) -> None:
    gate.open()
    code, output = gate.run("""
    import sys, threading, psutil, wherry
    from wherry.loggers import ObjectStoreLogger
    before = set(sys.modules)
    with ObjectStoreLogger("gated://x") as log:
        with log.open("a") as file:
            file.write(b"a")
        assert threading.active_count() == 1, threading.enumerate()
        assert psutil.Process().children() == []
        heavy = {"boto3", "botocore", "google.cloud", "torch", "gated_store", "fsspec", "numpy", "asyncio"} & set(sys.modules)
        assert not heavy, heavy
        log.uploader.flush()  # without the line on stderr of a wait that takes half a second, as on a loaded machine
    """)
    assert 0 == code, output
    # Uploads that take a while are announced.
    assert [] == [line for line in output.splitlines() if not line.startswith("wherry: waiting for 1 upload")]


def test_an_upload_stays_accepted_when_no_agent_can_be_started(gate: Gate) -> None:
    gate.open()
    program = gate.folder / "killed"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o700)
    code, output = gate.run(f"""
    import os, signal, sys, time, wherry
    from wherry.spool.presence import pid_of_agent
    def wait_until(condition):
        while not condition():
            time.sleep(0.01)
    with wherry.Uploader("gated://x") as uploader:
        wait_until(lambda: pid_of_agent(uploader.spool))
        os.kill(pid_of_agent(uploader.spool), signal.SIGKILL)
        wait_until(lambda: pid_of_agent(uploader.spool) is None)
        python, sys.executable = sys.executable, {str(program)!r}
        with uploader.open("a") as file:
            file.write(b"a")
        sys.executable = python
    """)
    assert 0 == code, output
    assert "could not be started" in output
    assert "was ended by SIGKILL" in output
    assert ["a"] == [path.name for path in gate.dest.iterdir()]


@pytest.mark.parametrize("end", ["uploader.close()", "uploader.flush()", "uploader.journal.close(); drain()"])
def test_where_no_agent_can_be_started_whoever_waits_makes_the_uploads(gate: Gate, end: str) -> None:
    gate.open()
    code, output = gate.run(f"""
    import os, sys, wherry
    from wherry.cli import main
    def drain():
        sys.argv = ["wherry", "drain"]
        main()
    sys.executable = "/no/such/python"
    uploader = wherry.Uploader("gated://x")
    with uploader.open("a") as file:
        file.write(b"a")
    assert not os.listdir({str(gate.dest)!r})
    {end}
    os._exit(0)
    """)
    assert 0 == code, output
    assert "could not be started" in output
    assert ["a"] == [path.name for path in gate.dest.iterdir()]


def test_sigterm_stops_the_agent_and_the_next_goes_on(gate: Gate) -> None:
    gate.run("import os, wherry; wherry.Uploader('gated://x').open('a').close(); os._exit(0)")
    agent = gate.agent()
    wait_until(gate.puts, what="the first put")
    workers = agent.children()
    agent.send_signal(signal.SIGTERM)
    wait_until(lambda: not agent.is_running(), what="the agent to stop")
    assert [] == [worker for worker in workers if worker.is_running()]
    gate.open()
    gate.drain()
    assert ["a"] == [path.name for path in gate.dest.iterdir()]


def test_agent_lingers_no_longer_than_it_may(gate: Gate) -> None:
    text = """
    import signal, wherry
    config = wherry.Config(agent=wherry.AgentConfig(linger_s=0.5))
    uploader = wherry.Uploader("gated://x", config=config)
    uploader.open("a").close()
    signal.pause()
    """
    with gate.script(text) as process:
        wait_until(gate.puts, what="the put to begin")
        agent = gate.agent()
        process.kill()
    wait_until(lambda: not agent.is_running(), what="the agent to give up")
    assert 1 == Journal(gate.spool / "journal.db").queries.counts().queued
    gate.open()
    gate.drain()
    assert ["a"] == [path.name for path in gate.dest.iterdir()]


def test_idle_agent_costs_nothing_and_has_no_workers(gate: Gate) -> None:
    gate.open()
    process = gate.script("""
    import sys, wherry
    config = wherry.Config(agent=wherry.AgentConfig(worker_idle_s=0.2))
    uploader = wherry.Uploader("gated://x", config=config)
    uploader.open("a").close()
    uploader.flush()
    print("idle", flush=True)
    import signal; signal.pause()
    """)
    assert process.stdout is not None
    assert "idle\n" == process.stdout.readline()
    agent = gate.agent()
    wait_until(lambda: not agent.children(), what="the workers to leave")
    used_s, n_waits = sum(agent.cpu_times()[:2]), agent.num_ctx_switches().voluntary
    time.sleep(2)  # what is measured is a time without events
    assert sum(agent.cpu_times()[:2]) - used_s <= 0.2
    assert agent.num_ctx_switches().voluntary - n_waits <= 5  # a loaded machine makes them no more
    assert agent.memory_info().rss < 60 * 2**20
    process.kill()
    with process:
        process.wait(60)


SECRET_TRAINER = """
import json, os, signal, sys, wherry
options = json.loads(os.environ.pop("OPTIONS"))
uploader = wherry.Uploader(sys.argv[1], storage_options=options)
for i in range(20):
    with uploader.open(f"run/{i}") as file:
        file.write(b"%d" % i * 1000)
print(uploader, uploader.journal.queries.stores(), repr(uploader.config), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_secrets_live_in_memory_only_and_jobs_wait_for_them(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    spool = tmp_path / "spool"
    secrets = {"aws_access_key_id": seaweedfs_server.access_key, "aws_secret_access_key": seaweedfs_server.secret_key}
    options = {"endpoint_url": seaweedfs_server.url, **secrets}
    uri = f"s3://{seaweedfs_server.bucket}/secrets"
    tell_spool(spool, seaweedfs_server)
    environment = {**os.environ, "WHERRY_SPOOL": str(spool)}
    done = subprocess.run(
        [sys.executable, "-c", SECRET_TRAINER, uri],
        env={**environment, "OPTIONS": json.dumps(options)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert -signal.SIGKILL == done.returncode, done.stderr
    if (pid := pid_of_agent(Spool(spool))) is not None:
        agent = psutil.Process(pid)
        assert not any(secret in " ".join(agent.cmdline()) for secret in secrets.values())
        kill(agent)
    # The next run knows no secrets: what is left waits, and nothing fails.
    subprocess.run([sys.executable, "-c", DRAIN.replace("timeout_s=50", "timeout_s=1")], env=environment, capture_output=True)
    assert 0 == Journal(spool / "journal.db").queries.counts().failed
    # A run that knows them finishes it.
    finish = "import json, os, sys, wherry; wherry.Uploader(sys.argv[1], storage_options=json.loads(os.environ.pop('OPTIONS')))\n"
    subprocess.run(
        [sys.executable, "-c", finish + DRAIN, uri],
        env={**environment, "OPTIONS": json.dumps(options)}, check=True, timeout=60,
    )  # fmt: skip
    assert 20 == Journal(spool / "journal.db").queries.counts().done
    kept = [done.stdout.encode(), done.stderr.encode(), *spool_texts(spool).values()]
    assert not [True for text in kept if secrets["aws_secret_access_key"].encode() in text]
    assert not [True for text in kept if secrets["aws_access_key_id"].encode() in text]


def test_garbage_in_a_bell_ends_neither_agent_nor_client(gate: Gate) -> None:
    process = gate.script("""
    import wherry
    uploader = wherry.Uploader('gated://x')
    uploader.open('a').close()
    uploader.flush()
    """)
    agent = gate.agent()
    wait_until(gate.puts, what="the first put")
    wait_until(lambda: list(gate.spool.glob("clients/*.bell")), what="the client to wait")
    for bell in (gate.spool / "bell", *gate.spool.glob("clients/*.bell")):
        for garbage in (b"garbage", b"[]", b"[" * 50_000, b'{"secrets": {"x": 1}}', b'{"warm": [null, -1]}', b'{"warm": [1]}'):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(garbage, os.fspath(bell))
    log = gate.spool / "agent.log"
    wait_until(lambda: "that no wherry sends: they are passed over" in log.read_text(), what="the agent's word")
    assert agent.is_running()
    gate.open()
    with process:
        output, _ = process.communicate(timeout=60)
    assert 0 == process.returncode, output
    assert "Traceback" not in output
    assert ["a"] == [path.name for path in gate.dest.iterdir()]
