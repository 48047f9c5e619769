"""`wherry ui` as a process of its own, for tests and benchmarks: what it takes is its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class PageProcess:
    """`wherry ui` as a process of its own."""

    root: str
    process: psutil.Process

    def get(self, path: str) -> str:
        with _direct.open(self.root + path, timeout=120) as answer:
            return str(answer.read().decode())

    def status(self, path: str) -> int:
        """The status of its answer, which is read to its end."""
        try:
            with _direct.open(self.root + path, timeout=120) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def events(self, path: str) -> Iterator[str]:
        """The names of the events that it sends, as they come."""
        with _direct.open(self.root + path, timeout=600) as answer:
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    yield line[len("event: ") :].strip()

    @property
    def peak_mb(self) -> float:
        """The largest resident set so far (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6


@contextmanager
def page_process(uri: str, options: Mapping[str, object], cache: Path) -> Iterator[PageProcess]:
    """Start it; it is up when this returns. `cache` is where it keeps what it reads."""
    command = [sys.executable, "-m", "wherry.cli", "ui", "--no-open", "--port", "0", uri]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    if options:
        cache.mkdir(parents=True, exist_ok=True)
        file = cache / "options.json"
        file.write_text(json.dumps(dict(options)))
        command += ["--options-file", str(file)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            root = next(found[1] for line in process.stdout if (found := re.search(r"(http://[\d.:]+)/", line)))
            yield PageProcess(root, psutil.Process(process.pid))
        finally:
            process.terminate()
