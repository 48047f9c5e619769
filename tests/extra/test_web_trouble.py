"""The page while its bucket makes trouble, in Chromium: it says what is wrong, shows what it has, and comes back by itself.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import Browser, browser
from servers.hostile_runs import below, delete_files, good_run, put_files
from servers.proxy import Delay, FaultProxy, When, fault_proxy, s3_error
from servers.real import S3Server
from servers.web_page import Page, log_of, page_of
from support import wait_until
from wherry.mirror import Mirror, MirrorConfig
from wherry.runs import looks, run as run_module
from wherry.store.registry import open_store
from wherry.uri import parse_uri
from wherry.web import known_rows, uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

DRAWN = "document.querySelectorAll('.plot canvas').length"
FIRST_SAID = "document.querySelector('.card .said')?.textContent"
ALWAYS = 10**9
LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, max_requests_per_hour=10_000_000, exit_on_sigterm=False)


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    assert uplot.is_there(), uplot.MISSING
    with browser() as window:
        yield window


@pytest.fixture(autouse=True)
def no_old_page(window: Browser) -> None:
    """The page of the test before asks its server, which has ended."""
    window.open("about:blank")
    window.console()


@pytest.fixture(autouse=True)
def no_old_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and looks at the bucket that come soon."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module, name in ((run_module, "LIST_EVERY_S"), (looks, "LIST_EVERY_S"), (looks, "_LIST_ENDED_EVERY_S")):
        monkeypatch.setattr(module, name, 1.0)
    defaults = known_rows.Listing.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "fresh_s", 1.0)


@pytest.fixture
def prefix(tmp_path: Path, seaweedfs_server: S3Server) -> str:
    """Three runs in the bucket: a, b, c."""
    files = {path: data for name in "abc" for path, data in below(name, good_run()).items()}
    put_files(seaweedfs_server, tmp_path.name, files, tmp_path / "objects")
    return tmp_path.name


@contextmanager
def page_through(server: S3Server, prefix: str, *plan: When) -> Iterator[tuple[Page, FaultProxy]]:
    """A page over the runs, whose bucket is behind a proxy."""
    with (
        fault_proxy("127.0.0.1", server.port, plan) as proxy,
        page_of(f"s3://{server.bucket}/{prefix}", options={**server.options, "endpoint_url": proxy.url}) as page,
    ):
        yield page, proxy


def text(window: Browser) -> str:
    return str(window.run("return document.querySelector('main').innerText"))


def test_a_slow_bucket_is_waited_for_in_an_open_page(prefix: str, seaweedfs_server: S3Server, window: Browser) -> None:
    slow = When("GET", "", Delay(1.5), times=ALWAYS)
    with page_through(seaweedfs_server, prefix, slow) as (page, _):
        window.open(f"{page.root}/")
        assert "still reading" in text(window)
        window.wait_for("document.querySelectorAll('tr[data-id]').length === 3", "the rows, without loading again")
        window.open(f"{page.root}/run?id=b")
        window.wait_for(f"{FIRST_SAID} === 'all 50 points'", "the curve")
        assert [] == window.console()


def test_a_run_that_is_refused_is_one_row_and_the_others_are_shown(
    prefix: str, seaweedfs_server: S3Server, window: Browser
) -> None:
    refused = When("GET", "/b/metrics", s3_error(403, "AccessDenied", "not for <b>you</b>"), times=ALWAYS)
    with page_through(seaweedfs_server, prefix, refused) as (page, _):
        window.open(f"{page.root}/")
        window.wait_for("document.querySelectorAll('tr[data-id]').length === 3", "the rows")
        window.wait_for("document.querySelector('tr.troubled[data-id=b]')", "the refused one")
        window.open(f"{page.root}/compare?id=a&id=b&id=c")
        window.wait_for(f"{DRAWN} > 0", "the curves of the others")
        assert "metrics.jsonl: " in text(window), "what is wrong with b"
        assert "1 run has no such metric" in text(window)
        assert [] == window.console()


def test_a_refusal_in_the_middle_of_a_view_is_said_and_ends(prefix: str, seaweedfs_server: S3Server, window: Browser) -> None:
    with page_through(seaweedfs_server, prefix) as (page, proxy):
        window.open(f"{page.root}/run?id=a")
        window.wait_for(f"{FIRST_SAID} === 'all 50 points'", "the curve")
        for answer in (s3_error(403, "AccessDenied", "key expired"), s3_error(500, "InternalError", "sick today")):
            proxy.change((When("", "", answer, times=ALWAYS),))
            window.wait_for("document.querySelector('#head .bad')", f"what is wrong: {answer.status}")
            assert "all 50 points" in text(window), "what was drawn stays"
            window.open(f"{page.root}/run?id=a")
            window.wait_for(f"{FIRST_SAID} === 'all 50 points'", "the curve, from what is known")
            window.open(f"{page.root}/")
            window.wait_for("document.querySelector('#fresh .note.bad')", "what is wrong, in the table")
            assert 3 == window.run("return document.querySelectorAll('tr[data-id]').length")
            proxy.change(())
            window.wait_for("!document.querySelector('#fresh .note.bad')", "that it is over")
            window.open(f"{page.root}/run?id=a")
            window.wait_for("!document.querySelector('#head .bad')", "that it is over, in the run")
        assert [] == window.console()


def test_a_run_that_is_deleted_while_it_is_viewed(
    prefix: str, tmp_path: Path, seaweedfs_server: S3Server, window: Browser
) -> None:
    with page_through(seaweedfs_server, prefix) as (page, _):
        window.open(f"{page.root}/run?id=a")
        window.wait_for(f"{FIRST_SAID} === 'all 50 points'", "the curve")
        delete_files(seaweedfs_server, f"{prefix}/a")
        window.wait_for("document.querySelector('#head').innerText.includes('no object of this run is left')", "that it is gone")
        for tab in ("charts", "media", "log", "system", "checkpoints", "uploads"):
            assert 200 == page.get(f"/run?id=a&tab={tab}").status
        window.open(f"{page.root}/")
        window.wait_for("document.querySelectorAll('tr[data-id]').length === 2", "the rows of the others")
        put_files(seaweedfs_server, prefix, below("a", good_run(20, "other")), tmp_path / "objects")
        window.open(f"{page.root}/run?id=a")
        window.wait_for(f"{FIRST_SAID} === 'all 20 points'", "another run of the same name")
        assert [] == window.console()


def test_a_run_that_grows_and_begins_anew_while_it_is_drawn(
    prefix: str, tmp_path: Path, seaweedfs_server: S3Server, window: Browser
) -> None:
    end = threading.Event()

    def grow() -> None:
        for number in range(10_000):
            files = good_run(60 + number * 7 % 100)
            put_files(seaweedfs_server, prefix, below("a", files), tmp_path / "grows")
            if end.wait(1.0):
                return

    with page_through(seaweedfs_server, prefix) as (page, _):
        thread = threading.Thread(target=grow)
        thread.start()
        try:
            for number in range(15):
                window.open(f"{page.root}/run?id=a&smooth={number}&low={number}&high={number + 40}")
                window.wait_for(f"{DRAWN} === 1", "the curve")
                found = page.points("a", "loss")
                (line,) = found["lines"]
                assert [1 / (1 + x) for x in line["x"]] == line["y"]
        finally:
            end.set()
            thread.join()
        assert [] == window.console()


def test_missing_segments_are_said_and_the_rest_is_drawn(tmp_path: Path, seaweedfs_server: S3Server, window: Browser) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}/holes"
    store = open_store(parse_uri(f"s3://{seaweedfs_server.bucket}"), seaweedfs_server.options)
    below_metrics = f"{tmp_path.name}/holes/_mirror/"

    def segments() -> list[str]:
        return [meta.key for meta in store.list(below_metrics) if "/segments/metrics.jsonl/" in meta.key]

    options = seaweedfs_server.options
    try:
        with log_of(tmp_path / "holes") as log:
            mirror = Mirror(log.folder, uri, storage_options=options, config=LIVELY, spool=tmp_path / "spool")
            with mirror, page_of(uri.removesuffix("/holes"), options=options) as page:
                for step in range(4):
                    log.log_metrics({"loss": float(step)}, step)
                    log.flush()
                    wait_until(lambda n=step: len(segments()) > n, 60.0, "a segment")  # type: ignore[misc]
                store.delete(segments()[2])
                wait_until(lambda: "id=holes" in page.get("/").text, 60.0, "the run in the table")
                window.open(f"{page.root}/run?id=holes")
                window.wait_for("document.querySelector('#head').innerText.includes('1 segment missing')", "the gap")
                window.wait_for(f"{FIRST_SAID}?.startsWith('all 2 points')", "what is before the gap")
                assert [] == window.console()
    finally:
        store.close()


def test_each_new_point_is_drawn_and_a_hidden_page_asks_for_nothing(
    tmp_path: Path, seaweedfs_server: S3Server, window: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # looks as they are by default
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}/drawn"
    store = open_store(parse_uri(f"s3://{seaweedfs_server.bucket}"), seaweedfs_server.options)

    def n_stored() -> int:
        return sum("/segments/metrics.jsonl/" in meta.key for meta in store.list(f"{tmp_path.name}/drawn/_mirror/"))

    options, pace = seaweedfs_server.options, MirrorConfig(max_lag_s=3.0, settle_s=0.2, exit_on_sigterm=False)
    try:
        with log_of(tmp_path / "drawn") as log, fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
            log.log_metrics({"loss": 0.0}, 0)
            through = {**options, "endpoint_url": proxy.url}
            mirror = Mirror(log.folder, uri, storage_options=options, config=pace, spool=tmp_path / "spool")
            with mirror, page_of(uri, options=through) as page:
                wait_until(n_stored, 60.0, "the first segment")
                window.open(f"{page.root}/run?id=drawn")
                window.wait_for(f"{DRAWN} === 1", "the curve")
                for step in range(1, 4):
                    n_before = n_stored()
                    log.log_metrics({"loss": float(step)}, step)
                    log.flush()
                    wait_until(lambda n=n_before: n_stored() > n, 60.0, "the segment")  # type: ignore[misc]
                    window.wait_for(f"{FIRST_SAID}.startsWith('all {step + 1} points')", "the point in the drawn chart")
                hide = "Object.defineProperty(document, 'hidden', { value: true }); "
                window.run(f"{hide}document.dispatchEvent(new Event('visibilitychange'))")
                before_hidden = len(proxy.requests())
                for step in range(4, 7):
                    n_before = n_stored()
                    log.log_metrics({"loss": float(step)}, step)
                    log.flush()
                    wait_until(lambda n=n_before: n_stored() > n, 60.0, "the segment")  # type: ignore[misc]
                assert len(proxy.requests()) - before_hidden <= 3, "at most what was under way"
                assert [] == window.console()
    finally:
        store.close()
