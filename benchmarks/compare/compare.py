"""Measure wherry beside other clients, and keep what was found as JSON.

    python benchmarks/compare/compare.py                     # all tables
    python benchmarks/compare/compare.py up down --rounds 5

A table goes on where it was left off, unless the code, the machine or the sizes have changed since; so a long run can be cut into
slices (--for-s). The clients take turns: in each round each of them once, and the next round begins with another.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "tests")]  # measure.py; the servers of the tests

from driver import ClientError, Driver, Row
from faithful import check
from measure import MIB, folder as disk_folder, make_file
from page import render
from plan import QUICK, SOCKETS, TABLES, Table
from processes import wait_until_quiet
from report import markdown, markdown_of_script
from results import Found, Result, commit, load, machine, now
from scripts import SCRIPTS, measure_script
from sink_program import language_of_sink
from sinks import Target, real_server, real_server_over_tls, sink

from servers.real import fast_folder
from wherry.checksum import crc32c_of_file

ROUNDS = 5
QUIET_WAIT_S = 20.0
WARM_BYTES = 64 * MIB
NAMES = [*TABLES, *SCRIPTS]


def begun(table: Table, path: Path) -> Result:
    """What is there of the table and can be gone on with, else an empty one."""
    what = (table.name, table.heading, table.do, table.size_bytes, table.n_files)
    fresh = Result(*what, commit(), machine(), now(), sink_of(table))
    if path.exists():
        old = load(path)
        same = ("size_bytes", "n_files", "commit", "machine", "sink")
        if all(getattr(old, name) == getattr(fresh, name) for name in same):
            return old
    fresh.rows = [Found(row.name, is_ours=row.is_ours) for row in table.rows]
    return fresh


def sink_of(table: Table) -> str:
    """What its sink is written in; C where it has none, which needs no note."""
    return "C" if table.where == "seaweedfs" else language_of_sink(tls=table.where == "tls")


def server_of(table: Table, folder: Path) -> AbstractContextManager[Target]:
    return real_server(folder) if table.where == "seaweedfs" else sink(folder, tls=table.where == "tls")


class Run:
    """One table, from its server's start to its end."""

    def __init__(self, table: Table, result: Result, stack: ExitStack, peers: Path, *, check: bool) -> None:
        self.table, self.result = table, result
        self.fast = stack.enter_context(fast_folder())
        self.target = stack.enter_context(server_of(table, self.fast))
        # Large files live in memory, so that no disk is measured; small ones where people have them.
        self.folder = stack.enter_context(disk_folder()) if table.do == "many" else self.fast
        self.drivers: dict[str, Driver] = {}
        if check:
            self.check_all(peers)
        for row, found in self.pairs():
            self.start(row, found, stack, peers)
        self.source = self.make_source()
        self.crc: int | None = None

    def pairs(self) -> list[tuple[Row, Found]]:
        return [pair for pair in zip(self.table.rows, self.result.rows, strict=True) if not pair[1].error]

    def check_all(self, peers: Path) -> None:
        """Each client that was not yet, against a server that keeps what it is sent."""
        todo = [(row, found) for row, found in self.pairs() if not found.is_faithful]
        if not todo:
            return
        over_tls = self.table.where == "tls"
        with tempfile.TemporaryDirectory(dir=self.fast) as name:
            folder = Path(name)
            with (real_server_over_tls if over_tls else real_server)(folder) as honest:
                for row, found in todo:
                    self.check_one(row, found, honest if row != SOCKETS and self.table.where != "gcs" else self.target, peers)

    def check_one(self, row: Row, found: Found, target: Target, peers: Path) -> None:
        try:
            check(row, self.table, target, self.folder, peers)
            found.is_faithful = True
        except ClientError as error:
            self.give_up(found, error)

    def start(self, row: Row, found: Found, stack: ExitStack, peers: Path) -> None:
        try:
            driver = stack.enter_context(Driver(row, self.target, self.folder, peers))
        except ClientError as error:
            self.give_up(found, error)
            return
        try:
            self.warm(driver)
        except ClientError as error:
            self.give_up(found, error)
            return
        self.drivers[row.name] = driver
        found.about, found.versions = driver.about["about"], driver.about["versions"]

    def warm(self, driver: Driver) -> None:
        """One small transfer that is not counted: what is loaded late is loaded, connections are there."""
        do, where = self.table.do, driver.folder
        if do == "many":
            (where / "few").mkdir()
            for n in range(20):
                make_file(where / "few" / f"{n}", self.table.size_bytes)
            driver.measure(do, where / "few", f"warm-{driver.row.client}", 0)
        elif do == "up":
            driver.measure(do, make_file(where / "small", WARM_BYTES), f"warm-{driver.row.client}", WARM_BYTES)
            (where / "small").unlink()
        elif self.target.is_sink:
            driver.measure(do, where / "back", f"pattern/{WARM_BYTES}", WARM_BYTES)
            (where / "back").unlink()

    def give_up(self, found: Found, error: ClientError) -> None:
        found.error = str(error).strip().splitlines()[-1][:300]
        print(f"  {found.name}: {error}", file=sys.stderr)

    def make_source(self) -> Path:
        if self.table.do == "many":
            source = self.folder / "files"
            source.mkdir()
            for n in range(self.table.n_files):
                make_file(source / f"{n:06d}", self.table.size_bytes)
            return source
        return make_file(self.folder / "source", self.table.size_bytes)

    def round(self, number: int) -> None:
        rows = self.pairs()
        first = number % len(rows)
        for row, found in rows[first:] + rows[:first]:
            if len(found.rounds) > number:
                continue
            try:
                found.rounds.append(self.one(row, number))
            except ClientError as error:
                self.give_up(found, error)

    def one(self, row: Row, number: int) -> dict[str, float]:
        driver, table = self.drivers[row.name], self.table
        size_bytes = table.size_bytes * table.n_files
        if table.do != "down":
            figures = driver.measure(table.do, self.source, f"{row.client}-{number}", size_bytes)
            self.target.forget()
            return figures
        back = driver.folder / "back"
        key = f"pattern/{size_bytes}" if self.target.is_sink else "source"
        if self.crc is None:
            self.crc = self.crc_of(key)
        figures = driver.measure("down", back, key, size_bytes)
        if back.stat().st_size != size_bytes or crc32c_of_file(back) != self.crc:
            raise ClientError(f"{row.name} has fetched other bytes than the object has")
        back.unlink()
        return figures

    def crc_of(self, key: str) -> int:
        """The sum of the object that all fetch, made or put now."""
        s3, bucket = self.target.s3(), self.target.endpoint["bucket"]
        if not self.target.is_sink:
            s3.upload_file(str(self.source), bucket, key)
            return crc32c_of_file(self.source)
        told = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")["ChecksumCRC32C"]
        return int.from_bytes(base64.b64decode(told), "big")


