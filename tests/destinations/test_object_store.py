"""ObjectStoreLogger against a local folder, with a real agent."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gate import wait_until
from servers.real import S3Server
from wherry.config import AgentConfig, Config
from wherry.errors import ConfigError, NotFoundError, UploadFailed
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.run.state import check_name_format
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobState

TIMEOUT_S = 60.0
BAD_FORMATS = ["{nothing}/{remote_file_name}", "{run_name}/file", "{remote_file_name", "{epoch:q}"]


def failed(handle: UploadHandle) -> None:
    """Wait until the upload has failed, without being told why."""
    wait_until(lambda: handle.state is JobState.FAILED, what="the upload to fail")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def state() -> State:
    return State("run-a", Timestamp(epoch=1, batch=7), rank=3, world_size=4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_text("weights")
    return path


@pytest.fixture
def destination(bucket: Path, spool: Path) -> Iterator[ObjectStoreLogger]:
    log = ObjectStoreLogger(bucket, spool=spool, name_format="{run_name}/{remote_file_name}")
    yield log
    log.post_close()


def test_works_without_any_trainer(bucket: Path, spool: Path, source: Path, tmp_path: Path) -> None:
    with ObjectStoreLogger(bucket, spool=spool) as log:
        handle = log.upload_file(None, "notes/a.txt", source)
        log.download_file("notes/a.txt", tmp_path / "back", progress_bar=False)
        assert handle.result(TIMEOUT_S).size_bytes == 7
    assert (bucket / "notes" / "a.txt").read_text() == "weights"
    assert (tmp_path / "back").read_text() == "weights"


def test_what_is_uploaded_is_what_the_file_held_at_the_call(destination: ObjectStoreLogger, bucket: Path, source: Path) -> None:
    destination.upload_file(State("run-a"), "a", source)
    source.write_text("changed")
    destination.uploader.flush(TIMEOUT_S)
    assert (bucket / "run-a" / "a").read_text() == "weights"


def test_names_mean_the_same_on_the_way_up_and_down(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State, tmp_path: Path
) -> None:
    template = "ep{epoch:04d}-ba{batch}-rank{rank}.pt"
    handle = destination.upload_file(state, template, source)
    assert handle.uri == destination.get_uri_for_file(template)
    assert handle.uri.endswith("/bucket/run-a/ep0001-ba7-rank3.pt")
    destination.download_file(template, str(tmp_path / "queued"), progress_bar=False)
    handle.result(TIMEOUT_S)
    destination.download_file(template, str(tmp_path / "stored"), progress_bar=False)
    assert (tmp_path / "queued").read_text() == (tmp_path / "stored").read_text() == "weights"


def test_names_follow_the_state_as_it_goes_on(destination: ObjectStoreLogger, state: State) -> None:
    destination.init(state, Logger(state))
    state.timestamp = state.timestamp.to_next_batch()
    assert destination.remote_name("ba{batch}") == "run-a/ba8"


@pytest.mark.parametrize("event", [event for event in Event if event.value in vars(ObjectStoreLogger)])
def test_every_event_it_acts_on_tells_it_the_state(destination: ObjectStoreLogger, event: Event) -> None:
    state = State("run-b")
    destination.run_event(event, state, Logger(state))
    assert destination.remote_name("a") == "run-b/a"


def test_a_slash_at_the_start_is_dropped(destination: ObjectStoreLogger, state: State) -> None:
    destination.init(state, Logger(state))
    assert destination.remote_name("/a/b") == "run-a/a/b"


def test_a_double_brace_is_a_brace(destination: ObjectStoreLogger, state: State) -> None:
    destination.init(state, Logger(state))
    assert destination.remote_name("{{a}}") == "run-a/{a}"


def test_an_unknown_field_lists_the_known_ones(destination: ObjectStoreLogger, source: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown field \{step\}: known are .*epoch.*run_name"):
        destination.upload_file(None, "{step}", source)


@pytest.mark.parametrize("name_format", BAD_FORMATS)
@pytest.mark.parametrize("argument", ["name_format", "file_path_format_string"])
def test_a_bad_name_format_is_told_by_the_name_of_the_argument(argument: str, name_format: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}") as caught:
        check_name_format(argument, name_format)
    assert name_format in str(caught.value)


@pytest.mark.parametrize("name_format", BAD_FORMATS)
def test_a_bad_name_format_is_found_at_the_start(bucket: Path, spool: Path, name_format: str) -> None:
    with pytest.raises(ConfigError):
        ObjectStoreLogger(bucket, spool=spool, name_format=name_format)


def test_a_file_may_be_written_straight_into_the_spool(destination: ObjectStoreLogger, bucket: Path, state: State) -> None:
    destination.init(state, Logger(state))
    with destination.open("ep{epoch}.pt") as file:
        file.write(b"weights")
    destination.fit_end(state, Logger(state))
    assert (bucket / "run-a" / "ep1.pt").read_text() == "weights"


def test_a_missing_object_is_not_found(destination: ObjectStoreLogger, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        destination.download_file("nothing", tmp_path / "a", progress_bar=False)


def test_a_symlink_object_is_followed(destination: ObjectStoreLogger, source: Path, state: State, tmp_path: Path) -> None:
    pointer = tmp_path / "pointer"
    pointer.write_text("run-a/ep1.pt\n")  # a key from the destination's root, as Composer writes it
    destination.upload_file(state, "ep1.pt", source)
    destination.upload_file(state, "latest.symlink", pointer)
    destination.uploader.flush(TIMEOUT_S)
    destination.download_file("latest", tmp_path / "back", progress_bar=False)
    assert (tmp_path / "back").read_text() == "weights"


def test_an_existing_file_is_not_overwritten_by_a_download(destination: ObjectStoreLogger, source: Path) -> None:
    destination.upload_file(State("run-a"), "a", source)
    source.write_text("mine")
    with pytest.raises(FileExistsError):
        destination.download_file("a", source, progress_bar=False)
    destination.download_file("a", source, overwrite=True, progress_bar=False)
    assert source.read_text() == "weights"


# in a training loop


@pytest.mark.parametrize("event", [Event.FIT_END, Event.EVAL_STANDALONE_END, Event.PREDICT_END])
def test_every_accepted_file_is_there_when_the_loop_ends(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State, event: Event
) -> None:
    logger = Logger(state, [destination])
    logger.run_event(Event.INIT)
    for number in range(5):
        logger.upload_file(f"{number}", source)
    logger.run_event(event)
    assert sorted(path.name for path in (bucket / "run-a").iterdir()) == ["0", "1", "2", "3", "4"]


def test_files_handed_over_by_others_in_their_close_arrive(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State
) -> None:
    class Late(LoggerDestination):
        def close(self, state: State, logger: Logger) -> None:
            logger.upload_file("late-rank{rank}.txt", source)

    logger = Logger(state, [destination, Late()])
    logger.run_event(Event.INIT)
    logger.close()
    assert (bucket / "run-a" / "late-rank3.txt").read_text() == "weights"


def test_a_refused_file_is_named_at_the_end_and_harms_no_other(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State
) -> None:
    (bucket / "run-a").mkdir()
    (bucket / "run-a" / "taken").write_text("theirs")
    logger = Logger(replace(state, rank=0, world_size=1), [destination])
    logger.upload_file("taken", source)
    logger.upload_file("free", source)
    with pytest.raises(UploadFailed, match="bucket/run-a/taken") as caught:
        logger.run_event(Event.FIT_END)
    assert len(caught.value.failures) == 1
    assert (bucket / "run-a" / "taken").read_text() == "theirs"
    assert (bucket / "run-a" / "free").read_text() == "weights"
    logger.close()  # it was raised once and is not raised again


@pytest.mark.parametrize("event", [Event.BATCH_END, Event.EPOCH_END])
def test_a_failed_upload_is_warned_of_during_training(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State, event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    (bucket / "run-a").mkdir()
    (bucket / "run-a" / "taken").write_text("theirs")
    state = replace(state, rank=0, world_size=1)
    logger = Logger(state, [destination])
    failed(destination.upload_file(state, "taken", source))
    logger.run_event(event)
    logger.run_event(event)
    assert [text for text in caplog.messages if "run-a/taken failed" in text] == caplog.messages
    assert len(caplog.messages) == 1
    with pytest.raises(UploadFailed):
        logger.close()


def test_a_failed_upload_is_raised_during_training_on_request(bucket: Path, spool: Path, source: Path, state: State) -> None:
    (bucket / "taken").write_text("theirs")
    logger = Logger(state, [log := ObjectStoreLogger(bucket, spool=spool, config=Config(on_failure="raise"))])
    failed(log.upload_file(state, "taken", source))
    with pytest.raises(UploadFailed, match="taken"):
        logger.run_event(Event.BATCH_END)
    logger.run_event(Event.BATCH_END)
    logger.close()


def test_the_exception_of_a_run_is_not_replaced_by_its_failed_uploads(
    destination: ObjectStoreLogger, bucket: Path, source: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    (bucket / "run-a").mkdir()
    (bucket / "run-a" / "taken").write_text("theirs")
    with pytest.raises(ZeroDivisionError, match="the run's own"), Logger(state, destination) as logger:
        logger.upload_file("taken", source)
        logger.upload_file("free", source)
        raise ZeroDivisionError("the run's own")
    assert (bucket / "run-a" / "free").read_text() == "weights"
    assert "run-a/taken" in capsys.readouterr().err


def test_overwrite_replaces(destination: ObjectStoreLogger, bucket: Path, source: Path, state: State) -> None:
    (bucket / "run-a").mkdir()
    (bucket / "run-a" / "taken").write_text("theirs")
    destination.upload_file(state, "taken", source, overwrite=True).result(TIMEOUT_S)
    assert (bucket / "run-a" / "taken").read_text() == "weights"


def test_a_closed_door_is_found_at_the_start_of_the_run(tmp_path: Path, spool: Path, state: State) -> None:
    (tmp_path / "door").symlink_to("door")  # leads to itself: not missing, but nobody gets through, root neither
    config = Config(agent=AgentConfig(run_in="caller"), on_failure="raise")
    log = ObjectStoreLogger(tmp_path / "door", spool=spool, config=config)
    logger = Logger(state, [log])
    logger.run_event(Event.INIT)
    with pytest.raises(UploadFailed, match="symbolic links"):
        logger.run_event(Event.BATCH_END)
    logger.close()


def test_a_run_leaves_no_probe_objects(bucket: Path, spool: Path, source: Path, state: State) -> None:
    logger = Logger(state, [ObjectStoreLogger(bucket, spool=spool)])
    logger.run_event(Event.INIT)
    logger.upload_file("a", source)
    logger.run_event(Event.FIT_END)
    logger.close()
    assert [path.name for path in bucket.rglob("*")] == ["a"]


def test_a_run_arrives_on_a_real_server(
    seaweedfs_server: S3Server, spool: Path, source: Path, state: State, tmp_path: Path
) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/{uuid.uuid4().hex}"
    log = ObjectStoreLogger(
        uri, storage_options=seaweedfs_server.options, spool=spool, name_format="{run_name}/{remote_file_name}"
    )
    logger = Logger(state, [log])
    logger.run_event(Event.INIT)
    logger.upload_file("ep{epoch}-rank{rank}.pt", source)
    logger.run_event(Event.FIT_END)
    assert [meta.key for meta in log.uploader.list()] == ["run-a/ep1-rank3.pt"]
    log.download_file("ep{epoch}-rank{rank}.pt", tmp_path / "back", progress_bar=False)
    assert (tmp_path / "back").read_text() == "weights"
    logger.close()


def test_a_wrong_key_is_found_at_the_start_of_the_run(seaweedfs_server: S3Server, spool: Path, state: State) -> None:
    options = {**seaweedfs_server.options, "aws_secret_access_key": "wrong-" * 6}
    config = Config(agent=AgentConfig(run_in="caller"), on_failure="raise")
    log = ObjectStoreLogger(f"s3://{seaweedfs_server.bucket}", storage_options=options, spool=spool, config=config)
    logger = Logger(state, [log])
    logger.run_event(Event.INIT)
    with pytest.raises(UploadFailed) as caught:
        logger.run_event(Event.BATCH_END)
    assert "SignatureDoesNotMatch" in str(caught.value)
    assert "wrong-wrong" not in str(caught.value)
    logger.close()


SCRIPT = """
import sys
from wherry.loggers import ObjectStoreLogger
log = ObjectStoreLogger(sys.argv[1], spool=sys.argv[2], name_format="{run_name}/rank{rank}/{remote_file_name}")
log.upload_file(None, "a", sys.argv[3])
"""


def test_a_script_that_closes_nothing_loses_nothing(bucket: Path, spool: Path, source: Path) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job-9", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", SCRIPT, bucket, spool, source], env=environment, check=True, timeout=TIMEOUT_S)
    assert (bucket / "job-9" / "rank1" / "a").read_text() == "weights"


def test_a_missing_file_is_named_with_the_name_it_would_have_got(
    destination: ObjectStoreLogger, state: State, tmp_path: Path
) -> None:
    missing = tmp_path / "ep1.pt"
    with pytest.raises(FileNotFoundError, match=re.escape(f"{missing} does not exist, so it is not uploaded as run-a/ep1.pt")):
        destination.upload_file(state, "ep{epoch}.pt", missing)
