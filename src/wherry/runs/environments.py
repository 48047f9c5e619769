"""What a run was made of, as each of its processes has written it when it began."""

from __future__ import annotations

from collections.abc import Mapping

from wherry.errors import StoreError
from wherry.loggers.files.run_summary import number_of, parse_object
from wherry.runs.objects.contents import Contents
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place
from wherry.runs.records import RunEnvironment

#: A job that is started again and again has one for each start: the last ones are read.
_MOST_FILES = 64
#: RunFolderConfig.max_diff_bytes cuts the longest part by default at a fraction of this.
_MOST_BYTES = 16 * 2**20


def environments_in(place: Place, contents: Contents) -> list[RunEnvironment]:
    """Those of all starts of a run, in the order of their times. What cannot be read is left out."""
    found = []
    for path in contents.environments[-_MOST_FILES:]:
        file = LogicalFile(place, contents.files[path])
        try:
            document = parse_object(file.read(0, min(file.size_bytes, _MOST_BYTES)))
        except StoreError:  # the moment that is shown says which environment it is of, or none
            continue
        if document is not None:
            found.append(_environment(path, document))
    return sorted(found, key=lambda one: one.t or 0.0)


def _environment(path: str, document: Mapping[str, object]) -> RunEnvironment:
    git, host = _mapping(document.get("git")), _mapping(document.get("host"))
    return RunEnvironment(
        path=path,
        t=number_of(document.get("t")),
        command=_text(document.get("command")),
        host=_text(host.get("name")),
        commit=_text(git.get("commit")),
        branch=_text(git.get("branch")),
        is_dirty=git.get("is_dirty") is True,
        diff=_text(git.get("diff")),
        diff_is_cut=git.get("diff_is_cut") is True,
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
