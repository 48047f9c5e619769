"""A run that goes on after a kill replaces what its earlier attempt has left, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servers.real import S3Server
from support import caller, end_agent, file_of
from wherry.config import Config
from wherry.errors import AlreadyExistsError, UploadFailed
from wherry.loggers import ObjectStoreLogger, State
from wherry.spool.journal.tokens import Attempt, is_of_another_attempt, is_of_another_run, new_token

FIRST = State("run")
AGAIN = State("run", is_resumed=True)


def store(folder: Path, state: State, spool: str) -> ObjectStoreLogger:
    return ObjectStoreLogger(folder / "bucket", spool=folder / spool, config=caller(), check=False, state=state)


def upload(folder: Path, state: State, text: str, spool: str, *, overwrite: bool = False) -> str:
    """Upload a file as ep2.pt, and return what the object has then."""
    (folder / "source").write_text(text)
    with store(folder, state, spool) as log:
        log.upload_file(None, "ep2.pt", folder / "source", overwrite=overwrite).wait(60.0)
    return (folder / "bucket/ep2.pt").read_text()


@pytest.mark.parametrize("spool", ["same", "other"])
def test_a_resumed_run_replaces_what_its_earlier_attempt_left(spool: str, tmp_path: Path) -> None:
    upload(tmp_path, FIRST, "killed after this", "same")
    assert "again" == upload(tmp_path, AGAIN, "again", spool)
    assert "and again" == upload(tmp_path, AGAIN, "and again", spool)


@pytest.mark.parametrize(
    ("writer", "state"),
    [
        pytest.param(FIRST, FIRST, id="it does not go on"),
        pytest.param(State("other"), AGAIN, id="another run"),
        pytest.param(replace(FIRST, rank=1, world_size=2), AGAIN, id="another rank"),
    ],
)
def test_what_is_not_left_by_the_run_itself_is_kept(writer: State, state: State, tmp_path: Path) -> None:
    upload(tmp_path, writer, "kept", "one")
    with pytest.raises(AlreadyExistsError):
        upload(tmp_path, state, "not this", "two")
    assert "kept" == (tmp_path / "bucket/ep2.pt").read_text()


def test_a_file_that_nobody_knows_is_kept(tmp_path: Path) -> None:
    file_of(tmp_path / "bucket/ep2.pt", 5)
    with pytest.raises(AlreadyExistsError):
        upload(tmp_path, AGAIN, "not this", "spool")


def test_what_the_attempt_itself_has_written_is_kept(tmp_path: Path) -> None:
    with store(tmp_path, AGAIN, "spool") as log:
        log.upload_file(None, "ep2.pt", file_of(tmp_path / "one", 5)).wait(60.0)
        with pytest.raises(UploadFailed):
            log.upload_file(None, "ep2.pt", file_of(tmp_path / "two", 6)).wait(60.0)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "bucket/ep2.pt").read_bytes()


def test_what_another_living_process_has_written_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, AGAIN, "spool") as lives:
        lives.upload_file(None, "ep2.pt", file_of(tmp_path / "one", 5)).wait(60.0)
        with pytest.raises(AlreadyExistsError):
            upload(tmp_path, AGAIN, "not this", "spool")
    assert "another process uploads as run 'run'" in caplog.text


def unreachable(folder: Path, state: State) -> ObjectStoreLogger:
    options = {"endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    config = Config(drain_at_exit_s=0.0)
    return ObjectStoreLogger("s3://b", storage_options=options, spool=folder / "spool", config=config, check=False, state=state)


def test_what_an_earlier_attempt_has_still_queued_does_not_hold_the_name(tmp_path: Path) -> None:
    with end_agent(tmp_path / "spool"):
        with unreachable(tmp_path, FIRST) as first:
            first.upload_file(None, "ep2.pt", file_of(tmp_path / "one", 5))
        with unreachable(tmp_path, State("other", is_resumed=True)) as other, pytest.raises(AlreadyExistsError):
            other.upload_file(None, "ep2.pt", file_of(tmp_path / "two", 6))
        with unreachable(tmp_path, AGAIN) as again:
            again.upload_file(None, "ep2.pt", file_of(tmp_path / "two", 6))
            with pytest.raises(AlreadyExistsError):
                again.upload_file(None, "ep2.pt", file_of(tmp_path / "three", 7))


@pytest.mark.parametrize("size_bytes", [1_000, 9_000_000])
def test_it_holds_on_a_server_whole_and_in_parts(size_bytes: int, seaweedfs_server: S3Server, tmp_path: Path) -> None:
    from wherry.config import MIB, TransferConfig

    config = caller(transfer=TransferConfig(multipart_threshold_bytes=5 * MIB, part_size_bytes=5 * MIB))
    name = f"attempts-{size_bytes}-{tmp_path.name}"

    def put(state: State, spool: str, seed: int) -> bytes:
        source = file_of(tmp_path / "source", size_bytes, seed)
        uri = f"s3://{seaweedfs_server.bucket}"
        options = seaweedfs_server.options
        with ObjectStoreLogger(
            uri, storage_options=options, spool=tmp_path / spool, config=config, check=False, state=state
        ) as log:
            log.upload_file(None, name, source).wait(60.0)
            log.download_file(name, tmp_path / "down", overwrite=True)
        assert source.read_bytes() == (tmp_path / "down").read_bytes()
        return source.read_bytes()

    assert put(FIRST, "one", 1) != put(AGAIN, "two", 2)
    with pytest.raises(AlreadyExistsError):
        put(State("other", is_resumed=True), "three", 3)


def test_tokens_tell_attempts_and_runs_apart() -> None:
    mine = new_token(Attempt("run", 0), "session b")
    assert {40, 32} == {len(mine), len(new_token())}
    assert is_of_another_attempt(new_token(Attempt("run", 0), "session a"), mine)
    others = (mine, None, "", new_token(), new_token(Attempt("run", 0), "session b"), new_token(Attempt("run", 1), "session a"))
    assert not any(is_of_another_attempt(each, mine) for each in others)
    assert is_of_another_run(new_token(Attempt("other", 0), "session b"), mine)
    same = (mine, None, "", new_token(), new_token(Attempt("run", 1), "session a"))
    assert not any(is_of_another_run(each, mine) for each in same)
    assert not is_of_another_run(mine, new_token())
