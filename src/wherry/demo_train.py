"""The demo's training script: an ordinary loop with two destinations. Run by `wherry.demo`, which kills it.

Its orders come on stdin as one line of JSON, secrets among them, so that none is on a command line; what it does goes to
stdout, a line of JSON each.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

from wherry.demo_model import make_model
from wherry.loggers import Event, Logger, ObjectStoreLogger, State


def main() -> None:
    """Train from the newest checkpoint, or from the beginning, to the last epoch."""
    orders = json.loads(sys.stdin.readline())
    folder = Path(orders["folder"])
    state = State(run_name=orders["run_name"])
    stores = [
        ObjectStoreLogger(
            uri, storage_options=options, spool=orders["spool"], name_format="{run_name}/{remote_file_name}", state=state
        )
        for uri, options in orders["destinations"]
    ]
    logger = Logger(state, stores)
    logger.run_event(Event.INIT)
    model = make_model()
    log = folder / "train.log"
    if orders["resume"]:
        checkpoint = folder / "restored.pt"
        started_s = time.perf_counter()
        stores[0].download_file("latest.pt", checkpoint, overwrite=True)
        restored_s = time.perf_counter() - started_s
        stores[0].download_file("latest.json", folder / "latest.json", overwrite=True)
        stores[0].download_file("train.log", log, overwrite=True)
        done = json.loads((folder / "latest.json").read_text())
        model.load(checkpoint)
        for _ in range(done["epoch"]):
            state.timestamp = state.timestamp.to_next_epoch()
        say(
            event="restored",
            sha256=sha256(checkpoint),
            seconds=restored_s,
            epoch=done["epoch"],
            size_bytes=checkpoint.stat().st_size,
        )
    while state.timestamp.epoch < orders["epochs"]:
        epoch = state.timestamp.epoch + 1

        def after_batch(i: int, n: int, epoch: int = epoch) -> None:
            if epoch == orders["die_in_epoch"] and i == n // 2:
                sys.stdin.readline()  # nothing comes but SIGKILL: no further checkpoint is handed over

        loss = model.train_epoch(epoch, after_batch)
        state.timestamp = state.timestamp.to_next_epoch()
        with open(log, "a") as lines:
            lines.write(f"epoch {epoch} loss {loss:.6f} accuracy {model.accuracy():.4f}\n")
        checkpoint = folder / "checkpoint.pt"
        model.save(checkpoint)
        (folder / "latest.json").write_text(json.dumps({"epoch": epoch}))
        digest, size_bytes = sha256(checkpoint), checkpoint.stat().st_size
        blocked = [
            timed(logger, "ep{epoch:03d}.pt", checkpoint),
            timed(logger, "latest.pt", checkpoint),
            timed(logger, "latest.json", folder / "latest.json"),
            timed(logger, "train.log", log),
        ]
        say(event="accepted", epoch=epoch, sha256=digest, size_bytes=size_bytes, blocked_s=blocked, loss=loss)
        logger.run_event(Event.EPOCH_END)
    logger.run_event(Event.FIT_END)
    say(event="trained", parameters=model.digest(), accuracy=model.accuracy(), description=model.description)
    logger.close()


def timed(logger: Logger, name: str, path: Path) -> float:
    """Hand a file to all destinations; how long that kept the training loop, per destination."""
    started_s = time.perf_counter()
    logger.upload_file(name, path, overwrite=True)
    return (time.perf_counter() - started_s) / len(logger.destinations)


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def say(**what: object) -> None:
    """Report to the demo."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
