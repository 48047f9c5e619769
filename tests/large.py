"""Values of torch for parametrized tests, made when the test runs: `make matrix` collects the same files without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, repr=False)
class _OfTorch:
    make: Callable[[Any], object]

    def __repr__(self) -> str:  # the test's id, the same in each of pytest-xdist's workers
        return "torch"


def of_torch(make: Callable[[Any], object], *others: object, name: str | None = None) -> Any:
    """A case of ``pytest.mark.parametrize``, marked "large": what `make` makes of torch, then the other arguments."""
    return pytest.param(_OfTorch(make), *others, marks=pytest.mark.large, id=name)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Make the values."""
    for name, value in pyfuncitem.funcargs.items():
        if isinstance(value, _OfTorch):
            pyfuncitem.funcargs[name] = value.make(importlib.import_module("torch"))
    return (yield)
