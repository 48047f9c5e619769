"""What servers really honour: found out once an endpoint, kept in the spool for all processes and later ones."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from wherry.errors import StoreError
from wherry.posix.atomic_write import write_atomically
from wherry.store import TEMPORARY_MARK, ObjectStore

log = logging.getLogger("wherry.store.server_features")

#: A server may be updated.
_KEEP_S = 7 * 86_400.0
#: After a trial that was refused or got no answer.
_TRY_AGAIN_S = 600.0
#: What earlier trials found does not count: the first ones believed in conditions without a race.
_TRIAL = 2


#: Around a trial below a prefix.
Noted = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Kept:
    """What is in the file of one endpoint, and when it was found, in seconds since the epoch; `failed`: its trial did."""

    found_s: float
    findings: Mapping[str, bool] = field(default_factory=dict)
    failed: bool = False
    trial: int = _TRIAL

    def counts(self, now_s: float) -> bool:
        """Whether it is not too old; nor of the future, as after a step of the clock."""
        return 0 <= now_s - self.found_s < (_TRY_AGAIN_S if self.failed else _KEEP_S)


class Endpoints:
    """Findings by endpoint, in the JSON file `path` (None: in memory). Safe from several threads and processes.

    Two processes may find out the same thing at the same time, which costs a few small requests and harms nobody.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._findings: dict[str, Mapping[str, bool]] = {}
        self._not_before_s: dict[str, float] = {}
        self._told: weakref.WeakSet[ObjectStore] = weakref.WeakSet()
        self._under_way: dict[str, threading.Thread] = {}
        self._starting = threading.Lock()
        self._trying = threading.Lock()

    def tell(self, store: ObjectStore) -> bool:
        """Have the store assume what is known of its endpoint. Whether anything is, or nothing needs to be."""
        if store.endpoint is None or store in self._told:
            return True
        known = self._findings.get(store.endpoint)
        if known is None:
            kept = self._read().get(store.endpoint)
            if kept is None or kept.failed:
                return False
            known = self._findings[store.endpoint] = kept.findings
        store.assume(known)
        self._told.add(store)
        return True

    def find_out(self, store: ObjectStore, key: str, noted: Noted | None = None) -> None:
        """Have the endpoint tried, by small objects beside `key`, unless it is known. A trial that fails harms nothing.

        It is remembered for ten minutes, also for other processes, so that not each of them waits for it. `noted(prefix)` is
        around the trial.
        """
        with self._trying:
            if not self._is_to_try(store) or (endpoint := store.endpoint) is None:
                return
            folder, slash, _ = key.rpartition("/")
            prefix = f"{folder}{slash}{TEMPORARY_MARK}probe-{secrets.token_hex(8)}/"
            try:
                with nullcontext() if noted is None else noted(prefix):
                    found = dict(store.probe(prefix))
            except (StoreError, OSError) as error:
                log.info("nothing could be found out about %s: %s", endpoint, error)
                self._not_before_s[endpoint] = time.monotonic() + _TRY_AGAIN_S
                self._write(endpoint, _Kept(time.time(), failed=True))
                return
            log.info("found out about %s: %s", endpoint, found)
            self._findings[endpoint] = found
            self._told.add(store)
            self._write(endpoint, _Kept(time.time(), found))

    def find_out_aside(self, store: ObjectStore, key: str, noted: Noted | None = None) -> threading.Thread | None:
        """The same in a thread, which ends with the process; None if there is nothing to wait for.

        Uploads go on meanwhile, in the careful way.
        """
        if not self._is_to_try(store) or (endpoint := store.endpoint) is None:
            return None
        with self._starting:
            thread = self._under_way.get(endpoint)
            if thread is None or not thread.is_alive():
                thread = threading.Thread(target=self.find_out, args=(store, key, noted), name="wherry-trial", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending: no thread can be started any more
                    return None
                self._under_way[endpoint] = thread
        return thread

    def _is_to_try(self, store: ObjectStore) -> bool:
        if store.endpoint is None or self.tell(store) or time.monotonic() < self._not_before_s.get(store.endpoint, 0.0):
            return False
        return store.endpoint not in self._read()

    def _read(self) -> dict[str, _Kept]:
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text())
            now_s = time.time()
            kept = {
                name: _Kept(one["found_s"], one["findings"], one["failed"])
                for name, one in found.items()
                if one.get("trial") == _TRIAL
            }
            return {name: one for name, one in kept.items() if one.counts(now_s)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read and is made anew: %s", self._path, error)
            return {}

    def _write(self, endpoint: str, found: _Kept) -> None:
        """Beside what is known of others, which is as old as it was."""
        if self._path is None:
            return
        kept = {name: asdict(one) for name, one in {**self._read(), endpoint: found}.items()}
        try:
            write_atomically(self._path, json.dumps(kept, indent=1).encode(), mode=0o600)  # the names of servers are private
        except OSError as error:  # a full disk: this process knows it all the same
            log.warning("%s cannot be written: %s", self._path, error)
