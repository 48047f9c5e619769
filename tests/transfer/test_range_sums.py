"""Objects that carry the checksums of their ranges: a download judges each range by itself, and fetches a bad one alone."""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support import SETTINGS, file_of, leased_job, new_job
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.checksum import PIECE_BYTES, crc32c, crc32c_of_file, crc32cs_of_file, format_crc32c, parse_range_sums, range_sums
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError, IntegrityError, TransientError
from wherry.spool.journal.jobs import Job
from wherry.spool.journal.journal import Journal
from wherry.store import CRC32C_METADATA, RANGES_METADATA, ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.testing.faulty import Fault, FaultyStore
from wherry.transfer.download import download
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

KEY = "run/ep0.pt"
RANGE = 1000
#: Of 10 ranges, the last of one byte.
DATA = random.Random(3).randbytes(9 * RANGE + 1)
RANGES = TransferConfig(range_size_bytes=RANGE, ranges_in_flight=3)
ONE_BY_ONE = replace(RANGES, ranges_in_flight=1)
QUICK = RetryConfig(call_deadline_s=30, first_wait_s=0.001, longest_wait_s=0.001)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


def put(store: ObjectStore, folder: Path, summed_bytes: int = RANGE, data: bytes = DATA, sums: str | None = None) -> None:
    """With the checksums of ranges of `summed_bytes`, or with `sums` in their place."""
    source = folder / f"source-{uuid.uuid4().hex}"
    source.write_bytes(data)
    if sums is None:
        pieces = crc32cs_of_file(source, 0, len(data), summed_bytes)
        sums = range_sums(pieces, summed_bytes, len(data), summed_bytes)
    assert sums is not None
    store.put_file(KEY, source, PutOptions(crc32c=crc32c(data), metadata={RANGES_METADATA: sums}))
    source.unlink()


def fetch(store: ObjectStore, destination: Path, transfer: TransferConfig = RANGES) -> ObjectMeta:
    return download(store, KEY, destination, uri=f"memory://{KEY}", transfer=transfer, retry=QUICK)


class Damaging(WrappedStore):
    """Inverts the first byte of the gets with those numbers, from 1, or of all that begin at `at`; `starts`: where they began."""

    def __init__(self, inner: ObjectStore, bad: Collection[int] = (), at: int | None = None) -> None:
        super().__init__(inner)
        self.bad, self.at = bad, at
        self.starts: list[int] = []
        self._numbers = itertools.count(1)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        super().get_file(key, path, start=start, end=end, if_match=if_match)
        self.starts.append(start)
        if next(self._numbers) in self.bad or start == self.at:
            with open(path, "r+b") as file:
                byte = os.pread(file.fileno(), 1, start)
                os.pwrite(file.fileno(), bytes([byte[0] ^ 0xFF]), start)


@pytest.mark.parametrize("in_flight", [1, 3, 20])
@pytest.mark.parametrize("nth", [1, 5, 10])
def test_a_bad_range_alone_is_fetched_again(store: MemoryStore, tmp_path: Path, nth: int, in_flight: int) -> None:
    put(store, tmp_path)
    damaging = Damaging(store, [nth])
    fetch(damaging, tmp_path / "file", replace(RANGES, ranges_in_flight=in_flight))
    assert (tmp_path / "file").read_bytes() == DATA
    assert 10 + 1 == len(damaging.starts)
    assert sorted([*range(0, len(DATA), RANGE), damaging.starts[nth - 1]]) == sorted(damaging.starts)


