"""`wherry ls -r` of many keys beside `s5cmd ls`: keys a second and the most memory, both into nothing.

The server is a process of its own that makes up the pages of a listing, a thousand keys each, in the form of S3; nothing else is
behind it, so that the clients are measured. $KEYS (1000000) is how many there are, $ROUNDS (3) how often each client lists
them, in turns. Keys a second count from the start of the process. The client beside is that of `make bench-peers`; without it
the row says so.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from measure import MIB, folder, machine, spread, table, wait_until_quiet

N_KEYS = int(os.environ.get("KEYS", "1000000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
S5CMD = Path(__file__).resolve().parent.parent / ".peers/bin/s5cmd"
PAGE = 1000
ROW = (
    "<Contents><Key>run/{folder:03d}/{n:09d}.pt</Key><LastModified>2026-11-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.000Z"
    "</LastModified><ETag>&quot;{n:032x}&quot;</ETag><Size>{n}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class Listing(BaseHTTPRequestHandler):
    """Answers each request with a page of the one listing that it knows."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**20

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        start = int(query.get("continuation-token", ["0"])[0])
        end = min(N_KEYS, start + PAGE)
        rows = "".join(
            ROW.format(folder=n // 10_000, n=n, day=1 + n // 86_400 % 28, hour=n // 3600 % 24, minute=n // 60 % 60, second=n % 60)
            for n in range(start, end)
        )
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < N_KEYS else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<KeyCount>{end - start}</KeyCount><MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(end < N_KEYS).lower()}</IsTruncated>"
            f"{more}{rows}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listing(n_keys: int = N_KEYS) -> Iterator[str]:
    """The URL of a server of so many keys."""
    environment = {**os.environ, "KEYS": str(n_keys)}
    with subprocess.Popen([sys.executable, __file__, "serve"], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """How long a command takes, and the most memory that it had, in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - started, used.ru_maxrss * 1024 / MIB


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        with HTTPServer(("127.0.0.1", 0), Listing) as server:
            print(server.server_port, flush=True)
            server.serve_forever()
    beside = wait_until_quiet()
    clients = {"wherry ls -r": [sys.executable, "-m", "wherry.cli", "ls", "-r", "s3://bucket/"]}
    if S5CMD.exists():
        clients["s5cmd ls"] = [str(S5CMD), "ls", "s3://bucket/*"]
    with folder() as base, listing() as url:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, **keys, "AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url, "WHERRY_SPOOL": str(base / "spool")}
        rounds = [{name: run(command, environment) for name, command in clients.items()} for _ in range(ROUNDS)]  # in turns
    found = {name: [each[name] for each in rounds] for name in clients}
    rows = [
        [
            name,
            spread([took_s for took_s, _ in each]),
            f"{N_KEYS / statistics.median([took_s for took_s, _ in each]) / 1000:.0f}",
            f"{max(used for _, used in each):.0f}",
        ]
        for name, each in found.items()
    ]
    rows += [] if S5CMD.exists() else [["s5cmd ls", "not installed: make bench-peers", "", ""]]
    table(
        f"A listing of {N_KEYS:,} keys ({machine()}){beside}",
        ["command", "s, median [min-max]", "1,000 keys/s", "most memory, MiB"],
        rows,
    )


if __name__ == "__main__":
    main()
