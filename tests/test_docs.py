"""The documentation names what there is: every configuration field with its default, every invariant with its test."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from wherry.config import AgentConfig, Config, RetryConfig, SpoolConfig, TransferConfig

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("kind", [Config, RetryConfig, TransferConfig, SpoolConfig, AgentConfig])
def test_every_configuration_field_is_documented_with_its_default(kind: type) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    section = page.partition(f"## `{kind.__name__}`\n")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", section, re.MULTILINE))
    expected = {field.name: repr(getattr(kind(), field.name)) for field in fields(kind)}
    if kind is Config:
        expected |= {name: f"{type(getattr(Config(), name)).__name__}()" for name in ("retry", "transfer", "spool", "agent")}
    assert expected == {name: default.replace('"', "'") for name, default in documented.items()}


def test_every_invariant_names_tests_that_exist() -> None:
    page = (ROOT / "docs/design.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", page.partition("## The invariants and their tests")[2], re.MULTILINE)
    assert [str(n) for n in range(1, 11)] == [number for number, _ in rows]
    tests = {
        name: path for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    laws = (ROOT / "src/wherry/testing/conformance").glob("*.py")
    suite = {name for path in laws for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = [name for _, names in rows for name in re.findall(r"`(test_\w+)`", names)]
    assert len(named) >= 10
    assert [] == [name for name in named if name not in tests and name not in suite]


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))), ids=str
)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    """Named from the root of the repository, or from src/wherry. Earlier versions of the changelog name what there was."""
    text = (ROOT / page).read_text()
    named = set() if page.name == "CHANGELOG.md" else set(re.findall(r"`((?:\w+/)+\w*(?:\.py|\.toml|\.md|/))`", text))
    assert [] == sorted(name for name in named if not any((folder / name).exists() for folder in (ROOT, ROOT / "src/wherry")))
