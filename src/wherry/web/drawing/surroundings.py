"""surroundings_of(): what a run was made of, as lines of a table. All of it may be hostile, and is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wherry.errors import WherryError
from wherry.loggers.files.run_summary import parse_object
from wherry.runs import Run, RunEnvironment
from wherry.web import words

_MOST_BYTES = 16 * 2**20
_MOST_PACKAGES = 2000
_MOST_VARIABLES = 50


@dataclass(frozen=True)
class Surroundings:
    """Names and texts, the packages as one text, and the changes of the code."""

    rows: Sequence[tuple[str, str]]
    n_packages: int
    packages: str
    diff: str
    diff_is_cut: bool


def surroundings_of(run: Run) -> Surroundings | None:
    """Those of the last start of a run; None if it has not said them, or they cannot be read."""
    try:
        found = next(reversed(run.environments()), None)
        document = None if found is None else parse_object(run.read_file(found.path, 0, _MOST_BYTES))
    except (WherryError, OSError):
        return None
    if found is None or document is None:
        return None
    packages = _mapping(document.get("packages"))
    listed = ", ".join(f"{name} {version}" for name, version in list(packages.items())[:_MOST_PACKAGES])
    return Surroundings(list(_rows(found, document)), len(packages), listed, found.diff, found.diff_is_cut)


def _rows(found: RunEnvironment, document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    host = _mapping(document.get("host"))
    changes = " with changes" if found.is_dirty else ""
    yield from _said("started", words.moment(found.t) if found.t is not None else "")
    yield from _said("command", found.command)
    yield from _said("git", f"{found.commit} {found.branch}{changes}" if found.commit else "")
    yield from _said("Python", document.get("python"))
    memory, gpus = host.get("memory_bytes"), host.get("gpus")
    yield from _said("machine", host.get("name"))
    yield from _said("processors", host.get("n_cpus"))
    yield from _said("memory", words.size(memory) if isinstance(memory, (int, float)) else "")
    yield from _said("GPUs", ", ".join(map(str, gpus[:64])) if isinstance(gpus, list) else "")
    yield from _said("platform", host.get("platform"))
    for name, value in list(_mapping(document.get("scheduler")).items())[:_MOST_VARIABLES]:
        yield from _said(name, value)


def _said(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, (str, int, float)) and value != "":
        yield name, str(value)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
