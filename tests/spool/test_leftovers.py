"""What dead programs left in the spool: half-made snapshots are removed, whole files without a row are kept and reported."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gate import Gate
from support import CALLER, agent_gone, end_agent, file_of, new_job, store_id, wait_until
from wherry import Uploader
from wherry.spool.journal.journal import Journal
from wherry.spool.leftovers import sweep
from wherry.spool.presence import dead_sessions, pid_of_agent, register
from wherry.spool.recovery import open_journal
from wherry.spool.spool import Spool
from wherry.spool.staging import announce, open_writer, stage


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def objects(spool: Spool) -> list[str]:
    return sorted(path.name for path in spool.objects.iterdir())


def set_aside(spool: Spool) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (spool.folder / "quarantine").glob("*/objects/*")}


def test_whole_files_whose_rows_are_lost_are_set_aside_and_reported_and_half_made_ones_removed(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = file_of(tmp_path / "source", 1000)
    journal = open_journal(spool)
    alive = register(spool, "1-alive")
    kept = [stage(spool, source, "1-alive").object_id, stage(spool, source, "2-dead").object_id]
    journal.uploads.submit("me", store_id(journal), [new_job("a", object_id=kept[1])])
    lost = [stage(spool, source, "2-dead").object_id, stage(spool, file_of(tmp_path / "x", 10), "2-dead", move=True).object_id]
    half, file = open_writer(spool, "2-dead")
    file.write(b"half")
    file.close()
    with caplog.at_level(logging.ERROR, logger="wherry"):
        assert 2 == sweep(spool, journal)  # and the mark of the call that opened it
    assert sorted(kept) == objects(spool)
    assert sorted(lost) == sorted(set_aside(spool))
    assert source.read_bytes() == set_aside(spool)[lost[0]]
    (listing,) = (path.read_text() for path in (spool.folder / "quarantine").glob("*/FILES"))
    assert [] == [name for name in lost if name not in listing or name not in caplog.text]
    assert half not in listing
    os.close(alive)
    journal.close()


def test_the_file_of_a_finished_job_is_removed_and_not_set_aside(spool: Spool, tmp_path: Path) -> None:
    """Its worker was killed between the last row and the removal of the file."""
    staged = stage(spool, file_of(tmp_path / "source", 10), "2-dead").object_id
    journal = Journal(spool.journal_path)
    journal.uploads.submit("me", store_id(journal), [new_job("a", object_id=staged)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    assert [staged] == journal.work.ack(job.id, "w", None)
    assert 1 == sweep(spool, journal)
    assert ([], {}) == (objects(spool), set_aside(spool))
    journal.close()


def test_accepted_files_outlive_the_loss_of_the_journals_log(tmp_path: Path) -> None:
    """As after a power cut: the database is there, the last rows, which were in its log only, are not."""
    gate = Gate(tmp_path)
    script = """
    import os, shutil, signal, sys, wherry
    from pathlib import Path
    spool = Path(os.environ["WHERRY_SPOOL"])
    uploader = wherry.Uploader("gated://x")
    Path("source").write_bytes(b"one")
    uploader.put("source", "a")
    shutil.copy(spool / "journal.db", "before")
    shutil.copy(spool / "journal.db-wal", "before-wal")
    for i in range(3):
        Path("source").write_bytes(b"later %d" % i)
        uploader.put("source", f"{i}")
    os.kill(int((spool / "agent.lock").read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=gate.environment, cwd=tmp_path, check=False)
    wait_until(lambda: agent_gone(gate.spool), what="the workers to die")
    (gate.spool / "journal.db-shm").unlink()
    (tmp_path / "before").replace(gate.spool / "journal.db")
    (tmp_path / "before-wal").replace(gate.spool / "journal.db-wal")
    gate.open()
    gate.drain()
    assert b"one" == (gate.dest / "a").read_bytes()
    assert [b"later 0", b"later 1", b"later 2"] == sorted(set_aside(Spool(gate.spool)).values())
    log = (gate.spool / "agent.log").read_text()
    assert "3 staged files set aside" in log
    assert "wherry put" in log


def test_the_living_agent_removes_what_a_killed_trainer_left_half_made(tmp_path: Path) -> None:
    spool, fifo = tmp_path / "spool", tmp_path / "fifo"
    os.mkfifo(fifo)
    script = """
    import sys, wherry
    uploader = wherry.Uploader(sys.argv[2], spool=sys.argv[1])
    writer = uploader.open("a")
    writer.write(bytes(1_000_000))
    writer.flush()
    open(sys.argv[3], "w").close()  # from now on there is half a file
    sys.stdin.read()
    """
    with end_agent(spool), Uploader(tmp_path / "dest", spool=spool):
        agent = pid_of_agent(Spool(spool))
        trainer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), spool, tmp_path / "other", fifo], stdin=subprocess.PIPE
        )
        fifo.read_bytes()
        assert 2 == len(objects(Spool(spool))), "the file, and the mark of the call"
        trainer.send_signal(signal.SIGKILL)
        trainer.communicate()
        wait_until(lambda: not objects(Spool(spool)), what="the half-made snapshot to be removed")
        assert agent == pid_of_agent(Spool(spool))
    assert {} == set_aside(Spool(spool))


