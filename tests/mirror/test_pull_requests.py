"""What a pull asks of the store: no more than a listing, the manifests that changed, and what is new; and it counts all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrors import ONCE, Rig, lines
from servers.gcs_server import strict_gcs
from servers.real import S3Server, fast_folder
from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.store import S3Store
from wherry.mirror import MirrorConfig
from wherry.mirror.reader.puller import Puller
from wherry.store import ObjectStore
from wherry.testing import FaultyStore
from wherry.uri import StoreURI

SMALL = MirrorConfig(segment_bytes=1000, retry=ONCE)


@contextmanager
def on_s3(tmp_path: Path, server: S3Server) -> Iterator[tuple[ObjectStore, ObjectStore, StoreURI]]:
    uri = StoreURI("s3", server.bucket, f"runs{tmp_path}")
    with S3Store(uri, server.options) as store, S3Store(uri, server.options) as other:
        yield store, other, uri


@contextmanager
def on_gcs(tmp_path: Path, _: S3Server) -> Iterator[tuple[ObjectStore, ObjectStore, StoreURI]]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        uri = StoreURI("gs", server.bucket, f"runs{tmp_path}")
        with GCSStore(uri, server.options) as store, GCSStore(uri, server.options) as other:
            yield store, other, uri


@pytest.mark.parametrize("place", [on_s3, on_gcs], ids=["s3", "gcs"])
def test_segments_that_no_manifest_tells_of_take_one_request_each(
    place: object, tmp_path: Path, seaweedfs_server: S3Server
) -> None:
    with place(tmp_path, seaweedfs_server) as (store, other, uri):  # type: ignore[operator]
        rig = Rig(tmp_path, SMALL, store=store, uri=uri)
        rig.write("a.log", lines(900))
        rig.flush()
        counted = FaultyStore(other)
        with Puller(counted, uri, tmp_path / "copy", retry=ONCE) as puller:
            puller.step()
            before = puller.report().n_requests
            counted.calls.clear()
            rig.write("a.log", lines(8500, 1))
            for _ in range(20):
                rig.step(0.1, force=True)
            report = puller.step()
            n_segments = report.n_segments
        assert n_segments > 5
        assert rig.local() == {"a.log": (tmp_path / "copy" / "a.log").read_bytes()}
        assert 0 == counted.calls["head"]
        assert counted.calls["get"] <= n_segments  # the new segments, and the manifest if it changed
        assert counted.calls["get"] + 1 == report.n_requests - before
        rig.state_db.close()


def test_a_pull_counts_each_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SMALL)
    rig.write("a.log", lines(8500))
    rig.write("b.json", "{}")
    for _ in range(5):
        rig.step(5.0, force=True)
    counted = FaultyStore(rig.seen)
    with Puller(counted, rig.uri, tmp_path / "copy", retry=ONCE) as puller:
        report = puller.step()
    assert report.n_requests == counted.calls["get"] + counted.calls["head"] + 1
    rig.state_db.close()
