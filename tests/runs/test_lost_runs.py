"""A run whose writer is lost, and comes back: whoever has its page open sees both, at few requests."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from command_line import CommandLine
from gate import wait_until
from servers.real import S3Server
from servers.web_page import page_of
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.format.layout import manifest_name
from wherry.mirror.format.manifest import Manifest, parse_manifest
from wherry.runs import Run
from wherry.runs.objects.reading_store import read_bytes
from wherry.store import PutOptions
from wherry.store.registry import open_store
from wherry.uri import parse_uri


class Store:
    """Puts manifests into the run's prefix, as its writer does."""

    def __init__(self, uri: str, options: dict[str, object], scratch: Path) -> None:
        self._uri = parse_uri(uri)
        self._options = options
        self._file = scratch / "object"

    def put(self, name: str, text: str) -> None:
        self._file.write_text(text)
        with open_store(self._uri, self._options) as store:
            store.put_file(self._uri.key_for(name), self._file, PutOptions())

    def has(self, path: str) -> bool:
        """Whether a segment or an object of the file is there."""
        with open_store(self._uri, self._options) as store:
            return any(path in meta.key for meta in store.list(self._uri.prefix))

    def heartbeat(self, at_s: float) -> None:
        self.put(manifest_name("w"), Manifest("w", 1, "open", at_s, 20.0, 0.0, 0, 0).to_json())

    def silence(self, writer: str, by_s: float) -> None:
        """Have the writer's last heartbeat be so much older."""
        with open_store(self._uri, self._options) as store:
            key = self._uri.key_for(manifest_name(writer))
            manifest = parse_manifest(read_bytes(store, key, 0, store.head(key).size_bytes).decode())
        self.put(manifest_name(writer), replace(manifest, heartbeat_s=manifest.heartbeat_s - by_s).to_json())


def test_a_lost_run_is_looked_at_soon_within_the_budget(tmp_path: Path, seaweedfs_server: S3Server, open_runs: Any) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}/r"
    store = Store(uri, seaweedfs_server.options, tmp_path)
    clock_s = time.time()
    store.put("metrics.jsonl", '{"t": 1.0, "step": 0, "loss": 1.0}\n')
    store.heartbeat(clock_s)
    runs = open_runs(uri, options=seaweedfs_server.options, now=lambda: clock_s)
    run: Run = runs.run("r")
    assert run.refresh()
    assert (run.row.state, run.truth().writer) == ("live", "alive")
    clock_s += 59.0
    store.heartbeat(clock_s)
    clock_s += 2.0  # what was known says that it is lost: it is asked before that is said
    run.refresh()
    assert (run.row.state, run.row.heard_s) == ("live", 2.0)
    clock_s += 61.0
    assert run.refresh()
    assert (run.row.state, run.truth().writer, run.row.heard_s) == ("lost", "lost", 63.0)
    asked = runs.usage()
    clock_s += 5.0
    assert not run.refresh()
    assert (run.row.heard_s, runs.usage()) == (68.0, asked)
    store.heartbeat(clock_s)
    clock_s += 6.0
    assert run.refresh()
    assert (run.row.state, run.truth().writer, run.row.heard_s) == ("live", "alive", 6.0)
    clock_s += 61.0
    assert run.refresh()
    assert run.row.state == "lost"
    counts = []
    for _ in range(2):
        before = runs.usage()
        for _ in range(3600):
            clock_s += 1.0
            run.refresh()
        counts.append((runs.usage().n_lists - before.n_lists, runs.usage().n_gets - before.n_gets))
    (n_lists, n_gets), (n_lists_later, n_gets_later) = counts
    assert 55 <= n_lists <= 62
    assert n_lists + n_gets <= 900
    assert n_lists_later <= 8
    assert n_gets_later <= 80


def test_a_killed_writer_that_is_started_again_is_live_in_an_open_page(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}/runs"
    line = CommandLine(tmp_path)
    store = Store(f"{uri}/r", seaweedfs_server.options, tmp_path)
    (tmp_path / "options.json").write_text(json.dumps(seaweedfs_server.options))
    mirror = "mirror", tmp_path / "r", f"{uri}/r", "--writer", "w", "--max-lag", "1", "--options-file", tmp_path / "options.json"
    with RunFolderLogger(tmp_path / "r") as log:
        log.log_metrics({"loss": 1.0}, 0)
        with line.start(*mirror) as writer:
            wait_until(lambda: store.has("metrics.jsonl") and store.has("manifest.json"), 60.0, "the first heartbeat")
            writer.kill()
            writer.communicate()
        store.silence("w", 100.0)  # as if so much time had passed
        with page_of(uri, options=seaweedfs_server.options) as page:

            def state(address: str) -> str:
                found = re.search(r'class="state (\w+)"', page.get(address).text)
                return found[1] if found is not None else ""

            wait_until(lambda: state("/") == "lost", 60.0, "the table")
            text = page.get("/run?id=r").text
            assert "writer lost" in text
            assert float(re.findall(r'data-age="([\d.]+)"', text[text.index("state lost") :])[0]) >= 100.0
            with line.start(*mirror) as writer:
                try:
                    wait_until(lambda: "writer alive" in page.get("/run?id=r").text, 40.0, "the page to know better")
                    assert [state("/run?id=r"), state("/")] == ["live", "live"]
                finally:
                    writer.terminate()
                    writer.communicate()


def test_the_numbers_of_a_row_are_of_the_points_that_are_shown(
    tmp_path: Path, seaweedfs_server: S3Server, open_runs: Any
) -> None:
    """Segments are seen as they come, between two listings, and so are the numbers above a chart."""
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
    folder = tmp_path / "r"
    config = MirrorConfig(max_lag_s=1.0, settle_s=0.2)
    runs = open_runs(uri, options=seaweedfs_server.options)
    mirrored = Mirror(folder, f"{uri}/r", storage_options=seaweedfs_server.options, spool=tmp_path / "spool", config=config)
    with mirrored as mirror, RunFolderLogger(folder) as log:
        for step in range(20):
            log.log_metrics({"loss": 1 - step / 100}, step)
            if step in (5, 19):  # two segments tell the pace
                mirror.flush()
        run: Run = runs.run("r")
        run.refresh()
        n_lists = runs.usage().n_lists
        log.log_metrics({"loss": 0.5}, 20)
        mirror.flush()
        wait_until(lambda: run.refresh() and run.truth().complete_to_step == 20, what="the new segment")
        loss = run.row.metrics["loss"]
        assert (loss.last, loss.last_step, loss.min, loss.n_points) == (0.5, 20, 0.5, 21)
        assert runs.usage().n_lists == n_lists, "the segment was found by its name"
