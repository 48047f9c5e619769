"""Imports go down the layers and never up; `import wherry` stays light. The table is DESIGN.md's, section "Layers"."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "wherry"

CONTRACT = frozenset({"clock", "errors", "store", "uri", "config", "jobs"})
#: The lower layers by the names of their modules (src/wherry/NAME.py); what is not named here is surface.
LAYERS: dict[str, int] = {
    **dict.fromkeys(CONTRACT, 0),
    "agent": 1,
    "checksum": 1,
    "cleaning": 1,
    "client": 1,
    "database": 1,
    "doorbell": 1,
    "endpoints": 1,
    "environment": 1,
    "file_copy": 1,
    "forks": 1,
    "journal": 1,
    "journal_decisions": 1,
    "journal_questions": 1,
    "journal_schema": 1,
    "journal_time": 1,
    "journal_waits": 1,
    "lanes": 1,
    "leftovers": 1,
    "names": 1,
    "outlook": 1,
    "partial": 1,
    "parts": 1,
    "recovery": 1,
    "redactor": 1,
    "registry": 1,
    "reserve": 1,
    "retry": 1,
    "snapshots": 1,
    "spool": 1,
    "spool_folder": 1,
    "stores": 1,
    "symlinks": 1,
    "transfer": 1,
    "trials": 1,
    "worker": 1,
    "wrappers": 1,
    "checkpoints": 2,
    "downloader": 2,
    "drain": 2,
    "handle": 2,
    "progress": 2,
    "mirror": 2,
    "reader": 2,
    "uploader": 2,
    "view": 2,
    "writer": 2,
}
SURFACE_MODULES = (
    "__init__",
    "__main__",
    "cli",
    "demo",
    "doctor",
    "exits",
    "filesystem",
    "integrations",
    "loggers",
    "testing",
    "torch",
)
SURFACE = 3
LAYER_NAMES = ("contract", "mechanism", "service", "surface")
#: The last two are of no backend, and know the standard library only.
BACKENDS_MAY_IMPORT = frozenset({"errors", "store", "uri", "backends.at_once", "backends.pages"})
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
            # "from wherry import x" imports wherry.x if that is a module
            yield from ((node.lineno, f"{module}.{alias.name}" if module == "wherry" else module) for alias in node.names)


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "backends" not in path.relative_to(SOURCE).parts)


def top_name(module: str) -> str:
    """``journal`` for ``wherry.journal``; empty for wherry itself and for names like __version__."""
    name = module.removeprefix("wherry").lstrip(".").partition(".")[0]
    known = (SOURCE / f"{name}.py").exists() or (SOURCE / name).is_dir()
    return name if name and known else ""


def layer_of(name: str) -> int:
    return LAYERS.get(name, SURFACE)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_the_layers(path: Path) -> None:
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    if own == "__init__":
        return  # the package's front door names what it offers; that it stays light is tested below
    package = ".".join(("wherry", *path.relative_to(SOURCE).parent.parts))
    wrong = []
    for line, module in imports_of(path, package):
        if module.partition(".")[0] != "wherry":
            if own in CONTRACT and module.partition(".")[0] not in sys.stdlib_module_names | {"__future__"}:
                wrong.append(
                    f"{path.relative_to(ROOT)}:{line}: the contract imports {module}; it may use the standard library only"
                )
            continue
        name = top_name(module)
        if name == "backends":
            wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}; backends are found through the registry only")
        elif name and layer_of(name) > layer_of(own):
            wrong.append(
                f"{path.relative_to(ROOT)}:{line}: {own} ({LAYER_NAMES[layer_of(own)]}) imports "
                f"{module} ({LAYER_NAMES[layer_of(name)]}), which is above it"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted((ROOT / "backends").glob("*.py")), ids=lambda path: path.name)
def test_backends_import_the_contract_only(path: Path) -> None:
    """And the files of the same backend: s3_errors.py is one of s3.py's."""
    family = f"backends.{path.stem.partition('_')[0]}"
    wrong = [
        f"backends/{path.name}:{line}: imports {module}; it may import errors, store, uri, its own files and its library"
        for line, module in imports_of(path, "wherry.backends")
        if module.partition(".")[0] == "wherry"
        and (name := module.removeprefix("wherry.")) not in BACKENDS_MAY_IMPORT
        and not (name == family or name.startswith(f"{family}_"))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_has_a_layer() -> None:
    """A new module is put into one of the two tables above: nothing is surface by oversight."""
    found = {path.relative_to(SOURCE).with_suffix("").parts[0] for path in modules()}
    assert [] == sorted(name for name in found - set(LAYERS) if not name.startswith(SURFACE_MODULES))


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
        "import wherry.worker\nfrom wherry import spool\nfrom wherry.backends.s3 import S3Store\n"
        "def f():\n    from . import journal\n    from .cli import main\n"
    )
    found = [module for _, module in imports_of(program, "wherry")]
    assert sorted(found) == ["wherry.backends.s3", "wherry.cli", "wherry.journal", "wherry.spool", "wherry.worker"]
