"""A 1 GiB checkpoint from upload_file to a verified object in a local folder on the same file system, against `cp`."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Callable

from measure import MIB, folder, machine, make_file, seconds, settle, spread, table

import wherry

ROUNDS = int(os.environ.get("ROUNDS", "7"))


def main() -> None:
    copies: list[float] = []
    by_copy: list[float] = []
    by_open: list[float] = []
    by_move: list[float] = []
    with folder() as base, wherry.Uploader(base / "bucket", spool=base / "spool") as uploader:
        source = make_file(base / "checkpoint", 1024 * MIB)
        uploader.put(make_file(base / "warm", 1000), "warm").result(30)

        def write() -> None:
            with uploader.open("c") as file, open(source, "rb") as reader:
                while block := reader.read(MIB):
                    file.write(block)
            assert file.handle is not None
            file.handle.result(60)

        def measure(times: list[float], work: Callable[[], object], name: str) -> None:
            """One measurement; what it made goes before it is written back, and the disk is let come to rest."""
            times.append(seconds(work))
            uploader.delete(name)
            settle()

        for _ in range(ROUNDS):
            settle()
            copies.append(seconds(lambda: subprocess.run(["cp", source, base / "copy"], check=True)))
            measure(by_move, lambda: uploader.put(base / "copy", "b", move=True).result(60), "b")
            measure(by_copy, lambda: uploader.put(source, "a").result(60), "a")
            measure(by_open, write, "c")
    rows = []
    for name, times in (
        ("`cp`", copies),
        ("put by copy, to the verified object", by_copy),
        ("written through `open()`, to the verified object", by_open),
        ("put with `move=True`, to the verified object", by_move),
    ):
        of_medians = statistics.median(copies) / statistics.median(times)
        rows.append([name, spread(times, 1000, 0), f"{of_medians:.2f}", f"{min(copies) / min(times):.2f}"])
    header = ["what", "median [min-max]", "speed, x cp, medians", "best of each"]
    table(f"1 GiB to a local folder, ms ({machine()})", header, rows)


if __name__ == "__main__":
    main()
