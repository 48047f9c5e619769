"""One spool, one bucket name, two servers: what is queued for one of them is no business of the other's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.gcs_server import strict_gcs
from servers.proxy import Do, When, fault_proxy
from servers.real import fast_folder
from support import end_agent, file_of
from wherry import Uploader
from wherry.config import AgentConfig, Config
from wherry.spool.journal.jobs import JobState

URI = "gs://wherry/run"


@dataclass
class Two:
    """An uploader to either server, and the options of the second. Uploads to the first wait until `go` is set."""

    first: Uploader
    second: Uploader
    options: Mapping[str, object]
    go: threading.Event


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    go = threading.Event()
    with (
        fast_folder() as folder,
        fast_folder() as other_folder,
        strict_gcs(folder) as here,
        strict_gcs(other_folder) as there,
        fault_proxy("127.0.0.1", here.port, [When("POST", "/upload/", Do(go.wait))]) as proxy,
        end_agent(tmp_path / "spool") as spool,
        Uploader(URI, storage_options={**here.options, "endpoint_url": proxy.url}, spool=spool) as first,
        Uploader(URI, storage_options=there.options, spool=spool) as second,
    ):
        try:
            yield Two(first, second, there.options, go)
        finally:
            go.set()


def test_what_is_queued_for_one_server_is_not_seen_taken_back_or_waited_for_at_another(two: Two, tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 1000)
    handle = two.first.put(path, "name")
    assert [True, False] == [two.first.exists("name"), two.second.exists("name")]
    assert [["name"], []] == [[meta.key for meta in uploader.list()] for uploader in (two.first, two.second)]
    two.second.delete("name")
    assert not handle.state.is_final
    two.go.set()
    assert handle.wait(60.0)
    assert JobState.DONE is handle.state
    two.first.get("name", tmp_path / "back")
    assert path.read_bytes() == (tmp_path / "back").read_bytes()


def test_a_command_for_one_server_waits_for_no_upload_to_another(two: Two, tmp_path: Path) -> None:
    path = file_of(tmp_path / "file", 1000)
    two.second.put(path, "name").result(60.0)
    handle = two.first.put(path, "name")
    line, given = CommandLine(tmp_path), ("--options-file", "-")
    options = json.dumps(two.options)
    listed, _ = line.run("ls", URI, "--json", *given, stdin=options)[0].splitlines()
    assert "stored" == json.loads(listed)["state"]
    line.run("rm", f"{URI}/name", "--yes", *given, stdin=options)
    assert not handle.state.is_final
    two.go.set()
    assert handle.wait(60.0)
    assert [True, False] == [two.first.exists("name"), two.second.exists("name")]


def test_a_server_named_by_the_environment_is_the_one_named_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = AgentConfig(run_in="caller")
    for name in ("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with Uploader(
        "s3://wherry", storage_options={"endpoint_url": "http://Host:9/"}, spool=tmp_path, config=Config(agent=here)
    ) as uploader:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:9")
        with Uploader("s3://wherry", spool=tmp_path, config=Config(agent=here)):
            records = uploader.journal.queries.stores().values()
            assert (2, {"endpoint_url=http://host:9"}) == (len(records), {record.endpoint_key for record in records})
