"""status, drain, retry, discard, agent: what a person does about a spool."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from gate import Gate, kill, wait_until
from programs import Program
from servers.buckets import bucket_of
from servers.features import tell_spool
from servers.proxy import fault_proxy
from servers.proxy_plan import BlackHole, When
from servers.real import S3Server
from support import SETTINGS, file_of, new_job, spool_texts
from wherry.backends.s3.store import S3Store
from wherry.errors import UploadFailed
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.uploader import Uploader
from wherry.uri import StoreURI

MIB = 2**20


@pytest.fixture
def failed(line: CommandLine) -> CommandLine:
    """A command line with one failed upload, number 1: its name was taken."""
    file_of(line.folder / "a", 1000, seed=1)
    file_of(line.folder / "dest/a", 10, seed=2)
    with Uploader(line.folder / "dest", spool=line.spool) as uploader, pytest.raises(UploadFailed):
        uploader.put(line.folder / "a", "a").result(60)
    return line


def _status(line: CommandLine) -> dict[str, Any]:
    found = json.loads(line.run("status", "--json")[0])
    assert isinstance(found, dict)
    return found


def _left_by_a_killed_job(spool: Path, server: S3Server, name: str) -> None:
    """One accepted upload whose secrets were in the memory of processes that are gone."""
    place = Spool(spool)
    public = {option: server.options[option] for option in ("endpoint_url", "region")}
    journal = Journal(place.journal_path)
    object_id = f"1-dead-{secrets.token_hex(4)}"
    place.path(object_id).write_bytes(b"staged")
    store = journal.uploads.store_id("s3", server.bucket, public, ["aws_access_key_id", "aws_secret_access_key"], SETTINGS)
    journal.uploads.submit("1-dead", store, [new_job(name, object_id=object_id, size_bytes=6, root=f"s3://{server.bucket}")])
    journal.close()


def test_status_of_a_spool_that_is_not_there_says_so_and_makes_none(line: CommandLine) -> None:
    out, err = line.run("status")
    assert (f"nothing was ever uploaded from here: {line.spool} has no journal\n", "") == (out, err)
    assert "nothing was ever uploaded" in line.run("drain")[0]
    found = _status(line)
    assert (0, 0, None) == (found["queued"], found["done"], found["agent_pid"])
    assert not line.spool.exists()


def test_status_counts_and_names_every_field(gate: Gate, gated: CommandLine) -> None:
    file_of(gated.folder / "a", 1000)
    gated.run("put", "--no-wait", "a", "gated://x/a")
    wait_until(gate.puts, what="the first put")
    found = _status(gated)
    keys = """agent_pid bytes_failed bytes_queued done failed failures limits oldest_age_s quarantine queued replaced retries
    retrying spool stuck unfinished uploading waiting_for_operator waiting_for_retry waiting_for_secrets warnings"""
    assert keys.split() == sorted(found)
    assert (0, 1, 0, 1000) == (found["queued"], found["uploading"], found["failed"], found["bytes_queued"])
    assert gate.agent().pid == found["agent_pid"]
    out, _ = gated.run("status")
    assert f"agent    pid {gate.agent().pid}\nuploads  0 queued  1 uploading  0 done" in out
    assert "to send  1000 B" in out
    gate.open()


def test_status_shows_each_failure_and_what_to_do(failed: CommandLine) -> None:
    out, _ = failed.run("status")
    assert f"job 1  file://{failed.folder}/dest/a  (1000 B, 1 attempt)" in out
    assert "is there already" in out
    assert "To replace what has them: wherry retry --overwrite 1\n  or give up: wherry discard 1" in out
    (failure,) = _status(failed)["failures"]
    assert (1, f"file://{failed.folder}/dest/a", 1, 1000) == tuple(
        failure[key] for key in ("job", "uri", "attempts", "size_bytes")
    )


def test_suggested_commands_name_a_spool_that_is_not_the_default(failed: CommandLine, tmp_path: Path) -> None:
    out, _ = failed.run("status", "--spool", failed.spool, env={"WHERRY_SPOOL": str(tmp_path / "another")})
    assert f"wherry retry --spool {failed.spool} --overwrite 1" in out


def test_watch_writes_a_line_of_json_each_second_and_ends_with_ctrl_c(line: CommandLine) -> None:
    with Program(
        [sys.executable, "-u", "-m", "wherry.cli", "status", "--watch", "--json"],
        env=line.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(60)
    assert [0, 0] == [found["queued"] for found in lines]


def test_watch_without_a_terminal_is_refused(line: CommandLine) -> None:
    assert "--json" in line.refuse("status", "--watch", expected=2)


def test_status_loads_no_vendor_library(failed: CommandLine) -> None:
    program = """
import sys
from wherry.cli.app import app
heavy = ("boto3", "botocore", "google", "torch", "numpy", "fsspec", "tqdm")
try:
    app(["status"])
except SystemExit:
    print([name for name in sys.modules if name.partition(".")[0] in heavy])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=failed.environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.endswith("[]\n"), done.stdout


