"""What is new reaches an open page, and an open page does not keep the server from ending."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import local
from gate import wait_until
from servers.proxy import Do, When, fault_proxy
from servers.real import S3Server
from servers.web_page import Page, log_of, page_of
from wherry.uploader import Uploader


@contextmanager
def events(page: Page, query: str) -> Iterator[Callable[[str], str]]:
    """Listens; the callable waits for an event of that name, and returns its data."""
    with local.open(f"{page.root}/live{query}", timeout=60) as answer:

        def wait(name: str) -> str:
            while line := answer.readline().decode():
                if line == f"event: {name}\n":
                    return str(answer.readline().decode().removeprefix("data: "))
            raise AssertionError("the server has ended")

        yield wait


def test_a_run_that_grows_is_news_and_its_points_are_there(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log, page_of(tmp_path) as page:
        log.log_metrics({"a": 1.0}, 0)
        assert [0.0] == page.points("run", "a")["lines"][0]["x"]
        with events(page, "?id=run") as wait:
            log.log_metrics({"a": 2.0}, 1)
            while page.points("run", "a")["lines"][0]["x"] != [0.0, 1.0]:
                wait("news")


def test_the_calls_of_this_viewer_are_told(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        page.get("/run?id=run")
        with events(page, "?id=run") as wait:
            assert re.fullmatch(r'\{"text": "\d+ calls, \$0"\}', wait("usage").strip())  # of a folder, which has no budget


@pytest.mark.parametrize("query", ["", "?id=run"])
def test_an_open_page_does_not_keep_the_server(tmp_path: Path, query: str) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page, events(page, query) as wait:
        wait("usage")
        page.server.stop()
        assert not [thread for thread in threading.enumerate() if thread.name == "wherry-ui"]
        with pytest.raises(AssertionError, match="the server has ended"):
            wait("never")
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", page.server.address.port), 5):
        pass


def test_each_of_two_viewers_is_told_what_is_new(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log, page_of(tmp_path) as page:
        log.log_metrics({"a": 1.0}, 0)
        page.get("/run?id=run")
        with events(page, "?id=run") as one, events(page, "?id=run") as other:
            for wait in (one, other):
                wait("usage")
            log.log_metrics({"a": 2.0}, 1)
            assert ["{}\n", "{}\n"] == [wait("news") for wait in (one, other)]


@pytest.mark.parametrize("query", ["", "id=run&"])
def test_what_was_new_before_the_page_listened_is_told_at_once(tmp_path: Path, query: str) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"a": 1.0}, 0)
    with page_of(tmp_path) as page:
        text = page.get("/run?id=run" if query else "/").text
        found = re.search(r'data-version="(\d+)"', text)
        assert found is not None
        with events(page, f"?{query}version={int(found[1]) - 1}") as wait:
            assert "{}\n" == wait("news")


def test_a_run_that_is_not_there_is_told_as_trouble(tmp_path: Path) -> None:
    with page_of(tmp_path) as page, events(page, "?id=nothing") as wait:
        assert "nothing" in wait("trouble")


def test_the_table_of_before_is_there_while_a_slow_bucket_is_listed(
    tmp_path: Path, seaweedfs_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with log_of(tmp_path / "runs/amber") as log:
        log.log_metrics({"a": 1.5}, 0)
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
    with Uploader(uri, storage_options=seaweedfs_server.options, spool=tmp_path / "spool") as uploader:
        uploader.put(tmp_path / "runs", "runs")
    may_list = threading.Event()
    may_list.set()
    gate = When("GET", "list-type=2", Do(may_list.wait), times=1000)
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [gate]) as proxy:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        with page_of(f"{uri}/runs", options=options) as page:
            wait_until(lambda: ">read " in page.get("/").text, 60.0, "the table")
        may_list.clear()
        try:
            with page_of(f"{uri}/runs", options=options) as page:
                text = page.get("/").text
        finally:
            may_list.set()
    assert "amber" in text
    assert "as of " in text
    assert "still reading" in text
