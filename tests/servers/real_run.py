"""A run as a job on two machines leaves it in a bucket: mirrored, resumed, with checkpoint sets and uploads of all kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from servers.proxy import When, fault_proxy, s3_error
from servers.real import S3Server
from support import end_agent
from wherry import Checkpoints, Config, RetryConfig, Uploader, UploadFailed
from wherry.checkpoints import World
from wherry.checkpoints.survey import verify_set
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.run.state import State
from wherry.mirror import Mirror, MirrorConfig
from wherry.store.registry import open_store
from wherry.uri import parse_uri

LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, max_requests_per_hour=10_000_000, exit_on_sigterm=False)
#: The job trained to FIRST, died, and went on at RESUMED_AT, where its last complete checkpoint was, to LAST.
FIRST, RESUMED_AT, LAST = 80, 60, 120
STATE = bytes(range(256)) * 40


@dataclass(frozen=True)
class RealRun:
    """The run ``train`` below `uri`. `log` is its open second start, `mirrors` those of its two machines."""

    uri: str
    log: RunFolderLogger
    mirrors: tuple[Mirror, Mirror]
    folder: Path
    #: The names of its sets, by what they are.
    sets: dict[str, str]


def loss_of(start: int, step: int) -> float:
    """The loss at a step: the second start is a little better."""
    return 2 * math.exp(-step / 40) + (0.5 if start == 1 else 0.4)


@contextmanager
def real_run(server: S3Server, folder: Path) -> Iterator[RealRun]:
    """Make it in the server's bucket. The spool is `folder`/spool."""
    uri, spool = f"s3://{server.bucket}/{folder.name}/runs", folder / "spool"
    machines = folder / "a/train", folder / "b/train"
    with ExitStack() as made:
        made.enter_context(end_agent(spool))
        with _log(machines[0]) as log:
            log.log_hyperparameters({"lr": 3e-4, "model": {"depth": 8}})
            _train(log, machines, 1, 0, FIRST)
        sets = _save_sets(server, uri, spool)
        log = made.enter_context(_log(machines[0]))
        _train(log, machines, 2, RESUMED_AT, LAST)
        mirrors = []
        for one, name in zip(machines, ("node-a", "node-b"), strict=True):
            own = folder / f"spool-{name}"
            mirror = Mirror(one, f"{uri}/train", storage_options=server.options, config=LIVELY, spool=own, writer=name)
            mirrors.append(made.enter_context(mirror))
        for mirror in mirrors:
            mirror.flush()
        _queue_uploads(made, server, uri, spool, folder)
        yield RealRun(uri, log, (mirrors[0], mirrors[1]), folder, sets)


def _log(folder: Path) -> RunFolderLogger:
    return RunFolderLogger(folder, config=RunFolderConfig(parquet=False, upload=False), state=State("train"))


def _train(log: RunFolderLogger, machines: tuple[Path, Path], start: int, first: int, last: int) -> None:
    """Metrics, and a log of each of the two ranks: that of rank 1 has times and no steps."""
    for rank, machine in enumerate(machines):
        machine.mkdir(parents=True, exist_ok=True)
        with (machine / f"logs-rank{rank}.txt").open("a") as text:
            text.write(f"[stdout]: start {start} of rank {rank}\n")
    for step in range(first, last):
        log.log_metrics({"train/loss": loss_of(start, step), "epoch": step / 40}, step)
        with (machines[0] / "logs-rank0.txt").open("a") as text:
            text.write(f"[stdout]: a line of start {start} before step {step}\n[metric][step={step}]: {{}}\n")
        with (machines[1] / "logs-rank1.txt").open("a") as text:
            text.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} rank 1 saw step {step} of start {start}\n")


def _save_sets(server: S3Server, uri: str, spool: Path) -> dict[str, str]:
    """Sets of steps 20 (pinned), 40 (damaged since, and found out), 60 (verified), 70 (one rank of two never saves)."""
    names = {}
    state = spool.parent / "state.bin"
    state.write_bytes(STATE)
    options = server.options
    with Checkpoints(uri, "train", attempt=1, storage_options=options, spool=spool) as checkpoints:
        for what, step in (("pinned", 20), ("damaged", 40), ("verified", 60)):
            names[what] = str(checkpoints.save(step, state, metrics={"loss": loss_of(1, step)}).result(60).set)
        checkpoints.pin(20)
        catalog, manifest = checkpoints.catalog, checkpoints.find(names["damaged"])
        ((key, _),) = catalog.objects(manifest)
        state.write_bytes(STATE[::-1])
        with closing(open_store(parse_uri(uri), options)) as store:
            store.put_file(key, state)
        for what in ("damaged", "verified"):
            verify_set(catalog, checkpoints.find(names[what]).set)
    config = Config(give_up_s=1.0, drain_at_exit_s=1.0)
    world = World(rank=0, size=2)
    lonely = Checkpoints(uri, "train", attempt=2, world=world, storage_options=options, spool=spool, config=config)
    lonely.save(70, state).wait(1.0)
    return names


def _queue_uploads(made: ExitStack, server: S3Server, uri: str, spool: Path, folder: Path) -> None:
    """One upload that is refused for good, and one that is tried again and again."""
    plan = [
        When("", "/denied", s3_error(403, "AccessDenied", "no rights to write here"), times=10**6),
        When("PUT", "/stuck", s3_error(503, "SlowDown", "please reduce your request rate"), times=10**6),
    ]
    proxy = made.enter_context(fault_proxy("127.0.0.1", server.port, plan))
    config = Config(retry=RetryConfig(call_deadline_s=0.5, first_wait_s=0.05, longest_wait_s=0.2), drain_at_exit_s=0)
    options = {**server.options, "endpoint_url": proxy.url}
    uploader = made.enter_context(Uploader(uri, storage_options=options, spool=spool, config=config))
    path = folder / "payload"
    path.write_bytes(b"x" * 200_000)
    refused = uploader.put(path, "train/denied.bin")
    for name in ("train/stuck.bin", "other/stuck.bin"):
        uploader.put(path, name)
    with suppress(UploadFailed):
        refused.wait(60)