def test_a_bad_range_is_fetched_again_before_any_other_is_begun(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    damaging = Damaging(store, [3])
    fetch(damaging, tmp_path / "file", ONE_BY_ONE)
    assert [0, 1000, 2000, 2000, 3000] == damaging.starts[:5]


def test_each_of_several_bad_ranges_is_fetched_again_once(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    damaging = Damaging(store, range(1, 11, 3))
    fetch(damaging, tmp_path / "file", ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert 10 + 4 == len(damaging.starts)


def test_a_range_that_is_bad_twice_is_named_and_nothing_is_left(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    damaging = Damaging(store, at=2000)
    wrong = bytes([DATA[2000] ^ 0xFF]) + DATA[2001:3000]
    words = f"bytes 2000-2999 came wrong, twice: with CRC32C {crc32c(wrong):08x}, .*says {crc32c(DATA[2000:3000]):08x}"
    with pytest.raises(IntegrityError, match=words) as caught:
        fetch(damaging, tmp_path / "file", ONE_BY_ONE)
    assert f"memory://{KEY}" in str(caught.value)
    assert [0, 1000, 2000, 2000] == damaging.starts  # and the ranges after it are not fetched in vain
    assert [] == os.listdir(tmp_path)


def test_a_last_range_that_is_bad_twice_is_named(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    with pytest.raises(IntegrityError, match="bytes 9000-9000 came wrong, twice"):
        fetch(Damaging(store, at=9000), tmp_path / "file")


@pytest.mark.parametrize(
    ("summed_bytes", "fetched_bytes", "n_ranges", "n_again"),
    [
        (3000, 1000, 10, 3),  # several that are fetched make one that was summed
        (500, 1000, 10, 1),  # and the other way round
        (1500, 1000, 10, 3),  # neither: what both fit in
        (4000, 2000, 5, 2),
    ],
)
def test_the_ranges_of_one_checksum_are_judged_and_fetched_again_together(
    store: MemoryStore, tmp_path: Path, summed_bytes: int, fetched_bytes: int, n_ranges: int, n_again: int
) -> None:
    put(store, tmp_path, summed_bytes)
    damaging = Damaging(store, [2])
    fetch(damaging, tmp_path / "file", TransferConfig(range_size_bytes=fetched_bytes, ranges_in_flight=3))
    assert (tmp_path / "file").read_bytes() == DATA
    assert n_ranges + n_again == len(damaging.starts)
    bad = Damaging(store, at=fetched_bytes)
    start = 0 if n_again > 1 else fetched_bytes
    with pytest.raises(IntegrityError, match=f"bytes {start}-{start + n_again * fetched_bytes - 1} came wrong, twice"):
        fetch(bad, tmp_path / "bad", TransferConfig(range_size_bytes=fetched_bytes, ranges_in_flight=1))
    assert start // fetched_bytes + 2 * n_again == len(bad.starts)


def test_one_checksummed_range_short_of_the_others_is_judged_too(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path, 4000)  # the third has 1001 bytes, of two ranges
    damaging = Damaging(store, [9])
    fetch(damaging, tmp_path / "file", ONE_BY_ONE)
    assert [8000, 9000, 8000, 9000] == damaging.starts[8:]


GOOD = [crc32c(DATA[at : at + RANGE]) for at in range(0, len(DATA), RANGE)]
LIES = {
    "empty": "",
    "not ours": "1000:!!!",
    "cut": (range_sums(GOOD, RANGE, len(DATA), RANGE) or "")[:-4],
    "of other ranges": (range_sums(GOOD, RANGE, len(DATA), RANGE) or "").replace("1000:", "2000:"),
    "of other bytes": range_sums([crc ^ 1 for crc in GOOD], RANGE, len(DATA), RANGE) or "",
    "in another order": range_sums([*GOOD[1::-1], *GOOD[2:]], RANGE, len(DATA), RANGE) or "",
    "of a longer object": range_sums([*GOOD, 7], RANGE, len(DATA) + RANGE, RANGE) or "",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda name: name.replace(" ", "-"))
def test_an_entry_that_is_malformed_or_not_of_these_bytes_says_nothing(store: MemoryStore, tmp_path: Path, lie: str) -> None:
    put(store, tmp_path, sums=LIES[lie])
    counted = FaultyStore(store)
    fetch(counted, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert 10 == counted.calls["get"]
    fetch(Damaging(store, [2]), tmp_path / "repaired")
    assert (tmp_path / "repaired").read_bytes() == DATA


def test_ranges_are_not_believed_where_the_whole_is_not_vouched_for(store: MemoryStore, tmp_path: Path) -> None:
    class Silent(WrappedStore):
        def head(self, key: str) -> ObjectMeta:
            return replace(super().head(key), crc32c=None)

    put(store, tmp_path, sums=LIES["of other bytes"])
    fetch(Silent(store), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def break_off(store: ObjectStore, destination: Path, n_ranges: int) -> None:
    """Download until so many ranges are there, one after the other."""
    revoked = Fault("get", AccessDeniedError("revoked"), nth=n_ranges + 1, times=100)
    with pytest.raises(AccessDeniedError):
        fetch(FaultyStore(store, [revoked]), destination, ONE_BY_ONE)


@pytest.mark.parametrize("summed_bytes", [1000, 3000])
def test_a_download_that_goes_on_judges_what_the_first_call_has_left(
    store: MemoryStore, tmp_path: Path, summed_bytes: int
) -> None:
    put(store, tmp_path, summed_bytes)
    break_off(store, tmp_path / "file", 5)
    counted = Damaging(store, [1])
    fetch(counted, tmp_path / "file", ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [5000, *{1000: [5000], 3000: [3000, 4000, 5000]}[summed_bytes], 6000, 7000, 8000, 9000] == counted.starts


def test_bad_bytes_that_no_call_has_judged_are_found_by_the_next(store: MemoryStore, tmp_path: Path) -> None:
    """The first call was broken off before the ranges beside it had come."""
    put(store, tmp_path, 3000)
    break_off(Damaging(store, [4]), tmp_path / "file", 5)
    counted = Damaging(store)
    fetch(counted, tmp_path / "file", ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [5000, 3000, 4000, 5000, 6000, 7000, 8000, 9000] == counted.starts


def test_a_call_that_is_broken_off_after_a_bad_range_leaves_good_ones_only(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    break_off(Damaging(store, [2]), tmp_path / "file", 6)  # five ranges, one of them twice
    counted = Damaging(store)
    fetch(counted, tmp_path / "file", ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [5000, 6000, 7000, 8000, 9000] == counted.starts


def test_an_object_replaced_while_a_bad_range_is_fetched_again_is_fetched_anew(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    newer = DATA[::-1]
    replaced = Fault("get", nth=3, act=lambda: put(store, tmp_path, data=newer))
    fetch(FaultyStore(Damaging(store, [2]), [replaced]), tmp_path / "file", ONE_BY_ONE)
    assert (tmp_path / "file").read_bytes() == newer


# -- who gives objects the entry


PIECES = 5 * PIECE_BYTES + 1
#: Ranges of one piece, of which the copy into the spool has the sums.
TRANSFER = TransferConfig(multipart_threshold_bytes=2**40, range_size_bytes=PIECE_BYTES)
IN_PARTS = replace(TRANSFER, multipart_threshold_bytes=1)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file_of(tmp_path_factory.mktemp("large") / "file", PIECES)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with_journal = Journal(tmp_path / "journal.db")
    yield with_journal
    with_journal.close()


def accept(journal: Journal, size_bytes: int) -> Job:
    store_id = journal.uploads.store_id("memory", "root", {}, (), SETTINGS)
    journal.uploads.submit("me", store_id, [new_job(KEY, size_bytes=size_bytes)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    return job


class Noting(WrappedStore):
    """Notes the metadata that it is given, call by call."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.given: list[tuple[str, dict[str, str]]] = []

    def put_file(self, key, path, put=PutOptions()):  # type: ignore[no-untyped-def]
        self.given.append(("put", dict(put.metadata)))
        return super().put_file(key, path, put)

    def begin(self, key, size_bytes, put=PutOptions()):  # type: ignore[no-untyped-def]
        self.given.append(("begin", dict(put.metadata)))
        return super().begin(key, size_bytes, put)

    def complete(self, key, upload_id, parts, put=PutOptions()):  # type: ignore[no-untyped-def]
        self.given.append(("complete", dict(put.metadata)))
        return super().complete(key, upload_id, parts, put)


def sums_of(path: Path, range_bytes: int) -> tuple[int, tuple[int, ...]]:
    size_bytes = path.stat().st_size
    ranges = [(at, min(at + range_bytes, size_bytes)) for at in range(0, size_bytes, range_bytes)]
    return range_bytes, tuple(crc32c_of_file(path, *each) for each in ranges)


@pytest.mark.parametrize(
    ("transfer", "range_bytes"),
    [
        (TRANSFER, PIECE_BYTES),
        (IN_PARTS, PIECE_BYTES),
        (replace(IN_PARTS, part_size_bytes=3 * PIECE_BYTES), PIECE_BYTES),
        (replace(IN_PARTS, range_size_bytes=PIECE_BYTES + 1), 2 * PIECE_BYTES),
        (replace(IN_PARTS, part_size_bytes=5 * 2**20), 10 * 2**20),  # parts that are not made of whole pieces
    ],
    ids=["whole", "in-parts", "large-parts", "odd-ranges", "odd-parts"],
)
def test_an_object_of_several_ranges_carries_their_checksums(
    store: MemoryStore,
    journal: Journal,
    pool: ThreadPoolExecutor,
    tmp_path: Path,
    large: Path,
    transfer: TransferConfig,
    range_bytes: int,
) -> None:
    Sender(journal, pool, worker="w").send(accept(journal, PIECES), large, store, transfer)
    meta = store.head(KEY)
    assert sums_of(large, range_bytes) == parse_range_sums(meta.metadata[RANGES_METADATA], PIECES)
    assert format_crc32c(crc32c_of_file(large)) == meta.metadata[CRC32C_METADATA]
    damaging = Damaging(store, [2])
    fetch(damaging, tmp_path / "down", TransferConfig(range_size_bytes=range_bytes, ranges_in_flight=2))
    assert large.read_bytes() == (tmp_path / "down").read_bytes()
    assert -(-PIECES // range_bytes) + 1 == len(damaging.starts)


@pytest.mark.parametrize("transfer", [TRANSFER, IN_PARTS], ids=["whole", "in-parts"])
def test_the_checksums_of_ranges_are_those_in_the_journal_and_the_file_is_not_read_for_them(
    store: MemoryStore, journal: Journal, pool: ThreadPoolExecutor, tmp_path: Path, large: Path, transfer: TransferConfig
) -> None:
    made_up = tuple(range(1, 7))  # nobody who reads the file would find these
    job = replace(accept(journal, PIECES), crc32c=crc32c_of_file(large))
    journal.work.set_crc32c(job.id, crc32c_of_file(large), made_up)
    noting = Noting(store)
    begun = Fault("put" if transfer is TRANSFER else "begin", AccessDeniedError("enough"), after=True)
    with pytest.raises(AccessDeniedError):
        Sender(journal, pool, worker="w").send(job, large, FaultyStore(noting, [begun]), transfer)
    assert (PIECE_BYTES, made_up) == parse_range_sums(noting.given[0][1][RANGES_METADATA], PIECES)


def test_an_upload_that_goes_on_gives_the_same_metadata(
    store: MemoryStore,
    journal: Journal,
    pool: ThreadPoolExecutor,
    large: Path,
) -> None:
    """By another worker, which knows what the journal has and no more. A store may take it at the end of all."""
    noting = Noting(store)
    job = accept(journal, PIECES)
    retry = RetryConfig(call_deadline_s=0.01, first_wait_s=0.001, longest_wait_s=0.001)
    reset = TransientError("reset")
    for fault in [Fault("begin", reset, times=10_000), Fault("put_part", reset, nth=3)]:
        with pytest.raises(TransientError):
            Sender(journal, pool, worker="w").send(job, large, FaultyStore(noting, [fault]), IN_PARTS, retry=retry)
        journal.work.release()
        found = journal.work.lease("w", 60.0)
        assert found is not None
        job = found
    Sender(journal, pool, worker="w").send(job, large, noting, IN_PARTS, retry=retry)
    assert ["begin", "complete"] == [name for name, _ in noting.given]
    (begun, completed) = (metadata for _, metadata in noting.given)
    assert begun == completed
    assert sums_of(large, PIECE_BYTES) == parse_range_sums(begun[RANGES_METADATA], PIECES)


def test_an_object_of_one_range_carries_no_entry(
    store: MemoryStore, journal: Journal, pool: ThreadPoolExecutor, tmp_path: Path, large: Path
) -> None:
    Sender(journal, pool, worker="w").send(accept(journal, PIECES), large, store, replace(TRANSFER, range_size_bytes=PIECES))
    assert RANGES_METADATA not in store.head(KEY).metadata


def test_a_store_that_keeps_no_metadata_is_given_no_entry(pool: ThreadPoolExecutor, tmp_path: Path, large: Path) -> None:
    """A local folder has room for some in an extended attribute, beside the checksum that it must not crowd out."""
    folder = LocalStore(StoreURI("file", ""), {})
    job = leased_job(str(tmp_path / "folder" / "x").lstrip("/"), PIECES)
    noting = Noting(folder)
    Sender(None, pool).send(job, large, noting, TRANSFER)
    assert RANGES_METADATA not in noting.given[0][1]
