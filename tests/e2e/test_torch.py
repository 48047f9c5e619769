"""With the real torch: what the README shows, and a checkpoint cycle over a SIGKILL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from gate import Gate
from support import without_waits

ROOT = Path(__file__).parent.parent.parent


def test_readme_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = example.replace("s3://my-bucket/run1", str(tmp_path / "bucket"))
    environment = {**os.environ, "WHERRY_SPOOL": str(tmp_path / "spool")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (0, "", "") == (done.returncode, done.stdout, without_waits(done.stderr))
    assert ["ep000.pt", "ep001.pt", "ep002.pt", "latest.pt"] == sorted(path.name for path in (tmp_path / "bucket").iterdir())


def test_checkpoint_cycle_over_a_kill(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    train = """
    import os, signal, sys, torch
    from wherry.loggers import ObjectStoreLogger, State

    state = State(run_name="run", rank=0)
    store = ObjectStoreLogger("gated://x", state=state, name_format="{run_name}-{remote_file_name}")
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100)
    for step in range(5):
        with torch.no_grad():
            model.weight += step
        with store.open("latest.pt") as file:
            torch.save({"step": step, "model": model.state_dict()}, file)
    print(float(model.weight.detach().sum()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    code, output = gate.run(textwrap.dedent(train))
    assert -signal.SIGKILL == code, output
    restore = """
    import sys, torch
    from wherry.loggers import ObjectStoreLogger, State

    state = State(run_name="run", rank=0)
    with ObjectStoreLogger("gated://x", state=state, name_format="{run_name}-{remote_file_name}") as store:
        store.download_file("latest.pt", sys.argv[1])
    restored = torch.load(sys.argv[1], weights_only=True)
    print(restored["step"], float(restored["model"]["weight"].sum()))
    """
    gate.open()
    assert (0, f"4 {output}") == gate.run(textwrap.dedent(restore), str(tmp_path / "restored.pt"))
    assert (tmp_path / "restored.pt").read_bytes() == (gate.dest / "run-latest.pt").read_bytes()
