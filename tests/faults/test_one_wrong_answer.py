"""One wrong answer about an object that was just written never ends its upload: it is asked again, and written again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from servers.proxy import Answer, Corrupt, DropAnswer, When, fault_proxy, s3_error
from servers.worlds import World, object_of, some_bytes, uploader_of
from support import file_of, leased_job
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.protocol.documents import put_small
from wherry.config import TransferConfig
from wherry.errors import AlreadyExistsError, BucketNotFoundError, IntegrityError, NotFoundError, StoreError, TransientError
from wherry.spool.journal.tokens import Attempt, new_token
from wherry.store import TOKEN_METADATA, Capabilities, ObjectMeta, PutOptions
from wherry.store.retry import NotVerifiedError
from wherry.testing import Fault, FaultyStore
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI

MISSING = s3_error(404, "NoSuchKey")
DENIED = s3_error(403, "AccessDenied")
#: As HEAD describes another object: an empty one, without our token.
OTHER = Answer(200, b"", (("ETag", '"d41d8cd98f00b204e9800998ecf8427e"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")))
PARTS = TransferConfig(multipart_threshold_bytes=2000, part_size_bytes=1000)
GONE = NotFoundError("no such object")


@pytest.fixture
def key() -> str:
    return f"wrong/{uuid.uuid4().hex}"


# -- on real servers


@pytest.mark.parametrize(
    "plan",
    [
        # S3Store asks with GET what a 404 to a HEAD means: the object itself must be missing in both answers.
        pytest.param({"look": MISSING, "get": MISSING}, id="the look: 404"),
        pytest.param({"look": DENIED, "get": DENIED}, id="the look: 403"),
        pytest.param({"look": OTHER}, id="the look: another object"),
        pytest.param({"get": MISSING}, id="the bytes: 404"),
        pytest.param({"get": s3_error(412, "PreconditionFailed")}, id="the bytes: 412"),
        pytest.param({"get": Corrupt(7)}, id="the bytes: others"),
    ],
)
def test_one_wrong_answer_after_a_put_is_asked_again(
    plan: dict[str, Answer | Corrupt], worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    world, data = worlds("S3"), some_bytes(4000)
    (tmp_path / "source").write_bytes(data)
    requests = {"look": world.look(key), "get": world.get(key)}
    with fault_proxy("127.0.0.1", world.server.port, [When(*requests[what], plan[what]) for what in plan]) as proxy:
        with uploader_of(world, key, tmp_path, proxy.url) as (uploader, name):
            handle = uploader.put(tmp_path / "source", name, overwrite=True)
            handle.result()
            (job,) = uploader.journal.queries.jobs(ids=handle.ids)
        assert [] == proxy.unfired
        assert 1 == len(proxy.requests(*world.data_requests(key))) == job.attempts
    assert data == object_of(world, key, tmp_path)


@pytest.mark.parametrize("step", ["put", "complete"])
@pytest.mark.parametrize("store", ["S3", "GCS"])
def test_the_look_after_a_lost_answer_is_asked_again(
    store: str, step: str, worlds: Callable[[str], World], key: str, tmp_path: Path
) -> None:
    world = worlds(store)
    data = some_bytes(4000 if step == "put" else world.large_bytes)
    (tmp_path / "source").write_bytes(data)
    method, target, nth = world.request(step, key)  # type: ignore[arg-type]
    look = When(*world.look(key), world.error("NoSuchUpload"), 1 if store == "GCS" else 2)
    with fault_proxy("127.0.0.1", world.server.port, [When(method, target, DropAnswer(), nth), look]) as proxy:
        with uploader_of(world, key, tmp_path, proxy.url) as (uploader, name):
            uploader.put(tmp_path / "source", name, overwrite=False).result()
        assert [] == proxy.unfired
    assert data == object_of(world, key, tmp_path)


# -- and where the answer is wrong twice


class Careful(FaultyStore):
    """A store that keeps tokens and whose checksums prove nothing, so that its objects are read back.

    head() answers with the `lies` first.
    """

    lies: list[ObjectMeta] = []  # noqa: RUF012  each test sets its own

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return replace(self.inner.capabilities, checks_crc32c=False)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        return replace(super().put_file(key, path, put), crc32c=None)

    def head(self, key: str) -> ObjectMeta:
        if not self.lies:
            return super().head(key)
        answer, *self.lies = self.lies
        return answer


@pytest.fixture
def store() -> Careful:
    return Careful(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))


@pytest.fixture
def sender() -> Iterator[Sender]:
    with ThreadPoolExecutor(4) as pool:
        yield Sender(None, pool)


@pytest.mark.parametrize("operation", ["head", "get"])
@pytest.mark.parametrize("error", [GONE, BucketNotFoundError("no such bucket"), IntegrityError("it was replaced")])
def test_an_answer_that_is_wrong_twice_has_the_object_written_again(
    operation: str, error: StoreError, store: Careful, sender: Sender, tmp_path: Path
) -> None:
    path, job = file_of(tmp_path / "file", 100), leased_job("key", 100)
    store.plan = [Fault(operation, error, times=2)]
    with pytest.raises(NotVerifiedError, match=error.message):
        sender.send(job, path, store, PARTS)
    assert 100 == sender.send(job, path, store, PARTS).size_bytes


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_description_of_anothers_object_takes_no_name_from_us(
    answer_lost: bool, store: Careful, sender: Sender, tmp_path: Path
) -> None:
    job = replace(leased_job("key", 100), overwrite=False)
    store.lies = [ObjectMeta("key", 7, "etag", metadata={TOKEN_METADATA: "another's"})]
    if answer_lost:
        store.plan = [Fault("put", AlreadyExistsError("the object is there already"), after=True)]
    assert 100 == sender.send(job, file_of(tmp_path / "file", 100), store, PARTS).size_bytes


def test_what_must_be_mended_by_somebody_is_not_asked_again(store: Careful, sender: Sender, tmp_path: Path) -> None:
    from wherry.errors import CredentialsExpiredError

    store.plan = [Fault("head", CredentialsExpiredError("expired"))]
    with pytest.raises(CredentialsExpiredError):
        sender.send(leased_job("key", 100), file_of(tmp_path / "file", 100), store, PARTS)
    assert 1 == store.calls["head"]


def test_a_name_that_was_taken_only_by_mistake_is_written_again(store: Careful, sender: Sender, tmp_path: Path) -> None:
    """As where the look for a free name, or a proxy, says that there is an object, and there is none."""
    job = replace(leased_job("key", 100), overwrite=False)
    store.plan = [Fault("put", AlreadyExistsError("the object is there already"))]
    with pytest.raises(NotVerifiedError):
        sender.send(job, file_of(tmp_path / "file", 100), store, PARTS)


def test_what_an_earlier_attempt_left_is_replaced_though_the_first_look_missed_it(
    store: Careful, sender: Sender, tmp_path: Path
) -> None:
    left = PutOptions(metadata={TOKEN_METADATA: new_token(Attempt("run", 0), "session a")})
    store.put_file("key", file_of(tmp_path / "left", 10), left)
    job = replace(leased_job("key", 100), overwrite=False, token=new_token(Attempt("run", 0), "session b"))
    job = replace(job, schedule=replace(job.schedule, replaces_earlier=True))
    store.plan = [Fault("head", GONE)]
    path = file_of(tmp_path / "file", 100)
    with pytest.raises(TransientError):
        sender.send(job, path, store, PARTS)
    assert 100 == sender.send(job, path, store, PARTS).size_bytes


def test_a_receipt_or_a_manifest_that_is_read_back_wrongly_is_read_again(store: Careful) -> None:
    store.plan = [Fault("get", GONE), Fault("get", GONE, nth=3, times=2)]
    put_small(store, "key", b"receipt", if_absent=False)
    with pytest.raises(NotVerifiedError):
        put_small(store, "key", b"receipt", if_absent=False)
