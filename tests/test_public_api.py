"""The public names, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import wherry
import wherry.checkpoints
import wherry.filesystem
import wherry.loggers
import wherry.mirror
import wherry.testing

PACKAGES = pytest.mark.parametrize("package", [wherry, wherry.loggers, wherry.testing], ids=lambda package: package.__name__)


@PACKAGES
def test_all_is_sorted(package: ModuleType) -> None:
    assert sorted(package.__all__) == package.__all__


@pytest.mark.parametrize("package", [wherry, wherry.loggers], ids=lambda package: package.__name__)
def test_all_is_the_public_namespace(package: ModuleType) -> None:
    public = {name for name in dir(package) if not name.startswith("_") and not isinstance(getattr(package, name), ModuleType)}
    assert set(package.__all__) == public - {"annotations"}  # that is the __future__ import


@PACKAGES
def test_every_public_name_is_that_of_its_object(package: ModuleType) -> None:
    assert [] == [name for name in package.__all__ if getattr(getattr(package, name), "__name__", name) != name]


LAZY = pytest.mark.parametrize(
    "package",
    [wherry, wherry.checkpoints, wherry.filesystem, wherry.loggers, wherry.mirror, wherry.testing],
    ids=lambda package: package.__name__,
)


@LAZY
def test_every_public_name_has_a_home_and_nothing_else_has(package: ModuleType) -> None:
    assert sorted(homes(package)) == package.__all__
    with pytest.raises(AttributeError, match=f"{package.__name__} attribute nothing"):
        package.nothing  # noqa: B018


@LAZY
def test_type_checkers_see_the_same_homes(package: ModuleType) -> None:
    for name, home in homes(package).items():
        assert getattr(importlib.import_module(home, package.__name__), name) is getattr(package, name)


@LAZY
def test_a_star_import_gives_type_checkers_every_public_name(package: ModuleType) -> None:
    # An __all__ without its names would be an empty one to them.
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    assert [] == [node for node in ast.walk(stub) if isinstance(node, ast.Name) and node.id == "__all__"]


def homes(package: ModuleType) -> dict[str, str]:
    """Public name -> relative module, from the stub that type checkers read; each is offered on by `as`, as they ask for."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": f".{node.module}" for node in imports for alias in node.names if alias.name == alias.asname}


@pytest.mark.parametrize("package", ["wherry", "wherry.loggers"])
def test_importing_loads_no_vendor_library_and_no_torch(package: str) -> None:
    heavy = ["boto3", "botocore", "google.cloud", "google.auth", "torch", "numpy", "tqdm", "typer", "rich", "tenacity", "fsspec"]
    assert [] == loaded_by(package, heavy)


def test_importing_wherry_costs_next_to_nothing() -> None:
    assert [] == loaded_by(
        "wherry", ["asyncio", "sqlite3", "subprocess", "socket", "concurrent.futures", "logging", "dataclasses"]
    )


def loaded_by(package: str, modules: list[str]) -> list[str]:
    """Which of the modules a fresh interpreter has after importing the package, and not before: some environments load some."""
    script = f"import sys; before = set(sys.modules); import {package}; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return sorted(set(ast.literal_eval(done.stdout)) & set(modules))
