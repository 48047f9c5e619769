"""What an S3 server honours, found out once a process: a trial by each test takes longer than what the test is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servers.real import S3Server
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.spool.spool import Spool
from wherry.store.server_features import Endpoints
from wherry.uri import StoreURI

#: Findings by the server's address.
_found: dict[str, Mapping[str, bool]] = {}


class _Tried(MemoryStore):
    """Stands for a server whose trial has found that."""

    def __init__(self, endpoint: str | None, findings: Mapping[str, bool]) -> None:
        super().__init__(StoreURI("memory", "tried"), {})
        self.endpoint = endpoint
        self._findings = findings

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        return self._findings


def features_of(server: S3Server) -> Mapping[str, bool]:
    """What S3Store.probe() finds, by a trial that is made once."""
    if server.url not in _found:
        with S3Store(StoreURI("s3", server.bucket), server.options) as store:
            _found[server.url] = store.probe("features/")
    return _found[server.url]


def tell_spool(spool: Path, server: S3Server, url: str = "") -> None:
    """Have a spool, which is made, know the server; `url` is the address of a proxy before it."""
    with S3Store(StoreURI("s3", server.bucket), {**server.options, "endpoint_url": url or server.url}) as store:
        tried = _Tried(store.endpoint, features_of(server))
    opened = Spool(spool)  # whose descriptor the path goes by
    Endpoints(opened.inside("endpoints.json")).find_out(tried, "key")
    assert Endpoints(opened.inside("endpoints.json")).tell(tried)


def ask_for_pages_of(store: S3Store, n_objects: int) -> None:
    """Have a store ask for listings of so many objects at most; a page that the server chooses has 1000."""

    def add(params: dict[str, object], **_: object) -> None:
        params["MaxKeys"] = n_objects

    store._client.meta.events.register("before-parameter-build.s3.ListObjectsV2", add)
