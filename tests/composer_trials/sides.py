"""Composer's uploader and ours before one S3 server, with a proxy between that makes the same trouble for both."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from composer.loggers import RemoteUploaderDownloader as Theirs

from servers.proxy import FaultProxy, When, fault_proxy
from support import end_agent
from wherry.backends.s3.store import S3Store
from wherry.integrations.composer import RemoteUploaderDownloader as Ours
from wherry.loggers.call_limits import CallLimits
from wherry.uri import StoreURI

BUCKET = os.environ["WHERRY_TEST_BUCKET"]
#: Composer leaves one wherever it uploads.
PROBE = ".credentials_validated_successfully"


class Side:
    """A prefix of the bucket for one uploader, and its spool."""

    def __init__(self, name: str, folder: Path, proxy: FaultProxy) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.spool = self.folder / "spool"
        self.prefix = f"{folder.name}/{name}"
        self.proxy = proxy
        self._options = {"endpoint_url": proxy.url}

    @property
    def backend_kwargs(self) -> dict[str, Any]:
        """What both constructors take. botocore's own retries are off, as what is tried is what comes after them."""
        return {**self._options, "prefix": self.prefix, "client_config": {"retries": {"total_max_attempts": 1}}}

    def theirs(self, **options: Any) -> Theirs:
        return Theirs(f"s3://{BUCKET}", self.backend_kwargs, **{"use_procs": False, **options})

    def ours(self, call_limits: CallLimits | None = None, **options: Any) -> Ours:
        own = {"upload_staging_folder": str(self.spool), "call_limits": call_limits}
        return Ours(f"s3://{BUCKET}", self.backend_kwargs, **{**own, **options})

    def stored(self) -> dict[str, str]:
        """The objects, with their texts, past the proxy."""
        with self._store() as store:
            names = [meta.key for meta in store.list(f"{self.prefix}/")]
            return {name.removeprefix(f"{self.prefix}/"): self._text(store, name) for name in names if not name.endswith(PROBE)}

    def put(self, name: str, text: str) -> None:
        """Store an object past both uploaders."""
        with self._store() as store:
            store.put_file(f"{self.prefix}/{name}", self.file(text))

    def file(self, text: str) -> Path:
        """A local file of this text."""
        path = self.folder / f"{len(list(self.folder.iterdir()))}.txt"
        path.write_text(text)
        return path

    def _store(self) -> S3Store:
        return S3Store(StoreURI("s3", BUCKET), {"endpoint_url": os.environ["S3_ENDPOINT_URL"]})

    def _text(self, store: S3Store, name: str) -> str:
        path = self.file("")
        store.get_file(name, path)
        return path.read_text()


@contextmanager
def side(name: str, folder: Path, *plan: When) -> Iterator[Side]:
    """A side, with a proxy that does what `plan` says; its agent is ended at the end."""
    with fault_proxy("127.0.0.1", urlsplit(os.environ["S3_ENDPOINT_URL"]).port or 80, plan) as proxy:
        one = Side(name, folder, proxy)
        with end_agent(one.spool):
            yield one


class Gate:
    """Holds requests back until it is opened: ``When("PUT", "/name", Do(gate.hold))``."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def hold(self) -> None:
        self.reached.set()
        self.opened.wait(60.0)


def upload(logger: Any, one: Side, names: Sequence[str], text: str = "text", **options: Any) -> None:
    for name in names:
        logger.upload_file(name, one.file(text), **options)
