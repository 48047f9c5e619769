"""`make quick` finds the tests that matter for a change."""

from __future__ import annotations

from pathlib import Path

import quick

TREE = {
    "src/wherry/__init__.py": "from .uploader import Uploader",
    "src/wherry/retry.py": "",
    "src/wherry/uploader.py": "from .spool import journal",
    "src/wherry/spool/__init__.py": "",
    "src/wherry/spool/journal.py": "from ..retry import again",
    "backends/s3.py": "def f():\n    from wherry.retry import again",
    "tests/gate.py": "import wherry.uploader",
    "tests/unit/test_retry.py": "import unknown",
    "tests/unit/test_spool.py": "from wherry.spool.journal import Journal",
    "tests/unit/test_s3.py": "from wherry.backends import s3",
    "tests/unit/test_uploader.py": "from wherry import Uploader",
    "tests/unit/test_gate.py": "from gate import Gate",
    "tests/test_docs.py": "PAGES = ['guide.md']",
}


def nearest(root: Path, *changed: str) -> list[str]:
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = quick.Graph(root, [root / name for name in TREE]).nearest([root / name for name in changed])
    return [path.name for path in found]


def test_tests_of_the_module_come_first_then_those_that_are_one_import_away(tmp_path: Path) -> None:
    assert ["test_retry.py", "test_s3.py", "test_spool.py"] == nearest(tmp_path, "src/wherry/retry.py")


def test_a_public_name_leads_to_the_module_that_defines_it(tmp_path: Path) -> None:
    assert ["test_uploader.py", "test_gate.py"] == nearest(tmp_path, "src/wherry/uploader.py")


def test_a_changed_test_and_its_helpers_count(tmp_path: Path) -> None:
    assert ["test_spool.py", "test_gate.py"] == nearest(tmp_path, "tests/gate.py", "tests/unit/test_spool.py")


def test_a_changed_page_leads_to_the_tests_that_name_it(tmp_path: Path) -> None:
    assert ["test_docs.py"] == nearest(tmp_path, "docs/guide.md")
