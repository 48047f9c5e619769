"""What a server was found to honour is found out once, and known to later processes."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from wherry.backends.memory import MemoryStore
from wherry.endpoints import Endpoints
from wherry.errors import AccessDeniedError
from wherry.store import TEMPORARY_MARK
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
    assert not file.exists()


def test_findings_of_long_ago_are_made_anew(file: Path) -> None:
    file.write_text(json.dumps({"server:9000": {"found_s": time.time() - 8 * 86_400, "findings": {"honest": False}}}))
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
    file.write_text(json.dumps({"other:9000": {"found_s": old_s, "findings": {"honest": False}}}))
    Endpoints(file).find_out(ProbedStore(), "a.pt")
    assert {"found_s": old_s, "findings": {"honest": False}} == json.loads(file.read_text())["other:9000"]


def test_what_cannot_be_written_down_is_known_to_this_process(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path / "missing" / "endpoints.json")
    store = ProbedStore()
    endpoints.find_out(store, "a.pt")
    endpoints.find_out(store, "a.pt")
    assert 1 == len(store.probed)
