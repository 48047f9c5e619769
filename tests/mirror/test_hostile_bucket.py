"""One bad object never makes a prefix unreadable: it is one line, and the rest is pulled, verified, shown and sealed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import zstandard

from command_line import CommandLine
from hostile import GOOD, WRITER, Bucket, check_all_is_read
from mirrors import ONCE, Rig
from wherry.errors import AccessDeniedError, IntegrityError, StoreError
from wherry.mirror import MirrorConfig
from wherry.mirror.format.inflate import MOST_INFLATED_BYTES
from wherry.mirror.format.layout import FORMAT, segment_name
from wherry.mirror.format.manifest import Manifest, NewerFormatError, parse_manifest
from wherry.mirror.reader.pull_state import FOLDER as PULL_FOLDER
from wherry.mirror.reader.reader import MirrorReader
from wherry.store.wrappers import WrappedStore


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


HONEST = asdict(Manifest("other", 1, "open", 1e9, 60.0, 0.0, 0, 1))
ENTRY = {"path": "a", "name": "a", "rule": "append", "state": "live", "generation": 1, "acked_bytes": 1, "crc32c": "0" * 8}
MANIFESTS = {
    "empty": b"",
    "null": b"null",
    "number": b"7",
    "list": b"[]",
    "no UTF-8": b"\xff\xfe\x00",
    "200,000 brackets": b"[" * 200_000,
    "200,000 objects": b'{"a":' * 200_000,
    "null format": json.dumps({**HONEST, "format": None}).encode(),
    "format true": json.dumps({**HONEST, "format": True}).encode(),
    "files null": json.dumps({**HONEST, "format": 1, "files": None}).encode(),
    "files a text": json.dumps({**HONEST, "format": 1, "files": "abc"}).encode(),
    "entry null": json.dumps({**HONEST, "format": 1, "files": [None]}).encode(),
    "entry without a path": json.dumps({**HONEST, "format": 1, "files": [{}]}).encode(),
    "acked a text": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "acked_bytes": "1"}]}).encode(),
    "acked 10**400": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "acked_bytes": 10**400}]}).encode(),
    "acked of 5,000 digits": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "acked_bytes": 7}]})
    .replace(": 7", ": " + "9" * 5000)
    .encode(),
    "generation null": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "generation": None}]}).encode(),
    "path null": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "path": None}]}).encode(),
    "checksum of another kind": json.dumps({**HONEST, "format": 1, "files": [{**ENTRY, "crc32c": "zz"}]}).encode(),
    "heartbeat null": json.dumps({**HONEST, "format": 1, "heartbeat_s": None}).encode(),
    "heartbeat NaN": json.dumps({**HONEST, "format": 1, "heartbeat_s": float("nan")}).encode(),
    "interval infinite": json.dumps({**HONEST, "format": 1, "interval_s": float("inf")}).encode(),
    "state a list": json.dumps({**HONEST, "format": 1, "state": []}).encode(),
    "writer a number": json.dumps({**HONEST, "format": 1, "writer": 1}).encode(),
    "of another writer": json.dumps({**HONEST, "format": 1, "writer": WRITER, "state": "sealed"}).encode(),
}


def test_a_manifest_that_is_none_is_one_line(bucket: Bucket) -> None:
    """Each of another writer, whose name it has."""
    names = {f"_mirror/other{n}/manifest.json": kind for n, kind in enumerate(MANIFESTS)}
    for n, (name, kind) in enumerate(names.items()):
        bucket.put(name, MANIFESTS[kind].replace(b'"other"', f'"other{n}"'.encode()))
    told = [line.partition(": ")[0] for line in check_all_is_read(bucket)]
    assert sorted(names.values()) == sorted(names[name] for name in told)


@pytest.mark.parametrize("text", [text for name, text in MANIFESTS.items() if name != "of another writer"])
def test_a_writers_own_manifest_that_is_none_hides_none_of_his_files(bucket: Bucket, text: bytes) -> None:
    bucket.put(f"_mirror/{WRITER}/manifest.json", text)
    assert [f"_mirror/{WRITER}/manifest.json"] == [line.partition(": ")[0] for line in check_all_is_read(bucket)]


#: Sizes in bytes.
IMPOSSIBLE = (-1, -(10**30), 2**63, 10**30, 10**400)
NAMES = {
    "generation of 5,000 digits": f"_mirror/{WRITER}/segments/good.log/{'9' * 5000}-{0:020d}",
    "generation of other digits": f"_mirror/{WRITER}/segments/good.log/٠٠٠٢-{0:020d}",
    "no number": f"_mirror/{WRITER}/segments/good.log/0001-x",
    "another compression": f"_mirror/{WRITER}/segments/good.log/0001-{0:020d}.br",
    "the next format": f"_mirror/{WRITER}/segments2/good.log/1",
    "epoch of 5,000 digits": f"_mirror/{WRITER}/epoch-{'9' * 5000}",
    "no writer": "_mirror/what",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_in_the_mirrors_folder_that_nobody_understands_is_said(
    bucket: Bucket, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put(name, b"x")
    assert [] == check_all_is_read(bucket)
    assert 1 == sum("names that this wherry does not understand" in line for line in caplog.messages)
    assert "extra" == bucket.verify()[name].verdict


@pytest.mark.parametrize("name", ["{}.png", "_mirror/{}/manifest.json", segment_name("{}", "{}.log", 1, 0)])
def test_an_impossible_size_in_a_listing_is_one_line(bucket: Bucket, name: str) -> None:
    names = {name.format(letter, letter): size for letter, size in zip("abcde", IMPOSSIBLE, strict=True)}
    for each, size in names.items():
        bucket.put(each, b"x", size_bytes=size)
    lines = sorted(check_all_is_read(bucket))
    assert len(names) == len(lines)
    for line, each in zip(lines, names, strict=True):
        assert line.startswith(f"{each}: the store's listing gives it ")


def test_an_offset_beyond_every_file_is_one_line(bucket: Bucket) -> None:
    name = f"_mirror/other/segments/odd.log/0001-{'9' * 20}"
    bucket.put(name, b"x")
    (line,) = check_all_is_read(bucket)
    assert line.startswith(f"{name}: its name gives it a place where no file has bytes")


@pytest.mark.parametrize("modified_s", [-1e300, 1e300, float("inf"), float("nan")])
def test_an_impossible_date_in_a_listing_changes_nothing(bucket: Bucket, modified_s: float) -> None:
    for name in ("odd.png", segment_name(WRITER, "odd.log", 1, 0)):
        bucket.put(name, b"x", modified_s=modified_s)
    assert [] == check_all_is_read(bucket)


@pytest.mark.parametrize("length", [1_000_000, 300])
@pytest.mark.parametrize("parts", [False, True])
def test_a_long_key_is_one_short_line(bucket: Bucket, length: int, parts: bool) -> None:
    bucket.put("k/" * (length // 2) + "k" if parts and length > 300 else "k" * length, b"x")
    (line,) = check_all_is_read(bucket)
    assert len(line) < 1000


# -- compressed segments


def frame(data: bytes, **options: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(**options)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


def bomb(size_bytes: int) -> bytes:
    """A zstd frame of a few kB that stands for so many zeros."""
    packer = zstandard.ZstdCompressor().compressobj()
    made = b"".join(packer.compress(bytes(2**20)) for _ in range(size_bytes // 2**20))
    return made + packer.flush()


BODIES = {
    "window of 1 GiB": frame(b"x" * 100, window_log=30),
    "no zstd": b"not at all",
    "torn header": frame(b"abc")[:3],
    "damaged": frame(bytes(range(256)) * 100)[:100] + b"\xff" * 100,
    "empty": b"",
}


@pytest.mark.parametrize("suffix", ["zst", "gz"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_segment_that_cannot_be_decompressed_is_one_line(bucket: Bucket, body: bytes, suffix: str) -> None:
    for writer in ("other", WRITER):
        bucket.put(f"{segment_name(writer, f'{writer}.log', 1, 0)}.{suffix}", body)
    lines = check_all_is_read(bucket)
    assert {line.partition(": ")[0] for line in lines} <= {"other.log", f"{WRITER}.log"}


def test_decompression_stops_at_a_cap(bucket: Bucket) -> None:
    """8 kB that stand for more than 256 MiB, in the last segment of a file, which no name bounds."""
    bucket.put(f"{segment_name('other', 'odd.log', 1, 0)}.zst", bomb(MOST_INFLATED_BYTES + 2**20))
    (line,) = check_all_is_read(bucket, sealable=False)
    assert f"stand for more than the {MOST_INFLATED_BYTES} that it may have" in line


def test_decompression_stops_at_what_the_next_segments_name_says(bucket: Bucket) -> None:
    bucket.put(f"{segment_name('other', 'odd.log', 1, 0)}.zst", bomb(2**26))
    bucket.put(f"{segment_name('other', 'odd.log', 1, 100)}.zst", frame(b"x"))
    (line,) = check_all_is_read(bucket)
    assert "stand for more than the 100 that it may have" in line


# -- formats


def newer(writer: str) -> bytes:
    return json.dumps({**HONEST, "writer": writer, "format": FORMAT + 1, "files": {"in": "another", "way": []}}).encode()


def test_a_writer_of_a_newer_format_is_refused_with_what_to_do_and_the_others_are_read(bucket: Bucket) -> None:
    bucket.put("_mirror/other/manifest.json", newer("other"))
    bucket.put(segment_name("other", "theirs.log", 1, 0), b"may mean anything")
    (line,) = check_all_is_read(bucket)
    assert f"it has format {FORMAT + 1}, this wherry knows {FORMAT} at most: update wherry" in line
    with pytest.raises(IntegrityError, match="update wherry"):
        bucket.cat("theirs.log")


def test_what_a_newer_wherry_has_written_is_not_sealed(bucket: Bucket) -> None:
    before = bucket.rig.names()
    bucket.put(f"_mirror/{WRITER}/manifest.json", newer(WRITER))
    with pytest.raises(IntegrityError, match="update wherry"):
        bucket.seal()
    assert before == bucket.rig.names()


def test_an_older_wherry_does_not_go_on_where_a_newer_one_was(bucket: Bucket) -> None:
    bucket.put(f"_mirror/{WRITER}/manifest.json", newer(WRITER))
    before = set(bucket.rig.names())
    other = Rig(bucket.folder, MirrorConfig(retry=ONCE), store=bucket.inner, uri=bucket.uri, writer=WRITER, name="elsewhere")
    other.write("good.log", GOOD["good.log"] + b"more\n")
    for _ in range(5):
        other.step(10.0, force=True)
    assert any("update wherry" in text for text in other.engine.report().trouble)
    assert {f"_mirror/{WRITER}/epoch-00000002"} == set(other.names()) - before
    other.state_db.close()


def test_the_manifest_has_the_format_of_the_names_beside_it(bucket: Bucket) -> None:
    assert FORMAT == json.loads(bucket.rig.get(f"_mirror/{WRITER}/manifest.json"))["format"]
    with pytest.raises(NewerFormatError):
        parse_manifest(newer("x").decode())


class Forbidding(WrappedStore):
    """Refuses to give one object."""

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        if "other" in key:
            raise AccessDeniedError("403: forbidden", operation="get", uri=key)
        return super().get_file(key, path, start=start, end=end, if_match=if_match)


def test_objects_that_may_not_be_read_are_one_line_each(bucket: Bucket) -> None:
    bucket.store = Forbidding(bucket.inner)
    for name in ("_mirror/other/manifest.json", segment_name("other", "odd.log", 1, 0), "other.json"):
        bucket.put(name, b"x")
    lines = check_all_is_read(bucket)
    assert ["_mirror/other/manifest.json", "odd.log", "other.json"] == [line.partition(": ")[0] for line in lines]


# -- the command


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    yield CommandLine(tmp_path)


def hostile_folder(line: CommandLine) -> Path:
    """A mirror in a local folder, with a manifest, a name and a frame that are none."""
    run, store = line.folder / "run", line.folder / "bucket"
    run.mkdir()
    for name in ("a.log", "b.log"):
        (run / name).write_text("one line\n" * 100)
    line.run("mirror", "resume", "run", "bucket", "--writer", "w", "--no-seal")
    other = store / "_mirror" / "other"
    (other / "segments" / "odd.log").mkdir(parents=True)
    (other / "manifest.json").write_bytes(b"[" * 200_000)
    (other / "segments" / "odd.log" / f"0001-{0:020d}.zst").write_bytes(frame(b"x" * 100, window_log=30))
    (other / "segments" / "odd.log" / f"{'9' * 200}-{0:020d}").write_bytes(b"x")
    return store


def test_the_commands_read_what_is_good_and_say_what_is_not(line: CommandLine) -> None:
    hostile_folder(line)
    out, err = line.run("mirror", "status", "bucket", expected=7)
    assert ["other", "w"] == [one.split()[-1] for one in out.splitlines()[1:]]
    assert "manifest.json: this is no manifest of a mirror: it is nested too deeply" in err
    assert "names that this wherry does not understand" in err
    out, _ = line.run("mirror", "verify", "bucket", expected=7)
    assert "2 right, 1 extra, 2 wrong" in out
    out, err = line.run("pull", "bucket", "copy", expected=7)
    for name in ("a.log", "b.log"):
        assert (line.folder / "run" / name).read_bytes() == (line.folder / "copy" / name).read_bytes()
        assert "one line\n" * 100 == line.run("cat", f"bucket/{name}")[0]
    line.run("ls", "bucket/")
    out, _ = line.run("mirror", "seal", "bucket", "--writer", "w", "--yes")
    assert 2 == out.count("sealed")
    assert "Traceback" not in err


def test_seal_names_what_cannot_be_sealed_and_seals_the_rest(line: CommandLine) -> None:
    store = hostile_folder(line)
    (store / "_mirror" / "w" / "segments" / "bad.log").mkdir()
    (store / "_mirror" / "w" / "segments" / "bad.log" / f"0001-{0:020d}.zst").write_bytes(b"no frame")
    out, err = line.run("mirror", "seal", "bucket", "--writer", "w", "--yes", expected=7)
    assert 2 == out.count("sealed")
    assert "not sealed: bad.log: it is no zstd frame" in err


def test_ls_shows_a_long_name_and_an_impossible_date(line: CommandLine) -> None:
    folder = line.folder / "bucket" / "/".join(["k" * 200] * 6)
    folder.mkdir(parents=True)
    (folder / "a").write_text("x")
    out, _ = line.run("ls", "-r", "bucket/")
    assert "characters)" in out


def test_a_pull_of_a_prefix_without_a_mirror_says_so(line: CommandLine) -> None:
    (line.folder / "bucket").mkdir()
    (line.folder / "bucket" / "a.json").write_text("{}")
    out, err = line.run("pull", "bucket", "copy")
    assert out.startswith("no mirror: 1 file, 2 B new")
    assert "has no mirror" in err
    assert ["a.json"] == sorted(path.name for path in (line.folder / "copy").iterdir() if path.name != PULL_FOLDER)


def test_reading_raises_no_error_but_ours_for_a_file_that_cannot_be_put_together(bucket: Bucket) -> None:
    bucket.put(segment_name("other", "odd.log", 1, 5), b"x")
    with MirrorReader(bucket.store, "run") as reader, pytest.raises(StoreError):
        b"".join(reader.read("odd.log"))
