"""The command ``wherry`` of the tests, forked: see warm.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress

#: What verbs import when they run, and typer when it reads arguments. That each verb imports what it needs is seen where the
#: examples of its help are run, each by a new interpreter: tests/cli/test_examples.py.
_IMPORTED = (
    "typer._adapters",
    "typer._click.decorators",
    "pydantic.plugin._loader",
    "importlib.metadata",
    "rich.console",
    "wherry.uploader",
    "botocore.session",
    "botocore.client",
    "botocore.docs.docstring",
    "wherry.backends.s3.client",
    "wherry.backends.s3.sdk_errors",
    "wherry.backends.local.store",
    "wherry.cli.taken_names",
    "wherry.store.server_features",
    "wherry.transfer.copying",
    "wherry.cli.copy_verbs.planning",
    "wherry.cli.copy_verbs.transfers",
    "wherry.mirror.reader.pull",
    "wherry.checkpoints.checkpoints",
    "wherry.runs.run",
    "wherry.backends.s3.store",
    "wherry.backends.gcs.store",
)


def command() -> Callable[[], object]:
    """Import what any command needs; what runs one."""
    from wherry.cli import main
    from wherry.cli.app import VERBS

    for name in {f"wherry.cli.{verb.module}" for verb in VERBS.values()} | set(_IMPORTED):
        with suppress(ModuleNotFoundError):  # pydantic's, with an older typer
            importlib.import_module(name)
    return main
