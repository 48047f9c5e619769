"""Which checkpoints a listing shows, and what the names and sizes alone say about their completeness."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wherry.errors import ConfigError
from wherry.store import ObjectMeta
from wherry.uri import check_name

#: What wherry's own runs keep below ``RUN/checkpoints/``.
_OURS = re.compile(r"(^|/)(data|manifests|attempts|pins|readers)/\d{9}([_.]|$)")
_TRANSFORMERS = re.compile(r"^(?P<name>(.*/)?checkpoint-(?P<step>\d+))/(?P<rest>.+)$")
_COMPOSER = re.compile(r"^(?P<name>(.*/)?ep(?P<epoch>\d+)-ba(?P<step>\d+))-rank(?P<rank>\d+)(?P<suffix>\.[^/]+)?$")
_LIGHTNING = re.compile(r"^(.*/)?[^/]*\.ckpt$")
_STEP = re.compile(r"(?:step[=_-]?|-ba|global_step|iter_)0*(\d+)", re.IGNORECASE)
_DCP_FILE = re.compile(r"^__\d+_\d+\.distcp$")
METADATA = ".metadata"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
_STATE = "trainer_state.json"


@dataclass(frozen=True)
class ForeignObject:
    """An object of a checkpoint. `name` is its file's below the folder that it is restored to."""

    name: str
    key: str
    size_bytes: int


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint that wherry did not write.

    `layout`: "dcp", "composer", "lightning" or "transformers". `name` is below the URI that was looked at. `state`: "complete",
    where the layout names its files and all are there; "incomplete", where one is missing; "unproven", where nothing is known to
    be missing, and the layout has no proof. `proof` says which. `pointers`: symlink objects that lead to it.
    """

    layout: str
    name: str
    step: int | None
    objects: tuple[ForeignObject, ...]
    state: str
    proof: str
    modified_s: float | None
    pointers: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What a restore fetches."""
        return sum(max(0, one.size_bytes) for one in self.objects)

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "layout": self.layout,
            "name": self.name,
            "step": self.step,
            "n_objects": len(self.objects),
            "size_bytes": self.size_bytes,
            "state": self.state,
            "proof": self.proof,
            "modified_s": self.modified_s,
            "pointers": list(self.pointers),
        }


def checkpoints_in(listed: Mapping[str, ObjectMeta]) -> list[ForeignCheckpoint]:
    """The checkpoints among the objects of a listing, by their names below the URI; what needs the content is not judged yet."""
    names = {name: meta for name, meta in listed.items() if not _OURS.search(name) and _is_plain(name)}
    found = [*_dcp(names)]
    taken = {f"{one.name}/" if one.name else "" for one in found}
    left = {name: meta for name, meta in names.items() if f"{name.rpartition('/')[0]}/".lstrip("/") not in taken}
    found += [*_transformers(names), *_composer(left), *_lightning(left)]  # a checkpoint-N may hold a folder of torch's
    return sorted(found, key=lambda one: (one.modified_s or 0.0, one.step or 0, one.name))


def _is_plain(name: str) -> bool:
    """Whether a file can have the name: the bucket may hold any."""
    try:
        return check_name(name) == name
    except ConfigError:
        return False


def _made(
    layout: str, name: str, step: int | None, files: Sequence[tuple[str, ObjectMeta]], state: str, proof: str
) -> ForeignCheckpoint:
    objects = tuple(ForeignObject(file, meta.key, meta.size_bytes) for file, meta in sorted(files, key=lambda one: one[0]))
    times = [meta.modified_s for _, meta in files if meta.modified_s is not None]
    if empty := [
        one.name for one in objects if not one.size_bytes and one.name.endswith((".pt", ".ckpt", ".bin", ".safetensors"))
    ]:
        state, proof = "incomplete", f"{empty[0]} is empty"
    return ForeignCheckpoint(layout, name, step, objects, state, proof, max(times, default=None))


def _dcp(names: Mapping[str, ObjectMeta]) -> Iterator[ForeignCheckpoint]:
    folders: defaultdict[str, list[tuple[str, ObjectMeta]]] = defaultdict(list)
    for name, meta in names.items():
        folder, _, file = name.rpartition("/")
        folders[folder].append((file, meta))
    for folder, files in folders.items():
        has_metadata = any(file == METADATA for file, _ in files)
        if has_metadata:
            yield _made("dcp", folder, _step(folder), files, "unproven", "metadata there, not read")
        elif any(_DCP_FILE.match(file) for file, _ in files):
            why = "no .metadata, which torch writes last"
            yield _made("dcp", folder, _step(folder), files, "incomplete", why)


