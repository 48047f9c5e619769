"""``wherry demo``: a model trains, its trainer is killed, the uploads finish without it, a second run restores and completes.

The destination is a local folder, or the store at `--uri`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wherry.agent.wakeup import notify
from wherry.demo.train import CONFIG, RUN, Accepted, Dying, Orders, Restored, Trained, parse, sha256
from wherry.errors import WherryError
from wherry.quantities import count_text, size_text
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.uploader import Uploader

_EPOCHS = 10
_DIE_AFTER_EPOCH = 6
#: How long the agent may take to finish without the trainer; it usually takes seconds.
_FINISH_S = 90.0
#: How long an agent may take to stop; it interrupts its uploads.
_STOP_S = 20.0

#: A URI and its storage options.
Destination = tuple[str, Mapping[str, object]]


class DemoError(WherryError):
    """Something in the demo is wrong."""


def run(
    destinations: Sequence[Destination] = (), *, keep: bool = False, show: Callable[[Destination], None] | None = None
) -> int:
    """Run the demo and print what happens. Return 0 if every byte is right, else 1 after a line that says what is wrong.

    `destinations` are URIs and their storage options; by default a local folder. `show` is called with the run as it is in the
    first of them, when every byte was right. What the demo made is removed at the end, its objects included, unless `keep` is
    given. Raises the error of a store that cannot be used.
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="wherry-demo-"))
    try:
        if not destinations:
            console.print("Destination: a local folder (--uri takes any other store)")
        with _spool(folder) as spool:
            demo = _Demo(list(destinations) or [(str(folder / "bucket"), {})], folder, spool, console)
            try:
                demo.show(logs=show is not None)
                if show is not None:
                    show(demo.run_in_store)
            finally:
                if destinations and not keep:
                    demo.clear()
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
def _spool(folder: Path) -> Iterator[Spool]:
    """A spool for the demo alone. Its agent is stopped in any case."""
    spool = Spool(folder / "spool")
    try:
        yield spool
    finally:
        if (pid := pid_of_agent(spool)) is not None:  # only when something went wrong
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            _wait_for_agent(spool, _STOP_S)


def _wait_for_agent(spool: Spool, timeout_s: float) -> None:
    """Wait until the agent has ended, which it does when it has nothing to do and nobody is signed on."""
    until_s = time.monotonic() + timeout_s
    while pid_of_agent(spool) is not None:
        if time.monotonic() > until_s:
            raise DemoError(f"the agent is still there after {timeout_s:.0f} s: see {spool.folder / 'agent.log'}")
        notify(spool.inside("bell"))  # a trainer that was killed has not signed off: else that is found out seconds later
        time.sleep(0.1)  # only its lock shows it, and a wait for a lock has no time-out


@dataclass
class _Run:
    """What one training process reported."""

    pid: int
    started_s: float
    accepted: list[Accepted] = field(default_factory=list)
    dying: Dying | None = None
    restored: Restored | None = None
    trained: Trained | None = None


