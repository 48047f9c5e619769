"""`wherry doctor --clean` takes away what is ours and left behind, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from servers.features import tell_spool
from servers.gcs_server import strict_gcs
from servers.proxy import DropAnswer, When, fault_proxy, s3_error
from servers.real import S3Server, fast_folder
from support import file_of, new_job
from wherry import Uploader
from wherry.checksum import crc32c_of_file
from wherry.config import AgentConfig, Config, RetryConfig, TransferConfig
from wherry.errors import TransientError
from wherry.spool.abandoned_uploads import Tried, clean_known_uploads
from wherry.spool.download_notes import note_download
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.store import TEMPORARY_MARK, MultipartStore, Part
from wherry.store.registry import open_store, split_options
from wherry.store.server_features import Endpoints
from wherry.transfer.resume import Version, partial_beside
from wherry.uri import StoreURI


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def clean(line: CommandLine, *arguments: object, options: dict[str, object] | None = None) -> list[dict[str, Any]]:
    given = () if options is None else ("--options-file", "-")
    out, _ = line.run("doctor", "--clean", *arguments, *given, "--json", stdin=json.dumps(options))
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    return findings


def broken_download(destination: Path) -> None:
    """What a download that was interrupted leaves for the next call."""
    version = Version("s3://bucket/key", "etag", 20, 10)
    with pytest.raises(TransientError), partial_beside(destination, version) as partial:
        partial.note(0, 1)
        raise TransientError("reset")


def temporaries(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if TEMPORARY_MARK in name)


def test_nothing_is_made_where_nothing_was(line: CommandLine) -> None:
    assert ["ok"] == [finding["level"] for finding in clean(line)]
    assert not line.spool.exists()


def test_stale_downloads_are_removed_where_this_spools_users_have_downloaded_to(line: CommandLine) -> None:
    noted, other = line.folder / "noted", line.folder / "other"
    for folder in (noted, other):
        for name in ("old.pt", "new.pt"):
            broken_download(folder / name)
        (folder / f".mine{TEMPORARY_MARK}notes").write_text("a user's own")
        for name in temporaries(folder):
            if "new" not in name:
                os.utime(folder / name, (0, 0))
    spool = Spool(line.spool)
    Journal(spool.journal_path).close()
    note_download(spool, noted)
    before = temporaries(other)
    (removed,) = [finding["text"] for finding in clean(line) if finding["what"] == "removed"]
    assert "old.pt" in removed
    assert 3 == len(temporaries(noted))  # the new pair, and the user's own
    assert before == temporaries(other)
    assert [] == [finding for finding in clean(line) if finding["what"] == "removed"]


def test_uploads_that_carry_our_mark_are_aborted_when_they_are_old_and_nothing_else_is_touched(line: CommandLine) -> None:
    path = file_of(line.folder / "file", 300_000)
    with fast_folder() as folder, strict_gcs(folder) as server:
        uri = f"gs://{server.bucket}/run"
        with open_store(StoreURI("gs", server.bucket), server.options) as store:
            assert isinstance(store, MultipartStore)
            for key in ("run/left.pt", "elsewhere/left.pt"):
                upload_id = store.begin(key, 300_000)
                store.put_part(key, upload_id, path, Part(1, 0, 262_144, crc32c_of_file(path, 0, 262_144)))
            store.put_file("run/theirs.pt", path)
            store.put_file("run/theirs.wherry-tmp-notes/1", path)  # somebody's own, in spite of its name
            before = server.names("")
            assert [] == [one for one in clean(line, uri, options=server.options) if one["what"] == "aborted"]
            assert before == server.names("")
            (aborted,) = [
                one["text"]
                for one in clean(line, uri, "--older-than-days", 0, options=server.options)
                if one["what"] == "aborted"
            ]
            assert f"{uri}/left.pt" in aborted
            assert {name for name in before if not name.startswith("run/left")} == set(server.names(""))


def test_uploads_of_others_on_s3_are_counted_and_left_alone(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/clean"
    with open_store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        assert isinstance(store, MultipartStore)
        upload_id = store.begin("clean/theirs.pt", 10)
        (others,) = [
            one["text"]
            for one in clean(line, uri, "--older-than-days", 0, options=seaweedfs_server.options)
            if one["what"] == "others'"
        ]
        assert others.startswith("1 upload in parts")
        assert ["clean/theirs.pt"] == [upload.key for upload in store.list_uploads("clean/")]
        store.abort("clean/theirs.pt", upload_id)


def test_an_upload_on_s3_whose_begin_was_not_answered_is_aborted_a_day_later(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    config = Config(
        transfer=TransferConfig(multipart_threshold_bytes=2**20, part_size_bytes=5 * 2**20),
        retry=RetryConfig(first_wait_s=0.001, longest_wait_s=0.01),
        agent=AgentConfig(run_in="caller"),
    )
    path = file_of(tmp_path / "model.pt", 6 * 2**20)
    plan = [When("POST", r"/lost/model.pt\?uploads", DropAnswer())]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        uri = f"s3://{seaweedfs_server.bucket}/lost"
        tell_spool(tmp_path / "spool", seaweedfs_server, proxy.url)
        with Uploader(uri, storage_options=options, spool=tmp_path / "spool", config=config) as uploader:
            uploader.put(path, "model.pt").result()
            assert [] == proxy.unfired
    journal = Journal(tmp_path / "spool" / "journal.db")
    (record,) = journal.queries.stores().values()
    with open_store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        assert isinstance(store, MultipartStore)
        assert ["lost/model.pt"] == [upload.key for upload in store.list_uploads("lost/")]
        theirs = store.begin("lost/model.pt2", 10)
        in_two_days = time.time() + 2 * 86_400
        assert 1 == len(clean_known_uploads(journal, record.id, lambda _: store, now=in_two_days))
        assert ["lost/model.pt2"] == [upload.key for upload in store.list_uploads("lost/")]
        store.abort("lost/model.pt2", theirs)
        assert store.head("lost/model.pt").size_bytes == path.stat().st_size
    journal.close()


def given_up(line: CommandLine, server: S3Server, upload_id: str) -> None:
    """A job that has failed, with an upload in parts that is still there."""
    journal = Journal(Spool(line.spool).journal_path)
    public, secret = split_options("s3", server.options)
    record = journal.uploads.store_id("s3", server.bucket, public, secret, {"retry": {}, "transfer": {}})
    (job_id,), _ = journal.uploads.submit("me", record, [new_job("given/up.pt")])
    journal.parts.plan(job_id, upload_id, 5, [None], 0)
    assert journal.work.lease("w", 60.0) is not None
    journal.work.fail(job_id, "w", "no")
    journal.close()


def test_the_upload_of_a_job_that_was_given_up_is_aborted_with_the_options_that_are_given(
    line: CommandLine, seaweedfs_server: S3Server
) -> None:
    with open_store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        assert isinstance(store, MultipartStore)
        given_up(line, seaweedfs_server, store.begin("given/up.pt", 10))
        (warning,) = [one for one in clean(line) if one["level"] == "warn"]
        assert "needs aws_access_key_id" in warning["text"]
        found = clean(line, f"s3://{seaweedfs_server.bucket}", options=seaweedfs_server.options)
        assert [f"an upload in parts of s3://{seaweedfs_server.bucket}/given/up.pt"] == [
            one["text"] for one in found if one["what"] == "aborted"
        ]
        assert [] == list(store.list_uploads("given/"))


def test_the_uploads_of_another_server_are_not_asked_for_here_and_stay_known(
    line: CommandLine, seaweedfs_server: S3Server, juicefs_server: S3Server
) -> None:
    assert seaweedfs_server.bucket == juicefs_server.bucket
    uri = f"s3://{seaweedfs_server.bucket}"
    with open_store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        assert isinstance(store, MultipartStore)
        given_up(line, seaweedfs_server, store.begin("given/up.pt", 10))
        assert [] == [one for one in clean(line, uri, options=juicefs_server.options) if one["what"] == "aborted"]
        assert ["given/up.pt"] == [upload.key for upload in store.list_uploads("given/")]
        assert 1 == len([one for one in clean(line, uri, options=seaweedfs_server.options) if one["what"] == "aborted"])
        assert [] == list(store.list_uploads("given/"))


def test_what_a_killed_trial_of_a_server_has_left_is_removed_when_it_is_old(
    line: CommandLine, seaweedfs_server: S3Server
) -> None:
    root, key = StoreURI("s3", seaweedfs_server.bucket), "trial/run/model.pt"
    dead = s3_error(503, "ServiceUnavailable")  # nothing is cleaned after the first part: as after a kill
    plan = [When("POST", "probe-parts.*uploadId", dead, times=9), When("DELETE", "probe", dead, nth=4, times=99)]
    with (
        fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy,
        open_store(root, {**seaweedfs_server.options, "endpoint_url": proxy.url}) as store,
    ):
        Endpoints().find_out(store, key)
    with open_store(root, seaweedfs_server.options) as store:
        assert isinstance(store, MultipartStore)
        assert isinstance(store, Tried)
        theirs = f"trial/run/{TEMPORARY_MARK}probe-notes/wherry-probe-object"
        store.put_file(theirs, file_of(line.folder / "theirs", 10))
        names = ["new", "object", "racea", "raceb", "racec"]
        assert names == [meta.key.rpartition("wherry-probe-")[2] for meta in store.left_by_trials("trial/")]
        assert [True] == [upload.is_ours for upload in store.list_uploads("trial/")]
        young = clean(line, f"{root}trial", options=seaweedfs_server.options)
        assert ["nothing of ours was left behind"] == [one["text"] for one in young]
        old = clean(line, f"{root}trial", "--older-than-days", 0, options=seaweedfs_server.options)
        assert ["aborted", *["removed"] * len(names), "clean"] == [one["what"] for one in old]
        assert ([], []) == (list(store.left_by_trials("trial/")), list(store.list_uploads("trial/")))
        assert store.head(theirs).size_bytes == 10
        store.delete(theirs)
