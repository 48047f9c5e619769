"""JSON Lines beside the metrics: the media index, texts, histograms and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from wherry.errors import ConfigError, StoreError
from wherry.loggers.files.run_summary import number_of, parse_object, records_of, step_of
from wherry.runs.objects.contents import Contents
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place
from wherry.runs.records import Histogram, MediaItem, TableInfo, TextItem
from wherry.uri import check_name

#: Of longer files the end is shown: some 100,000 images.
_MOST_BYTES = 32 * 2**20
#: A longer text is cut.
_MOST_TEXT = 100_000
_KINDS = frozenset({"image", "mask", "audio", "video", "point_cloud"})
_MOST_BINS = 10_000


def check_path(path: str) -> str:
    """The path of a file inside a run. ConfigError for one that leaves it: names in a bucket may be hostile."""
    name = check_name(path, what="path in the run")
    if PurePosixPath(name).is_absolute() or "\\" in name:
        raise ConfigError(f"the path {path!r} is none inside a run: use one that media() or tables() give")
    return name


def is_inside(folder: Path, name: str) -> bool:
    """Whether the file is in the folder when all symbolic links were followed."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def is_path(path: object) -> bool:
    """Whether check_path() takes it."""
    try:
        return isinstance(path, str) and bool(check_path(path))
    except ConfigError:
        return False


def records_in(place: Place, contents: Contents, name: str) -> list[tuple[str, dict[str, object]]]:
    """The lines of a file in each part of a run, with the part's folder; of long ones the last lines."""
    found: list[tuple[str, dict[str, object]]] = []
    for part in contents.parts:
        assembly = contents.files.get(part.name(name))
        if assembly is None:
            continue
        file = LogicalFile(place, assembly)
        start = max(0, file.size_bytes - _MOST_BYTES)
        data = file.read(start, file.size_bytes)
        data = data[data.find(b"\n") + 1 :] if start else data
        found += ((part.folder, record) for record in records_of(data[: data.rfind(b"\n") + 1]))
    return found


def media_in(place: Place, contents: Contents) -> list[MediaItem]:
    """The media index, without lines that name no file inside the run."""
    items = []
    classes: dict[str, Mapping[str, str]] = {}
    for folder, record in records_in(place, contents, "media/index.jsonl"):
        path, kind, key = record.get("path"), record.get("kind"), record.get("key")
        step, t = step_of(record), number_of(record.get("t"))
        if not is_path(path) or kind not in _KINDS or not isinstance(key, str) or step is None:
            continue
        full = f"{folder}/{path}" if folder else str(path)
        shape = record.get("shape")
        image = record.get("image")
        if kind == "mask":
            holder = f"{folder}/media/masks/{_first_folder(str(path))}".lstrip("/")
            if holder not in classes:
                classes[holder] = _classes(place, contents, f"{holder}/classes.json")
        items.append(
            MediaItem(
                kind=str(kind),
                key=key,
                step=step,
                t=0.0 if t is None else t,
                path=full,
                size_bytes=_whole(record.get("size_bytes")),
                shape=tuple(_whole(one) for one in shape[:8]) if isinstance(shape, list) else (),
                image=(f"{folder}/{image}" if folder else str(image)) if is_path(image) else None,
                mask=str(record["mask"])[:1000] if "mask" in record else None,
                classes=classes[holder] if kind == "mask" else {},
                sample_rate_hz=number_of(record.get("sample_rate_hz")),
                frames_per_s=number_of(record.get("frames_per_s")),
            )
        )
    return items


def _first_folder(path: str) -> str:
    """``pictures`` of ``media/masks/pictures/tissue/7.png``: whatever lies between, the classes are of the images' name."""
    parts = path.split("/")
    return "/".join(parts[2:-2])


def _classes(place: Place, contents: Contents, name: str) -> Mapping[str, str]:
    if (meta := contents.plain(name)) is None:
        return {}
    try:
        found = parse_object(place.fetch_small(meta)) or {}
    except StoreError:  # the mask is shown without names
        return {}
    return {str(label): str(title)[:1000] for label, title in found.items()}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0


def texts_in(place: Place, contents: Contents) -> list[TextItem]:
    """The logged texts."""
    return [
        TextItem(str(record["key"]), step, number_of(record.get("t")) or 0.0, str(record["text"])[:_MOST_TEXT])
        for _, record in records_in(place, contents, "text.jsonl")
        if (step := step_of(record)) is not None and "key" in record and "text" in record
    ]


def histograms_in(place: Place, contents: Contents, key: str | None) -> list[Histogram]:
    """The logged histograms, without damaged ones."""
    found = []
    for _, record in records_in(place, contents, "histograms.jsonl"):
        step, name = step_of(record), record.get("key")
        edges, counts = _numbers(record.get("edges")), _numbers(record.get("counts"))
        if step is None or not isinstance(name, str) or key not in (None, name) or not counts or len(edges) != len(counts) + 1:
            continue
        found.append(Histogram(name, step, number_of(record.get("t")) or 0.0, edges, counts))
    return found


def _numbers(values: object) -> list[float]:
    if not isinstance(values, list) or len(values) > _MOST_BINS:
        return []
    found = [number_of(value) for value in values]
    return [] if None in found else [one for one in found if one is not None]


def tables_in(contents: Contents) -> list[TableInfo]:
    """The logged tables, by their lines; the Parquet files beside them say the same."""
    found = []
    for name, assembly in sorted(contents.files.items()):
        inside = name.partition("tables/")
        if inside[1] and name.endswith(".jsonl") and (not inside[0] or inside[0].endswith("/")):
            found.append(TableInfo(f"{inside[0]}{inside[2].removesuffix('.jsonl')}", name, assembly.size_bytes or 0))
    return found


def rows_of_table(data: bytes, first: int, n_rows: int) -> tuple[list[str], list[list[object]]]:
    """The columns of the first lines of a table, and some of its rows."""
    records = list(records_of(data))
    columns = list(dict.fromkeys(name for record in records for name in record))[:1000]
    return columns, [[record.get(name) for name in columns] for record in records[first : first + n_rows]]


def keys_and_steps(items: Iterable[MediaItem]) -> dict[str, list[int]]:
    """The steps of each name, sorted."""
    found: dict[str, set[int]] = {}
    for one in items:
        found.setdefault(one.key, set()).add(one.step)
    return {key: sorted(steps) for key, steps in found.items()}
