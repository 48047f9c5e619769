"""The command put of a name that is taken: refused before anything is staged, and nothing is left to mend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import CommandLine
from gate import Gate, wait_until
from servers.features import tell_spool
from servers.real import S3Server
from support import SETTINGS, end_agent, file_of, new_job
from wherry.errors import UploadFailed
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.uploader import Uploader


@pytest.mark.parametrize("verb", [("put",), ("put", "--move"), ("put", "--no-wait")])
def test_a_taken_name_is_refused_before_anything_is_staged(line: CommandLine, verb: tuple[str, ...]) -> None:
    file_of(line.folder / "a", 1000)
    there = file_of(line.folder / "dest/a", 10, seed=2).read_bytes()
    said = line.refuse(*verb, "a", "dest/", expected=4)
    assert f"file://{line.folder}/dest/a" in said
    assert "--overwrite" in said
    assert not line.spool.exists(), "there is not even a spool"
    assert (line.folder / "a").exists()
    assert there == (line.folder / "dest/a").read_bytes()


def test_of_several_sources_none_is_accepted_when_one_name_is_taken(line: CommandLine) -> None:
    file_of(line.folder / "a", 10)
    file_of(line.folder / "logs/deep/b", 10)
    file_of(line.folder / "logs/c", 10)
    file_of(line.folder / "dest/logs/deep/b", 10, seed=2)
    (line.folder / "dest/new").mkdir()
    assert "dest/logs/deep/b" in line.refuse("put", "a", "logs", "dest/", expected=4)
    assert not (line.folder / "dest/a").exists()
    line.run("put", "-r", "a", "logs", "./dest/new/")
    assert (line.folder / "dest/new/logs/deep/b").exists()


def test_an_s3_server_says_that_a_name_is_taken(line: CommandLine, seaweedfs_server: S3Server) -> None:
    file_of(line.folder / "a", 10)
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    tell_spool(line.spool, seaweedfs_server)
    uri = f"s3://{seaweedfs_server.bucket}/{line.folder.name}/a"
    line.run("put", "a", uri, "--options-file", "options.json")
    assert "nothing was uploaded" in line.refuse("put", "a", uri, "--options-file", "options.json", expected=4)
    assert line.run("drain")[0].endswith("0 left, 0 failed\n")


def test_a_name_that_another_takes_meanwhile_leaves_nothing_in_the_spool(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    line = CommandLine(gate.folder, gate.environment)
    with end_agent(line.spool):
        file_of(line.folder / "a", 1000)
        with line.start("put", "a", "gated://x/a") as process:
            wait_until(gate.puts, what="the upload to begin")
            file_of(gate.dest / "a", 5)
            gate.open()
            assert process.stderr is not None
            said = process.stderr.read()
            assert 4 == process.wait(60)
        assert "give --overwrite to replace what is there" in said
        assert "wherry retry" not in said
        assert [] == list((line.spool / "objects").iterdir())
        assert "0 uploaded, 0 left, 0 failed\n" == line.run("drain")[0]
        assert (line.folder / "a").exists()


def test_a_program_that_lost_its_name_gets_a_remedy_that_works(line: CommandLine) -> None:
    source = file_of(line.folder / "a", 1000)
    file_of(line.folder / "dest/a", 10, seed=2)
    with Uploader(line.folder / "dest", spool=line.spool) as uploader:
        uploader.put(source, "a", move=True)
        with pytest.raises(UploadFailed, match=rf"wherry retry --overwrite 1 --spool {line.spool} \(or discard\)"):
            uploader.flush(60)
    assert "wherry retry --overwrite 1" in line.run("drain", expected=1)[1]
    assert "To replace what has it: wherry retry --overwrite 1" in line.run("status", "a")[0]
    assert "1 queued again" in line.run("retry", "--overwrite", "1")[0]
    assert line.run("drain")[0].endswith("0 left, 0 failed\n")
    assert 1000 == (line.folder / "dest/a").stat().st_size


def test_a_retry_does_not_take_a_name_that_another_upload_is_on_its_way_to(line: CommandLine) -> None:
    """It would be sent first, and the other, which was accepted for a free name, would lose it."""
    journal = Journal(Spool(line.spool).journal_path)
    store = journal.uploads.store_id("s3", "bucket", {}, ("aws_secret_access_key",), SETTINGS)  # no agent can try it
    journal.uploads.submit("1-a", store, [new_job("a", overwrite=False)])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    journal.work.fail(job.id, "w", "the server said no")
    journal.uploads.submit("1-a", store, [new_job("a", overwrite=False)])
    for option in ((), ("--overwrite",)):
        said = line.run("retry", "1", *option)[0]
        assert said.startswith("0 queued again, 1 left: another upload of the name is on its way")
    journal.close()


def test_options_that_nothing_needs_do_not_keep_drain_from_draining(line: CommandLine) -> None:
    file_of(line.folder / "a", 10)
    line.run("put", "--no-wait", "a", "./dest/a")
    options = json.dumps({"aws_access_key_id": "a", "aws_secret_access_key": "b"})
    for given in (options, "{}", json.dumps({"7": {"token": "x"}})):
        assert line.run("drain", "--options-file", "-", stdin=given)[0].endswith("0 left, 0 failed\n")
    assert (line.folder / "dest/a").exists()


@pytest.mark.parametrize("uri", ["objects/run1", "objects/run1/", "s3://bucket", "s3://bucket/"])
def test_get_of_a_folder_names_what_gets_folders(line: CommandLine, uri: str) -> None:
    file_of(line.folder / "objects/run1/a", 10)
    said = line.refuse("get", uri, ".", expected=2)
    assert "give -r to get all objects below it" in said
    if not uri.startswith("s3"):
        line.run("get", "-r", uri, "here/")
        assert (line.folder / ("here/a" if uri.endswith("/") else "here/run1/a")).exists()
