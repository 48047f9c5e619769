from __future__ import annotations

import inspect
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c
from wherry.config import RetryConfig
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError, PermanentError, ThrottledError, TransientError
from wherry.store import Capabilities, MultipartStore, ObjectMeta, Page, Part, PendingUpload, PutOptions, StoredPart, TakeBlock
from wherry.store.governor import Governor
from wherry.store.metered import MeteredStore
from wherry.store.node_table import NodeTable
from wherry.store.pacing import PacedStore, command_governor
from wherry.store.wrappers import LimitStore, RetryStore, WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

NO_WAITS = RetryConfig(call_deadline_s=60, first_wait_s=0, longest_wait_s=0)
WRAPPERS = [
    RetryStore,
    lambda inner: LimitStore(inner, 2),
    FaultyStore,
    WrappedStore,
    lambda inner: PacedStore(inner, command_governor(1e12)),
    lambda inner: MeteredStore(inner, lambda key, n_bytes: None),
]
CONTRACT = [
    "capabilities",
    *(name for name, member in inspect.getmembers(MultipartStore) if inspect.isfunction(member) and not name.startswith("_")),
]


def memory_store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


def file(folder: Path, data: bytes = b"data") -> Path:
    path = folder / uuid.uuid4().hex
    path.write_bytes(data)
    return path


def void(_: object) -> None:
    """Turn an answer that nobody wants into none."""


class RecordingStore(MultipartStore):
    """Notes each call with all of its arguments, and answers with an object that tells the call."""

    capabilities = Capabilities(True, False, True, False, True, False, True, max_parts=7)

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def _note(self, arguments: dict[str, Any]) -> None:
        self.calls.append((sys._getframe(1).f_code.co_name, {k: v for k, v in arguments.items() if k != "self"}))

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        self._note(locals())
        return ObjectMeta(key, 1)

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        self._note(locals())
        return iter([(0, ObjectMeta("a", 1)), (2, ObjectMeta("c", 1))])

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        self._note(locals())

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        self._note(locals())

    def head(self, key: str) -> ObjectMeta:
        self._note(locals())
        return ObjectMeta(key, 2)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        self._note(locals())
        return iter([ObjectMeta("a", 3), ObjectMeta("b", 4)])

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        self._note(locals())
        return iter([Page([ObjectMeta("a", 3)], ["f/"], "a"), Page([ObjectMeta("b", 4)])])

    def delete(self, key: str) -> None:
        self._note(locals())

    def close(self) -> None:
        self._note(locals())

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        self._note(locals())
        return "upload"

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        self._note(locals())
        return StoredPart(1, 2, "etag")

    def list_parts(self, key: str, upload_id: str) -> Any:
        self._note(locals())
        return [StoredPart(1, 2, "etag")]

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        self._note(locals())
        return ObjectMeta(key, 5)

    def abort(self, key: str, upload_id: str) -> None:
        self._note(locals())

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        self._note(locals())
        return ObjectMeta(key, 6)

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        self._note(locals())
        return ObjectMeta(key, source.size_bytes)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        self._note(locals())
        return iter([PendingUpload("a", "1", 1.0, True), PendingUpload("a", "2", 2.0, False)])

    def can_share(self, key: str, path: Path) -> bool:
        self._note(locals())
        return True

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        self._note(locals())
        return {"finding": True}

    def assume(self, findings: Mapping[str, bool]) -> None:
        self._note(locals())


#: One value for each parameter name of the contract, none of them a default.
ARGUMENTS: dict[str, Any] = {
    "key": "k",
    "path": Path("p"),
    "put": PutOptions(if_absent=True, crc32c=99, metadata={"m": "v"}, frozen=True),
    "puts": [("a", Path("p"), PutOptions(if_absent=True)), ("b", Path("q"), PutOptions())],
    "most": 2,
    "start": 3,
    "end": 4,
    "take": print,
    "if_match": "e",
    "prefix": "pre",
    "start_after": "A",
    "source": ObjectMeta("k2", 3, etag="e"),
    "root": "another",
    "if_absent": True,
    "one_level": True,
    "mark": "m",
    "size_bytes": 12,
    "upload_id": "u",
    "part": Part(1, 0, 1, 0),
    "parts": [StoredPart(1, 1, "e")],
    "key_prefix": "probes",
    "sources": ["a", "b"],
    "keys": ["a", "b"],
    "findings": {"finding": False},
}