def with_dcp_files(one: ForeignCheckpoint, needed: Mapping[str, int]) -> ForeignCheckpoint:
    """Judge a folder of torch.distributed.checkpoint by the files that its metadata names, with the bytes that each must have."""
    there = {item.name: item.size_bytes for item in one.objects}
    unknown = {name for name in needed if there.get(name, 0) < 0}  # some stores list no sizes
    right = [name for name, size_bytes in needed.items() if name in unknown or there.get(name, -1) >= size_bytes]
    proof = f"metadata there, {len(right)} of {len(needed)} files named by it are there and long enough"
    if wrong := sorted(set(needed) - set(right)):
        short = (
            f", {wrong[0]} has {there[wrong[0]]} of {needed[wrong[0]]} bytes" if wrong[0] in there else f", {wrong[0]} is missing"
        )
        return replace(one, state="incomplete", proof=proof + short)
    if unknown:
        return replace(one, proof=f"{proof}, but the listing does not say how long")
    return replace(one, state="complete", proof=proof)


def _transformers(names: Mapping[str, ObjectMeta]) -> Iterator[ForeignCheckpoint]:
    folders: defaultdict[tuple[str, int], list[tuple[str, ObjectMeta]]] = defaultdict(list)
    for name, meta in names.items():
        if match := _TRANSFORMERS.match(name):
            folders[match["name"], int(match["step"])].append((match["rest"], meta))
    for (name, step), files in folders.items():
        there = {file for file, _ in files}
        if _STATE not in there and not there & {*_WEIGHTS, *INDEXES}:
            continue  # somebody else's folder of that name
        state, proof = _judged_weights(there)
        if _STATE not in there:
            state, proof = "incomplete", f"no {_STATE}, which the Trainer writes last; {proof}"
        yield _made("transformers", name, step, files, state, proof)


def _judged_weights(there: set[str]) -> tuple[str, str]:
    shards = {match.groups()[:2] for file in there if (match := _SHARD.search(file))}
    if there & set(INDEXES):
        return "unproven", "index there, not read"
    if shards:
        return "incomplete", "shards of weights without the index that names them"
    if there & set(_WEIGHTS):
        return "unproven", "weights and trainer_state.json there; no proof: the layout names no other files"
    return "unproven", "trainer_state.json there; no proof: the layout does not name its files"


def with_index(one: ForeignCheckpoint, shards: Sequence[str], total_size: int) -> ForeignCheckpoint:
    """Judge a folder of the Trainer by the shards that its index names, and the bytes of tensors that they hold together."""
    if one.state == "incomplete":
        return one
    there = {item.name: item.size_bytes for item in one.objects}
    missing = [name for name in shards if name not in there]
    proof = f"{len(shards) - len(missing)} of {len(shards)} weight files named by the index are there"
    if missing:
        return replace(one, state="incomplete", proof=f"{proof}, {missing[0]} is missing")
    if (held := sum(there[name] for name in shards)) < total_size and all(there[name] >= 0 for name in shards):
        return replace(one, state="incomplete", proof=f"{proof}, with {held} of {total_size} bytes")
    return replace(one, proof=f"{proof}; no proof for the optimizer's and other files, which nothing names")


def _composer(names: Mapping[str, ObjectMeta]) -> Iterator[ForeignCheckpoint]:
    groups: defaultdict[tuple[str, int], dict[int, tuple[str, ObjectMeta]]] = defaultdict(dict)
    for name, meta in names.items():
        if (match := _COMPOSER.match(name)) and match["suffix"] != ".symlink" and len(match["rank"]) < 7:
            groups[match["name"], int(match["step"])][int(match["rank"])] = (name.rpartition("/")[2], meta)
    most: defaultdict[str, int] = defaultdict(int)
    for (name, _), ranks in groups.items():
        folder = name.rpartition("/")[0]
        most[folder] = max(most[folder], len(ranks))
    for (name, step), ranks in groups.items():
        yield _made("composer", name, step, list(ranks.values()), *_judged_ranks(ranks, most[name.rpartition("/")[0]]))


def _judged_ranks(ranks: Mapping[int, object], most: int) -> tuple[str, str]:
    if missing := sorted(set(range(max(ranks))) - set(ranks)):
        return "incomplete", f"{len(ranks)} ranks there, rank {missing[0]} is missing"
    n = len(ranks)
    there = "rank 0 there" if n == 1 else f"all {n} ranks from 0 to {n - 1} there"
    if n < most:
        return "unproven", f"{there}, but others in this folder have {most}; the layout does not say how many there were"
    return "unproven", f"{there}; no proof: the layout does not say how many there were"


def _lightning(names: Mapping[str, ObjectMeta]) -> Iterator[ForeignCheckpoint]:
    for name, meta in names.items():
        if _LIGHTNING.match(name):
            why = "no proof: the layout has none; the one object is whole, as far as the store is to be believed"
            yield _made("lightning", name, _step(name), [(name.rpartition("/")[2], meta)], "unproven", why)


def _step(name: str) -> int | None:
    found = _STEP.findall(name.rpartition("/")[2]) or re.findall(r"^(?:checkpoint-|step-?)?(\d+)$", name.rpartition("/")[2])
    return int(found[-1]) if found and len(found[-1]) <= 15 else None
