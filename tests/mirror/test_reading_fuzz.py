"""Whatever is in a bucket, what reads it ends with the good files read and our own errors for the rest."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings, strategies as st

from hostile import GOOD, WRITER, Bucket, Planted, check_all_is_read, check_all_is_there, manifest_with, rebuilt
from wherry.backends.memory import MemoryStore
from wherry.checksum import parse_crc32c, parse_range_sums
from wherry.errors import IntegrityError, PermanentError, WherryError
from wherry.mirror.format.inflate import inflated
from wherry.mirror.format.layout import MOST_BYTES, MOST_GENERATIONS, epoch_number, parse_segment, segment_name
from wherry.mirror.format.manifest import FileEntry, Manifest, parse_manifest
from wherry.store import ObjectMeta
from wherry.transfer.symlinks import resolve
from wherry.uri import StoreURI

QUICK = settings(derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, derandomize=False, max_examples=3000)

ODD_NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400]),
    st.floats(),
)
ODD = st.recursive(
    st.none() | st.booleans() | ODD_NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
#: No name of a good file is made of these alone.
PARTS = st.text(alphabet="xyzXYZ .\\:\n\x1b\u202e\u0660é" + "\U0001f600", min_size=1, max_size=12)
PATHS = st.one_of(
    st.lists(PARTS, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["../x", "./x", "x//y", "x/", "_mirror/x", ".wherry-pull/state.json", "x" * 2000, "x/" * 600 + "x"]),
)
WRITERS = st.sampled_from(["other", "", "..", "o\nther", "x" * 300, WRITER])


def entries() -> st.SearchStrategy[dict[str, Any]]:
    """Entries of a manifest, with some fields that are none."""
    honest = asdict(FileEntry("x", "x", "append", "live", 1, 3, "00000000"))
    return st.dictionaries(st.sampled_from([one.name for one in fields(FileEntry)]), ODD, max_size=2).map(
        lambda odd: {**honest, **odd}
    )


def manifests() -> st.SearchStrategy[bytes]:
    """Manifests, most of which are none."""
    honest = {"format": 1, **asdict(Manifest("other", 1, "open", 1e9, 60.0, 0.0, 0, 1))}
    heads = st.dictionaries(st.sampled_from([*honest, "files"]), ODD, max_size=2).map(lambda odd: {**honest, **odd})
    made = st.tuples(heads, st.lists(entries(), max_size=3)).map(lambda two: {"files": two[1], **two[0]})
    return st.one_of(
        st.binary(max_size=60),
        ODD.map(lambda value: json.dumps(value).encode()),
        made.map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b"[" * 200_000, b'{"format":' * 100_000, b"9" * 5000]),
    )


def compressed() -> st.SearchStrategy[bytes]:
    """Members and frames, whole, damaged, and with what follows them."""
    whole = st.tuples(st.binary(max_size=2000), st.sampled_from([gzip.compress, zstandard.ZstdCompressor().compress])).map(
        lambda two: two[1](two[0])
    )
    cut = st.tuples(whole, st.integers(0, 40), st.binary(max_size=8)).map(lambda three: three[0][: three[1]] + three[2])
    twice = st.tuples(whole, whole | st.binary(max_size=8)).map(b"".join)
    return st.one_of(whole, cut, twice, st.binary(max_size=60))


def segments() -> st.SearchStrategy[str]:
    """Names of segments, most of which are possible."""
    numbers = st.sampled_from([0, 1, 2, 5, 1000, MOST_BYTES, 10**19, 10**20 - 1])
    return st.builds(
        lambda writer, path, generation, start, suffix: f"_mirror/{writer}/segments/{path}/{generation}-{start:020d}{suffix}",
        WRITERS,
        PATHS,
        st.sampled_from(["0000", "0001", "0002", "9999", "1000000000", "9" * 5000]),
        numbers,
        st.sampled_from(["", ".gz", ".zst", ".br"]),
    )


def objects() -> st.SearchStrategy[tuple[str, bytes, dict[str, Any]]]:
    """(name, bytes, what a listing says that is not true)."""
    lies = st.fixed_dictionaries(
        {},
        optional={
            "size_bytes": st.sampled_from([-1, 0, 1, 7, 2**63 - 1, 2**63, 10**30]),
            "modified_s": st.floats() | st.none(),
            "etag": st.none() | st.text(max_size=40),
            "crc32c": st.none() | st.integers(0, 2**32 - 1),
        },
    )
    names = st.one_of(
        segments(),
        PATHS,
        st.just("_mirror/other/manifest.json"),
        st.builds(
            lambda writer, digits: f"_mirror/{writer}/epoch-{digits}", WRITERS, st.sampled_from(["0" * 8, "9" * 5000, "x"])
        ),
        PATHS.map(lambda path: f"_mirror/{path}"),
    )
    return st.tuples(names, manifests() | compressed(), lies)


def read_a_prefix(hostile: list[tuple[str, bytes, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(Path(folder))
        for name, data, lies in hostile:
            if name.startswith(f"_mirror/{WRITER}/epoch"):
                lies = {}  # nothing is read of an epoch but its name
            bucket.put(name, data, **lies)
        check_all_is_read(bucket)


@QUICK
@given(st.lists(objects(), min_size=1, max_size=5))
def test_the_good_files_of_a_prefix_are_read_whatever_lies_beside_them(hostile: list[tuple[str, bytes, dict[str, Any]]]) -> None:
    read_a_prefix(hostile)


@pytest.mark.slow
@LONG
@given(st.lists(objects(), min_size=1, max_size=8))
def test_the_good_files_of_a_prefix_are_read_whatever_lies_beside_them_for_long(
    hostile: list[tuple[str, bytes, dict[str, Any]]],
) -> None:
    read_a_prefix(hostile)


@settings(QUICK, max_examples=150)
@given(manifests())
def test_a_manifest_is_one_or_an_integrity_error(text: bytes) -> None:
    try:
        found = parse_manifest(text.decode(errors="replace"), uri="m")
    except IntegrityError:
        return
    assert found == parse_manifest(found.to_json())


@settings(QUICK, max_examples=150)
@given(compressed(), st.sampled_from([None, "gzip", "zstd"]), st.none() | st.integers(0, 3000))
def test_a_segments_bytes_come_bounded_or_not_at_all(stored: bytes, compression: str | None, length_bytes: int | None) -> None:
    n_bytes = 0
    try:
        for block in inflated(BytesIO(stored), compression, length_bytes, len(stored), uri="s"):
            n_bytes += len(block)
    except PermanentError:
        pass
    assert length_bytes is None or n_bytes <= length_bytes


@settings(QUICK, max_examples=150)
@given(segments() | st.text(max_size=60), ODD_NUMBERS.filter(lambda size: isinstance(size, int)))
def test_a_name_is_that_of_a_segment_or_of_none(name: str, size: int) -> None:
    found = parse_segment("run", ObjectMeta(f"run/{name}", size))
    if found is not None:
        assert 0 <= found.start <= found.start + size <= MOST_BYTES
        suffix = {None: "", "gzip": ".gz", "zstd": ".zst"}[found.compression]
        assert name == f"{segment_name(found.writer, found.path, found.generation, found.start)}{suffix}"
    assert (number := epoch_number(name)) is None or number >= 0


@settings(QUICK, max_examples=150)
@given(st.text(max_size=40), ODD_NUMBERS.filter(lambda size: isinstance(size, int)))
def test_a_checksum_in_metadata_is_one_or_none(text: str, size: int) -> None:
    found = parse_crc32c(text)
    assert found is None or 0 <= found < 2**32
    for entry in (text, f"8388608:{text}", f"{size}:AAAA", f"1:{text}"):
        sums = parse_range_sums(entry, size)
        assert sums is None or len(sums[1]) == -(-size // sums[0])


@settings(QUICK, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(max_size=40) | PATHS.map(str.encode)), max_size=4))
def test_a_symlink_object_leads_to_a_key_or_to_an_error_of_ours(links: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = StoreURI("memory", folder, "run")
        store = MemoryStore(uri, {})
        source = Path(folder, "source")
        for name, body in links:
            source.write_bytes(body)
            store.put_file(f"run/{name}.symlink", source)
        with suppress(WherryError):
            assert resolve(store, uri, "a") in {meta.key for meta in store.list()}


def own_objects() -> st.SearchStrategy[Planted]:
    """Segments and manifests of our own writer, also of files that are there."""
    names = st.builds(
        segment_name,
        st.just(WRITER),
        st.sampled_from([*GOOD, "x.log", "y.jsonl"]),
        st.sampled_from([1, 2, 9999, MOST_GENERATIONS - 1]),
        st.sampled_from([0, 1, 3, 1000, MOST_BYTES - 1]),
        st.sampled_from([None, "gzip", "zstd"]),
    )
    sizes = st.sampled_from([-1, 0, 3, 2**63 - 1, 2**63, 10**30])
    bodies = st.binary(max_size=20) | compressed()
    entries = st.fixed_dictionaries(
        {},
        optional={
            "path": st.sampled_from(["x.log", "../x.log", "/etc/passwd", "good.log", ""]),
            "generation": st.sampled_from([0, 1, 2, MOST_GENERATIONS - 1, 2**63 - 1]),
            "acked_bytes": st.sampled_from([0, 1, 1000, 2500, MOST_BYTES]),
            "rule": st.sampled_from(["append", "once"]),
        },
    )
    return st.one_of(
        st.tuples(names, bodies, st.just({}) | sizes.map(lambda size: {"size_bytes": size})),
        st.tuples(st.sampled_from(["x.log", "y.jsonl", "good.log"]), bodies, sizes.map(lambda size: {"size_bytes": size})),
        st.tuples(st.just(f"_mirror/{WRITER}/manifest.json"), entries.map(lambda values: manifest_with(**values)), st.just({})),
    )


@settings(QUICK, max_examples=40)
@given(st.lists(own_objects() | objects(), min_size=1, max_size=6))
def test_a_lost_ledger_is_made_again_whatever_anybody_has_put(planted: list[Planted]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_all_is_there(rebuilt(Path(folder), planted))
