"""One upload: whole or in parts, resumed, verified, and told apart from another's when an answer was lost."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support import IMPATIENT, SETTINGS, file_of, leased_job, new_job
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.checksum import PIECE_BYTES, crc32c, format_crc32c
from wherry.config import MIB, RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError, AlreadyExistsError, IntegrityError, NotFoundError, PermanentError, TransientError
from wherry.spool.journal.jobs import Job
from wherry.spool.journal.journal import Journal
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, Capabilities, ObjectStore, PutOptions, StoredPart
from wherry.store.wrappers import RetryStore, WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.transfer.part_sizes import part_size_for, split
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

PART = 1000
#: Objects of at least two parts go in parts.
SMALL_PARTS = TransferConfig(multipart_threshold_bytes=2 * PART, part_size_bytes=PART, parts_in_flight=3)
PATIENT = RetryConfig(call_deadline_s=60.0, first_wait_s=0.001, longest_wait_s=0.01)
LOST = TransientError("the answer was lost")


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


@pytest.fixture
def sender(journal: Journal, pool: ThreadPoolExecutor) -> Sender:
    return Sender(journal, pool, worker="w")


def accept(journal: Journal, path: Path, key: str = "key", *, overwrite: bool = True) -> Job:
    """A job for the file, leased as a worker has it."""
    store = journal.uploads.store_id("memory", "root", {}, (), SETTINGS)
    journal.uploads.submit("me", store, [new_job(key, size_bytes=path.stat().st_size, overwrite=overwrite)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    return job


def again(journal: Journal, job: Job) -> Job:
    """The same job, leased by the next worker."""
    journal.work.release()
    found = journal.work.lease("w", 60.0)
    assert found is not None
    assert job.id == found.id
    return found


def read(store: ObjectStore, key: str, folder: Path) -> bytes:
    path = folder / "back"
    path.touch()
    store.get_file(key, path)
    data = path.read_bytes()
    path.unlink()
    return data


# -- whole


@pytest.mark.parametrize("size_bytes", [0, 1, PART - 1, PART, PART + 1, 2 * PART - 1])
def test_small_files_go_whole(sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    store = FaultyStore(memory)
    meta = sender.send(accept(journal, path), path, store, SMALL_PARTS)
    assert (1, 0) == (store.calls["put"], store.calls["put_part"])
    assert (size_bytes, crc32c(path.read_bytes())) == (meta.size_bytes, meta.crc32c)
    assert path.read_bytes() == read(store, "key", tmp_path)


@pytest.mark.parametrize("size_bytes", [2 * PART, 2 * PART + 1, 3 * PART - 1, 3 * PART, 3 * PART + 1, 20 * PART])
def test_large_files_go_in_as_many_parts_as_they_need(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int
) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    store = FaultyStore(memory)
    meta = sender.send(accept(journal, path), path, store, SMALL_PARTS)
    assert (0, -(-size_bytes // PART)) == (store.calls["put"], store.calls["put_part"])
    assert (size_bytes, crc32c(path.read_bytes())) == (meta.size_bytes, meta.crc32c)
    assert path.read_bytes() == read(store, "key", tmp_path)


@pytest.mark.parametrize("size_bytes", [10, 5 * PART])
def test_every_object_carries_its_token_and_checksum(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int
) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    job = accept(journal, path)
    sender.send(job, path, memory, SMALL_PARTS)
    expected = {TOKEN_METADATA: job.token, CRC32C_METADATA: format_crc32c(crc32c(path.read_bytes()))}
    assert expected == dict(memory.head("key").metadata)


def test_a_file_larger_than_the_store_takes_at_once_goes_in_parts(sender: Sender, journal: Journal, tmp_path: Path) -> None:
    class Narrow(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, max_put_size_bytes=2 * PART)

    path = file_of(tmp_path / "file", 3 * PART)
    store = FaultyStore(Narrow(StoreURI("memory", uuid.uuid4().hex), {}))
    sender.send(accept(journal, path), path, store, TransferConfig(multipart_threshold_bytes=10 * PART, part_size_bytes=PART))
    assert (0, 3) == (store.calls["put"], store.calls["put_part"])


def test_the_checksum_is_computed_once_and_kept(sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 10)
    job = accept(journal, path)
    store = FaultyStore(memory, [Fault("put", TransientError("reset"))])
    with pytest.raises(TransientError):
        sender.send(job, path, store, SMALL_PARTS)
    assert crc32c(path.read_bytes()) == again(journal, job).crc32c


def test_the_checksum_of_a_large_file_is_that_of_its_pieces(
    memory: MemoryStore, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    path = file_of(tmp_path / "file", 64 * MIB + 1)
    job = leased_job("key", path.stat().st_size)
    meta = Sender(None, pool).send(job, path, memory, TransferConfig())
    assert crc32c(path.read_bytes()) == meta.crc32c


def test_a_staged_file_that_lost_bytes_is_not_sent(sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 10)
    job = accept(journal, path)
    path.write_bytes(b"short")
    store = FaultyStore(memory)
    with pytest.raises(IntegrityError, match="5 bytes, 10 were accepted"):
        sender.send(job, path, store, SMALL_PARTS)
    assert {} == dict(store.calls)


# -- part sizes


def test_parts_have_the_configured_size_where_the_store_allows_it() -> None:
    assert 8 * MIB == part_size_for(100 * MIB, TransferConfig(), Capabilities(*[True] * 7))
    assert 40 * MIB == part_size_for(100 * MIB, TransferConfig(part_size_bytes=40 * MIB), Capabilities(*[True] * 7))


@pytest.mark.parametrize(("size_gib", "part_mib"), [(1, 8), (4, 8), (5, 16), (32, 64), (500, 64)])
def test_parts_grow_with_the_file_up_to_64_mib(size_gib: int, part_mib: int) -> None:
    assert part_mib * MIB == part_size_for(size_gib * 2**30, TransferConfig(), Capabilities(*[True] * 7))


@pytest.mark.parametrize(
    ("size_gib", "mb_per_s", "part_mib"),
    [(1, 1, 8), (1, 40, 16), (1, 4000, 16), (4, 400, 64), (32, 1, 8), (500, 1, 56), (500, 4000, 64)],
)
def test_a_part_takes_a_quarter_of_a_second_where_the_speed_is_known(size_gib: int, mb_per_s: int, part_mib: int) -> None:
    found = part_size_for(size_gib * 2**30, TransferConfig(), Capabilities(*[True] * 7), mb_per_s * 1e6)
    assert part_mib * MIB == found


def test_parts_grow_where_ten_thousand_of_them_would_not_hold_the_object() -> None:
    limits = Capabilities(*[True] * 7)
    just_fits = 10_000 * 64 * MIB
    assert 64 * MIB == part_size_for(just_fits, TransferConfig(), limits)
    assert 72 * MIB == part_size_for(just_fits + 1, TransferConfig(), limits)


def test_the_largest_object_of_all_fits() -> None:
    five_tib = 5 * 2**40
    size = part_size_for(five_tib, TransferConfig(), Capabilities(*[True] * 7))
    assert -(-five_tib // size) <= 10_000
    assert 0 == size % MIB


def test_parts_are_at_least_as_large_as_the_store_asks_for() -> None:
    assert 5 * MIB == part_size_for(100 * MIB, TransferConfig(part_size_bytes=1), Capabilities(*[True] * 7))


def test_an_object_that_no_number_of_parts_can_hold_is_refused() -> None:
    with pytest.raises(PermanentError, match="10000 parts"):
        part_size_for(60 * 2**40, TransferConfig(), Capabilities(*[True] * 7))


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, []), (1, [(0, 1)]), (3, [(0, 3)]), (4, [(0, 3), (3, 4)]), (6, [(0, 3), (3, 6)]), (7, [(0, 3), (3, 6), (6, 7)])],
)
def test_ranges_cover_every_byte_once(size_bytes: int, expected: list[tuple[int, int]]) -> None:
    assert expected == split(size_bytes, 3)


# -- checksums of parts


@pytest.mark.parametrize("size_bytes", [2 * PIECE_BYTES, 4 * PIECE_BYTES - 1, 4 * PIECE_BYTES, 4 * PIECE_BYTES + 1])
def test_the_checksums_of_parts_are_joined_from_those_of_pieces_and_not_computed_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int
) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    store_id = journal.uploads.store_id("memory", "root", {}, (), SETTINGS)
    journal.uploads.submit("me", store_id, [new_job("key", size_bytes=size_bytes)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    planned: list[int | None] = []

    def note() -> None:  # at the first part all checksums are in the table
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
            planned.extend(row[0] for row in db.execute("SELECT crc32c FROM parts ORDER BY number"))

    store = FaultyStore(memory, [Fault("put_part", act=note)])
    transfer = TransferConfig(multipart_threshold_bytes=1, part_size_bytes=2 * PIECE_BYTES, parts_in_flight=1)
    meta = sender.send(job, path, store, transfer)
    data = path.read_bytes()
    assert [crc32c(data[at : at + 2 * PIECE_BYTES]) for at in range(0, size_bytes, 2 * PIECE_BYTES)] == planned
    assert crc32c(data) == meta.crc32c


def test_parts_of_another_size_than_whole_pieces_are_sent_with_their_checksums(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 2 * PIECE_BYTES)
    store_id = journal.uploads.store_id("memory", "root", {}, (), SETTINGS)
    journal.uploads.submit("me", store_id, [new_job("key", size_bytes=2 * PIECE_BYTES)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    meta = sender.send(job, path, memory, TransferConfig(multipart_threshold_bytes=1, part_size_bytes=PIECE_BYTES - 1))
    assert crc32c(path.read_bytes()) == meta.crc32c


# -- parts, resumed


def test_parts_that_both_sides_know_are_not_sent_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 8 * PART)
    job = accept(journal, path)
    broken = FaultyStore(memory, [Fault("put_part", TransientError("reset"), nth=4, times=100)])
    with pytest.raises(TransientError):
        sender.send(job, path, broken, replace(SMALL_PARTS, parts_in_flight=1))
    assert [1, 2, 3] == [part.number for part in journal.parts.sent(job.id)]
    store = FaultyStore(memory)
    sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert (0, 1, 5) == (store.calls["begin"], store.calls["list_parts"], store.calls["put_part"])
    assert path.read_bytes() == read(store, "key", tmp_path)
    assert {} == memory._root.uploads


def test_a_part_of_which_only_the_store_knows_is_not_sent_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 4 * PART)
    job = accept(journal, path)
    broken = FaultyStore(memory, [Fault("put_part", LOST, nth=3, times=100, after=True)])
    with pytest.raises(TransientError):
        sender.send(job, path, broken, replace(SMALL_PARTS, parts_in_flight=1))
    assert [1, 2] == [part.number for part in journal.parts.sent(job.id)]
    store = FaultyStore(memory)
    sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert 1 == store.calls["put_part"]
    assert path.read_bytes() == read(store, "key", tmp_path)


def test_a_part_of_which_only_the_journal_knows_is_sent_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 4 * PART)
    job = accept(journal, path)
    broken = FaultyStore(memory, [Fault("complete", TransientError("reset"))])
    with pytest.raises(TransientError):
        sender.send(job, path, broken, SMALL_PARTS)
    (upload,) = memory._root.uploads.values()
    del upload.parts[2]
    upload.parts[3] = (replace(upload.parts[3][0], etag="another's"), upload.parts[3][1])
    store = FaultyStore(memory)
    sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert 2 == store.calls["put_part"]
    assert path.read_bytes() == read(store, "key", tmp_path)


def test_parts_keep_their_size_when_the_configuration_changes(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 6 * PART)
    job = accept(journal, path)
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(memory, [Fault("put_part", TransientError("reset"), nth=3, times=100)]), SMALL_PARTS)
    sender.send(again(journal, job), path, memory, replace(SMALL_PARTS, part_size_bytes=PART // 3))
    assert path.read_bytes() == read(memory, "key", tmp_path)


def test_an_upload_that_the_store_has_forgotten_begins_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 4 * PART)
    job = accept(journal, path)
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(memory, [Fault("complete", TransientError("reset"))]), SMALL_PARTS)
    memory._root.uploads.clear()
    store = FaultyStore(memory)
    sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert (1, 4) == (store.calls["begin"], store.calls["put_part"])
    assert path.read_bytes() == read(store, "key", tmp_path)


def test_an_upload_that_vanishes_under_way_is_transient_and_begins_again(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 4 * PART)
    job = accept(journal, path)
    store = FaultyStore(memory, [Fault("put_part", nth=3, act=memory._root.uploads.clear)])
    with pytest.raises(TransientError, match="begins again"):
        sender.send(job, path, store, SMALL_PARTS)
    sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert path.read_bytes() == read(store, "key", tmp_path)
    assert {} == memory._root.uploads


def test_a_permanent_error_leaves_no_parts_behind(sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 8 * PART)
    job = accept(journal, path)
    store = FaultyStore(memory, [Fault("put_part", AccessDeniedError("no"), nth=3)])
    with pytest.raises(AccessDeniedError):
        sender.send(job, path, store, SMALL_PARTS)
    assert {} == memory._root.uploads
    assert ([], None) == (journal.parts.sent(job.id), again(journal, job).upload_id)


def test_without_a_journal_a_large_file_goes_as_well(memory: MemoryStore, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    path = file_of(tmp_path / "file", 5 * PART)
    Sender(None, pool).send(leased_job("key", 5 * PART), path, memory, SMALL_PARTS)
    assert path.read_bytes() == read(memory, "key", tmp_path)


# -- lost answers


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(("size_bytes", "operation"), [(10, "put"), (4 * PART, "complete")])
def test_a_lost_answer_is_resolved_by_the_token(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int, operation: str, overwrite: bool
) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    store = RetryStore(FaultyStore(memory, [Fault(operation, LOST, after=True)]), PATIENT)
    meta = sender.send(accept(journal, path, overwrite=overwrite), path, store, SMALL_PARTS)
    assert crc32c(path.read_bytes()) == meta.crc32c
    assert path.read_bytes() == read(store, "key", tmp_path)
    assert {} == memory._root.uploads


@pytest.mark.parametrize(("size_bytes", "operation"), [(10, "put"), (4 * PART, "complete")])
def test_a_worker_that_died_after_the_store_had_it_is_resolved_by_the_next(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int, operation: str
) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    job = accept(journal, path, overwrite=False)
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(memory, [Fault(operation, LOST, after=True)]), SMALL_PARTS)
    before = memory.head("key")
    store = FaultyStore(memory)
    meta = sender.send(again(journal, job), path, store, SMALL_PARTS)
    assert before == memory.head("key")
    assert before.etag == meta.etag
    assert 0 == store.calls["put_part"]


@pytest.mark.parametrize("size_bytes", [10, 4 * PART])
def test_a_name_taken_by_another_is_an_error_and_the_object_is_kept(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, size_bytes: int
) -> None:
    theirs = file_of(tmp_path / "theirs", size_bytes, seed=1)
    memory.put_file("key", theirs, PutOptions(metadata={TOKEN_METADATA: "theirs"}))
    path = file_of(tmp_path / "file", size_bytes)
    with pytest.raises(AlreadyExistsError):
        sender.send(accept(journal, path, overwrite=False), path, memory, SMALL_PARTS)
    assert theirs.read_bytes() == read(memory, "key", tmp_path)
    assert {} == memory._root.uploads


def test_the_same_bytes_by_another_are_still_anothers(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 10)
    memory.put_file("key", path)
    with pytest.raises(AlreadyExistsError):
        sender.send(accept(journal, path, overwrite=False), path, memory, SMALL_PARTS)


class Forgetful(WrappedStore):
    """A store that keeps no metadata and checks nothing, like many behind fsspec."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._capabilities = replace(inner.capabilities, metadata=False, checks_crc32c=False, multipart=False)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self._capabilities

    def put_file(self, key, path, put=PutOptions()):  # type: ignore[no-untyped-def]
        meta = self.inner.put_file(key, path, PutOptions(if_absent=put.if_absent))
        return replace(meta, crc32c=None)

    def head(self, key: str):  # type: ignore[no-untyped-def]
        return replace(self.inner.head(key), crc32c=None)


