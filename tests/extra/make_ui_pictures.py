"""Makes the pictures of docs/ui.md: ``python tests/extra/make_ui_pictures.py docs/images``.

They are to be looked at before they are kept. Needs Chromium, and uPlot from npm (make ui-assets).
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from browser import browser
from servers.web_page import page_of
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.run.state import State

RATES = {"lr-3e-5": 3e-5, "lr-3e-4": 3e-4, "lr-1e-3": 1e-3, "lr-3e-3": 3e-3, "lr-1e-2": 1e-2}
N_STEPS = 2000
ALL = "&".join(f"id={name}" for name in RATES)
#: Picture -> its page, and how many curves it waits for.
PICTURES = {
    "ui-runs": ("/?sort=val/loss.min", 0),
    "ui-run": ("/run?id=lr-1e-3&smooth=20", 4),
    "ui-compare": (f"/compare?{ALL}&smooth=20", 1),
}


def train(folder: Path, name: str, rate: float, first: int, last: int) -> None:
    """A training that looks like one: the best learning rate is 1e-3, and the largest one spikes."""
    rng = np.random.default_rng(int(rate * 1e6))
    best = 0.4 + 0.3 * abs(math.log10(rate) + 3)
    with RunFolderLogger(folder / name, config=RunFolderConfig(parquet=False, upload=False), state=State(name)) as log:
        log.log_hyperparameters({"lr": rate, "batch_size": 256, "model": {"depth": 12}})
        for step in range(first, last):
            loss = best + 2 * math.exp(-step / 250) + 0.06 * abs(rng.normal())
            loss = math.nan if name == "lr-1e-2" and 900 < step < 906 else loss + 3 * (name == "lr-1e-2" and step == 700)
            metrics = {"train/loss": loss, "train/grad_norm": 0.5 + abs(rng.normal()) * 0.3}
            if step % 20 == 19:
                metrics |= {
                    "val/loss": best + 2 * math.exp(-step / 250) + 0.08,
                    "val/accuracy": 0.95 - best / 4 - math.exp(-step / 300) / 2,
                }
            log.log_metrics(metrics, step)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as above, browser(1280, 960) as window:
        name = Path(above) / "runs"
        for run, rate in RATES.items():
            train(name, run, rate, 0, N_STEPS)
        train(name, "lr-1e-3", 1e-3, 1500, N_STEPS + 300)
        with page_of(name) as page:
            for picture, (path, n_curves) in PICTURES.items():
                window.open(page.root + path)
                window.wait_for(f"document.querySelectorAll('.plot canvas').length >= {n_curves}", "the curves")
                (target / f"{picture}.png").write_bytes(window.screenshot())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