def test_damaged_journal_is_reported_and_drain_puts_it_aside(failed: CommandLine) -> None:
    wait_until(lambda: pid_of_agent(Spool(failed.spool)) is None, what="the agent to leave")
    for name in ("journal.db", "journal.db-wal"):
        (failed.spool / name).write_bytes(b"rubbish " * 1000)
    assert "damaged" in failed.refuse("status", expected=8)
    failed.run("drain")
    (aside,) = _status(failed)["quarantine"]
    assert "damaged" in aside["reason"]
    assert 1 == len(aside["files"])
    assert aside["files"][0] in failed.run("status")[0]


def test_retry_sends_a_failed_upload_again(failed: CommandLine) -> None:
    (failed.folder / "dest/a").unlink()
    assert "1 queued again" in failed.run("retry", "1")[0]
    assert failed.run("drain")[0].endswith("0 left, 0 failed\n")
    assert (failed.folder / "a").read_bytes() == (failed.folder / "dest/a").read_bytes()


@pytest.mark.parametrize(
    ("verb", "text"), [("retry", "no failed upload has the number 7"), ("discard", "no upload called '7' is queued, running")]
)
def test_jobs_must_be_named_and_must_have_failed(failed: CommandLine, verb: str, text: str) -> None:
    assert "--all" in failed.refuse(verb, expected=2)
    assert "--all" in failed.refuse(verb, "1", "--all", expected=2)
    assert text in failed.refuse(verb, "1", "7", expected=2)
    assert "is it the right --spool" in failed.refuse(verb, "--all", "--spool", failed.folder / "none", expected=2)
    assert 1 == _status(failed)["failed"]


def test_discard_wants_a_yes_and_frees_the_file(failed: CommandLine) -> None:
    assert "--yes" in failed.refuse("discard", "1", expected=2)
    assert 1 == len(list((failed.spool / "objects").iterdir()))
    assert "1 given up, 1 staged file deleted\n" == failed.run("discard", "--all", "--yes")[0]
    assert [] == list((failed.spool / "objects").iterdir())
    assert 0 == _status(failed)["failed"]


@pytest.mark.parametrize("verb", [["discard", "b", "--json"], ["rm", "gated://x/b"]])
def test_a_running_upload_is_given_up_and_those_beside_it_go_on(gate: Gate, gated: CommandLine, verb: list[str]) -> None:
    """Its server does not answer: the gate is shut. What its worker sends beside it is sent again, and blames nobody."""
    for name in ("a", "b"):
        file_of(gated.folder / name, 1000)
    gated.run("put", "--no-wait", "a", "b", "gated://x/")
    wait_until(lambda: {"a", "b"} <= set(gate.puts()), what="both puts")
    out, _ = gated.run(*verb, *(["--yes"] if verb[0] == "discard" else []))
    if "--json" in verb:
        assert {"discarded": 1, "deleted_files": 1, "ended_before": 0} == json.loads(out)
    gate.open()
    assert "0 left, 0 failed" in gated.run("drain")[0]
    assert ["a"] == sorted(path.name for path in gate.dest.iterdir())
    journal = Journal(gated.spool / "journal.db")
    assert [("done", 0), ("discarded", 0)] == [(job.state.value, job.schedule.leases_lost) for job in journal.queries.jobs()]
    journal.close()


def test_a_queued_upload_is_given_up_without_an_agent(gate: Gate, gated: CommandLine) -> None:
    file_of(gated.folder / "a", 1000)
    gated.run("put", "--no-wait", "a", "gated://x/run1/a")
    wait_until(gate.puts, what="the first put")
    kill(gate.agent())
    wait_until(lambda: pid_of_agent(Spool(gated.spool)) is None, what="its workers to die")
    assert "would be discarded      1000 B  job 1  gated://x/run1/a\n" == gated.run("discard", "run1/a", "--dry-run")[0]
    assert "1  gated://x/run1/a\n" in gated.run("discard", "gated://x/run1/a", "--dry-run")[0]
    assert "1 given up, 1 staged file deleted\n" == gated.run("discard", "1", "--yes")[0]
    gate.open()  # not before: the next agent, which takes back the dead worker's lease, may be faster than we
    assert "0 uploaded, 0 left, 0 failed" in gated.run("drain")[0]


def test_what_a_name_may_mean_is_asked_for(gated: CommandLine) -> None:
    file_of(gated.folder / "a", 1000)
    for folder in ("one", "two"):
        gated.run("put", "--no-wait", "a", f"gated://x/{folder}/a")
    message = gated.refuse("discard", "a", "--yes", expected=2)
    assert "may be gated://x/one/a or gated://x/two/a: give the whole URI" in message