@pytest.mark.parametrize("kind", [RetryStore, LimitStore, FaultyStore])
@pytest.mark.parametrize("name", CONTRACT)
def test_wrapper_overrides_every_contract_method(kind: type[WrappedStore], name: str) -> None:
    assert getattr(kind, name) is not getattr(MultipartStore, name, None)


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("name", [name for name in CONTRACT if name != "capabilities"])
def test_wrapper_forwards_every_argument_and_the_answer(wrap: Any, name: str) -> None:
    plain, wrapped = RecordingStore(), RecordingStore()
    parameters = list(inspect.signature(getattr(plain, name)).parameters.values())
    positional = [ARGUMENTS[each.name] for each in parameters if each.kind is not each.KEYWORD_ONLY]
    named = {each.name: ARGUMENTS[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}
    answers = [getattr(store, name)(*positional, **named) for store in (plain, wrap(wrapped))]
    if name.startswith(("list", "pages", "put_many")):
        answers = [list(answer) for answer in answers]
    assert answers[0] == answers[1]
    assert plain.calls == wrapped.calls


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_capabilities_are_the_inner_stores_at_each_moment(wrap: Any) -> None:
    inner = RecordingStore()
    store = wrap(inner)
    assert inner.capabilities is store.capabilities
    inner.capabilities = Capabilities(False, False, False, False, False, False, False)
    assert inner.capabilities is store.capabilities


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_parts_of_a_store_without_parts_are_refused(wrap: Any, tmp_path: Path) -> None:
    store = wrap(FsspecStore(StoreURI("memory", "without-parts"), {}))
    part = Part(1, 0, 1, 0)
    calls: list[Callable[[], object]] = [
        lambda: store.begin("k", 1),
        lambda: store.put_part("k", "u", tmp_path, part),
        lambda: store.list_parts("k", "u"),
        lambda: store.complete("k", "u", []),
        lambda: store.abort("k", "u"),
        lambda: list(store.list_uploads()),
    ]
    for call in calls:
        with pytest.raises(PermanentError, match="takes no parts"):
            call()


def test_retry_gets_over_transient_errors_of_every_method(tmp_path: Path) -> None:
    plan = [
        Fault(name, TransientError("reset"), times=2)
        for name in (
            *("put", "get", "head", "list", "delete", "probe"),
            *("put_part", "list_parts", "complete", "abort", "list_uploads"),
        )
    ]
    store = RetryStore(FaultyStore(memory_store(), plan), NO_WAITS)
    path = file(tmp_path)
    store.put_file("k", path)
    store.get_file("k", path)
    assert [store.head("k").key] == [meta.key for meta in store.list()]
    upload_id = store.begin("large", 4)
    assert [("large", upload_id)] == [(upload.key, upload.upload_id) for upload in store.list_uploads()]
    part = store.put_part("large", upload_id, path, Part(1, 0, 4, crc32c(b"data")))
    assert [part] == store.list_parts("large", upload_id)
    store.complete("large", upload_id, [part])
    store.abort("large", upload_id)
    store.delete("k")
    assert [meta.key for meta in store.list()] == ["large"]
    assert {} == store.probe("probes/")


def test_retry_leaves_a_begin_to_the_caller_for_a_lost_answer_leaves_an_upload() -> None:
    faulty = FaultyStore(memory_store(), [Fault("begin", TransientError("no answer"), after=True)])
    with pytest.raises(TransientError):
        RetryStore(faulty, NO_WAITS).begin("k", 1)
    assert 1 == faulty.calls["begin"]


def test_retry_lets_permanent_errors_through() -> None:
    faulty = FaultyStore(memory_store())
    with pytest.raises(NotFoundError):
        RetryStore(faulty, NO_WAITS).head("missing")
    assert faulty.calls["head"] == 1


def test_lost_answer_of_a_conditional_put_shows_as_already_exists(tmp_path: Path) -> None:
    faulty = FaultyStore(memory_store(), [Fault("put", TransientError("no answer"), after=True)])
    store = RetryStore(faulty, NO_WAITS)
    with pytest.raises(AlreadyExistsError, match="tried 2 times"):
        store.put_file("k", file(tmp_path), PutOptions(if_absent=True, metadata={"wherry-token": "mine"}))
    assert store.head("k").token == "mine"


@pytest.mark.parametrize("nth", range(1, 8))
def test_listing_that_breaks_goes_on_after_the_last_key(tmp_path: Path, nth: int) -> None:
    inner = memory_store()
    names = ["a", "b", "c/d", "é", "\U0001f600"]
    for name in names:
        inner.put_file(name, file(tmp_path))
    faulty = FaultyStore(inner, [Fault("list", TransientError("reset"), nth=nth, times=2)])
    assert names == [meta.key for meta in RetryStore(faulty, NO_WAITS).list()]


def test_listing_that_breaks_asks_for_no_key_again(tmp_path: Path) -> None:
    inner = RecordingStore()
    faulty = FaultyStore(inner, [Fault("list", TransientError("reset"), nth=2)])
    assert ["a", "b"] == [meta.key for meta in RetryStore(faulty, NO_WAITS).list("pre", start_after="Z")], "each once"
    assert [("pre", "Z"), ("pre", "a")] == [(call["prefix"], call["start_after"]) for _, call in inner.calls]


def test_retries_are_told(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    faulty = FaultyStore(memory_store(), [Fault("put", TransientError("reset"), times=3)])
    RetryStore(faulty, NO_WAITS, on_retry=lambda key, error, attempts, wait_s: told.append((key, attempts))).put_file(
        "k", file(tmp_path)
    )
    assert told == [("k", 1), ("k", 2), ("k", 3)]


def test_limit_holds_and_is_reached(tmp_path: Path) -> None:
    n_places, n_calls = 3, 12
    lock, in_flight, seen = threading.Lock(), 0, 0
    full = threading.Barrier(n_places)

    def enter() -> None:
        nonlocal in_flight, seen
        with lock:
            in_flight += 1
            seen = max(seen, in_flight)
        full.wait(60)  # passes only when as many calls are inside as there are places
        with lock:
            in_flight -= 1

    store = LimitStore(FaultyStore(memory_store(), [Fault("put", act=enter, times=n_calls)]), n_places)
    path = file(tmp_path)
    with ThreadPoolExecutor(n_calls) as pool:
        list(pool.map(lambda n: store.put_file(str(n), path), range(n_calls)))
    assert n_places == seen


def test_throttling_halves_the_limit_and_success_restores_it(tmp_path: Path) -> None:
    store = LimitStore(FaultyStore(memory_store(), [Fault("put", ThrottledError("slow down"), times=4)]), 8)
    path = file(tmp_path)
    limits = []
    for _ in range(4):
        with pytest.raises(ThrottledError):
            store.put_file("k", path)
        limits.append(store.limit)
    assert limits == [4, 2, 1, 1]
    store.put_file("k", path)
    assert store.limit == 2
    for _ in range(60):
        store.put_file("k", path)
    assert store.limit == 8


def test_calls_throttled_together_halve_the_limit_once(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    plan = [Fault("put", ThrottledError("slow down"), times=8, act=lambda: void(together.wait(60)))]
    store = LimitStore(FaultyStore(memory_store(), plan), 8)
    path = file(tmp_path)

    def put(n: int) -> None:
        with pytest.raises(ThrottledError):
            store.put_file(str(n), path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))
    assert store.limit == 4


def test_failed_call_gives_its_place_back(tmp_path: Path) -> None:
    store = LimitStore(memory_store(), 1)
    for _ in range(3):
        with pytest.raises(NotFoundError):
            store.head("missing")
    store.put_file("k", file(tmp_path))


def test_listing_holds_no_place_while_the_caller_works(tmp_path: Path) -> None:
    store = LimitStore(memory_store(), 1)
    for name in ("a", "b"):
        store.put_file(name, file(tmp_path))
    assert [store.head(meta.key).key for meta in store.list()] == ["a", "b"]


class ManyStore(RecordingStore):
    """Puts all that it is given at once."""

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        self.calls.append(("put_many", {"most": most}))
        for place, (key, _, _) in enumerate(puts):
            yield place, ObjectMeta(key, 1)


PUTS = [(str(number), Path("p"), PutOptions()) for number in range(5)]


def test_many_puts_take_the_places_that_are_free_and_give_them_back() -> None:
    inner = ManyStore()
    store = LimitStore(inner, 8)
    first = store.put_many(PUTS, 5)
    next(first)
    second = store.put_many(PUTS, 5)
    next(second)
    third = store.put_many(PUTS, 5)
    assert [] == list(third), "there is no place: none of them is put"
    first.close()  # type: ignore[attr-defined]  # it is a generator
    assert 5 == len(list(store.put_many(PUTS, 5)))
    assert [5, 3, 5] == [call["most"] for _, call in inner.calls]


def test_many_puts_are_left_out_while_a_rate_is_limited() -> None:
    for limits in ({"max_bytes_per_s": 1e9}, {"max_requests_per_s": 1e9}):
        governor = Governor(NodeTable(), "", 8, **limits)  # type: ignore[arg-type]
        assert [] == list(LimitStore(ManyStore(), 8, governor).put_many(PUTS, 5))
    governor = Governor(NodeTable(), "", 8)
    store = LimitStore(ManyStore(), 8, governor)
    governor.note_throttled(governor.now_s())
    assert [] == list(store.put_many(PUTS, 5)), "a store that has throttled is asked carefully"


def test_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_in_flight"):
        LimitStore(memory_store(), 0)


def test_faults_happen_where_the_plan_says(tmp_path: Path) -> None:
    plan = [
        Fault("put", TransientError("before"), nth=2),
        Fault("put", TransientError("after"), after=True, key="lost"),
    ]
    store = FaultyStore(memory_store(), plan)
    path = file(tmp_path)
    store.put_file("one", path)
    with pytest.raises(TransientError, match="before"):
        store.put_file("two", path)
    with pytest.raises(TransientError, match="after"):
        store.put_file("lost", path)
    store.put_file("lost", path)
    assert [meta.key for meta in store.list()] == ["lost", "one"]
    assert store.calls["put"] == 4
