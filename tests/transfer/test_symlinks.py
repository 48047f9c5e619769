"""The laws of symlink objects."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from wherry.backends.memory import MemoryStore
from wherry.errors import AccessDeniedError, BucketNotFoundError, NotFoundError, PermanentError
from wherry.store import ObjectStore
from wherry.testing.faulty import Fault, FaultyStore
from wherry.transfer.symlinks import read_text, resolve
from wherry.uri import StoreURI

URI = StoreURI("memory", "bucket", "runs")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


@pytest.fixture
def put(store: MemoryStore, tmp_path: Path) -> Put:
    return Put(store, tmp_path)


class Put:
    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def __call__(self, key: str, text: str | bytes = "data") -> None:
        source = self.folder / "source"
        source.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.store.put_file(key, source)


def test_a_plain_name_is_its_own_key(store: MemoryStore, put: Put) -> None:
    put("runs/ep0.pt")
    put("runs/ep0.pt.symlink", "ep1.pt")
    assert resolve(store, URI, "ep0.pt") == "runs/ep0.pt"


def test_a_missing_name_is_looked_for_as_a_symlink(store: MemoryStore, put: Put) -> None:
    put("runs/a/ep0.pt")
    put("runs/latest.symlink", "a/ep0.pt")
    assert resolve(store, URI, "latest") == "runs/a/ep0.pt"


def test_a_target_may_be_a_key_from_the_buckets_root(store: MemoryStore, put: Put) -> None:
    put("elsewhere/ep0.pt")
    put("runs/latest.symlink", "elsewhere/ep0.pt")
    assert resolve(store, URI, "latest") == "elsewhere/ep0.pt"


def test_a_target_below_the_prefix_comes_first(store: MemoryStore, put: Put) -> None:
    put("runs/ep0.pt")
    put("ep0.pt")
    put("runs/latest.symlink", "ep0.pt")
    assert resolve(store, URI, "latest") == "runs/ep0.pt"


@pytest.mark.parametrize("text", ["  ep0.pt\n", "/ep0.pt", "ep0.pt\r\n"])
def test_space_and_a_leading_slash_around_the_target_are_ignored(store: MemoryStore, put: Put, text: str) -> None:
    put("runs/ep0.pt")
    put("runs/latest.symlink", text)
    assert resolve(store, URI, "latest") == "runs/ep0.pt"


def test_a_name_that_ends_in_symlink_is_followed(store: MemoryStore, put: Put) -> None:
    put("runs/ep0.pt")
    put("runs/latest.symlink", "ep0.pt")
    assert resolve(store, URI, "latest.symlink") == "runs/ep0.pt"


def test_symlinks_lead_to_symlinks(store: MemoryStore, put: Put) -> None:
    put("runs/ep0.pt")
    put("runs/newest.symlink", "ep0.pt")
    put("runs/latest.symlink", "newest")
    put("runs/best.symlink", "latest.symlink")
    assert resolve(store, URI, "best") == "runs/ep0.pt"


def test_a_circle_is_named(store: MemoryStore, put: Put) -> None:
    put("runs/a.symlink", "b")
    put("runs/b.symlink", "a.symlink")
    circle = "memory://bucket/runs/a.symlink -> memory://bucket/runs/b.symlink -> memory://bucket/runs/a.symlink"
    with pytest.raises(PermanentError, match=circle):
        resolve(store, URI, "a")


def test_a_symlink_to_itself_is_a_circle(store: MemoryStore, put: Put) -> None:
    put("runs/a.symlink", "a")
    with pytest.raises(PermanentError, match="circle"):
        resolve(store, URI, "a")


def test_a_name_that_is_nowhere_is_not_found(store: MemoryStore) -> None:
    with pytest.raises(NotFoundError, match=r"memory://bucket/runs/a: .*no \.symlink object"):
        resolve(store, URI, "a")


def test_a_symlink_to_nothing_names_itself(store: MemoryStore, put: Put) -> None:
    put("runs/latest.symlink", "gone.pt")
    with pytest.raises(NotFoundError, match=r"memory://bucket/runs/latest\.symlink points to an object that is not there"):
        resolve(store, URI, "latest")


@pytest.mark.parametrize("key", ["runs/latest", "runs/latest.symlink", "runs/ep0.pt"])
def test_forbidden_is_never_taken_for_missing(store: MemoryStore, put: Put, key: str) -> None:
    put("ep0.pt")
    put("runs/latest.symlink", "ep0.pt")
    faulty = FaultyStore(store, [Fault("head", AccessDeniedError("403"), key=key)])
    with pytest.raises(AccessDeniedError):
        resolve(faulty, URI, "latest")


def test_a_missing_bucket_is_said_at_once(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [Fault("head", BucketNotFoundError("no such bucket"))])
    with pytest.raises(BucketNotFoundError):
        resolve(faulty, URI, "latest")
    assert faulty.calls["head"] == 1


@pytest.mark.parametrize("content", ["", " \n", "../../secret", "a//b", "two\nlines", b"\xff\xfe\x00"])
def test_content_that_is_no_name_is_refused(store: MemoryStore, put: Put, content: str | bytes) -> None:
    put("runs/latest.symlink", content)
    with pytest.raises(PermanentError) as caught:
        resolve(store, URI, "latest")
    assert not isinstance(caught.value, NotFoundError)


def test_a_large_object_is_no_pointer(store: MemoryStore, put: Put) -> None:
    put("runs/latest.symlink", "x" * 100_000)
    with pytest.raises(PermanentError, match="100000 bytes"):
        resolve(store, URI, "latest")


def test_read_text_gives_the_text(store: MemoryStore, put: Put) -> None:
    put("a", "käse")
    put("empty", "")
    assert (read_text(store, "a", 5), read_text(store, "empty", 5)) == ("käse", "")


def test_a_chain_to_ever_new_names_ends_with_an_error(store: MemoryStore, put: Put) -> None:
    for number in range(100):
        put(f"runs/{number}.symlink", f"{number + 1}")
    put("runs/100")
    with pytest.raises(PermanentError, match="more than 40 symlink objects"):
        resolve(store, URI, "0")
    assert resolve(store, URI, "61") == "runs/100"


@pytest.mark.parametrize("scheme", ["file", "sftp"])
def test_a_target_outside_of_the_folder_is_no_target_where_the_root_is_a_machine(
    store: MemoryStore, put: Put, scheme: str
) -> None:
    put("etc/passwd")
    put("runs/latest.symlink", "/etc/passwd")
    with pytest.raises(NotFoundError, match="below"):
        resolve(store, StoreURI(scheme, "", "runs"), "latest")
