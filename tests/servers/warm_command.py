"""The command ``wherry`` of the tests, forked: see warm.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress

#: What verbs import when they run, and typer when it reads arguments. That each verb imports what it needs is seen where the
#: examples of its help are run, each by a new interpreter: tests/cli/test_examples.py.
_IMPORTED = (
    "typer._adapters",
    "pydantic.plugin._loader",
    "importlib.metadata",
    "rich.console",
    "wherry.uploader",
    "wherry.backends.local.store",
    "wherry.cli.copy_verbs.planning",
    "wherry.cli.copy_verbs.transfers",
    "wherry.mirror.reader.pull",
    "wherry.checkpoints.checkpoints",
    "wherry.runs.run",
)


def command() -> Callable[[], object]:
    """Import what any command needs; what runs one."""
    from wherry.cli import main
    from wherry.cli.app import VERBS

    for name in {f"wherry.cli.{verb.module}" for verb in VERBS.values()} | set(_IMPORTED):
        with suppress(ModuleNotFoundError):  # pydantic's, with an older typer
            importlib.import_module(name)
    return main