def test_without_tokens_an_object_of_the_first_attempt_is_anothers(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 10)
    memory.put_file("key", path)
    with pytest.raises(AlreadyExistsError):
        sender.send(accept(journal, path, overwrite=False), path, Forgetful(memory), SMALL_PARTS)


def test_without_tokens_the_same_bytes_after_an_attempt_are_ours(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 10)
    job = accept(journal, path, overwrite=False)
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(Forgetful(memory), [Fault("put", LOST, after=True)]), SMALL_PARTS)
    sender.send(again(journal, job), path, Forgetful(memory), SMALL_PARTS)


def test_without_tokens_other_bytes_after_an_attempt_are_anothers(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 10)
    job = accept(journal, path, overwrite=False)
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(Forgetful(memory), [Fault("put", TransientError("reset"))]), SMALL_PARTS)
    memory.put_file("key", file_of(tmp_path / "theirs", 10, seed=1))
    with pytest.raises(AlreadyExistsError):
        sender.send(again(journal, job), path, Forgetful(memory), SMALL_PARTS)


# -- verification


class Corrupting(MemoryStore):
    """Keeps other bytes than it was sent; says what it keeps, or as a `liar` what it was sent."""

    capabilities = replace(MemoryStore.capabilities, checks_crc32c=False)
    liar = False

    def _store(self, operation, key, data, put):  # type: ignore[no-untyped-def]
        meta = super()._store(operation, key, b"X" + data[1:], replace(put, crc32c=None))
        return replace(meta, crc32c=put.crc32c) if self.liar else meta


