"""The stores of a worker: opened once, opened anew with new secrets, and no secret in any text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import SETTINGS
from wherry.agent.open_stores import Stores
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import ConfigError, TransientError
from wherry.redact import redact
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.queries import StoreRecord


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def record(journal: Journal, scheme: str = "file", root: str = "", secret_names: tuple[str, ...] = ()) -> StoreRecord:
    store_id = journal.uploads.store_id(scheme, root, {}, secret_names, SETTINGS)
    return journal.queries.stores()[store_id]


def test_a_store_is_opened_once_with_its_own_settings(journal: Journal) -> None:
    stores = Stores()
    opened = stores.open(record(journal))
    assert opened is stores.open(record(journal))
    assert RetryConfig(**SETTINGS["retry"]) == opened.retry
    assert TransferConfig(**{name: int(value) for name, value in SETTINGS["transfer"].items()}) == opened.transfer


def test_a_store_with_new_secrets_is_opened_anew(journal: Journal) -> None:
    stores = Stores()
    found = record(journal)
    first = stores.open(found)
    assert stores.learn(found.id, {})
    second = stores.open(found)
    assert first is not second
    assert not stores.learn(found.id, {})
    assert second is stores.open(found)


def test_a_store_that_cannot_be_opened_says_why_each_time(journal: Journal) -> None:
    stores = Stores()
    found = record(journal)
    stores.learn(found.id, {"no_such_option": 1})
    for _ in range(2):
        with pytest.raises(ConfigError, match="no_such_option"):
            stores.open(found)


def test_a_store_is_unusable_until_all_its_secrets_are_known(journal: Journal) -> None:
    stores = Stores()
    open_one, closed = record(journal), record(journal, "s3", "b", ("token", "key"))
    records = journal.queries.stores()
    assert {closed.id} == stores.unusable(records)
    stores.learn(closed.id, {"key": "k"})
    assert {closed.id} == stores.unusable(records)
    stores.learn(closed.id, {"key": "k", "token": "t"})
    assert set() == stores.unusable(records)
    assert open_one.id not in stores.unusable(records)
    assert {closed.id: {"key": "k", "token": "t"}} == stores.known()


def test_a_rotated_secret_stays_secret() -> None:
    stores = Stores()
    stores.learn(1, {"token": "the-old-token"})
    stores.learn(1, {"token": "the-new-token"})
    assert "*** and ***" == redact("the-old-token and the-new-token")


def test_why_a_call_is_made_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A job's error is in the journal only when its call has been given up, half a minute later."""
    settings = {**SETTINGS, "retry": {**SETTINGS["retry"], "call_deadline_s": 2.0}}
    record = StoreRecord(1, "s3", "bucket", {"endpoint_url": "http://127.0.0.1:1", "anonymous": True}, (), settings)
    store = Stores().open(record).store
    with caplog.at_level("INFO", logger="wherry.agent.open_stores"), pytest.raises(TransientError):
        store.head("a")
    store.close()
    assert caplog.messages
    assert all("attempt" in text and "s3://bucket/a" in text and "again in" in text for text in caplog.messages)