def test_without_an_agent_the_next_caller_removes_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    _, file = open_writer(spool, "1-dead")
    file.close()
    os.close(register(spool, "1-dead"))  # as the kernel does when its process dies
    with Uploader(tmp_path / "dest", spool=spool.folder, config=CALLER) as uploader:
        uploader.put(file_of(tmp_path / "source", 10), "a")
        assert [] == objects(spool)
    assert set() == dead_sessions(spool)


# -- killed in the middle of a call: whatever it has staged goes, as none of it was accepted

KILLED = """
import os, signal, sys, wherry
from pathlib import Path
from wherry.spool import staging
from wherry.spool.journal.submit import Uploads

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

source, how, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = wherry.Config(agent=wherry.AgentConfig(run_in="caller"))
uploader = wherry.Uploader(sys.argv[4], config=config)
if when == "third file":
    stage_one, n = staging._copy if how != "move" else staging._link, iter(range(9))
    setattr(staging, stage_one.__name__, lambda *args: killed() if next(n) == 2 else stage_one(*args))
else:
    Uploads._submit = killed
if how == "open":
    with uploader.open("a") as file:
        file.write(b"whole")
else:
    uploader.put(source, "a", move=how == "move")
"""


@pytest.mark.parametrize(
    ("how", "when"), [("copy", "third file"), ("move", "third file"), ("copy", "row"), ("move", "row"), ("open", "row")]
)
def test_a_killed_call_leaves_nothing_for_ever(tmp_path: Path, how: str, when: str) -> None:
    """Files that it had staged whole were put aside as if they had been accepted: 312 MB after six kills."""
    spool, folder = Spool(tmp_path / "spool"), tmp_path / "source"
    folder.mkdir()
    before = {path: path.read_bytes() for path in (file_of(folder / f"{n}", 1000, seed=n) for n in range(4))}
    environment = {**os.environ, "WHERRY_SPOOL": str(spool.folder)}
    command = [sys.executable, "-c", KILLED, str(folder), how, when, str(tmp_path / "bucket")]
    ended = subprocess.run(command, env=environment, check=False, timeout=60)
    assert -signal.SIGKILL == ended.returncode
    assert objects(spool)
    journal = open_journal(spool)
    sweep(spool, journal)
    assert ([], {}) == (objects(spool), set_aside(spool))
    assert before == {path: path.read_bytes() for path in before}
    journal.close()


def test_a_call_that_was_killed_after_its_row_has_accepted_its_files(spool: Spool, tmp_path: Path) -> None:
    journal = open_journal(spool)
    call = announce(spool, "2-dead")
    staged = [stage(spool, file_of(tmp_path / f"{n}", 10, seed=n), call).object_id for n in range(2)]
    rows = [new_job(f"{n}", object_id=one) for n, one in enumerate(staged)]
    journal.uploads.submit("me", store_id(journal), rows)  # and no more: the mark is still there
    sweep(spool, journal)
    assert (sorted(staged), {}) == (objects(spool), set_aside(spool))
    journal.close()
