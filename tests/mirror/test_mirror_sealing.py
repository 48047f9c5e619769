"""A sealed file is not sent twice where the store joins segments; where it does not, or fails, the file is right all the same."""

from __future__ import annotations

import json
import logging.handlers
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mirrors import ONCE, Rig, lines
from servers.features import features_of
from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import FaultProxy, fault_proxy
from servers.real import S3Server, fast_folder
from support import run_script
from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, IntegrityError, StoreError, TransientError
from wherry.mirror import MirrorConfig
from wherry.store import MultipartStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

MIB = 2**20
#: Forty segments a file, more than GCS composes at once.
SMALL = MirrorConfig(max_lag_s=10.0, segment_bytes=32 * 1024, settle_s=2.0, grace_s=20.0, retry=ONCE)
#: A few segments a file: where it does not matter how many are joined.
FEW = replace(SMALL, segment_bytes=128 * 1024)
#: The smallest that S3 takes for parts: lines of 64 bytes fill it to its last byte.
LARGE = MirrorConfig(max_lag_s=10.0, segment_bytes=5 * MIB, settle_s=2.0, grace_s=20.0, retry=ONCE)


def log_of(n_bytes: int, seed: int = 0) -> bytes:
    return lines(n_bytes, seed, width=63)


@pytest.fixture(scope="module")
def gcs_server() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


@contextmanager
def gcs_rig(
    tmp_path: Path, server: GCSServer, *plan: Fault, config: MirrorConfig = SMALL, url: str | None = None
) -> Iterator[Rig]:
    uri = StoreURI("gs", server.bucket, f"runs{tmp_path}")
    with GCSStore(uri, {**server.options, "endpoint_url": url or server.url}) as store:
        yield Rig(tmp_path, config, store=FaultyStore(store, plan), uri=uri)


@contextmanager
def s3_rig(tmp_path: Path, server: S3Server) -> Iterator[tuple[Rig, FaultProxy]]:
    uri = StoreURI("s3", server.bucket, f"runs{tmp_path}")
    with fault_proxy("127.0.0.1", server.port) as proxy, S3Store(uri, {**server.options, "endpoint_url": proxy.url}) as store:
        store.assume(features_of(server))
        yield Rig(tmp_path, LARGE, store=FaultyStore(store), uri=uri), proxy


def n_joins(rig: Rig) -> int:
    assert isinstance(rig.bare, FaultyStore)
    return rig.bare.calls["join"]


def assert_sealed(rig: Rig) -> None:
    assert rig.local() == rig.plain()
    assert [] == rig.segments()
    assert isinstance(rig.seen, MultipartStore)
    assert [] == list(rig.seen.list_uploads(f"{rig.uri.prefix}/"))