def measure_table(table: Table, path: Path, peers: Path, rounds: int, until: float, *, check: bool) -> Result:
    result = begun(table, path)
    done = min((len(row.rounds) for row in result.rows if not row.error), default=0)
    if 0 < rounds <= done:
        return result
    print(f"{table.heading}: rounds {done + 1} to {rounds}", file=sys.stderr)
    with ExitStack() as stack:
        run = Run(table, result, stack, peers, check=check)
        result.save(path.parent)
        if rounds and not wait_until_quiet(QUIET_WAIT_S):
            print("  the machine is not quiet: the table will say so", file=sys.stderr)
        longest = 0.0
        for number in range(done, rounds):
            started = time.monotonic()
            if started + longest > until:
                print(f"  out of time after {number} rounds; call it again to go on", file=sys.stderr)
                break
            run.round(number)
            result.save(path.parent)
            longest = max(longest, time.monotonic() - started)
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure wherry beside other clients.")
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(NAMES)}; all of them if none is named")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="256 MiB, a fifth of the files, one round, fewer clients; what they move is not compared first",
    )
    parser.add_argument("--rounds", type=int, help=f"of each table, with those that are there already ({ROUNDS}; quick: 1)")
    parser.add_argument(
        "--for-s", type=float, default=float("inf"), help="begin no round that would not end within these seconds"
    )
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="the virtual environment of the other clients")
    parser.add_argument("--results", type=Path, help="folder of the JSON files (benchmarks/results; quick: a temporary one)")
    parser.add_argument("--check", action="store_true", help="only compare what the clients move, byte for byte; measure nothing")
    parser.add_argument("--render", action="store_true", help="write docs/performance.md and its pictures; measure nothing")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    names = asked.tables or (QUICK if asked.quick else NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        raise SystemExit(f"no table {', '.join(unknown)}: there are {', '.join(NAMES)}")
    if asked.render:
        render(asked.results or HERE.parent / "results", asked.peers)
        return
    until = time.monotonic() + asked.for_s
    with ExitStack() as stack:
        if asked.results is None and asked.quick:
            asked.results = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = asked.results or HERE.parent / "results"
        for name in names:
            path = folder / f"{name}.json"
            if name in SCRIPTS:
                if not asked.check:
                    told = measure_script(SCRIPTS[name], path, asked.peers, quick=asked.quick, wait_s=QUIET_WAIT_S)
                    print(markdown_of_script(told), flush=True)
                continue
            table = TABLES[name].quick() if asked.quick else TABLES[name]
            rounds = 0 if asked.check else asked.rounds or (1 if asked.quick else ROUNDS)
            result = measure_table(table, path, asked.peers, rounds, until, check=not asked.quick)
            print(markdown(result), flush=True)


if __name__ == "__main__":
    main()
