"""What a server was found to honour is found out once, and known to later processes."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from wherry.backends.memory import MemoryStore
from wherry.errors import AccessDeniedError, TransientError
from wherry.store import TEMPORARY_MARK
from wherry.store.server_features import Endpoints
from wherry.uri import StoreURI


class ProbedStore(MemoryStore):
    """A store with something to find out."""

    endpoint = "server:9000"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(StoreURI("memory", uuid.uuid4().hex), {})
        self.error = error
        self.probed: list[str] = []
        self.assumed: list[Mapping[str, bool]] = []

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        self.probed.append(key_prefix)
        if self.error is not None:
            raise self.error
        self.assume({"honest": True})
        return {"honest": True}

    def assume(self, findings: Mapping[str, bool]) -> None:
        self.assumed.append(findings)


class SlowStore(ProbedStore):
    """Its trial takes until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        self.may_end.wait()
        return super().probe(key_prefix)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "endpoints.json"


def test_an_endpoint_is_tried_once_and_every_later_store_is_told(file: Path) -> None:
    endpoints = Endpoints(file)
    first, second, third = ProbedStore(), ProbedStore(), ProbedStore()
    assert not endpoints.tell(first)
    endpoints.find_out(first, "run/a.pt")
    endpoints.find_out(first, "run/b.pt")
    endpoints.find_out(second, "run/c.pt")
    assert Endpoints(file).tell(third)
    assert (1, 0, 0) == tuple(len(store.probed) for store in (first, second, third))
    assert [{"honest": True}] == third.assumed


def test_trials_are_made_beside_the_object_under_a_name_that_lists_do_not_show(file: Path) -> None:
    store = ProbedStore()
    Endpoints(file).find_out(store, "runs/7/a.pt")
    (prefix,) = store.probed
    assert prefix.startswith(f"runs/7/{TEMPORARY_MARK}probe-")
    assert prefix.endswith("/")


def test_a_store_without_an_endpoint_is_not_tried(file: Path) -> None:
    store = ProbedStore()
    store.endpoint = None  # type: ignore[assignment]
    endpoints = Endpoints(file)
    assert endpoints.tell(store)
    endpoints.find_out(store, "a.pt")
    assert [] == store.probed
    assert not file.exists()


def test_a_trial_that_is_refused_harms_nothing_and_is_not_made_again_at_once(file: Path) -> None:
    store = ProbedStore(AccessDeniedError("no"))
    endpoints = Endpoints(file)
    for _ in range(3):
        endpoints.find_out(store, "a.pt")
    assert 1 == len(store.probed)


def test_a_trial_that_fails_is_not_made_again_by_other_processes_for_a_while(file: Path) -> None:
    store = ProbedStore(TransientError("no answer"))
    Endpoints(file).find_out(store, "a.pt")
    Endpoints(file).find_out(store, "a.pt")
    assert Endpoints(file).find_out_aside(store, "a.pt") is None
    assert 1 == len(store.probed)
    assert not Endpoints(file).tell(store)
    kept = json.loads(file.read_text())
    for age_s in (601.0, -86_400.0):  # ten minutes later, and after a step back of the clock
        kept["server:9000"]["found_s"] = time.time() - age_s
        file.write_text(json.dumps(kept))
        store = ProbedStore()
        Endpoints(file).find_out(store, "a.pt")
        assert 1 == len(store.probed)


def test_of_several_uploads_at_once_one_starts_the_trial_and_none_waits_for_it(file: Path) -> None:
    endpoints = Endpoints(file)
    store = SlowStore()
    first, second = (endpoints.find_out_aside(store, "a.pt") for _ in range(2))
    assert first is second
    assert first is not None
    assert first.is_alive()
    store.may_end.set()
    first.join()
    assert 1 == len(store.probed)
    assert endpoints.find_out_aside(store, "b.pt") is None
    assert endpoints.find_out_aside(ProbedStore(), "b.pt") is None


def test_a_store_that_was_open_before_the_trial_is_told_as_well(file: Path) -> None:
    endpoints = Endpoints(file)
    tried, open_before = ProbedStore(), ProbedStore()
    assert not endpoints.tell(open_before)
    endpoints.find_out(tried, "a.pt")
    endpoints.find_out(open_before, "a.pt")
    assert [{"honest": True}] == open_before.assumed
    assert [] == open_before.probed


def test_findings_of_long_ago_are_made_anew(file: Path) -> None:
    file.write_text(
        json.dumps(
            {"server:9000": {"found_s": time.time() - 8 * 86_400, "findings": {"honest": False}, "failed": False, "trial": 2}}
        )
    )
    store = ProbedStore()
    Endpoints(file).find_out(store, "a.pt")
    assert 1 == len(store.probed)
    assert {"honest": True} == json.loads(file.read_text())["server:9000"]["findings"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"server:9000": 3}', '{"server:9000": {}}'])
def test_a_damaged_file_is_made_anew(file: Path, text: str) -> None:
    file.write_text(text)
    store = ProbedStore()
    Endpoints(file).find_out(store, "a.pt")
    assert 1 == len(store.probed)
    assert Endpoints(file).tell(ProbedStore())


def test_findings_of_several_endpoints_are_kept_side_by_side(file: Path) -> None:
    other = ProbedStore()
    other.endpoint = "other:9000"
    Endpoints(file).find_out(ProbedStore(), "a.pt")
    Endpoints(file).find_out(other, "a.pt")
    assert {"server:9000", "other:9000"} == set(json.loads(file.read_text()))
    assert [] == [name for name in os.listdir(file.parent) if name != file.name]


def test_what_is_known_of_one_endpoint_does_not_grow_younger_with_another(file: Path) -> None:
    old_s = time.time() - 6 * 86_400
    kept = {"found_s": old_s, "findings": {"honest": False}, "failed": False, "trial": 2}
    file.write_text(json.dumps({"other:9000": kept}))
    Endpoints(file).find_out(ProbedStore(), "a.pt")
    assert kept == json.loads(file.read_text())["other:9000"]


def test_findings_of_a_trial_that_did_not_race_are_made_anew(file: Path) -> None:
    file.write_text(json.dumps({"server:9000": {"found_s": time.time(), "findings": {"honest": False}}}))
    store = ProbedStore()
    Endpoints(file).find_out(store, "a.pt")
    assert 1 == len(store.probed)


def test_what_cannot_be_written_down_is_known_to_this_process(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path / "missing" / "endpoints.json")
    store = ProbedStore()
    endpoints.find_out(store, "a.pt")
    endpoints.find_out(store, "a.pt")
    assert 1 == len(store.probed)
