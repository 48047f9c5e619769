"""status: why uploads do not move, the story of one, and whether somebody must look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from gate import Gate, wait_until
from support import SETTINGS, end_agent, file_of, new_job
from wherry.config import Config, RetryConfig
from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.store import StoredPart
from wherry.store.governor import Governor, address_of
from wherry.store.node_table import NodeTable, node_file
from wherry.uploader import Uploader

URI = "s3://bucket/run1/a.pt"


@pytest.fixture
def journal(line: CommandLine) -> Iterator[Journal]:
    opened = Journal(Spool(line.spool).journal_path)
    yield opened
    opened.close()


def accept(journal: Journal, name: str, *, secret_names: tuple[str, ...] = (), environment: bool = False, **how: Any) -> JobId:
    settings = {**SETTINGS, "secrets": {"from_environment": 1.0}} if environment else SETTINGS
    store = journal.uploads.store_id("s3", "bucket", {"endpoint_url": "http://127.0.0.1:1"}, secret_names, settings)
    (job_id,), _ = journal.uploads.submit("4711-0a", store, [new_job(name, **how)])
    return job_id


def fail_an_attempt(journal: Journal, error: str = "the connection was refused", wait_s: float = 36_000.0) -> None:
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.work.requeue(job.id, "w", wait_s=wait_s, error=error)


def status(line: CommandLine) -> dict[str, Any]:
    found = json.loads(line.run("status", "--json")[0])
    assert isinstance(found, dict)
    return found


def test_status_says_why_an_upload_does_not_move(line: CommandLine, journal: Journal) -> None:
    job_id = accept(journal, "run1/a.pt")
    fail_an_attempt(journal)
    out, _ = line.run("status")
    assert f"1 upload waits for the next try:\n  job {job_id}  {URI}  (10 B, 1 attempt, next try in 10 h)\n" in out
    assert "      the connection was refused\n" in out
    (one,) = status(line)["unfinished"]
    assert (job_id, URI, "queued", 1, "the connection was refused") == tuple(
        one[key] for key in ("job", "uri", "state", "attempts", "reason")
    )
    assert 35_000 < one["next_try_in_s"] <= 36_000


def test_status_says_why_calls_are_made_again_while_a_first_try_is_under_way(line: CommandLine) -> None:
    """The calls are made again for an hour: four commands on a loaded machine may take longer than half a minute, the default."""
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "secretsecret"}
    options = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", **keys}
    config = Config(retry=RetryConfig(call_deadline_s=3600.0))
    uploader = Uploader("s3://bucket/run1", storage_options=options, spool=line.spool, config=config)
    uploader.put(file_of(line.folder / "a.pt", 1000), "a.pt")
    with pytest.raises(TimeoutError):
        uploader.close(timeout_s=0.0)
    wait_until(lambda: status(line)["retrying"], what="the first retry of a call")
    (one,) = status(line)["unfinished"]
    assert ("uploading", 1, None) == (one["state"], one["attempts"], one["next_try_in_s"])
    assert "127.0.0.1:1" in one["reason"]
    assert "secretsecret" not in one["reason"]
    assert f"1 upload is being tried again:\n  job 1  {URI}  (1000 B, 1 attempt, being tried now)\n" in line.run("status")[0]
    assert "  why       it is being tried again after: " in line.run("status", "1")[0]


def test_an_upload_that_moves_again_has_no_reason_not_to(journal: Journal) -> None:
    job_id = accept(journal, "run1/a.pt")
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.parts.plan(job_id, "upload", 5, [None, None], 0)
    journal.work.note_error(job.store_id, job.key, "503: slow down", "ThrottledError")
    assert (1, [job_id]) == journal.overview.retrying(10)
    journal.parts.receive(job_id, "upload", StoredPart(1, 5, "etag"))
    assert (0, []) == journal.overview.retrying(10)


def test_status_says_what_an_upload_waits_behind(line: CommandLine, journal: Journal) -> None:
    older = accept(journal, "run1/a.pt", overwrite=False)
    newer = accept(journal, "run1/a.pt", overwrite=False)
    marker = accept(journal, "run1/marker", requires=("run1/a.pt",))
    reasons = {one["job"]: one["reason"] for one in status(line)["unfinished"]}
    assert {
        older: "nobody is sending it: no agent is running",
        newer: f"it waits for the end of job {older}, an older upload of its name",
        marker: f"it waits for the end of job {newer}, which it requires",
    } == reasons


def test_of_many_waiting_uploads_some_are_shown_and_all_are_counted(line: CommandLine, journal: Journal) -> None:
    for number in range(150):
        accept(journal, f"a/{number}")
        fail_an_attempt(journal)
    out, _ = line.run("status")
    assert "150 uploads wait for the next try:\n" in out
    assert "and 140 more" in out
    found = status(line)
    assert (150, 100) == (found["waiting_for_retry"], len(found["unfinished"]))


def test_the_words_are_the_users(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    line = CommandLine(gate.folder, gate.environment)
    with end_agent(line.spool):
        for name in ("a", "b", "b"):
            file_of(line.folder / name, 1000)
            line.run("put", "--no-wait", "--overwrite", name, "gated://x/a")
            wait_until(gate.puts, what="the first put")
        assert "  0 failed  1 replaced" in line.run("status")[0]
        assert "1 uploading" in line.run("status")[0]
        assert (1, 1) == tuple(status(line)[key] for key in ("uploading", "replaced"))
        assert ["uploading"] == [json.loads(line.run("status", "1", "--json")[0])["state"]]
        assert "replaced, " in line.run("status", "2")[0]
        gate.open()


@pytest.mark.parametrize("name", [URI, "a.pt", "run1/a.pt", "1"])
def test_the_story_of_one_upload_is_told(line: CommandLine, journal: Journal, name: str) -> None:
    accept(journal, "run1/a.pt")
    accept(journal, "other")
    fail_an_attempt(journal)
    (line.spool / "agent.log").write_text(
        f"2026-11-22 15:00:00,123 77 wherry.agent.worker WARNING job 1 ({URI}), attempt 1: "
        "the connection was refused; again in 3.0 s\n"
        f"2026-11-22 15:00:01,123 77 wherry.agent.worker WARNING job 12 ({URI}), attempt 1: of another\n"
    )
    out, _ = line.run("status", name)
    assert out.startswith(f"{URI}\n  job 1     queued, 10 B\n  accepted  ")
    for text in (
        "from process 4711",
        "attempts  1",
        "why       the connection was refused",
        "next try  in 10 h",
        f"{datetime(2026, 11, 22, 15).astimezone().isoformat(' ')}  attempt 1: the connection was refused",
        "options   endpoint_url=http://127.0.0.1:1",
    ):
        assert text in out
    assert "of another" not in out
    (told,) = (json.loads(text) for text in line.run("status", name, "--json")[0].splitlines())
    assert ("queued", 1, "the connection was refused") == (told["state"], told["attempts"], told["reason"])
    assert max(map(len, out.splitlines())) <= 120


def test_the_story_of_a_name_has_all_its_uploads(line: CommandLine) -> None:
    file_of(line.folder / "a", 1000)
    for _ in range(2):
        line.run("put", "--overwrite", "a", "./dest/a")
    out, _ = line.run("status", "dest/a")
    assert 2 == out.count(f"file://{line.folder}/dest/a\n")
    assert 2 == out.count("done, 1000 B")
    assert "no upload of this spool" in line.refuse("status", "dest/b", expected=3)
    assert "leave the name out" in line.refuse("status", "a", "--check", expected=2)


def test_check_finds_what_failed(line: CommandLine, journal: Journal) -> None:
    assert "" == line.run("status", "--check")[1]
    accept(journal, "a")
    assert "" == line.run("status", "--check")[1]
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.work.fail(job.id, "w", "the server said no")
    out, err = line.run("status", "--check", expected=9)
    assert "wherry: 1 failed\n" == err
    assert "the server said no" in out


def test_check_finds_what_is_stuck(line: CommandLine, journal: Journal) -> None:
    accept(journal, "a")
    line.run("status", "--check", "--older-than", "3000")
    assert "1 stuck" in line.run("status", "--check", "--older-than", "0", "--json", expected=9)[1]
    assert "goes with --check" in line.refuse("status", "--older-than", "5", expected=2)
    accept(journal, "b", secret_names=("token",))
    assert "1 stuck" in line.run("status", "--check", expected=9)[1]


KEYS = {"AWS_ACCESS_KEY_ID": "AKIA0123456789ABCDEF", "AWS_SECRET_ACCESS_KEY": "0123456789abcdef0123456789abcdef01234567"}
NO_KEYS = dict.fromkeys(KEYS, "")


def test_the_shortest_remedy_for_missing_secrets_is_named(line: CommandLine, journal: Journal) -> None:
    names = ("aws_access_key_id", "aws_secret_access_key")
    accept(journal, "a", secret_names=names, environment=True)
    assert "This shell's environment has them: wherry drain\n" in line.run("status", env=KEYS)[0]
    assert "Set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY as before, then: wherry drain\n" in line.run("status", env=NO_KEYS)[0]
    (waiting,) = json.loads(line.run("status", "--json", env=KEYS)[0])["waiting_for_secrets"]
    assert "This shell's environment has them: wherry drain" == waiting["remedy"]


def test_the_story_names_the_command_that_helps(line: CommandLine, journal: Journal) -> None:
    names = ("aws_access_key_id", "aws_secret_access_key")
    accept(journal, "locked", secret_names=names, environment=True)
    accept(journal, "a")
    assert "remedy    This shell's environment has them: wherry drain\n" in line.run("status", "locked", env=KEYS)[0]
    assert "remedy    start an agent and wait: wherry drain\n" in line.run("status", "a")[0]


def test_an_old_attempt_does_not_hide_that_secrets_are_missing(line: CommandLine, journal: Journal) -> None:
    """An agent that was killed had begun the upload; the one that is there now knows no secrets."""
    accept(journal, "a", secret_names=("token",))
    fail_an_attempt(journal, wait_s=0.0)
    with line.start("agent", "--stay") as process:
        wait_until(lambda: pid_of_agent(Spool(line.spool)) == process.pid, what="the agent")
        wait_until(lambda: status(line)["waiting_for_secrets"], what="the agent to say that it has no secrets")
        assert "1 upload waits for secret options" in line.run("status")[0]
        process.terminate()
        process.wait(60)


def test_what_servers_say_does_not_command_the_terminal(line: CommandLine, journal: Journal) -> None:
    accept(journal, "a")
    fail_an_attempt(journal, error="\x1b[2Jgone\u202e")
    for arguments in (("status",), ("status", "a")):
        out, _ = line.run(*arguments)
        assert r"\x1b[2Jgone\u202e" in out
        assert "\x1b" not in out


def test_the_limits_of_the_spools_stores_are_shown_and_why(line: CommandLine, journal: Journal) -> None:
    options = {"endpoint_url": "http://127.0.0.1:2"}
    journal.uploads.store_id("s3", "bucket", options, (), SETTINGS)
    for address in (address_of("s3", "bucket", options, {}), "s3://of-no-store-here"):
        governor = Governor(NodeTable(node_file()), address, 32)
        governor.note_throttled(governor.wait_for_request())
    # The table is the node's: a limit of all stores, "this node", may be another test's.
    (shown,) = (text for text in line.run("status")[0].splitlines() if text.startswith("limit    s3://"))
    assert "s3://bucket endpoint_url=http://127.0.0.1:2: " in shown
    assert "requests at once, as it has throttled" in shown
    (limit,) = (one for one in status(line)["limits"] if one["store"])
    assert "s3://bucket endpoint_url=http://127.0.0.1:2" == limit["store"]
