"""A part of which no byte moves is cut after `stall_timeout_s`, named in full, and sent again."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from servers.proxy import BlackHole, When, fault_proxy
from servers.worlds import World, transfer_of
from support import file_of
from wherry import Uploader
from wherry.config import AgentConfig, Config, RetryConfig

#: One attempt a call: what it says is what is logged.
IMPATIENT = RetryConfig(job_deadline_s=60.0, call_deadline_s=0.1, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.mark.parametrize("name", ["S3", "GCS"])
def test_a_stalled_part_is_cut_and_its_error_names_job_part_and_endpoint(
    name: str, worlds: Callable[[str], World], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(name)
    path = file_of(tmp_path / "model.pt", world.large_bytes)
    method, target, nth = world.request("part", "stall/model.pt")
    config = Config(
        transfer=replace(transfer_of(world), stall_timeout_s=1.0),
        retry=IMPATIENT,
        agent=AgentConfig(run_in="caller"),
    )
    with fault_proxy("127.0.0.1", world.server.port, [When(method, target, BlackHole(), nth=nth)]) as proxy:
        options = world.options(proxy.url, None)
        uri = f"{world.scheme}://{world.server.bucket}/stall"
        caplog.set_level(logging.WARNING, "wherry.agent.worker")
        with Uploader(uri, storage_options=options, spool=tmp_path / "spool", config=config) as uploader:
            handle = uploader.put(path, "model.pt")
            assert world.large_bytes == handle.result().size_bytes
        assert [] == proxy.unfired
        said = [record.getMessage() for record in caplog.records if record.name == "wherry.agent.worker"]
    # On a loaded machine another request, or the other part, may be cut as well.
    of_parts = [text for text in said if re.search(rf"part [12] of [23] of job {handle.ids[0]}:", text)]
    assert of_parts, said
    assert all(f"127.0.0.1:{proxy.port}" in text and "1 s" in text for text in of_parts), said