class _Demo:
    """The demo, on destinations that exist and a spool of its own."""

    def __init__(self, destinations: list[Destination], folder: Path, spool: Spool, console: Console) -> None:
        self._folder = folder
        self._spool = spool
        self._console = console
        self._orders = Orders(f"demo-{secrets.token_hex(4)}", _EPOCHS, "", str(spool.folder), destinations)

    @property
    def run_in_store(self) -> Destination:
        """The run's own files, in the first destination."""
        uri, options = self._orders.destinations[0]
        return f"{uri.rstrip('/')}/{self._orders.run_name}/{RUN}", options

    def show(self, *, logs: bool) -> None:
        """Run the whole demo; with `logs` both runs write one run folder. Raises DemoError if anything is wrong."""
        if logs:
            self._orders = replace(self._orders, run_folder=str(self._folder / RUN))
        for uri, options in self._orders.destinations:
            with self._uploader(uri, options) as uploader:
                uploader.check()
        self._console.rule("first run")
        first = self._train(replace(self._orders, die_after_epoch=_DIE_AFTER_EPOCH), "first")
        _wait_for_agent(self._spool, _FINISH_S)
        self._tell_how_it_went_on(first)
        self._compare(first)
        self._console.rule("second run")
        second = self._train(replace(self._orders, resume=True), "second")
        restored, last = second.restored, first.accepted[-1]
        if restored is None or (restored.sha256, restored.epoch) != (last.sha256, last.epoch):
            raise DemoError(f"what was restored, {restored}, is not the last checkpoint handed over, {last}")
        self._console.rule("a run without a kill, and without uploads, for comparison")
        whole = self._train(replace(self._orders, destinations=[], run_folder=None), "whole")
        if second.trained is None or whole.trained is None or second.trained != whole.trained:
            raise DemoError(f"the restored run ended with {second.trained}, one that was never killed with {whole.trained}")
        _wait_for_agent(self._spool, _FINISH_S)
        self._account(first, second, restored, second.trained)

    def clear(self) -> None:
        for uri, options in self._orders.destinations:
            with self._uploader(uri, options) as uploader:
                for meta in list(uploader.list(f"{self._orders.run_name}/")):
                    uploader.delete(meta.key)
        _wait_for_agent(self._spool, _FINISH_S)

    def _uploader(self, uri: str, options: Mapping[str, object]) -> Uploader:
        return Uploader(uri, storage_options=options, spool=self._spool.folder, config=CONFIG)

    def _train(self, orders: Orders, name: str) -> _Run:
        folder = self._folder / name
        folder.mkdir()
        command = [sys.executable, "-m", "wherry.demo.train"]
        # torch makes this folder in the system's temporary one as soon as there is an optimizer, and leaves it there
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            done = _Run(process.pid, time.time())
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(asdict(replace(orders, folder=str(folder)))) + "\n")
                process.stdin.flush()
                for line in process.stdout:
                    self._on_report(line, done)
            except BaseException:
                process.kill()
                raise
        expected = 0 if orders.die_after_epoch is None else -signal.SIGKILL
        if process.returncode != expected:
            raise DemoError(f"the trainer ended with status {process.returncode}, not {expected}")
        return done

    def _on_report(self, line: str, done: _Run) -> None:
        match parse(line):
            case Accepted() as accepted:
                done.accepted.append(accepted)
                if blocked := ", ".join(f"{seconds * 1000:.1f}" for seconds in accepted.blocked_s):
                    text = f"  epoch {accepted.epoch:2d}  loss {accepted.loss:.4f}  uploads blocked training for {blocked} ms"
                    self._console.print(text)
            case Restored() as restored:
                done.restored = restored
                self._console.print(
                    f"  restored latest.pt by its remote name: epoch {restored.epoch}, {size_text(restored.size_bytes)}, in "
                    f"{restored.seconds * 1000:.0f} ms"
                )
            case Dying() as dying:
                done.dying = dying
            case Trained() as trained:
                done.trained = trained

    def _tell_how_it_went_on(self, first: _Run) -> None:
        assert first.dying is not None  # else its status would have been another
        journal = Journal(self._spool.journal_path)
        counts, at_s = journal.queries.counts(), first.dying.at_s
        if counts.queued or counts.leased or counts.failed:
            raise DemoError(
                f"the agent left {count_text(counts.queued + counts.leased, 'upload')} unfinished and {counts.failed} failed"
            )
        late = [job for job in journal.queries.jobs(states=[JobState.DONE], checks=False) if (job.end.finished_s or 0.0) > at_s]
        last_s = max((job.end.finished_s or 0.0 for job in late), default=at_s) - at_s
        size_bytes = sum(job.size_bytes for job in late)
        self._console.print(
            f"  process {first.pid} killed with SIGKILL after {at_s - first.started_s:.1f} s, when epoch {_DIE_AFTER_EPOCH} "
            f"had ended, with {count_text(len(late), 'upload')}, {size_text(size_bytes)}, on their way\n"
            f"  they finished without it, the last one {last_s * 1000:.0f} ms later; then the agent left: {counts.done} arrived, "
            f"{counts.superseded} gave way to newer versions"
        )

    def _compare(self, first: _Run) -> None:
        """Fetch each checkpoint from each destination and compare it with what was handed over."""
        fetched = self._folder / "compared.pt"
        for uri, options in self._orders.destinations:
            with self._uploader(uri, options) as uploader:
                names = {f"{self._orders.run_name}/ep{one.epoch:03d}.pt": one.sha256 for one in first.accepted}
                names[f"{self._orders.run_name}/latest.pt"] = first.accepted[-1].sha256
                for name, digest in names.items():
                    uploader.get(name, fetched, overwrite=True)
                    if sha256(fetched) != digest:
                        raise DemoError(f"{uploader.uri_for(name)} differs from the file that was handed over")
        self._console.print(
            f"  every checkpoint is in each destination, byte for byte ({len(first.accepted)} epochs, and latest.pt)"
        )

    def _account(self, first: _Run, second: _Run, restored: Restored, trained: Trained) -> None:
        journal = Journal(self._spool.journal_path)
        counts = journal.queries.counts()
        sent = sum(job.size_bytes for job in journal.queries.jobs(states=[JobState.DONE], checks=False))
        blocked_ms = [1000 * seconds for one in first.accepted + second.accepted for seconds in one.blocked_s]
        blocked = f"median {statistics.median(blocked_ms):.2f} ms, longest {max(blocked_ms):.1f} ms"
        took = f"{restored.seconds * 1000:.0f} ms for {size_text(restored.size_bytes)}, SHA-256 as handed over"
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in (
            ("model", trained.description),
            ("destinations", "\n".join(uri for uri, _ in self._orders.destinations)),
            ("training was blocked, per upload", blocked),
            ("uploaded and verified", f"{counts.done} files, {size_text(sent)}; {counts.superseded} gave way to newer versions"),
            ("attempts beyond the first", str(counts.retries)),
            ("time to restore by name", took),
            ("accuracy at the end", f"{trained.accuracy:.4f}, with the kill and without"),
            ("parameters at the end", "equal, bit for bit, to those of the run that was never killed"),
        ):
            table.add_row(name, value)
        self._console.rule("account")
        self._console.print(table)
        self._console.print("[bold green]Nothing was lost.[/]")
