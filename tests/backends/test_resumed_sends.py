"""The Sender over stores that keep what was sent: interrupted anywhere, the next attempt sends the rest and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from support import SETTINGS, file_of, new_job
from wherry.backends.gcs.store import GCSStore
from wherry.backends.local.store import LocalStore
from wherry.checksum import crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AlreadyExistsError, TransientError
from wherry.spool.journal.jobs import Job
from wherry.spool.journal.journal import Journal
from wherry.store import MultipartStore, ObjectMeta, PutOptions
from wherry.store.wrappers import RetryStore
from wherry.testing import Fault, FaultyStore
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

PART = 256 * 1024
SIZE = 5 * PART + 1001
PARTS = TransferConfig(multipart_threshold_bytes=PART, part_size_bytes=PART, parts_in_flight=1)
ONCE = RetryConfig(call_deadline_s=0.0)
PATIENT = RetryConfig(call_deadline_s=60.0, first_wait_s=0.001, longest_wait_s=0.01)
RESET, LOST = TransientError("reset"), TransientError("the answer was lost")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


class CopiesOnly(LocalStore):
    """As where the staged file is on another file system."""

    def can_share(self, key: str, path: Path) -> bool:
        return False


#: Opens a store as a new process does: it knows nothing of what another has sent.
Opening = Callable[[], MultipartStore]


@pytest.fixture(params=["session", "session, sdk_only", "compose", "compose, sdk_only", "local"])
def opening(request: pytest.FixtureRequest, server: GCSServer) -> Opening:
    upload, _, way = request.param.partition(", ")

    def gcs() -> MultipartStore:
        return GCSStore(StoreURI("gs", server.bucket), {**server.options, "upload": upload, "sdk_only": bool(way)})

    return (lambda: CopiesOnly(StoreURI("file", ""), {})) if request.param == "local" else gcs


class World:
    """One job, and attempts at it by workers that know the journal and the file only."""

    def __init__(self, journal: Journal, folder: Path, *, overwrite: bool) -> None:
        self.journal, self.folder = journal, folder
        self.path = file_of(folder / "source", SIZE)
        self.key = f"{folder}/bucket/object".lstrip("/")
        store = journal.uploads.store_id("memory", "root", {}, (), SETTINGS)
        journal.uploads.submit("me", store, [new_job(self.key, size_bytes=SIZE, overwrite=overwrite)])
        self.n_sent = 0

    def attempt(self, store: MultipartStore, *faults: Fault, retry: RetryConfig = ONCE) -> ObjectMeta:
        job = self.journal.work.lease("w", 60.0)
        assert job is not None
        faulty = FaultyStore(store, faults)
        try:
            with ThreadPoolExecutor(2) as pool:
                sender = Sender(self.journal, pool, worker="w")
                # The key that errors name is the job's; the URI is of no account here.
                return sender.send(self._job(job), self.path, RetryStore(faulty, retry), PARTS, retry=retry)
        finally:
            self.n_sent += faulty.calls["put_part"]
            self.journal.work.release()
            faulty.close()

    def _job(self, job: Job) -> Job:
        return replace(job, key=self.key)

    def stored(self, store: MultipartStore) -> bytes:
        (self.folder / "back").touch()
        store.get_file(self.key, self.folder / "back")
        return (self.folder / "back").read_bytes()


@pytest.fixture(params=[True, False], ids=["overwrite", "if_absent"])
def world(journal: Journal, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(journal, tmp_path, overwrite=request.param)


@pytest.mark.pairwise
@pytest.mark.parametrize("nth", [1, 2, 6])
@pytest.mark.parametrize("after", [False, True], ids=["reset", "lost"])
def test_the_next_worker_sends_the_rest_and_no_more(world: World, opening: Opening, nth: int, after: bool) -> None:
    with pytest.raises(TransientError):
        world.attempt(opening(), Fault("put_part", LOST if after else RESET, nth=nth, times=2, after=after))
    made = world.attempt(opening())
    assert (SIZE, crc32c_of_file(world.path)) == (made.size_bytes, made.crc32c or crc32c_of_file(world.path))
    with opening() as store:
        # One that the store has is not sent again, though nobody heard of it; but for the rest of a stream.
        is_again = not after or (store.capabilities.sequential_parts and nth == 6)
        assert world.n_sent == 6 + is_again
        assert world.path.read_bytes() == world.stored(store)
        assert [] == list(store.list_uploads(world.key))


def test_the_journal_says_how_much_is_sent(world: World, opening: Opening) -> None:
    with pytest.raises(TransientError):
        world.attempt(opening(), Fault("put_part", RESET, nth=4, times=10))
    job = world.journal.work.lease("w", 60.0)
    assert job is not None
    assert 3 * PART == sum(part.size_bytes for part in world.journal.parts.sent(job.id))
    with opening() as store:  # a stream has no parts that anybody could take
        assert (0 if store.capabilities.sequential_parts else 3, 0) == world.journal.parts.left(job.id)
    world.journal.work.release()
    world.attempt(opening())


@pytest.mark.pairwise
@pytest.mark.parametrize("after", [False, True], ids=["reset", "lost"])
def test_an_end_that_nobody_heard_of_is_resolved_by_looking(world: World, opening: Opening, after: bool) -> None:
    """By the next call of the same worker, and by the next worker."""
    fault = Fault("complete", LOST if after else RESET, after=after)
    world.attempt(opening(), fault, retry=PATIENT)
    with opening() as store:
        assert world.path.read_bytes() == world.stored(store)
        store.delete(world.key)


@pytest.mark.pairwise
@pytest.mark.parametrize("after", [False, True], ids=["reset", "lost"])
def test_an_end_that_nobody_heard_of_is_resolved_by_the_next_worker(world: World, opening: Opening, after: bool) -> None:
    with pytest.raises(TransientError):
        world.attempt(opening(), Fault("complete", LOST if after else RESET, times=2, after=after))
    n_sent = world.n_sent
    world.attempt(opening())
    assert world.n_sent - n_sent <= 1  # the rest of a stream, which was in the memory of the first
    with opening() as store:
        assert world.path.read_bytes() == world.stored(store)
        assert [] == list(store.list_uploads(world.key))


def test_a_name_that_another_takes_meanwhile_is_kept(journal: Journal, tmp_path: Path, opening: Opening) -> None:
    world = World(journal, tmp_path, overwrite=False)
    other = file_of(tmp_path / "other", 10)

    def take() -> None:
        with opening() as store:
            store.put_file(world.key, other, PutOptions(metadata={"wherry-token": "another's"}))

    with pytest.raises(AlreadyExistsError):
        world.attempt(opening(), Fault("put_part", act=take, nth=3))
    with opening() as store:
        assert other.read_bytes() == world.stored(store)
        assert [] == list(store.list_uploads(world.key))
        store.delete(world.key)
