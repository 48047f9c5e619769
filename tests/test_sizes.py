"""Nothing grows too large to be read in one go: folders, files, classes. Ruff holds the size of functions (pyproject.toml)."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Top folder -> the most files in a folder, the most lines in a file.
LIMITS = {"src": (20, 450), "backends": (20, 450), "tests": (40, 600)}
MOST_METHODS, MOST_FIELDS = 25, 20
#: They have one method for each event of a training loop, and for each verb of fsspec.
EXEMPT = {"Callback", "WherryFileSystem"}
#: What Composer and the contract of stores name does not count in a destination or a store.
INTERFACES = {"Callback", "LoggerDestination", "ObjectStore", "MultipartStore"}
#: `store/options.py` has the type of the table that the `options.py` of each backend fills.
TWICE = {"options.py"}
FILES = [path for top in LIMITS for path in (ROOT / top).rglob("*.py") if ROOT / "src/wherry/backends" not in path.parents]
PACKAGE = [path for path in FILES if ROOT / "tests" not in path.parents]


def fields(node: ast.ClassDef) -> set[str]:
    """What an instance holds: annotated in the class, or assigned to self in a method."""
    own = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return own | {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}


def methods(node: ast.ClassDef) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def too_large() -> Iterator[str]:
    for folder, n_files in Counter(path.parent for path in FILES).items():
        if n_files > LIMITS[folder.relative_to(ROOT).parts[0]][0]:
            yield f"{folder.relative_to(ROOT)} has {n_files} files"
    for path in FILES:
        name = path.relative_to(ROOT)
        if (n_lines := len(path.read_text().splitlines())) > LIMITS[name.parts[0]][1]:
            yield f"{name} has {n_lines} lines"
    trees = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in PACKAGE}
    classes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fixed = {method for _, node in classes if node.name in INTERFACES for method in methods(node)}
    for name, node in classes:
        n_methods, n_fields = len(methods(node) - fixed), len(fields(node))
        if node.name not in EXEMPT and (n_methods > MOST_METHODS or n_fields > MOST_FIELDS):
            yield f"{name}: {node.name} has {n_methods} methods and {n_fields} fields"


def test_folders_files_and_classes_stay_small() -> None:
    assert [] == sorted(too_large())


def test_a_module_name_is_of_one_part_only() -> None:
    """The same name in sibling folders is right: each backend has its `store.py`."""
    named = sorted(
        (path for path in PACKAGE if not path.name.startswith("__") and path.name not in TWICE), key=lambda path: path.name
    )
    groups = [list(group) for _, group in groupby(named, key=lambda path: path.name)]
    apart = [group for group in groups if len({path.parent.parent for path in group}) > 1]
    assert [] == [[str(path.relative_to(ROOT)) for path in group] for group in apart]
