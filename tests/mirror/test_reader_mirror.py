"""What a reader finds below a mirrored prefix, and how it fetches it: many requests side by side, every byte compared."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_oracle import read
from mirrors import Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c
from wherry.errors import IntegrityError, NotFoundError, TransientError
from wherry.mirror import MirrorConfig, Rule
from wherry.mirror.format.layout import segment_name
from wherry.mirror.format.rules import Rules
from wherry.mirror.reader.reader import MirrorReader, find_mirror
from wherry.mirror.reader.seal_remote import Sealed, seal, writers
from wherry.mirror.reader.verify import summary, verify
from wherry.store import ObjectStore, PutOptions
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.wrappers import WrappedStore
from wherry.testing import FaultyStore
from wherry.testing.faulty import Fault
from wherry.uri import StoreURI


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=4096, grace_s=1000.0))
    yield rig
    rig.state_db.close()


def put(store: ObjectStore, key: str, data: bytes, scratch: Path) -> None:
    path = scratch / "source"
    path.write_bytes(data)
    store.put_file(key, path, PutOptions(crc32c=crc32c(data), metadata={"wherry-crc32c": f"{crc32c(data):08x}"}))


def many_segments(store: ObjectStore, prefix: str, n: int, scratch: Path, path: str = "a.log") -> bytes:
    """Make `n` segments of a few bytes each; what they are together."""
    whole = bytearray()
    for number in range(n):
        data = f"line {number}\n".encode() * (1 + number % 3)
        put(store, f"{prefix}/{segment_name('rank0', path, 1, len(whole))}", data, scratch)
        whole += data
    return bytes(whole)


class Together(WrappedStore):
    """Gets go on only when `n` of them are under way at once; who waits for the others in vain fails."""

    def __init__(self, inner: ObjectStore, n: int) -> None:
        super().__init__(inner)
        self.barrier = threading.Barrier(n, timeout=60.0)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        self.barrier.wait()
        return super().get_file(key, path, start=start, end=end, if_match=if_match)


def test_segments_are_fetched_side_by_side(tmp_path: Path) -> None:
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    whole = many_segments(store, "run", 4 * MOST_IN_FLIGHT, tmp_path)
    with MirrorReader(Together(store, MOST_IN_FLIGHT), "run", scratch=tmp_path) as reader:
        assert whole == b"".join(reader.read("a.log"))


@pytest.mark.parametrize("n", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_segments_are_one_file(tmp_path: Path, n: int) -> None:
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    whole = many_segments(store, "run", n, tmp_path)
    with MirrorReader(store, "run", scratch=tmp_path) as reader:
        assert n == reader.snapshot().n_segments
        assert whole == b"".join(reader.read("a.log"))
    assert ["source"] == [path.name for path in tmp_path.iterdir()]  # no temporary file is left


def test_what_is_ahead_is_bounded_in_memory_and_files(tmp_path: Path) -> None:
    store = MemoryStore(StoreURI("memory", str(tmp_path)), {})
    whole = many_segments(store, "run", 500, tmp_path)
    counted = FaultyStore(store)
    with MirrorReader(counted, "run", scratch=tmp_path) as reader:
        blocks = reader.read("a.log")
        first = next(blocks)
        assert counted.calls["get"] <= MOST_IN_FLIGHT + 1
        assert whole == first + b"".join(blocks)


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 12_345])
@pytest.mark.parametrize("state", ["live", "sealed", "sealed and grown"])
def test_a_file_can_be_read_from_any_byte_on(rig: Rig, tmp_path: Path, start: int, state: str) -> None:
    data = rig.write("a.log", lines(20_000)).read_bytes()
    rig.flush()
    if state != "live":
        rig.close()
    if state == "sealed and grown":
        rig.restart()
        data = rig.write("a.log", lines(9000, 1)).read_bytes()
        rig.flush()
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        snapshot, found = reader.find("a.log")
        got = b""
        for chunk in reader.chunks(found, start, crc32c(data[:start]), snapshot.entry(found)):
            got += chunk.data.read()
            chunk.data.close()
    assert data[start:] == got


def test_a_wrong_beginning_is_found_out(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(20_000))
    rig.close()
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        _, found = reader.find("a.log")
        with pytest.raises(IntegrityError, match="CRC32C"):
            for chunk in reader.chunks(found, 100, 12345):
                chunk.data.close()


def test_a_missing_file_and_a_gap_are_different_errors(rig: Rig, tmp_path: Path) -> None:
    for seed in range(2):
        rig.write("a.log", lines(5000, seed))
        rig.flush()
    rig.seen.delete(rig.uri.key_for(f"_mirror/rank0/segments/a.log/{rig.segments('a.log')[0]}"))
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        with pytest.raises(IntegrityError, match="missing"):
            next(reader.read("a.log"))
        with pytest.raises(NotFoundError):
            next(reader.read("b.log"))


def test_a_generation_that_ends_while_it_is_read_is_said(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(400_000))
    rig.flush()
    names = [name for name in rig.names() if "/segments/" in name]
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path, in_flight=1) as reader:
        blocks = reader.read("a.log")
        next(blocks)
        rig.write("a.log", lines(100, 1), mode="wb")
        rig.flush()
        for name in names[2:]:
            rig.seen.delete(rig.uri.key_for(name))
        with pytest.raises(IntegrityError, match="begun anew while it was read"):
            list(blocks)


def test_manifests_are_fetched_when_they_have_changed(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(5000))
    rig.flush()
    rig.step(100.0)
    counted = FaultyStore(rig.seen)
    with MirrorReader(counted, rig.uri.prefix, scratch=tmp_path) as reader:
        reader.snapshot()
        before = counted.calls["get"]
        assert "open" == reader.snapshot().manifests["rank0"].state
        assert before == counted.calls["get"]
        rig.close()
        assert "sealed" == reader.snapshot().manifests["rank0"].state


def test_a_damaged_manifest_is_said_and_the_files_are_read(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(5000))
    rig.flush()
    put(rig.seen, rig.uri.key_for("_mirror/rank0/manifest.json"), b"{", tmp_path)
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        assert ["_mirror/rank0/manifest.json"] == list(reader.snapshot().flawed)
        assert rig.local()["a.log"] == b"".join(reader.read("a.log"))


def test_two_writers_of_one_file_are_said(tmp_path: Path, rig: Rig) -> None:
    other = Rig(tmp_path, rig.config, store=rig.seen, writer="rank1", uri=rig.uri, clock=rig.clock, name="run1")
    rig.write("a.log", lines(5000))
    other.write("a.log", lines(5000, 1))
    rig.flush()
    other.flush()
    other.state_db.close()
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        assert {"a.log": ("rank0", "rank1")} == dict(reader.snapshot().contested)


def test_the_mirror_of_an_object_is_found_from_its_key(rig: Rig) -> None:
    rig.write("deep/a.log", lines(100))
    rig.flush()
    assert rig.uri.prefix == find_mirror(rig.seen, rig.uri.key_for("deep/a.log"))
    assert find_mirror(rig.seen, "elsewhere/a.log") is None


# -- verify


def verdicts(rig: Rig, scratch: Path, folder: Path | None = None, *, by_reading: bool = False) -> dict[str, str]:
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=scratch) as reader:
        findings = list(verify(reader, folder, Rules(rig.config.rules), by_reading=by_reading))
    assert len(findings) == sum(summary(findings).values())
    return {one.path: one.verdict for one in findings}


@pytest.mark.parametrize("by_reading", [False, True])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_verify_finds_all_right_live_and_sealed(tmp_path: Path, by_reading: bool, compression: str | None) -> None:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=4096, compression=compression))  # type: ignore[arg-type]
    rig.write("a.log", lines(20_000))
    rig.write("c.json", "{}")
    rig.write(".hidden", "no")
    rig.flush()
    right = {"a.log": "right", "c.json": "right"}
    assert right == verdicts(rig, tmp_path, by_reading=by_reading) == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)
    rig.write("a.log", "more\n")
    rig.write("b.log", "new\n")
    assert {**right, "a.log": "behind", "b.log": "behind"} == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)
    rig.close()
    right["b.log"] = "right"
    assert right == verdicts(rig, tmp_path, by_reading=by_reading) == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)
    rig.write("a.log", "too late\n")
    assert {**right, "a.log": "wrong"} == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)
    (rig.folder / "c.json").unlink()
    assert "extra" == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)["c.json"]
    rig.state_db.close()


@pytest.mark.parametrize("by_reading", [False, True])
@pytest.mark.parametrize("state", ["live", "sealed"])
def test_verify_finds_a_rewritten_byte(rig: Rig, tmp_path: Path, state: str, by_reading: bool) -> None:
    path = rig.write("a.log", lines(20_000))
    rig.write("b.log", lines(20_000))
    rig.close() if state == "sealed" else rig.flush()
    with open(path, "r+b") as file:
        file.seek(9999)
        file.write(b"?")
    assert {"a.log": "wrong", "b.log": "right"} == verdicts(rig, tmp_path, rig.folder, by_reading=by_reading)


def test_verify_finds_a_gap_and_an_object_that_was_replaced(rig: Rig, tmp_path: Path) -> None:
    for seed in range(2):
        rig.write("a.log", lines(5000, seed))
        rig.flush()
    rig.write("b.log", lines(5000))
    rig.close()
    put(rig.seen, rig.uri.key_for("b.log"), lines(5000, 7), tmp_path)
    assert {"a.log": "right", "b.log": "wrong"} == verdicts(rig, tmp_path)
    put(rig.seen, rig.uri.key_for(segment_name("rank0", "a.log", 9, 100)), b"beyond a gap", tmp_path)
    rig.seen.delete(rig.uri.key_for("a.log"))
    assert "wrong" == verdicts(rig, tmp_path)["a.log"]


# -- seal without the folder


def sealed(rig: Rig, scratch: Path, **options: bool) -> list[str]:
    found = seal(rig.seen, rig.uri, rig.writer, scratch, **options)
    return [one.name for one in found if isinstance(one, Sealed)]


def test_what_a_lost_writer_has_sent_is_sealed_from_the_store(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(20_000))
    rig.write("events.out.tfevents.1", b"no event file, really" * 100)
    rig.write("c.json", "{}")
    rig.flush()
    before = {path: rig.read(path) for path in rig.local()}
    assert ["a.log", "events.out.tfevents.1"] == sealed(rig, tmp_path)
    assert before == rig.plain()
    assert [] == rig.segments()
    assert "sealed" == rig.manifest().state
    with MirrorReader(rig.seen, rig.uri.prefix, scratch=tmp_path) as reader:
        assert {} == writers(reader.snapshot())


def test_a_seal_that_is_interrupted_is_made_again(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(20_000))
    rig.write("b.log", lines(20_000, 1))
    rig.flush()
    faulty = FaultyStore(rig.seen, [Fault("delete_many", TransientError("gone"), nth=2, times=99)])
    with pytest.raises(TransientError):
        list(seal(faulty, rig.uri, rig.writer, tmp_path))
    assert rig.local() == {path: rig.read(path) for path in rig.local()}
    sealed(rig, tmp_path)
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_a_rotated_file_gets_its_new_name(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=4096, rules=(Rule("*.log*", "append"),)))
    rig.write("a.log", lines(5000))
    rig.flush()
    rig.folder.joinpath("a.log").rename(rig.folder / "a.log.1")
    rig.write("a.log", lines(700, 1))
    rig.step(1.0, force=True)
    rig.step(1.0, force=True)
    rig.engine.write_manifest("open")  # as a process does that is killed just then
    sealed(rig, tmp_path)
    assert lines(700, 1) == rig.plain()["a.log"]
    assert lines(5000)[: len(rig.plain()["a.log.1"])] == rig.plain()["a.log.1"]
    rig.state_db.close()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_segments_that_a_cut_short_clean_up_left_hide_nothing_that_was_sent_since(
    tmp_path: Path, compression: str | None
) -> None:
    """The plain object covers what is left of the sealed file's segments; those behind its end count, whatever is missing."""
    store, whole = MemoryStore(StoreURI("memory", f"{tmp_path}"), {}), bytes(range(50))
    put(store, "run/a.log", whole[:30], tmp_path)
    for start, end in ((5, 10), (20, 30), (30, 40), (40, 50)):  # those from 0 to 5, and from 10 to 20, are gone
        data = whole[start:end] if compression is None else gzip.compress(whole[start:end])
        put(store, "run/" + segment_name("rank0", "a.log", 1, start, compression), data, tmp_path)
    assert whole == read(store, "run", "a.log")
