"""docs/destinations.md has every destination and what it can be told.

``python tests/test_destinations_doc.py`` rewrites its tables.

The reason for a default is the ``#:`` comment above the field, in the class; REASONS has those of fields that have none.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wherry import loggers
from wherry.loggers import LoggerDestination, typed

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "destinations.md"
#: What a picture may weigh: the repository keeps all versions.
_MOST_BYTES = 200 * 1024

REASONS = {
    "ConsoleConfig.show_hyperparameters": "Whether they are printed, once, in a table.",
    "ConsoleConfig.show_tables": "Whether they are printed, up to `max_table_rows`.",
    "ConsoleConfig.show_texts": "Whether they are printed, up to `max_value_chars`.",
    "FileConfig.capture_stderr": "As `capture_stdout`, for stderr.",
    "FileConfig.every_n_epochs": "How often levels of `Logger.metric` from EPOCH on are written.",
    "FileConfig.every_n_batches": "How often levels of `Logger.metric` from BATCH on are written.",
    "MLflowConfig.tags": "The run's tags, for MLflow's searches.",
    "ProgressBarConfig.eval_batches": "As `batches_per_epoch`, for an evaluation.",
    "ProgressBarConfig.predict_batches": "As `batches_per_epoch`, for a prediction.",
    "WandbConfig.artifact_type": "The type of the artifacts that upload_file() makes.",
    "BaseLoggerConfig.name": "Which sink it is, for the reader.",
    "BaseLoggerConfig.write_every_n_seconds": "Each second, and each ten when the run is long or large.",
    "BaseLoggerConfig.write_train_every_n_seconds": "In the phase train; before `write_every_n_seconds`.",
    "BaseLoggerConfig.write_val_every_n_seconds": "In the other phases; before `write_every_n_seconds`.",
}


def destinations() -> dict[str, type[LoggerDestination]]:
    """Those that wherry.loggers exports, and can be made."""
    found = {name: getattr(loggers, name) for name in dir(loggers)}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, LoggerDestination) and one is not LoggerDestination
    }


def config_of(kind: type[Any]) -> type[Any] | None:
    """The class of its argument ``config``."""
    parameter = inspect.signature(kind).parameters.get("config")
    if parameter is None:
        return None
    found = getattr(importlib.import_module(kind.__module__), str(parameter.annotation).removesuffix(" | None"))
    assert dataclasses.is_dataclass(found) and isinstance(found, type)
    return found


def configs() -> dict[str, type[Any]]:
    """Those of all destinations and of sinks, by name; the Uploader's has a page of its own."""
    kinds: list[type[Any]] = [*destinations().values(), typed.DestinationSink]
    found = [config_of(kind) for kind in kinds]
    return {one.__name__: one for one in found if one is not None and one.__module__ != "wherry.config"}


def fields_of(config: type[Any]) -> Iterator[tuple[str, str, str]]:
    """(name, default as it is written, the comment above it) of all fields, those of base classes first."""
    for kind in reversed(config.__mro__):
        if not dataclasses.is_dataclass(kind):
            continue
        source = textwrap.dedent(inspect.getsource(kind))
        (tree,) = ast.parse(source).body
        lines = source.splitlines()
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                above = node.lineno - 1
                while lines[above - 1].strip().startswith("#:"):
                    above -= 1
                reason = " ".join(line.strip().removeprefix("#:").strip() for line in lines[above : node.lineno - 1])
                owned = REASONS.get(f"{kind.__name__}.{node.target.id}", "")
                assert bool(reason) != bool(owned), (
                    f"{kind.__name__}.{node.target.id}: a comment in the class, or else in REASONS"
                )
                yield node.target.id, default_of(node.value), reason or owned


def default_of(value: ast.expr) -> str:
    """The default as it is written in the class, also inside a field()."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in given:
            return ast.unparse(given["default"])
        factory = given["default_factory"]
        return ast.unparse(factory.body) if isinstance(factory, ast.Lambda) else f"{ast.unparse(factory)}()"
    return ast.unparse(value).replace(" ** ", "**")


def table(config: type[Any]) -> str:
    """A Markdown table of the fields."""
    rows = ["| `{}` | `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in row)) for row in fields_of(config)]
    return "\n".join(["| field | default | why |", "| --- | --- | --- |", *rows])


def rewritten(page: str) -> str:
    """The page with each table between its two marks as the classes say."""
    for name, config in configs().items():
        marks = rf"(<!-- {name}: python tests/test_destinations_doc.py -->\n).*?(<!-- end -->)"
        page, n = re.subn(marks, lambda match, config=config: f"{match[1]}\n{table(config)}\n\n{match[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
        assert n == 1, f"{PAGE.name} has {n} places for the table of {name}"
    return page


def section(name: str) -> str:
    """What the page says of a class: its heading names it."""
    found = [part for part in PAGE.read_text().split("\n## ") if f"`{name}`" in part.partition("\n")[0]]
    assert 1 == len(found), f"{PAGE.name} has {len(found)} sections of {name}"
    return found[0]


def test_the_tables_are_those_of_the_classes() -> None:
    page = PAGE.read_text()
    assert rewritten(page) == page, "python tests/test_destinations_doc.py rewrites them"


@pytest.mark.parametrize("name", configs())
def test_every_field_has_a_row_and_every_reason_a_field(name: str) -> None:
    config = configs()[name]
    assert [field.name for field in dataclasses.fields(config)] == [field for field, _, _ in fields_of(config)]
    owners = {kind.__name__ for one in configs().values() for kind in one.__mro__}
    assert [] == [reason for reason in REASONS if reason.partition(".")[0] not in owners]


@pytest.mark.parametrize("name", destinations())
def test_every_destination_has_a_section_with_the_line_that_attaches_it(name: str) -> None:
    (line,) = re.findall(rf"^(?:\w+ = )?({name}\(.*\))(?:  #.*)?$", section(name), re.MULTILINE)
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = {str(keyword.arg): None for keyword in call.keywords}
    inspect.signature(destinations()[name]).bind(*call.args, **arguments)  # it takes such arguments


@pytest.mark.parametrize("name", destinations())
def test_every_destination_shows_what_it_makes(name: str) -> None:
    assert re.search(r"!\[[^\]]+\]\(images/|<!-- of the example: |\]\(#", section(name)), (
        "a picture, an excerpt, or a link to one"
    )


def test_pictures_are_there_and_small_and_used() -> None:
    pages = "".join(path.read_text() for path in DOCS.glob("*.md"))
    used = set(re.findall(r"""(?:\]\(|src(?:set)?=")images/([^)"]+)[)"]""", pages))
    there = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert used == set(there)
    assert {} == {name: size for name, size in there.items() if size > _MOST_BYTES}


def test_no_path_of_the_machine_that_made_them_is_in_the_excerpts() -> None:
    assert [] == re.findall(r"/(?:work|root|home|tmp/tmp)\w*/[^\s`\"]*", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