def test_on_gcs_a_file_in_many_small_segments_is_sent_once(tmp_path: Path, gcs_server: GCSServer) -> None:
    with fault_proxy("127.0.0.1", gcs_server.port) as proxy, gcs_rig(tmp_path, gcs_server, url=proxy.url) as rig:
        rig.write("a.log", log_of(MIB, 1))
        rig.flush()
        (rig.folder / "a.log").rename(rig.folder / "a.log.1")  # it is sealed under this name
        for number in range(3):
            rig.write("a.log", log_of(MIB // 2, 2 + number))
            rig.flush()
        rig.write("a.log", "without a line's end")
        rig.close()
        assert_sealed(rig)
        written = sum(map(len, rig.local().values()))
        assert rig.sent_bytes <= 1.1 * written
        assert proxy.request_bytes() <= 1.1 * written
        assert set(rig.names()) == {rig.uri.name_for(name) for name in gcs_server.names(f"{rig.uri.prefix}/")}
        assert crc32c(rig.local()["a.log"]) == rig.seen.head(rig.uri.key_for("a.log")).crc32c
        assert 2 == n_joins(rig)


def test_on_s3_a_file_in_segments_of_5_mib_is_sent_once(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    with s3_rig(tmp_path, seaweedfs_server) as (rig, proxy):
        rig.write("a.log", log_of(11 * MIB))
        rig.close()
        assert_sealed(rig)
        assert proxy.request_bytes() <= 1.1 * 11 * MIB
        assert rig.sent_bytes <= 1.1 * 11 * MIB
        head = rig.seen.head(rig.uri.key_for("a.log"))
        assert crc32c(rig.local()["a.log"]) == head.crc32c
        assert head.token


def test_on_s3_smaller_segments_are_sent_again(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    with s3_rig(tmp_path, seaweedfs_server) as (rig, _):
        for number in range(2):
            rig.write("a.log", log_of(MIB, number))
            rig.flush()
        rig.close()
        assert_sealed(rig)
        assert 0 == n_joins(rig)


def test_on_s3_a_small_segment_among_large_ones_is_sent_again_with_its_neighbour_alone(
    tmp_path: Path, seaweedfs_server: S3Server
) -> None:
    """A flush() or a restart makes one: the other segments are joined where they are."""
    with s3_rig(tmp_path, seaweedfs_server) as (rig, proxy):
        rig.write("a.log", log_of(MIB, 1))
        rig.flush()
        rig.write("a.log", log_of(11 * MIB, 2))
        rig.close()
        assert_sealed(rig)
        assert 1 == n_joins(rig)
        assert proxy.request_bytes() <= (12 + 6 + 0.5) * MIB
        assert 1 == len(proxy.requests("PUT", "tmp-pack")) == len(proxy.requests("DELETE", "tmp-pack"))


def test_on_s3_one_small_segment_is_the_last_one_too(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    with s3_rig(tmp_path, seaweedfs_server) as (rig, proxy):
        rig.write("a.log", log_of(MIB))
        rig.close()
        assert_sealed(rig)
        assert proxy.request_bytes() <= 1.1 * MIB


def test_a_server_that_does_not_check_what_it_joins_is_sent_the_file(tmp_path: Path, juicefs_server: S3Server) -> None:
    with s3_rig(tmp_path, juicefs_server) as (rig, _):
        rig.write("a.log", log_of(6 * MIB))
        rig.close()
        assert_sealed(rig)
        assert 0 == n_joins(rig)


def test_what_a_file_holds_now_counts_and_not_what_was_sent(tmp_path: Path, gcs_server: GCSServer) -> None:
    with gcs_rig(tmp_path, gcs_server) as rig:
        rig.write("a.log", log_of(2 * MIB))
        rig.flush()
        before = (rig.folder / "a.log").stat()
        with open(rig.folder / "a.log", "r+b") as file:  # in its middle, where nobody looks
            file.seek(MIB)
            file.write(b"another")
        os.utime(rig.folder / "a.log", ns=(before.st_atime_ns, before.st_mtime_ns))
        rig.close()
        assert_sealed(rig)
        assert 0 == n_joins(rig)


def test_a_segment_that_is_gone_or_another_is_no_part_of_the_file(tmp_path: Path, gcs_server: GCSServer) -> None:
    for number, (name, is_gone) in enumerate((("gone", True), ("other", False))):
        (tmp_path / name).mkdir()
        with gcs_rig(tmp_path / name, gcs_server) as rig:
            rig.write("a.log", log_of(MIB))
            rig.flush()
            key = next(meta for meta in rig.seen.list(rig.uri.key_for("_mirror/rank0/segments/a.log/")) if meta.size_bytes)
            if is_gone:
                rig.seen.delete(key.key)
            else:  # of the same size, so that only its bytes tell
                path = tmp_path / "other-bytes"
                path.write_bytes(b"x" * key.size_bytes)
                rig.seen.put_file(key.key, path)
            rig.close()
            assert_sealed(rig)
            assert number == n_joins(rig)


def test_small_files_and_compressed_ones_are_put(tmp_path: Path, gcs_server: GCSServer) -> None:
    compressed = MirrorConfig(segment_bytes=32 * 1024, compression="gzip", retry=ONCE)
    for name, config, n_bytes in (("small", SMALL, 200_000), ("gzip", compressed, 2 * MIB)):
        (tmp_path / name).mkdir()
        with gcs_rig(tmp_path / name, gcs_server, config=config) as rig:
            rig.write("a.log", log_of(n_bytes))
            rig.close()
            assert_sealed(rig)
            assert 0 == n_joins(rig)


@pytest.mark.parametrize(
    "error",
    [TransientError("500"), AccessDeniedError("no"), IntegrityError("other bytes")],
    ids=lambda error: type(error).__name__,
)
def test_a_join_that_fails_is_made_up_for_by_a_put(tmp_path: Path, gcs_server: GCSServer, error: StoreError) -> None:
    """And after three in a row no more are tried."""
    with gcs_rig(tmp_path, gcs_server, Fault("join", error, times=10**9), config=FEW) as rig:
        for number in range(5):
            rig.write(f"{number}.log", log_of(MIB, number))
        rig.close()
        assert_sealed(rig)
        assert 3 == n_joins(rig)


@pytest.mark.pairwise
@pytest.mark.parametrize("operation", ["join", "list", "delete", "head"])
@pytest.mark.parametrize("nth", range(1, 4))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes-on", "restarts"])
def test_any_call_of_a_seal_may_fail_or_lose_its_answer(
    tmp_path: Path, gcs_server: GCSServer, operation: str, nth: int, after: bool, is_killed: bool
) -> None:
    with gcs_rig(tmp_path, gcs_server, config=FEW) as rig:
        for number in range(3):
            rig.write(f"{number}.log", log_of(MIB, number))
        rig.flush()
        assert isinstance(rig.bare, FaultyStore)
        rig.bare.plan.append(Fault(operation, TransientError("cut"), nth=nth, after=after))
        if is_killed:
            rig.step(1.0, final=True)
            rig.restart()
        rig.close()
        assert_sealed(rig)


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_a_mirror_that_nobody_closes_joins_at_the_interpreters_end(
    tmp_path: Path, gcs_server: GCSServer, seaweedfs_server: S3Server, kind: str
) -> None:
    """When no thread can be started any more."""
    server: GCSServer | S3Server = gcs_server if kind == "gcs" else seaweedfs_server
    prefix = f"runs{tmp_path}"
    uri = StoreURI("gs" if kind == "gcs" else "s3", server.bucket, prefix)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.log").write_bytes(data := log_of((2 if kind == "gcs" else 11) * MIB))
    script = textwrap.dedent("""\
        import json, logging, sys, wherry
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        run, uri, spool, options, size = sys.argv[1:]
        config = wherry.MirrorConfig(segment_bytes=int(size), max_lag_s=0.1, grace_s=3600.0)
        mirror = wherry.Mirror(run, uri, storage_options=json.loads(options), spool=spool, writer="w", config=config)
        mirror.flush(60)
        """)
    with fault_proxy("127.0.0.1", server.port) as proxy:
        options = json.dumps({**server.options, "endpoint_url": proxy.url})
        size = str(32 * 1024 if kind == "gcs" else 5 * MIB)
        said = run_script(script, tmp_path / "run", str(uri), tmp_path / "spool", options, size)
        assert "not joined" not in said
        assert proxy.request_bytes() <= 1.1 * len(data) + 100_000
    backend = GCSStore if kind == "gcs" else S3Store
    with backend(uri, server.options) as store:
        got = tmp_path / "got"
        got.touch()
        store.get_file(uri.key_for("a.log"), got)
        assert data == got.read_bytes()
        assert [] == [meta.key for meta in store.list(uri.key_for("_mirror/w/segments/"))]


def test_a_sealed_log_that_a_later_run_goes_on_with_is_not_sent_again(tmp_path: Path, gcs_server: GCSServer) -> None:
    with gcs_rig(tmp_path, gcs_server) as rig:
        rig.write("a.log", log_of(3 * MIB, 0))
        rig.close()
        for number in range(1, 3):
            rig.restart()
            rig.step()
            rig.write("a.log", log_of(MIB // 4, number))
            rig.close()
            assert_sealed(rig)
        assert rig.sent_bytes <= 1.1 * len(rig.local()["a.log"])
        assert 3 == n_joins(rig)


def test_on_s3_too(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    with s3_rig(tmp_path, seaweedfs_server) as (rig, _):
        rig.write("a.log", log_of(6 * MIB, 0))
        rig.close()
        rig.restart()
        rig.step()
        rig.write("a.log", log_of(MIB // 4, 1))
        rig.close()
        assert_sealed(rig)
        assert rig.sent_bytes <= 1.1 * len(rig.local()["a.log"])


def test_a_sealed_log_that_a_later_run_renames_is_copied_inside_the_store(tmp_path: Path, gcs_server: GCSServer) -> None:
    with gcs_rig(tmp_path, gcs_server) as rig:
        path = rig.write("a.log", log_of(3 * MIB, 0))
        rig.close()
        rig.restart()
        path.rename(rig.folder / "a.log.1")
        rig.write("a.log", log_of(2 * MIB, 1))
        rig.close()
        assert_sealed(rig)
        assert rig.sent_bytes <= 1.1 * 5 * MIB


class Rotating:
    """A program whose handler numbers its backups anew at each rotation."""

    def __init__(self, rig: Rig, n_backups: int, n_bytes: int) -> None:
        self.handler = logging.handlers.RotatingFileHandler(rig.folder / "train.log", maxBytes=n_bytes, backupCount=n_backups)
        self.handler.setFormatter(logging.Formatter("%(message)s"))
        self.n_written = self._number = 0

    def log(self, n_lines: int) -> None:
        for _ in range(n_lines):
            self._number += 1
            text = f"{self._number:0999d}"
            self.handler.emit(logging.LogRecord("", logging.INFO, "", 0, text, (), None))
            self.n_written += len(text) + 1


@pytest.mark.parametrize("restarts", [False, True])
def test_backups_that_are_numbered_anew_are_copied_inside_the_store(
    tmp_path: Path, gcs_server: GCSServer, restarts: bool
) -> None:
    with gcs_rig(tmp_path, gcs_server, config=replace(SMALL, segment_bytes=256 * 1024)) as rig:
        program = Rotating(rig, 4, 3 * MIB // 2)
        for number in range(40):  # five rotations, the last of which drops a backup
            program.log(200)
            for _ in range(6):
                rig.step(5.0)
            if restarts and number % 7 == 6:
                rig.restart()
        program.handler.close()
        rig.close()
        assert rig.local() == rig.plain()
        assert [] == rig.segments()
        assert rig.sent_bytes <= 1.1 * program.n_written


def test_backups_of_which_some_change_places_are_right(tmp_path: Path, gcs_server: GCSServer) -> None:
    with gcs_rig(tmp_path, gcs_server) as rig:
        for number in range(3):
            rig.write(f"{number}.bin", log_of(MIB, number))
        for _ in range(4):
            rig.step(5.0)
        (rig.folder / "0.bin").rename(rig.folder / "x.bin")
        (rig.folder / "1.bin").rename(rig.folder / "0.bin")
        (rig.folder / "x.bin").rename(rig.folder / "1.bin")
        (rig.folder / "2.bin").rename(rig.folder / "3.bin")
        rig.write("2.bin", log_of(MIB, 9))
        for _ in range(10):
            rig.step(5.0)
        assert rig.local() == rig.plain()
        rig.close()
        assert rig.local() == rig.plain()


@pytest.mark.parametrize("nth", range(1, 7))  # one copy in the first rotation, two in the second, three in each that follows
@pytest.mark.parametrize("after", [False, True], ids=["not made", "made"])
def test_a_rotation_that_is_cut_short_at_any_copy_is_right(tmp_path: Path, gcs_server: GCSServer, nth: int, after: bool) -> None:
    """The error, and a kill at that point: what is copied onto what is told by checksums, not by what the ledger says."""
    fault = Fault("join", TransientError("cut"), nth=nth, after=after, key="train.log")
    with gcs_rig(tmp_path, gcs_server, fault, config=FEW) as rig:
        program = Rotating(rig, 3, 5 * MIB // 4)
        for _ in range(16):
            program.log(400)
            rig.step(1.0)
            rig.step(4.0)
            rig.step(15.0)
            if n_joins(rig) == nth:
                rig.restart()
            if n_joins(rig) > nth:
                break
        program.handler.close()
        rig.close()
        assert n_joins(rig) > nth
        assert rig.local() == rig.plain()
        assert [] == rig.segments()
