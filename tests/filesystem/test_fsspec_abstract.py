"""fsspec's own suite for file systems (fsspec.tests.abstract), over a local folder, S3 and GCS."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from chained import chained
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server
from wherry.filesystem.filesystem import WherryFileSystem


@pytest.fixture(scope="module")
def over_local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WherryFileSystem]:
    with chained("file", {}, tmp_path_factory.mktemp("local") / "spool") as fs:
        yield fs


@pytest.fixture(scope="module")
def over_s3(seaweedfs_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WherryFileSystem]:
    with chained("s3", seaweedfs_server.options, tmp_path_factory.mktemp("s3") / "spool") as fs:
        yield fs


@pytest.fixture(scope="module")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture(scope="module")
def over_gcs(gcs_server: GCSServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WherryFileSystem]:
    with chained("gs", gcs_server.options, tmp_path_factory.mktemp("gcs") / "spool") as fs:
        yield fs


class Stores(AbstractFixtures):  # type: ignore[misc]
    """For a store without folders, as s3fs and gcsfs run fsspec's suite."""

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class OnLocal(Stores):
    @pytest.fixture
    def fs(self, over_local: WherryFileSystem) -> WherryFileSystem:
        return over_local

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")


class OnS3(Stores):
    @pytest.fixture
    def fs(self, over_s3: WherryFileSystem) -> WherryFileSystem:
        return over_s3

    @pytest.fixture
    def fs_path(self, seaweedfs_server: S3Server) -> str:
        return f"{seaweedfs_server.bucket}/{uuid.uuid4()}"


class OnGCS(Stores):
    @pytest.fixture
    def fs(self, over_gcs: WherryFileSystem) -> WherryFileSystem:
        return over_gcs

    @pytest.fixture
    def fs_path(self, gcs_server: GCSServer) -> str:
        return f"{gcs_server.bucket}/{uuid.uuid4()}"


class Patterns:
    """fsspec expands patterns itself, by listings, whose laws the conformance suite holds on every store."""

    test_copy_glob_edge_cases = AbstractCopyTests.test_copy_glob_edge_cases
    test_get_glob_edge_cases = AbstractGetTests.test_get_glob_edge_cases
    test_put_glob_edge_cases = AbstractPutTests.test_put_glob_edge_cases


class Suite(AbstractCopyTests, AbstractGetTests, AbstractPutTests, AbstractOpenTests, AbstractPipeTests):  # type: ignore[misc]
    """All but the patterns."""

    test_copy_glob_edge_cases = test_get_glob_edge_cases = test_put_glob_edge_cases = None


class TestLocal(OnLocal, Suite):
    pass


class TestS3(OnS3, Suite):
    pass


class TestGCS(OnGCS, Suite):
    pass


class TestPatternsLocal(OnLocal, Patterns):
    pass


@pytest.mark.slow
class TestPatternsS3(OnS3, Patterns):
    pass
