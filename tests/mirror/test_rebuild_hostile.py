"""A mirror whose ledger is lost goes on whatever is in its bucket: what cannot be read of a file is sent anew."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from hostile import GOOD, WRITER, Bucket, Planted, check_all_is_there, manifest_with, rebuilt
from wherry.errors import IntegrityError
from wherry.mirror.format.layout import MOST_BYTES, MOST_GENERATIONS, segment_name
from wherry.mirror.format.manifest import parse_manifest

PLANTED: dict[str, list[Planted]] = {
    "another file's segment is no zstd frame": [(segment_name(WRITER, "x.log", 1, 0, "zstd"), b"none", {})],
    "a good file's segment is no gzip member": [(segment_name(WRITER, "good.log", 9, 0, "gzip"), b"none", {})],
    "an object of an impossible size, with a segment behind it": [
        ("x.log", b"x", {"size_bytes": 10**30}),
        (segment_name(WRITER, "x.log", 1, 5), b"x\n", {}),
    ],
    "a segment that ends beyond every file": [
        ("x.log", b"x", {"size_bytes": MOST_BYTES - 1}),
        (segment_name(WRITER, "x.log", 1, MOST_BYTES - 1, "gzip"), gzip.compress(b"more\n"), {}),
    ],
    "an empty segment where the next one belongs": [(segment_name(WRITER, "good.log", 1, len(GOOD["good.log"])), b"", {})],
    "a generation that SQLite cannot hold": [(f"_mirror/{WRITER}/manifest.json", manifest_with(generation=2**63), {})],
    "the last generation of all": [(f"_mirror/{WRITER}/manifest.json", manifest_with(generation=2**63 - 1), {})],
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_mirror_goes_on_after_a_lost_ledger_whatever_lies_in_its_bucket(tmp_path: Path, planted: list[Planted]) -> None:
    check_all_is_there(rebuilt(tmp_path, planted))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_regular_file_is_taken_for_deleted(tmp_path: Path, kind: str) -> None:
    bucket = Bucket(tmp_path)
    (bucket.rig.folder / "good.log").unlink()
    if kind == "pipe":
        os.mkfifo(bucket.rig.folder / "good.log")  # to open it would wait for a writer for ever
    else:
        (bucket.rig.folder / "good.log").symlink_to("config.json")
    bucket.rig.restart(lose_state_db=True)
    bucket.rig.close()
    assert bucket.rig.engine.is_complete
    assert GOOD["good.log"] == bucket.cat("good.log")


def test_a_manifest_names_no_generation_whose_segments_nobody_reads() -> None:
    parse_manifest(manifest_with(generation=MOST_GENERATIONS).decode())
    with pytest.raises(IntegrityError, match="generation is no number that can be"):
        parse_manifest(manifest_with(generation=MOST_GENERATIONS + 1).decode())
