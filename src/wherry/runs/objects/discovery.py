"""Which runs are below a prefix: from the names of its objects alone, in one listing.

A run is a folder that holds what a logger or a mirror writes: metrics, hyperparameters, a summary, logs of ranks, checkpoint
sets, or segments of such files. A mirror of a folder of runs is several runs. Attempts, ranks and forked children of a run have
folders inside its own, and belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from wherry.loggers.files.run_summary import SUMMARY
from wherry.mirror.format.layout import FOLDER, key_for
from wherry.store import ObjectMeta, ObjectStore

#: Names that make their folder a run, or a part of one.
MARKS = frozenset({"metrics.jsonl", "metrics.parquet", "hparams.json", SUMMARY, ".wherry-run.json"})
_LOG_OF_RANK = re.compile(r".*rank[0-9]+(\.[0-9]+)?\.(txt|log)")
#: Folders inside a run that are parts of it.
_PART = re.compile(r"attempt-[0-9A-Za-z]+|rank[0-9]+")
_SET_FOLDERS = frozenset({"manifests", "data", "attempts"})
#: Folders in a run that are no runs themselves.
_OWN_FOLDERS = frozenset({"checkpoints", "media", "tables", "children", FOLDER})
#: What lies in these folders of a run is found by other means than a listing; after so many names the rest is passed over.
_LARGE_FOLDERS = re.compile(r"(?:^|.*/)(?:media|checkpoints/data)/")
_MOST_IN_LARGE = 500
_SEGMENT = re.compile(r"[^/]+/segments/(.+)/[^/]+", re.DOTALL)


@dataclass
class Found:
    """A run: the folder `path` below `root`, both relative to the listed prefix, and the objects that were listed of `root`.

    `root` is that of its mirror, or the run's own. `path` is empty if they are the same.
    """

    root: str
    path: str
    objects: list[ObjectMeta] = field(repr=False)
    is_cut: bool = False

    @property
    def folder(self) -> str:
        """The run's folder below the listed prefix; empty if that is the run."""
        return key_for(self.root, self.path) if self.path else self.root


class Walk:
    """Lists a prefix. Large folders of media and checkpoints are passed over after their first names: `cut` names them."""

    def __init__(self, store: ObjectStore, base: str) -> None:
        self._store = store
        self._base = base
        self.cut: set[str] = set()

    def __iter__(self) -> Iterator[ObjectMeta]:
        start_after: str | None = ""
        while start_after is not None:
            begun_at, start_after = start_after, None
            folder, n_in_folder = "", 0
            for meta in self._store.list(self._base, start_after=begun_at):
                name = meta.key[len(self._base) :]
                yield meta
                large = _LARGE_FOLDERS.match(name)
                inside = large[0] if large else ""
                n_in_folder = n_in_folder + 1 if inside and inside == folder else 1
                folder = inside
                if folder and n_in_folder >= _MOST_IN_LARGE:
                    self.cut.add(folder)
                    start_after = f"{self._base}{folder[:-1]}0"  # "0" sorts just behind "/"
                    break


def runs_of(store: ObjectStore, prefix: str, *, as_told: bool = False) -> Iterator[Found]:
    """The runs below a prefix, each as soon as a listing has gone past the first part of its name.

    `as_told`: in the store's own order, whose first page has the first runs also where list() reads all pages first. A run that
    such a store tells of in two places comes twice; the last time it is whole.
    """
    base = key_for(prefix, "") if prefix else ""
    is_mirror = next(iter(store.list(key_for(prefix, f"{FOLDER}/"))), None) is not None
    told: dict[str, int] = {}
    if as_told and not is_mirror:
        for part, objects in _parts_as_told(store, base):
            told[part] = len(objects)
            yield from _split(base, objects, set())
            if not part:  # the last
                return
    walk = Walk(store, base)
    group: list[ObjectMeta] = []
    own: list[ObjectMeta] = []
    first = ""
    for meta in walk:
        part = "" if is_mirror else _first_part(meta.key[len(base) :])
        if not part:
            own.append(meta)  # of the prefix itself, if that is a run: known at the end
            continue
        if part != first:
            if told.get(first) != len(group):
                yield from _split(base, group, walk.cut)
            group, first = [], part
        group.append(meta)
    if told.get(first) != len(group):
        yield from _split(base, group, walk.cut)
    yield from _split(base, own, walk.cut)


