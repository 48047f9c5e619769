"""What an operator has to mend fails no upload: it waits, says so, and arrives when it is mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from servers.proxy import When, fault_proxy, s3_error
from servers.real import S3Server
from support import SETTINGS, end_agent, file_of, new_job, own_mounts, run_script, wait_until
from wherry.errors import AccessDeniedError, UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.spool.staging import stage
from wherry.store.registry import split_options
from wherry.uploader import Uploader

READ_ONLY = """
import subprocess, sys
from pathlib import Path
import wherry
from wherry.errors import UploadFailed
from support import end_agent, file_of

folder = Path(sys.argv[1])
store, spool = folder / "store", folder / "spool"
store.mkdir()
mount = lambda *options: subprocess.run(["mount", *options, str(store)], check=True)
mount("-t", "tmpfs", "-o", "size=32m", "tmpfs")
source = file_of(folder / "source", 1000)
with end_agent(spool):
    with wherry.Uploader(store, spool=spool) as uploader:
        uploader.put(source, "before").result()
    mount("-o", "remount,ro")
    uploader = wherry.Uploader(store, spool=spool)
    handle = uploader.put(source, "a")
    for wait in (uploader.flush, handle.result, uploader.close):
        try:
            wait()
        except UploadFailed as error:
            print(error.failures[0].kind, len(error.failures), handle.state.is_final)
    mount("-o", "remount,rw")
    command = [sys.executable, "-m", "wherry.cli", "drain", "--spool", str(spool)]
    print(subprocess.run(command, capture_output=True, text=True).stdout)
    print((store / "a").read_bytes() == source.read_bytes())
"""


def test_a_destination_that_turned_read_only_fails_no_upload(tmp_path: Path) -> None:
    said = run_script(READ_ONLY, tmp_path, prefix=own_mounts(), timeout_s=120.0).splitlines()
    assert 3 * ["ReadOnlyError 1 False"] == said[:3]
    assert said[3].startswith("1 uploaded, 0 left, 0 failed"), said
    assert "True" == said[-1]


def test_new_credentials_finish_what_expired_ones_could_not(juicefs_server: S3Server, spool_folder: Path, tmp_path: Path) -> None:
    """A new program with newer keys is enough: its agent tries what waits at once."""
    source = file_of(tmp_path / "source", 1000)
    expired = s3_error(400, "ExpiredToken")
    plan = [When(method, "", expired, times=99, header="AKIAOLDOLDOLDOLD") for method in ("GET", "PUT")]
    with end_agent(spool_folder), fault_proxy("127.0.0.1", juicefs_server.port, plan) as proxy:
        options = {**juicefs_server.options, "endpoint_url": proxy.url}
        old = {**options, "aws_access_key_id": "AKIAOLDOLDOLDOLD"}
        first = Uploader(f"s3://{juicefs_server.bucket}/expired", storage_options=old, spool=spool_folder)
        handle = first.put(source, "a")
        with pytest.raises(UploadFailed, match="ExpiredToken") as caught:
            first.close()
        assert "CredentialsExpiredError" == caught.value.failures[0].kind
        assert not handle.state.is_final  # the agent may be trying it again just now
        second = Uploader(f"s3://{juicefs_server.bucket}/expired", storage_options=options, spool=spool_folder)
        wait_until(lambda: handle.state is JobState.DONE, what="the upload")
        second.close()


def test_a_handle_names_its_own_upload_of_several_that_wait(juicefs_server: S3Server, spool_folder: Path, tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 1000)
    plan = [When(method, "", s3_error(400, "ExpiredToken"), times=99) for method in ("GET", "HEAD", "PUT")]
    with end_agent(spool_folder), fault_proxy("127.0.0.1", juicefs_server.port, plan) as proxy:
        options = {**juicefs_server.options, "endpoint_url": proxy.url}
        uploader = Uploader(f"s3://{juicefs_server.bucket}/several", storage_options=options, spool=spool_folder)
        handles = [uploader.put(source, name) for name in "abc"]
        with pytest.raises(UploadFailed, match="2 more wait as well") as caught:
            handles[1].result()
        assert [handles[1].uri] == [one.uri for one in caught.value.failures]
        with pytest.raises(UploadFailed):
            uploader.close()


def test_a_refusal_still_fails_at_the_first_answer(juicefs_server: S3Server, spool_folder: Path, tmp_path: Path) -> None:
    source = file_of(tmp_path / "source", 1000)
    plan = [When("PUT", "denied", s3_error(403, "AccessDenied"), times=9)]
    with end_agent(spool_folder), fault_proxy("127.0.0.1", juicefs_server.port, plan) as proxy:
        options = {**juicefs_server.options, "endpoint_url": proxy.url}
        uploader = Uploader(f"s3://{juicefs_server.bucket}/denied", storage_options=options, spool=spool_folder)
        handle = uploader.put(source, "a")
        with pytest.raises(UploadFailed, match="AccessDenied"):
            handle.result(60.0)
        assert JobState.FAILED is handle.state
        assert AccessDeniedError.__name__ == uploader.journal.queries.jobs(ids=handle.ids)[0].error_kind
        uploader.spool.free(uploader.journal.uploads.discard(None)[1])
        uploader.close()


@pytest.mark.parametrize("arguments", [("agent", "--stay"), ("retry", "--all")], ids=["agent", "retry"])
def test_the_keys_of_an_operators_environment_finish_what_waits_for_secrets(
    juicefs_server: S3Server, spool_folder: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The program that had them in its environment is gone, and so is its agent."""
    options = dict(juicefs_server.options)
    public, secret = split_options("s3", options)
    spool = Spool(spool_folder)
    journal = Journal(spool.held_journal())
    settings: dict[str, dict[str, float]] = {**SETTINGS, "secrets": {"from_environment": 1}}
    store = journal.uploads.store_id("s3", juicefs_server.bucket, public, secret, settings)
    root = f"s3://{juicefs_server.bucket}"
    staged = stage(spool, file_of(tmp_path / "source", 1000), "1-gone")
    name = f"env-{arguments[0]}"
    (job_id,), _ = journal.uploads.submit(
        "1-gone", store, [new_job(name, object_id=staged.object_id, size_bytes=1000, root=root)]
    )
    keys = {"AWS_ACCESS_KEY_ID": secret["aws_access_key_id"], "AWS_SECRET_ACCESS_KEY": secret["aws_secret_access_key"]}
    command = [sys.executable, "-m", "wherry.cli", *arguments, "--spool", str(spool_folder)]
    with end_agent(spool_folder):
        process = subprocess.Popen(command, env={**os.environ, **{key: str(value) for key, value in keys.items()}})

        def is_done() -> bool:
            job = journal.queries.job(job_id)
            return job is not None and job.state is JobState.DONE

        try:
            wait_until(is_done, what="the upload")
        finally:
            if arguments[0] == "agent":
                process.send_signal(signal.SIGTERM)
            process.wait()
    journal.close()
