"""The page over hostile data in a real bucket, in Chromium: all is text, no page breaks, and the other runs are shown.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from browser import Browser, browser
from servers.hostile_runs import (
    FILES,
    MANIFESTS,
    MARKUP,
    METRICS,
    below,
    files_of,
    good_run,
    hostile_runs,
    mutated,
    put_files,
)
from servers.page_process import page_process
from servers.real import S3Server
from servers.web_page import log_of, make_runs, page_of
from wherry.web import uplot
from wherry.web.view import TABS

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

DRAWN = "document.querySelectorAll('.plot canvas').length"
#: What no page may have come to, whatever it shows.
TAKEN = (
    "return Boolean(window.pwned) || document.querySelectorAll('img[src=x], iframe, main svg[onload], main script').length > 0"
)
MOST_RSS_MB = 400


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    assert uplot.is_there(), uplot.MISSING
    with browser() as window:
        yield window


@pytest.fixture(autouse=True)
def page_is_left(window: Browser) -> Iterator[None]:
    """The page of an earlier test, whose server has ended, asks no more."""
    yield
    window.open("about:blank")
    window.console()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def faults_of(window: Browser, root: str, path: str) -> list[object]:
    """What is wrong with the page that is open, as far as no page may have it."""
    hosts: Any = window.run("return performance.getEntriesByType('resource').map((one) => new URL(one.name).origin)")
    found: list[object] = [(path, host) for host in set(hosts) - {root}]
    found += [(path, line) for line in window.console()]
    return [*found, (path, "was taken for markup")] if window.run(TAKEN) else found


def pages_of(run_id: str) -> list[str]:
    return [f"/run?{urlencode({'id': run_id, 'tab': tab})}" for tab in TABS]


def answers_of(run_id: str, key: str) -> list[str]:
    """What scripts ask about a run."""
    run, point = urlencode({"id": run_id}), urlencode({"id": run_id, "key": key})
    return [f"/data/points?{point}&smooth=3&x=time", f"/data/csv?{point}", f"/data/moment?{point}&step=1", f"/data/log?{run}"]


def test_markup_is_shown_as_text(tmp_path: Path, cache: Path, seaweedfs_server: S3Server, window: Browser) -> None:
    files: dict[str, bytes] = {}
    keys = {f"{text}/{number}": float(number) for number, text in enumerate(MARKUP)}
    names = [f"run {text}" for text in MARKUP if "/" not in text]
    with log_of(tmp_path / "one") as log:
        log.log_hyperparameters({text: text for text in MARKUP})
        for step in range(3):
            log.log_metrics(keys, step)
        for text in MARKUP:
            log.log_text(text, text, 1)
            log.log_table([text, "a"], [[text, 1]], text.replace("/", "|"), 1)
            log.log_histogram([1.0, 2.0, 3.0], text, 1)
            log.log_images(_grey(), text.replace("/", "|"), step=1)
    (tmp_path / "one/logs-rank0.txt").write_text("".join(f"[step={number}] {text}\n" for number, text in enumerate(MARKUP)))
    for number, name in enumerate(names):
        one = files_of(tmp_path / "one") | {"hparams.json": json.dumps({"lr": number, "who": MARKUP[number]}).encode()}
        files |= below(name, {path: data for path, data in one.items() if not path.endswith((".lock", "-summary.json"))})
    prefix = f"{tmp_path.name}/markup"
    put_files(seaweedfs_server, prefix, files, tmp_path / "objects")
    faults: list[object] = []
    with page_of(f"s3://{seaweedfs_server.bucket}/{prefix}", options=seaweedfs_server.options) as page:
        page.get("/")
        compared = "/compare?" + urlencode([("id", name) for name in names[:3]])
        for path in ("/", "/?group=who", "/?where=" + quote(f"key('{names[0]}')>1"), compared, f"{compared}&group=who"):
            window.open(page.root + path)
            faults += faults_of(window, page.root, path)
        for path in pages_of(names[0]):
            window.open(page.root + path)
            if "tab=charts" in path:
                window.wait_for(f"{DRAWN} >= 3", "the curves")
                window.run("document.querySelector('article.card').focus()")
            faults += faults_of(window, page.root, path)
            shown = str(window.run("return document.querySelector('main').textContent"))
            if "tab=charts" in path or "tab=log" in path:
                faults += [(path, text) for text in MARKUP if text.lstrip("\u202e") not in shown]  # no marks of direction
        moment = page.get(f"/data/moment?{urlencode({'id': names[0], 'key': f'{MARKUP[0]}/0', 'step': 1})}").json
        assert moment
    assert [] == faults


def test_a_name_that_html_cannot_hold_has_its_curve(tmp_path: Path, cache: Path, window: Browser) -> None:
    keys = ("a\u0000b", "c\rd%41", "\u202efdp")
    (tmp_path / "runs/r").mkdir(parents=True)
    lines = [json.dumps({"step": step, **dict.fromkeys(keys, step)}) + "\n" for step in range(3)]
    (tmp_path / "runs/r/metrics.jsonl").write_text("".join(lines))
    assert cache.parent == tmp_path
    with page_of(tmp_path / "runs") as page:
        for path in ("/run?id=r", "/compare?id=r"):
            window.open(page.root + path)
            window.wait_for(f"{DRAWN} === 3", "the curves")
            said = window.run("return [...document.querySelectorAll('.said')].map((one) => one.textContent)")
            labels = window.run("return [...document.querySelectorAll('article .pin')].map((one) => one.ariaLabel)")
            assert (["all 3 points"] * 3, ["Pin a\\x00b", "Pin c\rd%41", "Pin \\u202efdp"]) == (said, labels)
            assert [] == faults_of(window, page.root, path)


def _grey() -> Any:
    import numpy as np

    return np.full((3, 4, 4), 100, np.uint8)


def test_each_damage_is_told_and_no_page_breaks(tmp_path: Path, cache: Path, seaweedfs_server: S3Server, window: Browser) -> None:
    prefix = f"{tmp_path.name}/hostile"
    put_files(seaweedfs_server, prefix, hostile_runs(), tmp_path / "objects")
    names = [
        f"{kind}{number}"
        for kind, all_of in (("metrics", METRICS), ("manifest", MANIFESTS), ("file", FILES))
        for number in range(len(all_of))
    ]
    uri = f"s3://{seaweedfs_server.bucket}/{prefix}"
    faults: list[object] = []
    with page_process(uri, seaweedfs_server.options, cache) as process:
        wait_for_all(window, process.root, len(names) + 1)
        table = str(window.run("return document.querySelector('table.runs').textContent"))
        faults += [name for name in (*names, "good") if name not in table]
        faults += faults_of(window, process.root, "/")
        for number, name in enumerate(names):
            faults += [
                (path, status)
                for path in answers_of(name, "loss")
                if (status := process.status(path)) not in (200, 400, 404, 502)
            ]
            pages = pages_of(name)
            faults += [(path, status) for path in pages if (status := process.status(path)) != 200]
            for path in (pages[0], pages[number % len(pages)]):
                window.open(process.root + path)
                faults += faults_of(window, process.root, path)
        window.open(f"{process.root}/compare?" + urlencode([("id", name) for name in ("good", *names)]))
        window.run("document.querySelector('article.card[data-key=loss]').scrollIntoView()")
        window.wait_for(f"{DRAWN} > 0", "the curves of all")
        faults += faults_of(window, process.root, "/compare")
        window.open(f"{process.root}/run?id=good")
        window.wait_for("document.querySelector('.said')?.textContent === 'all 50 points'", "the good run")
        assert process.peak_mb < MOST_RSS_MB
    assert [] == faults


def wait_for_all(window: Browser, root: str, n_runs: int) -> None:
    window.open(f"{root}/")
    said = "document.querySelector('#fresh .truth').textContent.replace(/\\s+/g, ' ').trim()"
    window.wait_for(f"{said}.startsWith('{n_runs} runsread ')", "all runs in the table")


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_break_no_page(seed: int, tmp_path: Path, cache: Path, seaweedfs_server: S3Server, window: Browser) -> None:
    order = random.Random(seed)
    whole = files_of(make_runs(tmp_path / "runs") / "birch")
    runs = {f"run{number}": mutated(whole, order) for number in range(12)}
    files = {"good/" + path: data for path, data in good_run().items()}
    files |= {f"{name}/{path}": data for name, one in runs.items() for path, data in one.items() if not path.endswith(".lock")}
    prefix = f"{tmp_path.name}/mutated"
    put_files(seaweedfs_server, prefix, files, tmp_path / "objects")
    faults: list[object] = []
    with page_of(f"s3://{seaweedfs_server.bucket}/{prefix}", options=seaweedfs_server.options) as page:
        wait_for_all(window, page.root, len(runs) + 1)
        for name in runs:
            paths = [*pages_of(name), *answers_of(name, "train/loss")]
            faults += [(path, status) for path in paths if (status := page.get(path).status) not in (200, 404, 502)]
        for name in order.sample(sorted(runs), 3):
            for path in pages_of(name):
                window.open(page.root + path)
                # A file that cannot be shown is an answer of the server, which the console repeats.
                found = faults_of(window, page.root, path)
                faults += [one for one in found if "/file?" not in str(one)]
    assert [] == faults


def test_a_million_metrics_in_one_run_are_cut_within_bounds(
    tmp_path: Path, cache: Path, seaweedfs_server: S3Server, window: Browser
) -> None:
    lines = b"".join(
        json.dumps({"t": 1.0, "step": step, **{f"g{step % 50}/k{step * 5000 + key}": 1.0 for key in range(5000)}}).encode()
        + b"\n"
        for step in range(200)
    )
    prefix = f"{tmp_path.name}/many"
    files = below("many", {"metrics.jsonl": lines}) | below("good", good_run())
    put_files(seaweedfs_server, prefix, files, tmp_path / "objects")
    with page_process(f"s3://{seaweedfs_server.bucket}/{prefix}", seaweedfs_server.options, cache) as process:
        wait_for_all(window, process.root, 2)
        window.open(f"{process.root}/run?id=many")
        process.get("/data/csv?id=many&key=g0/k0")  # it waits until all is read
        window.open(f"{process.root}/run?id=many")
        window.wait_for(f"{DRAWN} > 0", "the first curves")
        assert "only the first" in str(window.run("return document.querySelector('main').textContent"))
        window.open(f"{process.root}/run?id=many&keys=k9999")
        window.open(f"{process.root}/run?id=good")
        window.wait_for(f"{DRAWN} > 0", "the other run")
        assert [] == window.console()
        assert process.peak_mb < MOST_RSS_MB