@pytest.mark.parametrize("liar", [False, True])
@pytest.mark.parametrize("size_bytes", [10, 4 * PART])
def test_wrong_stored_bytes_are_found(sender: Sender, journal: Journal, tmp_path: Path, size_bytes: int, liar: bool) -> None:
    path = file_of(tmp_path / "file", size_bytes)
    store = Corrupting(StoreURI("memory", uuid.uuid4().hex), {})
    store.liar = liar
    with pytest.raises(IntegrityError, match="sent were"):
        sender.send(accept(journal, path), path, store, SMALL_PARTS)


def test_a_store_that_keeps_too_little_is_found(sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path) -> None:
    class Cutting(Forgetful):
        def put_file(self, key, path, put=PutOptions()):  # type: ignore[no-untyped-def]
            half = path.with_name("half")
            half.write_bytes(path.read_bytes()[:5])
            return self.inner.put_file(key, half)

    path = file_of(tmp_path / "file", 10)
    with pytest.raises(IntegrityError, match="the store has 5 bytes"):
        sender.send(accept(journal, path), path, Cutting(memory), SMALL_PARTS)


@pytest.mark.parametrize("ranged_get", [True, False])
def test_reading_back_makes_no_file(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path, ranged_get: bool
) -> None:
    """Neither of a piece nor, where the store has no ranges, of the whole object: the disk may be full of uploads."""

    class NoFiles(Forgetful):
        def get_file(self, key, path, **options):  # type: ignore[no-untyped-def]
            raise AssertionError(f"{path} is written")

    path = file_of(tmp_path / "file", 100)
    store = NoFiles(memory)
    memory.capabilities = replace(memory.capabilities, ranged_get=ranged_get)
    faulty = FaultyStore(store, [Fault("get", TransientError("cut off"), after=True)])
    retried = RetryStore(faulty, replace(IMPATIENT, call_deadline_s=60.0))
    assert 100 == sender.send(accept(journal, path), path, retried, SMALL_PARTS).size_bytes
    assert 2 == faulty.calls["get"]


