"""Large files in parts: who sends them, what their checksums and the verification of a download cost, what a kill sends again.

A trigger in the journal notes each receipt of a part and which worker it is from; so "sent" means the store has answered. The
servers keep their objects in memory where there is a tmpfs with room, so that their disk is not what is measured.
$SIZE_MIB (4096), $GCS_SIZE_MIB (1024) and $ROUNDS (2) make it shorter.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import bench_verify
import psutil
from measure import MIB, folder, machine, make_file, seconds, spread, table

from servers.gcs_server import strict_gcs
from servers.real import fast_folder, seaweedfs
from wherry import AgentConfig, Config, TransferConfig, Uploader
from wherry.backends.s3.store import S3Store
from wherry.checksum import BLOCK_BYTES, crc32c, crc32c_of_file
from wherry.spool.presence import pid_of_agent
from wherry.store import PutOptions
from wherry.transfer.part_sizes import part_size_for
from wherry.uri import StoreURI

SIZE_BYTES = int(os.environ.get("SIZE_MIB", "4096")) * MIB
GCS_SIZE_BYTES = int(os.environ.get("GCS_SIZE_MIB", "1024")) * MIB
VERIFIED_BYTES = bench_verify.SIZE_BYTES
PART_BYTES = part_size_for(SIZE_BYTES, TransferConfig(), S3Store(StoreURI("s3", "any"), {}).capabilities)
ROUNDS = int(os.environ.get("ROUNDS", "2"))
KILLS = 2
KILL_AT = 0.9
KILL_LIMIT = 0.12
NOTE_RECEIPTS = """
CREATE TABLE bench_receipts (worker TEXT, number INTEGER);
CREATE TRIGGER bench AFTER UPDATE OF etag ON parts WHEN NEW.etag IS NOT NULL
BEGIN INSERT INTO bench_receipts VALUES (OLD.lease_owner, NEW.number); END;
"""
#: Runs a server in a folder; gives the URI of its bucket and the storage options.
Kind = Callable[[Path], AbstractContextManager[tuple[str, dict[str, object]]]]


def journal(spool: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(spool / "journal.db", isolation_level=None, timeout=30.0))


def receipts(spool: Path) -> list[tuple[str, int]]:
    """(worker, number of the part), in the order in which the store answered."""
    with journal(spool) as db:
        return db.execute("SELECT worker, number FROM bench_receipts ORDER BY rowid").fetchall()


def family(uploader: Uploader) -> list[psutil.Process]:
    """The agent and its workers."""
    agent = psutil.Process(pid_of_agent(uploader.spool))
    return [agent, *agent.children()]


@contextmanager
def sending(store: tuple[str, dict[str, object]], spool: Path, n_workers: int = 2) -> Iterator[Uploader]:
    """An uploader whose agent is up and knows the server; both are ended after the block."""
    config = Config(agent=AgentConfig(n_workers=n_workers))
    uploader = Uploader(store[0], storage_options=store[1], spool=spool, config=config)
    with journal(spool) as db:
        db.executescript(NOTE_RECEIPTS)
    uploader.check()
    yield uploader
    uploader.close()
    ended = family(uploader)
    ended[0].terminate()
    psutil.wait_procs(ended)


@contextmanager
def s3(base: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with seaweedfs(base) as server:
        yield f"s3://{server.bucket}", server.options


@contextmanager
def gcs(base: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with strict_gcs(base) as server:
        yield f"gs://{server.bucket}", server.options


def send(kind: Kind, size_bytes: int, n_workers: int) -> tuple[float, Counter[str]]:
    """One upload to a fresh server: its seconds, to the verified object, and how many parts each worker sent."""
    with fast_folder() as base, kind(base) as store, sending(store, base / "spool", n_workers) as uploader:
        source = make_file(base / "source", size_bytes)
        started = time.perf_counter()
        uploader.put(source, "large", move=True).result()
        return time.perf_counter() - started, Counter(worker for worker, _ in receipts(base / "spool"))


def workers(name: str, kind: Kind, size_bytes: int) -> list[list[str]]:
    """One worker and two, in turn."""
    taken: dict[int, list[float]] = {1: [], 2: []}
    shares: dict[int, list[str]] = {1: [], 2: []}
    for i in range(ROUNDS):
        for n in (2, 1) if i % 2 else (1, 2):
            took_s, counted = send(kind, size_bytes, n)
            taken[n].append(took_s)
            shares[n].append(" + ".join(f"{100 * sent / counted.total():.0f}" for _, sent in counted.most_common()))
    ratio = statistics.median(two / one for one, two in zip(taken[1], taken[2], strict=True))
    title = f"{name}, {size_bytes // MIB} MiB"
    return [[title, str(n), "; ".join(shares[n]), spread(taken[n], 1, 1), f"{ratio:.2f}" if n == 2 else "1"] for n in (1, 2)]


def cpu_s(work: Callable[[], object]) -> float:
    """Processor seconds of this process, user and system."""
    before = time.process_time()
    work()
    return time.process_time() - before


def checksum() -> list[list[str]]:
    """Of a file in the disk's page cache: reading it, summing what is in the processor's cache, both."""
    with folder() as base:
        source = make_file(base / "source", SIZE_BYTES)
        block = os.urandom(BLOCK_BYTES)

        def read() -> None:
            with open(source, "rb", buffering=0) as file:
                while file.read(BLOCK_BYTES):
                    pass

        def add_up() -> None:
            crc = 0
            for _ in range(SIZE_BYTES // BLOCK_BYTES):
                crc = crc32c(block, crc)

        ways: list[tuple[str, Callable[[], object]]] = [
            ("reading alone", read),
            ("summing alone", add_up),
            ("CRC32C of the file", lambda: crc32c_of_file(source)),
        ]
        return [[name, spread([cpu_s(work) * 2**30 / SIZE_BYTES for _ in range(5)], 1, 3)] for name, work in ways]


def verification() -> list[str]:
    with fast_folder() as base, seaweedfs(base) as server, S3Store(StoreURI("s3", server.bucket), server.options) as store:
        source = make_file(base / "source", VERIFIED_BYTES)
        store.put_file("object", source, PutOptions(crc32c=crc32c_of_file(source)))
        row = bench_verify.compare(f"SeaweedFS, {VERIFIED_BYTES // MIB} MiB", store, "object", base / "target")
        alone = [seconds(lambda: crc32c_of_file(base / "target")) for _ in range(5)]
    return [*row, f"{100 * statistics.median(alone) / seconds_of(row[2]):.0f} %"]


def seconds_of(shown: str) -> float:
    return float(shown.split()[0])


def kill() -> list[str]:
    """Agent and workers are killed when nine tenths of the parts are there; what is sent from then on."""
    with fast_folder() as base, s3(base) as store, sending(store, base / "spool") as uploader:
        spool = base / "spool"
        n_parts = -(-SIZE_BYTES // PART_BYTES)
        handle = uploader.put(make_file(base / "source", SIZE_BYTES), "large", move=True)
        while len(receipts(spool)) < KILL_AT * n_parts:
            time.sleep(0.002)  # the journal tells nobody; a part takes longer than that
        killed = family(uploader)
        for process in killed:
            with suppress(psutil.NoSuchProcess):  # workers die with their agent
                process.kill()
        psutil.wait_procs(killed)
        before = receipts(spool)
        with journal(spool) as db:
            (in_flight,) = db.execute("SELECT COUNT(*) FROM parts WHERE lease_owner IS NOT NULL").fetchone()
        handle.result()
        after = receipts(spool)[len(before) :]
        assert {number for _, number in [*before, *after]} == set(range(1, n_parts + 1))
        assert handle.result().size_bytes == SIZE_BYTES
    share = len(after) / n_parts
    verdict = "ok" if share <= KILL_LIMIT else "over 12 %"
    shares = [f"{100 * count / n_parts:.1f} %" for count in (len(before), in_flight, len(after))]
    return [str(n_parts), *shares, verdict]


def main() -> None:
    print(machine())
    rows = workers("SeaweedFS", s3, SIZE_BYTES) + workers("strict GCS", gcs, GCS_SIZE_BYTES)
    header = ["where to, one file", "workers", "share of the parts by worker, %, each round", "s", "x one worker"]
    table("One large file, one worker and two", header, rows)
    table("A checksum, CPU s a GiB", ["what", "median [min-max]"], checksum())
    header = ["store", "without, s", "with, s", "with / without", "more CPU s a GiB", "less than 10 %", "one pass / with"]
    table("Verification of a download", header, [verification()])
    header = ["parts", "there at the kill", "in flight, and lost", "sent after it, of the file", "at most 12 %"]
    table("SIGKILL of agent and workers at 90 %", header, [kill() for _ in range(KILLS)])


if __name__ == "__main__":
    main()
