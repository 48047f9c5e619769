"""Imports go down the table of rooms and never up; `import wherry` stays light. docs/design.md shows the same table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "wherry"

#: The rooms (folders below src/wherry, and modules beside them), from the top down. A module imports from its own room and
#: from lower ones. `wherry.backends` is reached through the registry only; it imports what is below it in this table.
ROOMS = (
    "cli",
    "web",
    "demo",
    "integrations",
    "runs",
    "runs/columns",
    "runs/objects",
    "runs/records",
    "loggers/destinations",
    "loggers/typed",
    "loggers/callbacks",
    "loggers",
    "loggers/legacy",
    "loggers/files",
    "loggers/event_files",
    "loggers/values",
    "loggers/run",
    "loggers/capture",
    "torch",
    "filesystem",
    "mirror/reader",
    "mirror/writer",
    "mirror",
    "mirror/format",
    "checkpoints",
    "uploader",
    "downloads",
    "agent",
    "checkpoints/protocol",
    "transfer",
    "spool",
    "spool/journal",
    "testing",
    "store",
    "backends",
    "posix",
    "progress",
    "config",
    "uri",
    "checksum",
    "clock",
    "quantities",
    "errors",
    "redact",
)
#: These use the standard library only, and one another.
CONTRACT = ("store/contract", "store/memory_file", "clock", "config", "errors", "redact", "uri", "spool/journal/jobs")
#: What a backend may import of wherry besides the files of its own folder.
BACKENDS_MAY_IMPORT = frozenset(
    {
        "errors",
        "redact",
        "store",
        "store.options",
        "uri",
        "checksum",
        "backends.http.advice",
        "backends.http.body",
        "backends.http.client",
        "backends.http.wire_errors",
        "backends.http.routes",
        "backends.http.volley",
        "backends.local_file",
        "backends.pages",
        "backends.tally",
        "posix.thread_pool",
    }
)
HEAVY = (
    "boto3",
    "botocore",
    "google.cloud",
    "google.auth",
    "torch",
    "numpy",
    "paramiko",
    "wandb",
    "mlflow",
    "tenacity",
    "asyncio",
    "wherry.backends",
)


def imports_of(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Line and full module name of each import, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module.partition(".")[0] == "wherry":  # "from wherry.spool import folder" imports wherry.spool.folder
                yield from (
                    (node.lineno, f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module)
                    for alias in node.names
                )
            else:
                yield node.lineno, module


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "backends" not in path.relative_to(SOURCE).parts)


def room_of(module: str) -> str:
    """``spool/journal`` for ``wherry.spool.journal.jobs``; empty for wherry itself."""
    parts = module.split(".")[1:]
    while parts and "/".join(parts) not in ROOMS:
        parts.pop()
    return "/".join(parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("wherry", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def test_imports_go_down_the_rooms() -> None:
    wrong = []
    for path in sources():
        own = room_of(module_of(path))
        if path.name == "__init__.py":
            continue  # a room's front door names what the room offers; that importing it stays light is tested below
        for line, module in imports_of(path, module_of(path).rpartition(".")[0]):
            if module.partition(".")[0] != "wherry":
                continue
            room = room_of(module)
            if room == "backends":
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}; backends are found through the registry only")
            elif room and ROOMS.index(room) < ROOMS.index(own):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} imports {module}, which is above it")
    assert not wrong, "\n".join(wrong)


def test_no_circle_between_modules() -> None:
    """Each file's imports, those under TYPE_CHECKING and inside functions too. A room's front door counts as a module."""
    graph = {}
    for path in sources():
        module = module_of(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = {imported for _, imported in imports_of(path, package) if is_module(imported)} - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_the_contract_needs_the_standard_library_only() -> None:
    allowed = {f"wherry.{name.replace('/', '.')}" for name in CONTRACT}
    wrong = [
        f"{name}.py:{line}: imports {module}"
        for name in CONTRACT
        for line, module in imports_of(SOURCE / f"{name}.py", "wherry")
        if module not in allowed and module.partition(".")[0] not in sys.stdlib_module_names | {"__future__"}
    ]
    assert not wrong, "\n".join(wrong)


def test_backends_import_the_contract_only() -> None:
    """And the files of their own folder."""
    wrong = []
    for path in sorted((ROOT / "backends").rglob("*.py")):
        own = path.relative_to(ROOT).with_suffix("").parts
        for line, module in imports_of(path, ".".join(("wherry", *own[:-1]))):
            name = module.removeprefix("wherry.")
            is_own = len(own) > 2 and name.startswith(f"backends.{own[1]}")
            if module.partition(".")[0] == "wherry" and name not in BACKENDS_MAY_IMPORT and not is_own:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}; allowed: {sorted(BACKENDS_MAY_IMPORT)}")
    assert not wrong, "\n".join(wrong)


def test_every_module_is_in_a_room_and_every_room_has_modules() -> None:
    rooms = {room_of(module_of(path)) for path in sources() if path.name != "__init__.py"}
    assert "" not in rooms
    assert set(ROOMS) - {"backends"} == rooms


def test_design_shows_the_same_rooms() -> None:
    page = (ROOT / "docs/design.md").read_text()
    section = page.partition("## Rooms")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `([a-z_/]+)` \|", section, re.MULTILINE)
    assert list(ROOMS) == shown


@pytest.mark.parametrize("use", ["import wherry", "from wherry import Uploader", "import wherry.loggers"])
def test_importing_wherry_is_light(use: str) -> None:
    """No vendor library, no torch, no backend, and neither tenacity nor the asyncio that it brings."""
    program = f"{use}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_layer_test_can_fail(tmp_path: Path) -> None:
    """Each form of import is seen, wherever it stands."""
    program = tmp_path / "module.py"
    program.write_text(
        "import wherry.agent.worker\nfrom wherry import spool\nfrom wherry.backends.s3.store import S3Store\n"
        "def f():\n    from . import uploader\n    from .cli import app\n"
    )
    found = [module for _, module in imports_of(program, "wherry")]
    expected = ["wherry.agent.worker", "wherry.backends.s3.store", "wherry.cli.app", "wherry.spool", "wherry.uploader"]
    assert expected == sorted(found)
