"""Trainings with Composer, which takes nine seconds of a processor to import, forked: see servers/warm.py."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

TRAIN = str(Path(__file__).with_name("train.py"))


def training() -> Callable[[], object]:
    """Import what train.py needs; what runs it."""
    for name in ("composer", "wherry.integrations.composer", "wherry.loggers"):
        importlib.import_module(name)

    def run() -> None:
        sys.argv[0] = TRAIN
        runpy.run_path(TRAIN, run_name="__main__")

    return run
