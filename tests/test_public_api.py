"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wherry
import wherry.loggers


@pytest.mark.parametrize("module", [wherry, wherry.loggers])
def test_all_is_sorted_and_complete(module: object) -> None:
    names = list(getattr(module, "__all__"))  # noqa: B009  both modules have it, objects do not
    assert sorted(names) == names
    assert [] == [name for name in names if getattr(module, name).__name__ != name]


def test_every_public_name_has_a_home_and_nothing_else_has() -> None:
    assert sorted(wherry._HOMES) == wherry.__all__
    with pytest.raises(AttributeError, match="module 'wherry' has no attribute 'nothing'"):
        wherry.nothing  # noqa: B018


def test_importing_is_light() -> None:
    heavy = ["boto3", "botocore", "google", "torch", "numpy", "fsspec", "tqdm", "rich", "typer", "tenacity", "asyncio", "sqlite3"]
    script = f"import sys, wherry; print([name for name in {heavy} if name in sys.modules])"
    # -S: what the environment's own start-up files import is not ours
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert "[]\n" == done.stdout
