"""Threads of ours import no library: whoever forks in that moment, for a DataLoader, would have half of it in the child."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_script

#: What is imported by which thread; only what this process has not loaded yet comes by here.
WATCH = """
import sys, threading
imported = []
def note(event, arguments):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        imported.append(arguments[0])
sys.addaudithook(note)
"""

LOG = """
import numpy as np
from wherry.loggers import InMemoryLogger, RunFolderLogger, TensorBoardLogger
folder = sys.argv[1]
logger = {kind}
image = np.random.default_rng(0).random((16, 16, 3), np.float32)
logger.log_metrics({{"a": 1.0}}, 0)
logger.log_images(image, "image", step=0)
logger.log_images([image], "masked", step=0, masks={{"m": np.ones((1, 16, 16), np.uint8)}}, mask_class_labels={{1: "one"}})
logger.log_table(["a", "b"], [[1, "x"]], "table")
logger.log_histogram(np.arange(10.0), "histogram", 0)
logger.log_audio(np.zeros(800, np.float32), "sound", 8000, 0)
logger.log_video(np.zeros((4, 3, 16, 16), np.uint8), "video", 4, 0)
logger.log_point_cloud(np.zeros((5, 3), np.float32), "points", 0)
logger.close()
print(imported)
"""

MIRROR = """
import time
from pathlib import Path
import wherry
from wherry.mirror import MirrorConfig
base = Path(sys.argv[1])
(base / "run").mkdir()
config = MirrorConfig(compression="zstd", max_lag_s=0.1, settle_s=0.1)
with wherry.Mirror(base / "run", base / "bucket", spool=base / "spool", config=config) as mirror:
    (base / "run/a.log").write_text("a line\\n")
    (base / "run/a.bin").write_text("bytes")
    mirror.flush()
    while not mirror._watcher or not mirror._watcher._armed.is_set():
        time.sleep(0.01)
print(imported)
"""


@pytest.mark.parametrize("kind", ["RunFolderLogger(folder)", "TensorBoardLogger(folder)", "InMemoryLogger()"])
def test_the_threads_of_destinations_import_nothing(kind: str, tmp_path: Path) -> None:
    assert run_script(WATCH + LOG.format(kind=kind), tmp_path).splitlines()[-1] == "[]"


def test_a_mirrors_threads_import_nothing(tmp_path: Path) -> None:
    assert run_script(WATCH + MIRROR, tmp_path).splitlines()[-1] == "[]"
