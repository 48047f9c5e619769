"""The page over runs in Google Cloud Storage: the table, curves, media, and a run that is still mirrored there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from gate import wait_until
from servers.real import Server
from servers.web_page import RATES, log_of, log_steps, make_runs, page_of
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.format.layout import FOLDER
from wherry.store import PutOptions
from wherry.store.registry import open_store
from wherry.uri import parse_uri

LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, max_requests_per_hour=10_000_000, exit_on_sigterm=False)


def test_runs_in_gcs_are_shown_while_one_of_them_is_live(
    tmp_path: Path, fake_gcs_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {"endpoint_url": fake_gcs_server.url, "anonymous": True}
    uri = f"gs://{fake_gcs_server.bucket}/{tmp_path.name}"
    store = open_store(parse_uri(uri), options)
    try:
        folder = make_runs(tmp_path / "runs")
        for path in folder.rglob("*"):
            if path.is_file() and path.name != ".lock":
                store.put_file(f"{tmp_path.name}/{path.relative_to(folder)}", path, PutOptions())
        with log_of(tmp_path / "live") as log:
            log_steps(log, RATES["amber"], 0, 5)
            log.flush()
            mirror = Mirror(log.folder, f"{uri}/live", storage_options=options, config=LIVELY, spool=tmp_path / "spool")

            def n_segments() -> int:
                return sum("/metrics.jsonl/" in one.key for one in store.list(f"{tmp_path.name}/live/{FOLDER}/"))

            with mirror, ExitStack() as stack:
                wait_until(lambda: n_segments() == 1, 60.0, "the first segment")
                log_steps(log, RATES["amber"], 5, 10)
                log.flush()
                wait_until(lambda: n_segments() == 2, 60.0, "the second one, which tells the pace of the writer")
                page = stack.enter_context(page_of(uri, options=options))
                table = page.get("/").text
                assert all(f"run?id={name}" in table for name in (*RATES, "live"))
                assert "(budget of a live run: 900 an hour, $0.00064)" in table
                assert 300 == page.points("amber", "train/loss")["n_total"]
                shown = page.get("/run?id=amber&tab=media&step=100").text
                assert "samples" in shown
                assert 200 == page.get("/run?id=birch&tab=log").status

                def n_points() -> int:
                    page.get("/run?id=live")  # looks for what is new, as /live does for an open page
                    return int(page.points("live", "train/loss").get("n_total", 0))

                wait_until(lambda: n_points() == 10, 60.0, "the points of the live run")
                log_steps(log, RATES["amber"], 10, 30)
                log.flush()
                wait_until(lambda: n_points() == 30, 60.0, "the new points")
                assert "complete to step 29" in page.get("/run?id=live").text
    finally:
        store.close()
