"""Fixtures for all tests: real servers, each started once and only when a test asks for it, and a clean environment."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.real import S3Server, Server, fake_gcs, fast_folder, juicefs_gateway, seaweedfs, tls_terminator

if TYPE_CHECKING:
    from wherry.runs import Runs

pytest_plugins = ["command_line", "hangs", "large", "pairs", "servers.matrix", "tooling.reruns", "untested"]

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_VENDOR_PREFIXES = ("AWS_", "S3_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "STORAGE_EMULATOR_", "WHERRY_")


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees, or hands to a child, what this machine says about clouds; nor does one wait for a metadata service.

    Once for all tests: a server that lives longer than a test has threads in which a library reads the environment.
    """
    nothing = str(tmp_path_factory.getbasetemp() / "no-such-configuration")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(_VENDOR_PREFIXES):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", nothing)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nothing)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("NO_GCE_CHECK", "true")
        yield


@pytest.fixture(autouse=True)
def levels_are_put_back() -> Iterator[None]:
    """A verb that a test calls here, not in a process of its own, silences warnings for its whole process."""
    loggers = [logging.getLogger(name) for name in ("wherry", "wherry.spool")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def hooks_are_put_back() -> Iterator[None]:
    """A destination that a test leaves open is found here, not by another test whose hook comes after."""
    before = sys.excepthook
    yield
    left = sys.excepthook
    is_ours = type(left).__module__.startswith("wherry.")  # wandb leaves its own
    assert left is before or not is_ours, "the test has left a destination open that hooks into uncaught exceptions"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A store: a folder."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


@pytest.fixture
def spool_folder(tmp_path: Path) -> Path:
    """A place for one test's spool; not made yet."""
    return tmp_path / "spool"


@pytest.fixture
def open_runs(tmp_path: Path) -> Iterator[Callable[..., Runs]]:
    """Opens `Runs` with a cache of the test's own, and closes them after it."""
    from wherry.runs import Runs  # late: few tests need it

    with ExitStack() as made:
        yield lambda *uris, **more: made.enter_context(closing(Runs(*uris, cache_dir=tmp_path / "cache", **more)))


@pytest.fixture
def short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a trial race once for each kind, by two writers: enough for a server that does not decide by chance."""
    from wherry.backends.s3 import probe  # late: few tests need it

    monkeypatch.setattr(probe, "_WRITERS", 2)
    monkeypatch.setattr(probe, "_PUT_RACES", probe._PUT_RACES[:1])
    monkeypatch.setattr(probe, "_COMPLETE_RACES", probe._COMPLETE_RACES[:1])


@pytest.fixture(scope="session")
def seaweedfs_server() -> Iterator[S3Server]:
    """The strict S3 server."""
    with fast_folder() as folder, seaweedfs(folder) as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs_tls(seaweedfs_server: S3Server) -> Iterator[S3Server]:
    """The strict S3 server behind TLS."""
    with fast_folder() as folder, tls_terminator(seaweedfs_server.port, folder) as (url, authority):
        yield replace(seaweedfs_server, url=url, ca_file=authority)


@pytest.fixture(scope="session")
def juicefs_server() -> Iterator[S3Server]:
    """The lax S3 server: it ignores conditions and checksums."""
    with fast_folder() as folder, juicefs_gateway(folder) as server:
        yield server


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "sdk_only"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has a module's tests run by our own requests to S3 and GCS, and by the libraries'."""
    from servers.way import WAY

    WAY["sdk_only"] = request.param
    yield
    WAY.clear()


@pytest.fixture(scope="session")
def fake_gcs_server() -> Iterator[Server]:
    """A GCS server without authentication."""
    with fast_folder() as folder, fake_gcs(folder) as server:
        yield server
