"""A symlink object is sent after the upload that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import caller, end_agent, file_of
from wherry import UploadFailed
from wherry.config import Config
from wherry.errors import PermanentError
from wherry.loggers import ObjectStoreLogger, State


def store(folder: Path, name_format: str = "{remote_file_name}") -> ObjectStoreLogger:
    return ObjectStoreLogger(
        folder / "bucket", spool=folder / "spool", config=caller(), check=False, name_format=name_format, state=State("run")
    )


def pointer(folder: Path, text: str) -> Path:
    path = folder / "latest.symlink"
    path.write_text(text)
    return path


def test_a_pointer_leads_to_its_upload(tmp_path: Path) -> None:
    with store(tmp_path) as log:
        log.upload_file(None, "ep1.pt", file_of(tmp_path / "ep1.pt", 10))
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep1.pt"), overwrite=True)
        log.uploader.flush()
        log.download_file("latest", tmp_path / "down")
    assert (tmp_path / "ep1.pt").read_bytes() == (tmp_path / "down").read_bytes()


def test_a_pointer_to_an_upload_that_failed_is_not_moved(tmp_path: Path) -> None:
    file_of(tmp_path / "bucket" / "ep2.pt", 5)
    with pytest.raises(UploadFailed, match=r"latest\.symlink"), store(tmp_path) as log:
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep1.pt"), overwrite=True).wait()
        with pytest.raises(UploadFailed):
            log.upload_file(None, "ep2.pt", file_of(tmp_path / "ep2.pt", 10)).wait()
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep2.pt"), overwrite=True)
    assert "ep1.pt" == (tmp_path / "bucket/latest.symlink").read_text()


def test_a_pointer_to_what_this_spool_never_sent_is_sent_at_once(tmp_path: Path) -> None:
    with store(tmp_path) as log:
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "elsewhere/ep1.pt\n")).wait(60.0)
    assert "elsewhere/ep1.pt\n" == (tmp_path / "bucket/latest.symlink").read_text()


def test_the_name_in_a_pointer_has_the_same_name_format(tmp_path: Path) -> None:
    with store(tmp_path, "{run_name}/{remote_file_name}") as log:
        log.upload_file(None, "ep1.pt", file_of(tmp_path / "ep1.pt", 10))
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep1.pt"))
        log.uploader.flush()
        log.download_file("latest", tmp_path / "down")
    assert "run/ep1.pt" == (tmp_path / "bucket/run/latest.symlink").read_text()
    assert (tmp_path / "ep1.pt").read_bytes() == (tmp_path / "down").read_bytes()


def test_a_file_that_is_no_pointer_is_sent_as_it_is(tmp_path: Path) -> None:
    content = b"\xff\x00 no name"
    (tmp_path / "x.symlink").write_bytes(content)
    with store(tmp_path) as log:
        log.upload_file(None, "x.symlink", tmp_path / "x.symlink").wait(60.0)
    assert content == (tmp_path / "bucket/x.symlink").read_bytes()


@pytest.mark.parametrize("target", ["ep2.pt", "ep2"])
def test_a_pointer_to_a_file_that_was_refused_stays_where_it_is(target: str, tmp_path: Path) -> None:
    with store(tmp_path) as log:
        log.upload_file(None, "ep1.pt", file_of(tmp_path / "ep1.pt", 10))
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep1.pt"), overwrite=True).wait(60.0)
        refused = target if target == "ep2.pt" else f"{target}/rank0.pt"
        with pytest.raises(FileNotFoundError):
            log.upload_file(None, refused, tmp_path / "missing.pt")
        with pytest.raises(PermanentError, match=rf"{refused} was not accepted: .*missing\.pt does not exist"):
            log.upload_file(None, "latest.symlink", pointer(tmp_path, target), overwrite=True)
        log.uploader.flush()
        assert "ep1.pt" == (tmp_path / "bucket/latest.symlink").read_text()
        log.upload_file(None, refused, file_of(tmp_path / "ep2.pt", 10))
        log.upload_file(None, "latest.symlink", pointer(tmp_path, target), overwrite=True).wait(60.0)
    assert target == (tmp_path / "bucket/latest.symlink").read_text()


def test_a_pointer_does_not_lead_to_an_older_upload_of_a_name_that_was_refused(tmp_path: Path) -> None:
    with store(tmp_path) as log:
        log.upload_file(None, "ep2.pt", file_of(tmp_path / "ep2.pt", 10)).wait(60.0)
        with pytest.raises(FileNotFoundError):
            log.upload_file(None, "ep2.pt", tmp_path / "missing.pt", overwrite=True)
        with pytest.raises(PermanentError, match=r"ep2\.pt was not accepted"):
            log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep2.pt"), overwrite=True)


def test_a_queued_pointer_is_followed_without_asking_the_store(tmp_path: Path) -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    config = Config(drain_at_exit_s=0.0)
    with (
        end_agent(tmp_path / "spool"),
        ObjectStoreLogger("s3://bucket", storage_options=options, spool=tmp_path / "spool", config=config, check=False) as log,
    ):
        source = file_of(tmp_path / "ep1.pt", 10)
        log.upload_file(None, "ep1.pt", source)
        log.upload_file(None, "latest.symlink", pointer(tmp_path, "ep1.pt"))
        log.download_file("latest", tmp_path / "down")  # it would wait half a minute for the store, and fail
    assert source.read_bytes() == (tmp_path / "down").read_bytes()
