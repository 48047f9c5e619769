"""What servers really honour: found out once an endpoint, kept in the spool for all processes and later ones."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from wherry.errors import StoreError
from wherry.store import TEMPORARY_MARK, ObjectStore

log = logging.getLogger("wherry.endpoints")

#: A server may be updated.
_KEEP_S = 7 * 86_400.0
#: After a trial that was refused or got no answer.
_TRY_AGAIN_S = 600.0


@dataclass(frozen=True)
class _Kept:
    """What is in the file of one endpoint, and when it was found, in seconds since the epoch."""

    found_s: float
    findings: Mapping[str, bool]


class Endpoints:
    """Findings by endpoint, in the JSON file `path` (None: in memory). Safe from several threads and processes.

    Two processes may find out the same thing at the same time, which costs a few small requests and harms nobody.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._findings: dict[str, Mapping[str, bool]] = {}
        self._not_before_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def tell(self, store: ObjectStore) -> bool:
        """Have the store assume what is known of its endpoint. Whether anything is, or nothing needs to be."""
        if store.endpoint is None:
            return True
        known = self._findings.get(store.endpoint)
        if known is None:
            if (kept := self._read().get(store.endpoint)) is None:
                return False
            known = self._findings[store.endpoint] = kept.findings
        store.assume(known)
        return True

    def find_out(self, store: ObjectStore, key: str) -> None:
        """Have the endpoint tried, by small objects beside `key`, unless it is known. A trial that fails harms nothing."""
        endpoint = store.endpoint
        if endpoint is None or endpoint in self._findings:
            return
        with self._lock:
            if time.monotonic() < self._not_before_s.get(endpoint, 0.0) or self.tell(store):
                return
            folder, slash, _ = key.rpartition("/")
            try:
                found = dict(store.probe(f"{folder}{slash}{TEMPORARY_MARK}probe-{secrets.token_hex(8)}/"))
            except StoreError as error:
                log.info("nothing could be found out about %s: %s", endpoint, error)
                self._not_before_s[endpoint] = time.monotonic() + _TRY_AGAIN_S
                return
            log.info("found out about %s: %s", endpoint, found)
            self._findings[endpoint] = found
            self._write(endpoint, _Kept(time.time(), found))

    def _read(self) -> dict[str, _Kept]:
        if self._path is None:
            return {}
        try:
            kept = {name: _Kept(one["found_s"], one["findings"]) for name, one in json.loads(self._path.read_text()).items()}
            return {name: one for name, one in kept.items() if time.time() - one.found_s < _KEEP_S}
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
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            temporary.touch(mode=0o600)  # the names of servers are the user's own business
            temporary.write_text(json.dumps(kept, indent=1))
            temporary.replace(self._path)
        except OSError as error:  # a full disk: this process knows it all the same
            log.warning("%s cannot be written: %s", self._path, error)
            temporary.unlink(missing_ok=True)
