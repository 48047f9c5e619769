"""Makes the pictures of docs/ui.md: ``python tests/extra/make_ui_pictures.py docs/images``.

The runs are in a bucket of a real S3 server, mirrored there; one is still being written. The pictures are to be looked at
before they are kept. Needs Chromium, and uPlot from npm (make ui-assets).
"""

from __future__ import annotations

import io
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from browser import browser
from servers.real import fast_folder, seaweedfs
from servers.web_page import page_of
from support import wait_until
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.run.state import State
from wherry.mirror import Mirror, MirrorConfig

RATES = {"lr-3e-5": 3e-5, "lr-3e-4": 3e-4, "lr-1e-3": 1e-3, "lr-3e-3": 3e-3, "lr-1e-2": 1e-2}
#: The run that is live in the pictures.
LIVE = "lr-3e-4"
URI = "s3://my-bucket/runs"
LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, exit_on_sigterm=False)
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
    with ExitStack() as stack:
        above = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["XDG_CACHE_HOME"] = str(above / "cache")
        server = stack.enter_context(seaweedfs(stack.enter_context(fast_folder())))
        server.make_bucket("my-bucket")
        window = stack.enter_context(browser(1360, 960))
        for number, (run, rate) in enumerate(RATES.items()):
            train(above, run, rate, 0, N_STEPS)
            if run == "lr-1e-3":
                train(above, run, rate, 1500, N_STEPS + 300)
            mirror = Mirror(
                above / run, f"{URI}/{run}", storage_options=server.options, config=LIVELY, spool=above / f"spool-{number}"
            )
            if run == LIVE:
                stack.enter_context(mirror)
            else:
                with mirror:
                    pass
        page = stack.enter_context(page_of(URI, options=server.options))
        wait_until(lambda: all(f"run?id={run}" in page.get("/").text for run in RATES), 60.0, "the mirrors")
        for picture, (path, n_curves) in PICTURES.items():
            window.open(page.root + path)
            window.wait_for(f"document.querySelectorAll('.plot canvas').length >= {n_curves}", "the curves")
            if n_curves:
                window.run("scrollTo(0, document.querySelector('form.sticky').offsetTop - 300)")
                window.point(".u-over", 0.4, 0.6)
                window.wait_for("document.querySelector('.readout').innerText", "the numbers at the cursor")
            # 256 colours are enough for lines and letters. The method keeps those of a few letters, such as `live`.
            with Image.open(io.BytesIO(window.screenshot())) as shown:
                few = shown.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                few.save(target / f"{picture}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
