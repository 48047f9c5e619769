"""Many small files go to S3 by one thread of a worker; whatever goes wrong meanwhile, each arrives once and whole."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gate import family, kill
from servers.features import tell_spool
from servers.proxy import Action, Answer, Do, DropAnswer, FaultProxy, Reset, When, fault_proxy, s3_error
from servers.real import S3Server
from support import end_agent, wait_until
from wherry import Uploader
from wherry.backends.s3.store import S3Store
from wherry.errors import UploadFailed
from wherry.spool.presence import pid_of_agent
from wherry.uri import StoreURI

N = 60
ALONE = "small files go one by one"


@contextmanager
def uploading(
    server: S3Server, tmp_path: Path, prefix: str, read_timeout_s: float = 2.0
) -> Iterator[tuple[Uploader, FaultProxy, Path]]:
    """An uploader behind a proxy, whose agent knows the server, and a folder of small files to upload."""
    folder, spool = tmp_path / "files", tmp_path / "spool"
    folder.mkdir()
    for n in range(N):
        (folder / f"{n:02d}").write_bytes(b"%d " % n * 100)
    with fault_proxy("127.0.0.1", server.port) as proxy, end_agent(spool):
        options = {**server.options, "endpoint_url": proxy.url, "read_timeout_s": read_timeout_s}
        with Uploader(f"s3://{server.bucket}/{prefix}", storage_options=options, spool=spool) as uploader:
            tell_spool(spool, server, proxy.url)
            yield uploader, proxy, folder


def assert_all_are_there(uploader: Uploader, folder: Path, n_kept: int = 0) -> None:
    names = {f"many/{path.name}" for path in folder.iterdir()}
    assert names == {meta.key for meta in uploader.list("many/")}
    for path in folder.iterdir():
        uploader.get(f"many/{path.name}", folder.parent / "back", overwrite=True)
        assert path.read_bytes() == (folder.parent / "back").read_bytes()
    wait_until(lambda: len(list(uploader.spool.objects.iterdir())) == n_kept, what="the end of the last staged file")


def n_puts(proxy: FaultProxy) -> Counter[str]:
    return Counter(one.target for one in proxy.requests("PUT", "/many/"))


def log_of(uploader: Uploader) -> str:
    return uploader.spool.inside("agent.log").read_text()


@pytest.mark.parametrize("overwrite", [True, False])
def test_in_fine_weather_each_file_takes_one_request(seaweedfs_server: S3Server, tmp_path: Path, overwrite: bool) -> None:
    with uploading(seaweedfs_server, tmp_path, f"fine{overwrite}", read_timeout_s=60.0) as (uploader, proxy, folder):
        uploader.put(folder, "many", overwrite=overwrite)
        uploader.flush()
        assert_all_are_there(uploader, folder)
        assert {1} == set(n_puts(proxy).values())
        assert ALONE not in log_of(uploader)


@pytest.mark.parametrize(
    "action",
    [
        Reset(0),
        DropAnswer(),
        DropAnswer("close"),
        DropAnswer("hang"),
        s3_error(503, "SlowDown"),
        s3_error(500, "InternalError", committed=True),
        s3_error(403, "AccessDenied"),
        Answer(200),
        Answer(200, committed=True),
    ],
    ids=[
        "reset",
        "answer lost",
        "closed",
        "silence",
        "503",
        "500, but done",
        "403",
        "200 without words",
        "200 without words, done",
    ],
)
def test_after_trouble_all_arrive_all_the_same(seaweedfs_server: S3Server, tmp_path: Path, action: Action) -> None:
    """What has got no good answer is put again, by a thread that knows what to do; a name that is ours is not taken."""
    with uploading(seaweedfs_server, tmp_path, f"trouble{id(action)}") as (uploader, proxy, folder):
        proxy.change([When("PUT", "/many/", action, nth=10)])
        uploader.put(folder, "many")
        uploader.flush()
        assert [] == proxy.unfired
        assert_all_are_there(uploader, folder)
        assert sum(n_puts(proxy).values()) < 2 * N
        assert ALONE in log_of(uploader)


def test_names_that_are_taken_are_told_and_the_others_arrive(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    with uploading(seaweedfs_server, tmp_path, "taken") as (uploader, _, folder):
        (tmp_path / "other").write_bytes(b"another's")
        taken = {f"many/{n:02d}" for n in (3, 30)}
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            for name in taken:
                store.put_file(f"taken/{name}", tmp_path / "other")
        uploader.put(folder, "many", overwrite=False)
        with pytest.raises(UploadFailed) as caught:
            uploader.flush()
        assert taken == {failure.uri.split("/taken/")[1] for failure in caught.value.failures}
        for name in taken:
            uploader.get(name, tmp_path / "back", overwrite=True)
            assert (tmp_path / "back").read_bytes() == b"another's"
            (folder / name.removeprefix("many/")).write_bytes(b"another's")
        assert_all_are_there(uploader, folder, n_kept=2)


def test_workers_killed_with_many_under_way_lose_nothing(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    with uploading(seaweedfs_server, tmp_path, "killed") as (uploader, proxy, folder):
        may_go = threading.Event()
        hold = Do(lambda: may_go.wait(60))
        proxy.change([When("PUT", "/many/", hold, nth=20, times=N)])
        uploader.put(folder, "many")
        wait_until(lambda: sum(n_puts(proxy).values()) >= 22, what="puts under way")
        agent = pid_of_agent(uploader.spool)
        assert agent is not None
        kill(*(one for one in family(agent) if one.pid != agent))
        may_go.set()
        uploader.flush()
        assert_all_are_there(uploader, folder)
