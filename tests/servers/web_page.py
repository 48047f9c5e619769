"""The page of `wherry ui`, for tests: runs to look at, and a real server on a free port."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.web.server import Server

#: The names of `make_runs`, with their learning rates. The second has the lowest validation loss.
RATES = {"amber": 3e-4, "birch": 3e-3, "cedar": 1e-2}
N_STEPS = 300


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda constant: AssertionError(f"{constant} is no JSON"))


@dataclass(frozen=True)
class Page:
    """A running page."""

    server: Server

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server.address.port}"

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Ask, without following redirects."""
        request = urllib.request.Request(self.root + path, headers=dict(headers or {}), method=method)  # noqa: S310  http://
        try:
            with _direct.open(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def points(self, run_id: str, key: str, **more: object) -> dict[str, Any]:
        """The points of one metric of one run."""
        query = "&".join(f"{name}={quote(str(value))}" for name, value in {"id": run_id, "key": key, **more}.items())
        (found,) = self.get(f"/data/points?{query}").json["runs"]
        assert isinstance(found, dict)
        return found


@contextmanager
def page_of(*uris: Path | str, **options: Any) -> Iterator[Page]:
    """A page over them, in a thread of this process."""
    server = Server([str(uri) for uri in uris], port=0, **options)
    server.start()
    try:
        yield Page(server)
    finally:
        server.stop()


def make_runs(folder: Path) -> Path:
    """Three finished runs with everything that the page shows; ``birch`` was resumed, ``cedar`` has NaN and infinity."""
    for number, (name, rate) in enumerate(RATES.items()):
        last = N_STEPS * 2 // 3 if name == "birch" else N_STEPS
        with log_of(folder / name) as log:
            log.log_hyperparameters({"lr": rate, "model": {"depth": 4 + number}, "optimizer": "adamw"})
            log_steps(log, rate, 0, last)
            log_media(log)
        if name == "birch":
            with log_of(folder / name) as log:
                log_steps(log, rate, last // 2, N_STEPS)
        lines = [f"[stdout]: \x1b[32mstep\x1b[0m <b>{step}</b>\n[metric][step={step}]: {{}}\n" for step in range(0, N_STEPS, 10)]
        (folder / name / "logs-rank0.txt").write_text("".join(lines))
    return folder


def log_of(folder: Path) -> RunFolderLogger:
    """A run folder without Parquet, which takes long."""
    return RunFolderLogger(folder, config=RunFolderConfig(parquet=False, upload=False))


def log_steps(log: RunFolderLogger, rate: float, first: int, last: int) -> None:
    best = 1 + abs(math.log10(rate) + 2.5)
    for step in range(first, last):
        loss = best + math.exp(-step / 50)
        if rate == RATES["cedar"] and step in (100, 101, 200):
            loss = math.inf if step == 200 else math.nan
        log.log_metrics({"train/loss": loss, "val/loss": best + math.exp(-step / 50) + 0.1, "epoch": step / 100}, step)


def log_media(log: RunFolderLogger) -> None:
    for step in (0, 100):
        mask = np.zeros((8, 10), np.int64)
        mask[2:5, 2:5] = 3
        image = np.full((3, 8, 10), 200, np.uint8)
        log.log_images(image, "samples", step=step, masks={"truth": mask}, mask_class_labels={3: "sun"})
        log.log_histogram(np.arange(100.0) + step, "weights", step)
        log.log_table(["id", "text <b>"], [[1, "<i>x</i>"], [2, None]], "predictions", step)
        log.log_text("a <script>alert(1)</script> fox", "prompt", step)
        log.log_audio(np.sin(np.arange(800) / 10), "tone", 8000, step)