def test_the_parts_of_what_is_given_up_are_aborted(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """A part is on its way to a server that never answers it."""
    path = file_of(line.folder / "big", 0)
    os.truncate(path, 70 * MIB)
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", "partNumber=2", BlackHole(), times=99)]) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        line.run("put", "--no-wait", "big", f"{uri}/big", *options)
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            prefix = uri.partition(f"{seaweedfs_server.bucket}/")[2]
            wait_until(lambda: proxy.requests("PUT", "partNumber=2"), what="the part")
            assert "1 given up, 1 staged file deleted\n" == line.run("discard", "big", "--yes")[0]
            wait_until(lambda: not list(store.list_uploads(prefix)), what="its parts to be aborted")
            assert [] == list(store.list(prefix))


def test_drain_lists_what_failed(failed: CommandLine) -> None:
    out, err = failed.run("drain", expected=1)
    assert "0 uploaded, 0 left, 1 failed\n" == out
    assert f"job 1  file://{failed.folder}/dest/a" in err
    assert "wherry retry --overwrite 1" in err


def test_drain_finishes_what_a_killed_agent_left(gate: Gate, gated: CommandLine) -> None:
    for name in ("a", "b"):
        file_of(gated.folder / name, 1000)
    gated.run("put", "--no-wait", "a", "b", "gated://x/")
    wait_until(gate.puts, what="the first put")
    kill(gate.agent())
    wait_until(lambda: pid_of_agent(Spool(gated.spool)) is None, what="its workers to die")
    out, _ = gated.run("status")
    assert "agent    none" in out
    assert "nobody is sending it: wherry drain" in out
    assert "2 left" in gated.run("drain", "--timeout", "0.2", expected=6)[0]
    gate.open()
    assert gated.run("drain")[0].endswith(" 0 left, 0 failed\n")
    assert {"a", "b"} == {path.name for path in gate.dest.iterdir()}


def test_missing_secrets_are_named_and_supplied(line: CommandLine, seaweedfs_server: S3Server) -> None:
    name = line.folder.name
    tell_spool(line.spool, seaweedfs_server)
    _left_by_a_killed_job(line.spool, seaweedfs_server, name)
    (waiting,) = _status(line)["waiting_for_secrets"]
    store_id = waiting["store_id"]
    expected = {
        "store_id": store_id,
        "store": f"s3://{seaweedfs_server.bucket}",
        "missing": ["aws_access_key_id", "aws_secret_access_key"],
        "jobs": 1,
        "remedy": "Start a program that gives them again, or: wherry drain --options-file FILE",
    }
    assert expected == waiting
    assert "wherry drain --options-file FILE" in line.run("status")[0]
    out, err = line.run("drain", expected=6)  # at once: nobody could ever send it
    assert "1 left" in out
    assert "aws_secret_access_key" in err
    assert "misses aws_access_key_id" in line.refuse("drain", "--options-file", "-", stdin='{"token": "x"}', expected=2)
    assert "misses aws_access_key_id" in line.refuse(
        "drain", "--options-file", "-", stdin=json.dumps({store_id: {"token": "x"}}), expected=2
    )
    options = {key: value for key, value in seaweedfs_server.options.items() if key.startswith("aws_")}
    assert "1 uploaded, 0 left" in line.run("drain", "--options-file", "-", stdin=json.dumps({store_id: options}))[0]
    uri = f"s3://{seaweedfs_server.bucket}/{name}"
    assert "staged" == line.run("cat", uri, "--options-file", "-", stdin=json.dumps(seaweedfs_server.options))[0]
    secret = seaweedfs_server.secret_key.encode()
    assert [] == [name for name, text in spool_texts(line.spool).items() if secret in text]


def test_options_file_of_put_serves_drain_too(line: CommandLine, seaweedfs_server: S3Server) -> None:
    _left_by_a_killed_job(line.spool, seaweedfs_server, f"{line.folder.name}-two")
    other = dict(seaweedfs_server.options) | {"endpoint_url": "http://127.0.0.1:1"}
    assert "fit no store" in line.refuse("drain", "--options-file", "-", stdin=json.dumps(other), expected=2)
    assert "1 uploaded, 0 left" in line.run("drain", "--options-file", "-", stdin=json.dumps(seaweedfs_server.options))[0]


def test_agent_runs_as_a_service_until_sigterm(line: CommandLine) -> None:
    with line.start("agent", "--stay", "--workers", "1") as process:
        assert process.stderr is not None
        assert "is up" in process.stderr.readline()
        assert process.pid == _status(line)["agent_pid"]
        assert f"another agent, process {process.pid}" in line.refuse("agent", expected=8)
        file_of(line.folder / "a", 10)
        line.run("put", "a", "./dest/")
        assert process.pid == _status(line)["agent_pid"]
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(60)
        assert "has left" in process.stderr.read()
    assert _status(line)["agent_pid"] is None


def test_spool_of_somebody_else_is_refused(line: CommandLine) -> None:
    (line.folder / "file").write_text("no folder")
    assert "cannot be used" in line.refuse("put", "file", "./dest/", "--spool", line.folder / "file", expected=8)
    assert os.listdir(line.folder) == ["file"]
