"""examples/: each program is killed with everything that belongs to it, started again with an empty disk, and goes on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psutil
import pytest

from gate import family, kill
from servers.warm_torch import TorchProgram, torchrun
from support import end_agent, wait_until
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

pytestmark = pytest.mark.timeout(300)

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def start(name: str, folder: Path, spool: Path, steps: int) -> TorchProgram:
    """Two ranks of the example, which write what they print to `folder`/said."""
    arguments = (folder / "bucket", "my-run", "--steps", str(steps))
    (folder / "said").write_bytes(b"")
    return torchrun(EXAMPLES / name, *arguments, env={"WHERRY_SPOOL": str(spool)}, output=folder / "said")


def kill_all(program: TorchProgram, spool: Path) -> None:
    """SIGKILL to the launcher, the ranks, and the agent with its workers."""
    agent = pid_of_agent(Spool(spool)) if spool.is_dir() else None
    kill(*family(program.pid), *(family(agent) if agent is not None else ()))
    program.wait(60)


def losses(folder: Path) -> dict[int, str]:
    return {
        int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\S+)$", (folder / "said").read_text(), re.MULTILINE)
    }


def steps_in(folder: Path, kind: str) -> dict[int, Path]:
    return {int(path.stem.rpartition("_")[2]): path for path in (folder / "bucket/my-run/checkpoints" / kind).glob("*_*")}


@pytest.mark.parametrize("name", ["ddp_resume.py", "fsdp2_resume.py"])
def test_a_killed_training_goes_on_from_the_bucket(tmp_path: Path, name: str) -> None:
    first_spool = tmp_path / "first"
    with start(name, tmp_path, first_spool, steps=10_000) as program:
        try:
            wait_until(lambda: not psutil.pid_exists(program.pid) or len(steps_in(tmp_path, "manifests")) >= 2, 150, "two sets")
            assert psutil.pid_exists(program.pid)
        except AssertionError as error:
            raise AssertionError((tmp_path / "said").read_text()) from error
        finally:
            kill_all(program, first_spool)
    before = losses(tmp_path)
    last = max(before)
    for kind in ("manifests", "data"):  # of the last step that was computed, nothing has arrived
        for step, path in steps_in(tmp_path, kind).items():
            if step >= last:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    committed = max(steps_in(tmp_path, "manifests"))

    with end_agent(tmp_path / "second"), start(name, tmp_path, tmp_path / "second", steps=last + 10) as program:
        assert 0 == program.wait(120), (tmp_path / "said").read_text()
    found = re.search(r"goes on from step (\d+)", (tmp_path / "said").read_text())
    assert found is not None, (tmp_path / "said").read_text()
    newest = int(found[1])
    assert committed <= newest < last  # who resumes commits what was whole and not yet committed
    after = losses(tmp_path)
    assert list(range(newest + 10, last + 11, 10)) == list(after)
    assert {step: loss for step, loss in after.items() if step <= last} == {step: before[step] for step in after if step <= last}
    assert last + 10 == max(steps_in(tmp_path, "manifests"))
