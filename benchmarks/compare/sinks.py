"""The servers that the clients are measured against: the sink, plain and over TLS, and SeaweedFS."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from clients.contract import Endpoint
from sink_program import HERE, sink_program

from servers.real import S3Server, seaweedfs, tls_terminator
from servers.tls import make_certificates


@dataclass(frozen=True)
class Target:
    """A running server: where clients find it, whose processor time is its, and how it knows what has reached it."""

    endpoint: dict[str, Any]
    pid: int | None
    #: Bytes of bodies that it has received and sent; None where the server does not tell.
    moved: Callable[[], tuple[int, int]] | None = None
    forget: Callable[[], object] = lambda: None
    is_sink: bool = False

    def at(self, folder: Path) -> Endpoint:
        return Endpoint(**self.endpoint, folder=str(folder))

    def s3(self) -> Any:
        """The harness's own way to it."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint["url"],
            region_name="us-east-1",
            aws_access_key_id=self.endpoint["access_key"],
            aws_secret_access_key=self.endpoint["secret_key"],
            verify=self.endpoint.get("ca_file"),
        )


def ask(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


@contextmanager
def sink(folder: Path, *, tls: bool = False) -> Iterator[Target]:
    command, authority = [*sink_program(folder, tls=tls), "0"], None
    if tls:
        files = make_certificates(folder)
        command += [str(files.chain), str(files.key)]
        authority = str(files.authority)
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ports = [int(port) for port in process.stdout.readline().split()]
            url = f"https://127.0.0.1:{ports[1]}" if tls else f"http://127.0.0.1:{ports[0]}"
            keys = {"access_key": "KEY", "secret_key": "SECRET", "bucket": "bucket", "url": url, "ca_file": authority}

            def moved() -> tuple[int, int]:
                received, sent = ask(ports[0], "/_sink/bytes").split()
                return int(received), int(sent)

            yield Target(keys, process.pid, moved, lambda: ask(ports[0], "/_sink/forget"), is_sink=True)
        finally:
            process.stdin.close()


@contextmanager
def real_server(folder: Path) -> Iterator[Target]:
    with seaweedfs(folder) as server:
        yield Target(keys_of(server), pid_of(server.port))


@contextmanager
def real_server_over_tls(folder: Path) -> Iterator[Target]:
    with seaweedfs(folder) as server, tls_terminator(server.port, folder) as (url, authority):
        yield Target({**keys_of(server), "url": url, "ca_file": str(authority)}, None)


def keys_of(server: S3Server) -> dict[str, Any]:
    keys = {"access_key": server.access_key, "secret_key": server.secret_key}
    return {"url": server.url, "bucket": server.bucket, **keys}


def pid_of(port: int) -> int | None:
    """Who listens on this port of 127.0.0.1."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
            inode = f"socket:[{fields[9]}]"
            return next((int(link.parts[2]) for link in Path("/proc").glob("[0-9]*/fd/*") if names(link) == inode), None)
    return None


def names(link: Path) -> str | None:
    """What it leads to; None: it is gone, or not ours to read."""
    try:
        return str(link.readlink())
    except OSError:
        return None
