"""The demo's training script: an ordinary loop with its destinations. Run by `wherry.demo.demo`; the first run dies by SIGKILL.

It reads its orders from stdin as one line of JSON, so that no secret is on a command line, and writes reports to stdout,
one a line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from wherry.config import AgentConfig, Config
from wherry.demo.model import make_model
from wherry.loggers import Event, Logger, ObjectStoreLogger, RunFolderConfig, RunFolderLogger, State
from wherry.spool.handle import UploadHandle

#: The last checkpoint may be stored before the kill: then it is handed over again, at most so often.
_TRIES = 200
#: The folder of a run folder's files, beside the checkpoints.
RUN = "run"
#: One upload at a time, so that a small model's files queue up, as a large one's do.
CONFIG = Config(agent=AgentConfig(n_workers=1, jobs_in_flight=1))


@dataclass(frozen=True)
class Orders:
    """What a trainer must do. `destinations` are pairs of a URI and its storage options.

    `run_folder`: where a RunFolderLogger writes, for who looks at the run; each destination gets its files as ``run/``.
    """

    run_name: str
    epochs: int
    folder: str
    spool: str
    destinations: list[tuple[str, Mapping[str, object]]] = field(repr=False)
    resume: bool = False
    die_after_epoch: int | None = None
    run_folder: str | None = None


@dataclass(frozen=True)
class Accepted:
    """An epoch has ended and its files were handed over. `blocked_s`: how long each upload blocked the loop."""

    epoch: int
    loss: float
    sha256: str
    size_bytes: int
    blocked_s: list[float]


@dataclass(frozen=True)
class Dying:
    """The last report before SIGKILL; `at_s` in seconds since the Unix epoch."""

    at_s: float


@dataclass(frozen=True)
class Restored:
    """A checkpoint was fetched by its remote name, in `seconds`."""

    epoch: int
    sha256: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class Trained:
    """The last epoch has ended, and everything has arrived. `parameters` is their SHA-256."""

    parameters: str
    accuracy: float
    description: str


Report = Accepted | Dying | Restored | Trained
_REPORTS: dict[str, type[Report]] = {kind.__name__: kind for kind in (Accepted, Dying, Restored, Trained)}


def send_report(report: Report) -> None:
    """Write one report to stdout, for the demo."""
    sys.stdout.write(json.dumps([type(report).__name__, asdict(report)]) + "\n")
    sys.stdout.flush()


def parse(line: str) -> Report:
    """Read a report that send_report() wrote."""
    kind, fields = json.loads(line)
    return _REPORTS[kind](**fields)


def main() -> None:
    """Train from the newest checkpoint, or from the beginning, to the last epoch."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    folder = Path(orders.folder)
    logs, checkpoint = folder / "logs", folder / "checkpoint.pt"
    logs.mkdir()
    state, names = State(run_name=orders.run_name), "{run_name}/{remote_file_name}"
    stores = [
        ObjectStoreLogger(uri, storage_options=options, spool=orders.spool, config=CONFIG, name_format=names, state=state)
        for uri, options in orders.destinations
    ]
    config = RunFolderConfig(remote_folder=RUN, parquet=False)
    folders = [RunFolderLogger(orders.run_folder, config=config, state=state)] if orders.run_folder else []
    logger = Logger(state, [*folders, *stores])
    logger.run_event(Event.INIT)
    model = make_model()
    if folders:
        logger.log_hyperparameters({"model": model.description, "epochs": orders.epochs})
    if orders.resume:
        started_s = time.perf_counter()
        stores[0].download_file("latest.pt", checkpoint)
        seconds = time.perf_counter() - started_s
        stores[0].download_file("logs/train.log", logs / "train.log")
        epoch = model.load(checkpoint)
        for _ in range(epoch):
            state.timestamp = state.timestamp.to_next_epoch()
        send_report(Restored(epoch, sha256(checkpoint), checkpoint.stat().st_size, seconds))
    while state.timestamp.epoch < orders.epochs:
        loss = model.train_epoch(state.timestamp.epoch + 1)
        state.timestamp = state.timestamp.to_next_epoch()
        epoch = state.timestamp.epoch
        metrics = {"epoch": epoch, "loss": loss, "accuracy": model.accuracy()}
        if folders:
            logger.log_metrics(metrics, epoch)
        (logs / f"ep{epoch:03d}.json").write_text(json.dumps(metrics))
        with open(logs / "train.log", "a") as lines:
            lines.write(" ".join(f"{name} {value}" for name, value in metrics.items()) + "\n")
        model.save(checkpoint, epoch)
        blocked_s: list[float] = []
        hand_over(stores, state, "logs", logs, blocked_s)
        hand_over(stores, state, "ep{epoch:03d}.pt", checkpoint, blocked_s)
        handles = hand_over(stores, state, "latest.pt", checkpoint, blocked_s)
        send_report(Accepted(epoch, loss, sha256(checkpoint), checkpoint.stat().st_size, blocked_s))
        if epoch == orders.die_after_epoch:
            for _ in range(_TRIES):
                if any(not handle.state.is_final for handle in handles):
                    break
                handles = hand_over(stores, state, "latest.pt", checkpoint, blocked_s)
            send_report(Dying(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        logger.run_event(Event.EPOCH_END)
    logger.run_event(Event.FIT_END)
    logger.close()
    send_report(Trained(model.digest(), model.accuracy(), model.description))


def hand_over(stores: list[ObjectStoreLogger], state: State, name: str, path: Path, blocked_s: list[float]) -> list[UploadHandle]:
    """Hand a file or a folder to all destinations; how long each kept the training loop is added to `blocked_s`."""
    handles = []
    for store in stores:
        started_s = time.perf_counter()
        handles.append(store.upload_file(state, name, path, overwrite=True))
        blocked_s.append(time.perf_counter() - started_s)
    return handles


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
