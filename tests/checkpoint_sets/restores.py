"""What several test files of checkpoints need: a set of known bytes, and restores in processes of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from servers.proxy import Do, FaultProxy, When
from servers.warm_torch import TorchProgram
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.names import SetName

SHARD_BYTES = 300_000
SET_BYTES = 2 * SHARD_BYTES + 100
_RESTORE = """
import json, sys
import wherry

uri, options, spool, folder = sys.argv[1:]
run = wherry.Checkpoints(uri, "run1", spool=spool, storage_options=json.loads(options))
run.restore("latest", folder)
run.close()
"""


def saved_set(run: Checkpoints, folder: Path, step: int = 10) -> SetName:
    """Save a set of two shards and a small file, and wait until it is committed."""
    folder.mkdir()
    rng = random.Random(step)
    for name, size_bytes in (("model.bin", SHARD_BYTES), ("optimizer.bin", SHARD_BYTES), ("small.bin", 100)):
        (folder / name).write_bytes(rng.randbytes(size_bytes))
    saved: SetName = run.save(step, folder).result(60).set
    return saved


def contents_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their names."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetched_bytes(proxy: FaultProxy) -> int:
    """How many bytes of sets' objects, and not of receipts, the store has sent."""
    return sum(one.answer_bytes for one in proxy.requests("GET", r"/data/[^/]*/[^_?]"))


class RestoreJob:
    """A process that restores the newest set."""

    def __init__(self) -> None:
        self.folder = Path()
        self.process: TorchProgram | None = None

    def start(self, uri: str, options: Mapping[str, object], spool: Path, folder: Path) -> RestoreJob:
        """Begin."""
        self.folder = folder
        self.process = TorchProgram(_RESTORE, uri, json.dumps(options), spool, folder)
        return self

    def kill_at(self, name: str) -> When:
        """A row for a proxy's plan: the process is killed when it asks for this object."""
        return When("GET", f"/data/[^/]*/{name}", Do(self._kill))

    def _kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def finish(self) -> int:
        """Wait until it has ended: its exit status. What it said is printed if that is not 0."""
        assert self.process is not None
        output, _ = self.process.communicate(timeout=120)
        assert self.process.returncode is not None
        if self.process.returncode != 0:
            print(output)
        return self.process.returncode
