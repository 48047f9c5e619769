"""The stores that a worker has open, one a record of the journal, each wrapped as Retry(Limit(backend)).

Secrets come from memory only. They are kept here.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wherry.agent.trial_notes import Trials, clean_trial
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import JournalError, TransientError, kind_of
from wherry.redact import redact, register_secret
from wherry.spool.journal.queries import StoreRecord
from wherry.store import ObjectStore
from wherry.store.environment import Environment, environment_of, has_keys, names_credentials, variables_of_stores
from wherry.store.governor import node_governor
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import open_store
from wherry.store.server_features import Endpoints
from wherry.store.wrappers import LimitStore, RetryStore, WrappedStore
from wherry.uri import StoreURI

log = logging.getLogger("wherry.agent.open_stores")
#: Retries of one object are noted this often at most: each note is a write to the journal.
_NOTE_AGAIN_S = 5.0


@dataclass(frozen=True)
class OpenStore:
    """A store ready for use, and how its transfers are to be made."""

    store: ObjectStore
    retry: RetryConfig
    transfer: TransferConfig
    #: Those of the record that it was opened by.
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    #: Called with (key, error, attempts, wait_s) for each retry that is made outside the store.
    on_retry: Callable[[str, TransientError, int, float], None] = lambda *told: None
    #: How fast one part has gone there lately; None: nobody knows.
    part_bytes_per_s: Callable[[], float | None] = lambda: None


class Stores:
    """Opens stores on first use and keeps them. Safe from several threads.

    `findings` is the file where what was found out about endpoints is kept for other processes and later ones.
    `note_error(store_id, key, error, kind)` is told why calls are made again: at the first retry of an object, then rarely.
    `own`: the store of this process itself, which it may open whatever has become of its environment.
    """

    def __init__(
        self,
        findings: Path | None = None,
        note_error: Callable[[int, str, str, str | None], object] = lambda *told: None,
        *,
        own: int | None = None,
    ) -> None:
        self._endpoints = Endpoints(findings)
        self._trials = None if findings is None else Trials(findings.with_name("trials"))
        self._secrets: dict[int, Mapping[str, object]] = {}
        self._note_error = note_error
        self._own = own
        self._noted_s: dict[tuple[int, str], float] = {}
        self._open: dict[int, OpenStore] = {}
        self._lock = threading.Lock()

    def learn(self, store_id: int, secrets: Mapping[str, object]) -> bool:
        """Take the secrets of a store; a store that is open with other ones is opened anew. Whether they were new."""
        with self._lock:
            if self._secrets.get(store_id) == dict(secrets):
                return False
            self._secrets[store_id] = dict(secrets)
            register_secret(secrets)
            self._open.pop(store_id, None)  # not closed: another thread may be in the middle of a call
            return True

    def known(self) -> dict[int, Mapping[str, object]]:
        """The secrets learned so far, by store; newer ones of a store are another object."""
        with self._lock:
            return dict(self._secrets)

    def locked(self, records: Mapping[int, StoreRecord]) -> set[int]:
        """The stores among `records` whose secrets are not known here."""
        with self._lock:
            return {record.id for record in records.values() if set(record.secret_names) - set(self._secrets.get(record.id, ()))}

    def unusable(self, records: Mapping[int, StoreRecord]) -> set[int]:
        """The stores among `records` that this process cannot open, for want of their secrets or of their environment."""
        return self.locked(records) | {record.id for record in records.values() if not self._is_at_home(record)}

    def _is_at_home(self, record: StoreRecord) -> bool:
        """Return True if the vendor's library finds here what it finds in the programs that use the store."""
        environment = self.environment(record)
        if environment is None or record.id == self._own:
            return True
        is_same = environment == (record.scheme, frozenset(environment_of(record.scheme, os.environ).items()))
        names_keys = names_credentials(record.scheme, record.options, record.secret_names)
        return is_same and (names_keys or not has_keys(record.scheme, os.environ))

    def environment(self, record: StoreRecord) -> Environment:
        """The environment of the programs that use the store, with the secrets in it that are known."""
        if record.environment is None:
            return None
        with self._lock:
            secrets = self._secrets.get(record.id, {})
        variables = {**record.environment, **_of_environment(record.scheme, secrets)}
        return record.scheme, frozenset(variables.items())

    def open(self, record: StoreRecord) -> OpenStore:
        """The store of a record; opened if it is not yet, and anew if it has other settings by now."""
        with self._lock:
            found = self._open.get(record.id)
            if found is None or found.settings != record.settings:
                secrets = self._secrets.get(record.id, {})
                variables = _of_environment(record.scheme, secrets)
                options = {**record.options, **{name: value for name, value in secrets.items() if name not in variables}}
                retry = RetryConfig(**record.settings["retry"])
                transfer = TransferConfig(**record.settings["transfer"])  # type: ignore[arg-type]  # written as it was checked
                uri = StoreURI(record.scheme, record.root)
                backend = open_store(uri, options, stall_timeout_s=transfer.stall_timeout_s)
                self._endpoints.tell(backend)
                governor = node_governor(uri, record.options, record.environment or {}, transfer)
                note_retry = functools.partial(self._note_retry, record.id)
                store = RetryStore(LimitStore(backend, MOST_IN_FLIGHT, governor), retry, on_retry=note_retry)
                found = self._open[record.id] = OpenStore(
                    store, retry, transfer, record.settings, note_retry, governor.part_bytes_per_s
                )
            return found

    def _note_retry(self, store_id: int, key: str, error: TransientError, attempts: int, wait_s: float) -> None:
        """Say why a call is made again: until its deadline nothing else tells of it."""
        text = redact(str(error))
        log.info("attempt %d failed: %s; again in %.1f s", attempts, text, wait_s)
        now_s = time.monotonic()
        with self._lock:
            if (store_id, key) in self._noted_s and now_s - self._noted_s[store_id, key] < _NOTE_AGAIN_S:
                return
            self._noted_s = {one: noted_s for one, noted_s in self._noted_s.items() if now_s - noted_s < _NOTE_AGAIN_S}
            self._noted_s[store_id, key] = now_s
        try:
            self._note_error(store_id, key, text, kind_of(error))
        except JournalError as failure:  # the upload needs no note; how it ends is written patiently
            log.warning("the reason of a retry cannot be noted: %s", failure)

    def learn_endpoint(self, store_id: int, opened: OpenStore, key: str, *, aside: bool = True) -> threading.Thread | None:
        """Find out what the store's server honours, if nobody has yet, by trials beside `key`, where we are going to write.

        In a thread, for which whoever wants to know may wait; `aside=False`: in this one, and when it returns it is known.
        """
        noted = None if self._trials is None else functools.partial(self._trials.noted, store_id)
        if aside:
            return self._endpoints.find_out_aside(opened.store, key, noted)
        self._endpoints.find_out(opened.store, key, noted)
        return None

    def clean_trials(self, record: StoreRecord) -> None:
        """Remove what killed trials have left in a store. Raises StoreError: then the rest is for another time."""
        for note, store_id, prefix in [] if self._trials is None else self._trials.left():
            if store_id == record.id:
                store = self.open(record).store
                clean_trial(store, _innermost(store), prefix)
                note.unlink(missing_ok=True)


def by_environment(stores: Stores, records: Mapping[int, StoreRecord]) -> dict[Environment, set[int]]:
    """The ids of the stores that a process may open together: by the environment that it must have."""
    found: dict[Environment, set[int]] = {}
    for store_id, record in records.items():
        found.setdefault(stores.environment(record), set()).add(store_id)
    return found


def _of_environment(scheme: str, secrets: Mapping[str, object]) -> dict[str, str]:
    """Those of a store's secrets that are variables of the environment."""
    return {name: str(secrets[name]) for name in variables_of_stores(scheme) if name in secrets}


def _innermost(store: ObjectStore) -> ObjectStore:
    while isinstance(store, WrappedStore):
        store = store.inner
    return store
