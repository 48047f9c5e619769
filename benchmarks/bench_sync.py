"""`wherry sync` of a folder with a prefix that has all of it, beside `s5cmd sync`: seconds and the most memory.

The server is that of `bench_listing.py`, which makes up the pages of a listing; the folder has a file of each key, of its size
(sparse) and older. So nothing is to be copied: what counts is how fast the two are read and compared. $KEYS (100000) is how
many there are, $ROUNDS (3) how often each client syncs them, in turns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench_listing import S5CMD, listing, run
from measure import folder, machine, spread, table, wait_until_quiet

N_KEYS = int(os.environ.get("KEYS", "100000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
#: Before every date of the listing: 2026-10-01.
WRITTEN_S = 1_790_812_800


def fill(base: Path) -> None:
    """The files that the keys of the listing stand for."""
    for n in range(N_KEYS):
        path = base / f"run/{n // 10_000:03d}/{n:09d}.pt"
        if n % 10_000 == 0:
            path.parent.mkdir(parents=True)
        path.touch()
        os.truncate(path, n)
        os.utime(path, (WRITTEN_S, WRITTEN_S))


def main() -> None:
    beside = wait_until_quiet()
    with folder() as base, listing(N_KEYS) as url:
        fill(base / "here")
        clients = {"wherry sync": [sys.executable, "-m", "wherry.cli", "sync", str(base / "here"), "s3://bucket/"]}
        if S5CMD.exists():
            clients["s5cmd sync"] = [str(S5CMD), "sync", f"{base}/here/", "s3://bucket/"]
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, **keys, "AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url, "WHERRY_SPOOL": str(base / "spool")}
        rounds = [{name: run(command, environment) for name, command in clients.items()} for _ in range(ROUNDS)]  # in turns
    found = {name: [each[name] for each in rounds] for name in clients}
    rows = [
        [name, spread([took_s for took_s, _ in each]), f"{max(used for _, used in each):.0f}"] for name, each in found.items()
    ]
    rows += [] if S5CMD.exists() else [["s5cmd sync", "not installed: make bench-peers", ""]]
    table(
        f"A sync of {N_KEYS:,} unchanged files ({machine()}){beside}",
        ["command", "s, median [min-max]", "most memory, MiB"],
        rows,
    )


if __name__ == "__main__":
    main()