def test_reading_back_takes_the_range_of_one_version_only(
    sender: Sender, memory: MemoryStore, journal: Journal, tmp_path: Path
) -> None:
    """Another writer replaces the object between our put and the look at it: that is no success of ours."""
    path = file_of(tmp_path / "file", 10)
    other = file_of(tmp_path / "other", 10, seed=1)

    def replace_object() -> None:
        memory.put_file("key", other)

    store = FaultyStore(Forgetful(memory), [Fault("get", act=replace_object)])
    with pytest.raises(IntegrityError):
        sender.send(accept(journal, path), path, store, SMALL_PARTS)


def test_a_local_object_that_was_copied_is_read_back_and_one_that_was_linked_is_not(
    sender: Sender, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 10)
    local = LocalStore(StoreURI("file", ""), {})
    linked = FaultyStore(local)
    sender.send(replace(accept(journal, path), key=str(tmp_path / "dest" / "a").lstrip("/")), path, linked, SMALL_PARTS)
    assert 0 == linked.calls["get"]
    copied = FaultyStore(local)
    job = replace(leased_job("", 10), key=str(tmp_path / "dest" / "b").lstrip("/"))
    sender.send(job, path, copied, SMALL_PARTS, frozen=False)
    assert 1 == copied.calls["get"]
    assert path.read_bytes() == (tmp_path / "dest" / "a").read_bytes() == (tmp_path / "dest" / "b").read_bytes()


def test_the_receipts_of_parts_are_those_of_the_store(
    memory: MemoryStore, sender: Sender, journal: Journal, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "file", 3 * PART)
    job = accept(journal, path)
    with pytest.raises(NotFoundError):
        memory.list_parts("key", "none")
    with pytest.raises(TransientError):
        sender.send(job, path, FaultyStore(memory, [Fault("complete", TransientError("reset"))]), SMALL_PARTS)
    upload_id = again(journal, job).upload_id
    assert upload_id is not None
    held: list[StoredPart] = memory.list_parts("key", upload_id)
    assert held == journal.parts.sent(job.id)
