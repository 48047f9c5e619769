"""What a client that is measured must do. Standard library only: most clients run where wherry is not installed."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
THREADS = 8
PART_BYTES = 16 * MIB


@dataclass(frozen=True)
class Endpoint:
    """A server, and a private folder in memory for what the client writes besides."""

    url: str
    bucket: str
    access_key: str
    secret_key: str
    folder: str
    ca_file: str | None = None
    region: str = "us-east-1"

    @property
    def environment(self) -> dict[str, str]:
        """What the AWS SDKs read."""
        found = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": self.folder,
        }
        return {**found, "AWS_CA_BUNDLE": self.ca_file, "SSL_CERT_FILE": self.ca_file} if self.ca_file else found


class Client:
    """One client with one set of options. A method that a client lacks raises NotImplementedError: its row is left out."""

    #: Packages and programs whose versions belong beside its figures.
    packages: tuple[str, ...] = ()

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def prepare(self, path: Path) -> Path:
        """Not measured: the file that the next up() may consume."""
        return path

    def up(self, path: Path, key: str) -> None:
        """Return when the whole file is in the store."""
        raise NotImplementedError

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        """Return when the whole object is in a file that was not there."""
        raise NotImplementedError

    def many(self, folder: Path, prefix: str) -> None:
        """Return when each file of a flat folder is in the store as `prefix/name`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait for what the client still does for the last call after it said that it was done: its processor time counts."""

    #: Seconds for which the caller's thread was held up in the last call; None: the whole call.
    blocked_s: float | None = None

    def close(self) -> None:
        """Leave nothing running."""


class Command(Client):
    """A program that is started anew for each call, so that its start is part of the figure."""

    def run(self, words: Sequence[str], environment: Mapping[str, str] = {}) -> None:
        given = {"PATH": os.environ.get("PATH", os.defpath), **self.endpoint.environment, **environment}
        done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}")


@contextmanager
def new_file(path: Path, size_bytes: int) -> Iterator[int]:
    """A descriptor of a new file that already has its size."""
    with open(path, "xb", buffering=0) as file:
        os.truncate(path, size_bytes)
        yield file.fileno()


def ranges(size_bytes: int, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    return [(start, min(start + part_bytes, size_bytes)) for start in range(0, size_bytes, part_bytes)]


def open_files_limit() -> None:
    """As many as allowed: some clients open hundreds of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
