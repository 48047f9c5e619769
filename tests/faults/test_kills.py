"""Real SIGKILLs of the trainer, the workers and the agent: what was accepted arrives, once, whole, in order."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
from pathlib import Path

import pytest

from gate import Gate, family, is_dead, kill, wait_until
from wherry.config import AgentConfig
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

#: Uploads N files, says so, and is killed without any chance to close.
KILLED_TRAINER = """
import os, signal, sys
from pathlib import Path
import wherry

folder, n = Path(sys.argv[1]), int(sys.argv[2])
uploader = wherry.Uploader("gated://x")
for i in range(n):
    source = folder / "file"
    source.write_bytes(b"%d " % i * 5000)
    uploader.put(source, f"{i:03d}")
source.write_bytes(b"rewritten after the last call")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def _assert_all_there(gate: Gate, n: int) -> None:
    assert [f"{i:03d}" for i in range(n)] == sorted(path.name for path in gate.dest.iterdir())
    assert [] == [i for i in range(n) if (gate.dest / f"{i:03d}").read_bytes() != b"%d " % i * 5000]
    wait_until(lambda: not list((gate.spool / "objects").iterdir()), what="the end of the last staged file")


def test_killed_trainer_loses_no_job(gate: Gate) -> None:
    code, output = gate.run(KILLED_TRAINER, str(gate.folder), "200")
    assert -signal.SIGKILL == code, output
    assert [] == list(gate.dest.iterdir())
    gate.open()
    gate.drain()
    _assert_all_there(gate, 200)


def test_killed_trainer_worker_and_agent_lose_no_job(gate: Gate) -> None:
    code, output = gate.run(KILLED_TRAINER, str(gate.folder), "200")
    assert -signal.SIGKILL == code, output
    agent = gate.agent()
    wait_until(lambda: agent.children() and gate.puts(), what="a worker")
    first = agent.children()[0]
    kill(first)
    wait_until(lambda: any(child != first and not is_dead(child) for child in agent.children()))
    workers = agent.children()
    kill(agent)
    wait_until(lambda: not any(worker.is_running() for worker in workers), what="the workers of a killed agent to die")
    gate.open()
    gate.drain()
    _assert_all_there(gate, 200)


def test_workers_killed_between_the_uploads_of_a_group_and_its_acknowledgement_lose_nothing(gate: Gate) -> None:
    n = AgentConfig().jobs_in_flight  # of more a worker sends the last only when it has given up on acknowledging the first
    code, output = gate.run(KILLED_TRAINER, str(gate.folder), str(n))
    assert -signal.SIGKILL == code, output
    agent = gate.agent()
    with contextlib.closing(sqlite3.connect(gate.spool / "journal.db", isolation_level=None, timeout=60.0)) as journal:

        def n_jobs(state: str) -> int:
            return int(journal.execute("SELECT COUNT(*) FROM jobs WHERE state = ?", (state,)).fetchone()[0])

        wait_until(lambda: n_jobs("leased") == n, what="the lease of all")
        journal.execute("BEGIN IMMEDIATE")  # so nothing can be acknowledged
        gate.open()
        wait_until(lambda: len(list(gate.dest.iterdir())) == n, what="the last object")
        kill(agent, *agent.children())  # the workers too: by themselves they end only when they have given up on the journal
        journal.execute("ROLLBACK")
        assert (0, n) == (n_jobs("done"), n_jobs("leased"))
    gate.drain()
    _assert_all_there(gate, n)


def test_agent_finishes_alone_and_leaves(gate: Gate) -> None:
    code, output = gate.run(KILLED_TRAINER, str(gate.folder), "20")
    assert -signal.SIGKILL == code, output
    agent = gate.agent()
    gate.open()
    wait_until(lambda: not agent.is_running(), what="the agent to leave by itself")
    _assert_all_there(gate, 20)
    assert {"agent.lock", "agent.log", "clients", "journal.db", "objects"} == {
        path.name for path in gate.spool.iterdir() if path.suffix not in (".db-wal", ".db-shm")
    }
    assert [] == list((gate.spool / "clients").iterdir())


def test_versions_of_a_name_arrive_in_order_over_kills(gate: Gate) -> None:
    text = """
    import os, signal, wherry
    uploader = wherry.Uploader("gated://x")
    for i in range(20):
        with uploader.open("latest", "xb" if i == 0 else "wb") as file:
            file.write(b"version %d" % i)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    gate.run(text)
    agent = gate.agent()
    wait_until(gate.puts, what="the first put")
    kill(agent)
    gate.open()
    gate.drain()
    assert b"version 19" == (gate.dest / "latest").read_bytes()
    # The first version was being sent; those between it and the last were superseded in the queue.
    assert len(gate.puts()) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_upload_survives_a_kill_at_any_instant(gate: Gate, seed: int) -> None:
    text = """
    import itertools, sys, wherry
    from pathlib import Path
    uploader = wherry.Uploader("gated://x")
    source = Path(sys.argv[1]) / "file"
    for i in itertools.count():
        source.write_bytes(b"%d " % i * 5000)
        uploader.put(source, f"{i:03d}", move=i % 2 == 0)
        print(i, flush=True)
    """
    gate.open()
    n_lines = random.Random(seed).randrange(1, 150)
    with gate.script(text, str(gate.folder)) as trainer:
        assert trainer.stdout is not None
        acknowledged = [int(trainer.stdout.readline()) for _ in range(n_lines)]
        trainer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in trainer.stdout if line.endswith("\n")]
    gate.drain()
    assert [] == [i for i in acknowledged if (gate.dest / f"{i:03d}").read_bytes() != b"%d " % i * 5000]
    # One more may have been accepted without its line being written; nothing half-made is ever visible.
    assert {path.name for path in gate.dest.iterdir()} - {f"{i:03d}" for i in acknowledged} <= {f"{len(acknowledged):03d}"}
    wait_until(lambda: pid_of_agent(Spool(gate.spool)) is None, what="the agent to leave")
    assert [] == [path for path in (gate.spool / "objects").iterdir() if path.stat().st_size not in range(10**6)]


def _batter(gate: Gate, n: int, rounds: int, seed: int) -> None:
    """Kill workers and agents at random instants, over and over, while n files go up."""
    dice = random.Random(seed)
    gate.open()
    code, output = gate.run(KILLED_TRAINER, str(gate.folder), str(n))
    assert -signal.SIGKILL == code, output
    for _ in range(rounds):
        with gate.script(KEEP_AGENT) as keeper:
            agent = gate.agent()
            wait_until(lambda: dice.random() < 0.1, what="a random instant")
            if victims := family(agent.pid):
                kill(dice.choice(victims))
            keeper.kill()
    gate.drain()
    _assert_all_there(gate, n)


KEEP_AGENT = """
import signal

from wherry.agent.session import Session
from wherry.config import AgentConfig
from wherry.spool.spool import Spool

spool = Spool()
client = Session(spool, AgentConfig())
client.call_agent()
signal.pause()
"""


def test_random_kills_lose_nothing(gate: Gate) -> None:
    _batter(gate, n=200, rounds=8, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_random_kills_lose_nothing_for_long(gate: Gate, seed: int) -> None:
    _batter(gate, n=900, rounds=60, seed=seed)