def _first_part(name: str) -> str:
    """The folder that a name lies in, whose runs are whole without any other; empty if there is none such."""
    part, is_folder, _ = name.partition("/")
    return "" if not is_folder or part in _OWN_FOLDERS or _PART.fullmatch(part) else part


def _parts_as_told(store: ObjectStore, base: str) -> Iterator[tuple[str, list[ObjectMeta]]]:
    """The objects of each first part, as they come; those of none at the end, under an empty name.

    It breaks off, without that end, at a part that comes again, and at a large folder, which only an ordered listing can pass
    over.
    """
    group: list[ObjectMeta] = []
    own: list[ObjectMeta] = []
    done, first, n_large = {""}, "", 0
    for meta in chain.from_iterable(page.objects for page in store.pages(base)):
        name = meta.key[len(base) :]
        part = _first_part(name)
        n_large += _LARGE_FOLDERS.match(name) is not None
        if n_large >= _MOST_IN_LARGE or (part and part != first and part in done):
            return
        if not part:
            own.append(meta)
            continue
        if part != first:
            if first:
                yield first, group
            group, first, n_large = [], part, 0
            done.add(part)
        group.append(meta)
    if first:
        yield first, group
    yield "", own


def _split(base: str, objects: list[ObjectMeta], cut: set[str]) -> Iterator[Found]:
    """The runs among objects, of which all runs are whole."""
    names = [meta.key[len(base) :] for meta in objects]
    mirrors = {name.partition(f"{FOLDER}/")[0].rstrip("/") for name in names if _is_mirrors(name)}
    folders = {found for name in names if (found := folder_of(name)) is not None}
    root_of = {folder: next((one for one in _above(folder) if one in mirrors), folder) for folder in folders}
    root_of |= {one: one for one in mirrors.difference(root_of.values())}  # with nothing in it that makes a run
    of_root: dict[str, list[ObjectMeta]] = {root: [] for root in root_of.values()}
    for meta, name in zip(objects, names, strict=True):
        if (root := next((one for one in _above(name) if one in of_root), None)) is not None:
            of_root[root].append(meta)
    for folder in sorted(root_of):
        root = root_of[folder]
        path = folder[len(root) :].lstrip("/")
        is_cut = any(folder in _above(one) for one in cut)
        yield Found(root, path, of_root[root], is_cut)


def _above(name: str) -> Iterator[str]:
    """A name, the folder that it is in, the one above that, and so on; the last one is empty."""
    while name:
        yield name
        name = name.rpartition("/")[0]
    yield ""


def _is_mirrors(name: str) -> bool:
    return name.startswith(f"{FOLDER}/") or f"/{FOLDER}/" in name


def folder_of(name: str) -> str | None:
    """The run that an object of this name is of; None if the name does not tell."""
    if _is_mirrors(name):
        root, _, inside = name.partition(f"{FOLDER}/")
        segment = _SEGMENT.fullmatch(inside)
        found = None if segment is None else folder_of(segment[1])
        return None if found is None else f"{root}{found}".rstrip("/")
    parts = name.split("/")
    for at, part in enumerate(parts[:-1]):
        if part == "checkpoints" and parts[at + 1] in _SET_FOLDERS:
            return "/".join(parts[:at])
        if part in ("media", "tables"):  # a table may be called "metrics"
            return None
    if parts[-1] not in MARKS and not _LOG_OF_RANK.fullmatch(parts[-1]):
        return None
    return "/".join(without_parts(parts[:-1]))


def without_parts(folders: list[str]) -> list[str]:
    """The folders of a run, without those of its attempts, ranks and children at the end."""
    while folders:
        if len(folders) > 1 and folders[-2] == "children":
            folders = folders[:-2]
        elif _PART.fullmatch(folders[-1]):
            folders = folders[:-1]
        else:
            break
    return folders
