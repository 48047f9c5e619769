"""How long upload_file keeps the training loop, against `cp` of the same file. Interleaved, each round after a sync.

$ROUNDS (7) make it shorter.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from measure import MIB, folder, machine, make_file, seconds, settle, spread, table, wait_until_quiet

import wherry
from wherry.loggers import ObjectStoreLogger
from wherry.spool.staging import stage

ROUNDS = int(os.environ.get("ROUNDS", "7"))


def large_copies(base: Path, log: ObjectStoreLogger) -> list[list[str]]:
    source = make_file(base / "checkpoint", 1024 * MIB)
    copies: list[float] = []
    uploads: list[float] = []
    for i in range(ROUNDS):
        (base / "copy").unlink(missing_ok=True)  # a copy over an old file takes twice as long
        settle()
        copies.append(seconds(lambda: subprocess.run(["cp", source, base / "copy"], check=True)))
        (base / "copy").unlink()
        settle()
        uploads.append(seconds(lambda i=i: log.upload_file(None, f"copy{i}", source)))  # type: ignore[misc]
        log.uploader.flush()
        log.uploader.delete(f"copy{i}")
    ratio = statistics.median(uploads) / statistics.median(copies)
    return [
        ["`cp`, 1 GiB", spread(copies, 1000, 0), "1"],
        ["`upload_file`, 1 GiB, by copy", spread(uploads, 1000, 0), f"{ratio:.2f}"],
    ]


def given_away(base: Path, log: ObjectStoreLogger, size_mib: int) -> list[str]:
    times = []
    for i in range(ROUNDS):
        source = make_file(base / "given", size_mib * MIB)
        settle()
        times.append(seconds(lambda i=i, source=source: log.upload_file(None, f"move{size_mib}-{i}", source, move=True)))  # type: ignore[misc]
        log.uploader.flush()
        log.uploader.delete(f"move{size_mib}-{i}")
    return [f"`upload_file(move=True)`, {size_mib} MiB", spread(times, 1000), ""]


def written_in_place(log: ObjectStoreLogger, size_mib: int) -> list[str]:
    times = []
    data = bytes(size_mib * MIB)
    for i in range(ROUNDS):
        file = log.open(f"open{size_mib}-{i}")
        file.write(data)
        file.flush()
        times.append(seconds(file.close))
        log.uploader.flush()
        log.uploader.delete(f"open{size_mib}-{i}")
    return [f"`open()`: close after writing {size_mib} MiB", spread(times, 1000), ""]


def small(base: Path, log: ObjectStoreLogger, more: str = "", n: int = 500) -> list[str]:
    source = make_file(base / "small", 100 * 1024)
    times = [seconds(lambda i=i: log.upload_file(None, f"small{i}", source)) for i in range(n)]  # type: ignore[misc]
    log.uploader.flush()
    return [f"`upload_file`, 100 KiB{more}, {n} in a row", _with_p99(times), ""]


def _with_p99(times: list[float]) -> str:
    return f"{spread(times, 1000)}, p99 {sorted(times)[int(len(times) * 0.99)] * 1000:.2f}"


def small_and_safe(base: Path, config: wherry.Config) -> list[list[str]]:
    """`durability="power"`: what is accepted survives a power failure. Beside it what the disk itself takes for such a file."""
    data = bytes(100 * 1024)

    def bare(i: int) -> None:
        with open(base / "bare" / f"{i}", "xb", buffering=0) as file:
            file.write(data)
            os.fsync(file)
        here = os.open(base / "bare", os.O_RDONLY)
        os.fsync(here)
        os.close(here)

    (base / "bare").mkdir()
    floor = [seconds(lambda i=i: bare(i)) for i in range(200)]  # type: ignore[misc]
    safe = wherry.SpoolConfig(durability="power")
    with ObjectStoreLogger(base / "safe", spool=base / "safe-spool", config=replace(config, spool=safe)) as log:
        rows = [["a file of 100 KiB written, with fsync of it and of its folder", _with_p99(floor), ""]]
        rows.append(small(base, log, ', `durability="power"`', 200))
        source = make_file(base / "small", 100 * 1024)
        with ThreadPoolExecutor(8) as pool:
            took = seconds(lambda: list(pool.map(lambda i: log.upload_file(None, f"many{i}", source), range(400))))
        rows.append(["the same, 400 by 8 threads: the time of all, by their number", f"{took / 400 * 1000:.2f}", ""])
    return rows


def reflinks(base: Path) -> list[str]:
    from wherry.spool.spool import Spool

    spool = Spool(base / "probe-spool")
    source = make_file(base / "probe", MIB)
    method = stage(spool, source, "bench").method
    shutil.rmtree(spool.folder)
    if method != "reflink":
        return ["reflink", "not measured: this file system has none", ""]
    times = [seconds(lambda: stage(spool, source, "bench")) for _ in range(ROUNDS)]
    return ["reflink, 1 MiB", spread(times, 1000), ""]


def main() -> None:
    mark = wait_until_quiet()
    with folder() as base:
        config = wherry.Config(on_failure="raise")
        with ObjectStoreLogger(base / "bucket", spool=base / "spool", config=config) as log:
            log.upload_file(None, "warm", make_file(base / "warm", 1000)).result(30)
            rows = large_copies(base, log)
            rows += [given_away(base, log, size) for size in (1, 1024)]
            rows += [written_in_place(log, size) for size in (1, 256)]
            rows += [small(base, log), reflinks(base)]
        rows += small_and_safe(base, config)
    table(f"Training is blocked for, ms ({machine()}){mark}", ["what", "median [min-max]", "x cp"], rows)


if __name__ == "__main__":
    main()
