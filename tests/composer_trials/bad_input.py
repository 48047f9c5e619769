"""Run by tests/extra/test_composer_cases.py, with Composer: what goes wrong around a destination does not end the training."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composer import Callback, Event
from composer.loggers import FileLogger as ComposersFileLogger, Logger as ComposersLogger
from composer.utils import get_file
from torch.utils.data import DataLoader, TensorDataset

from composer_trials.parts import trainer
from support import caller, end_agent
from wherry.config import Config, RetryConfig, SpoolConfig
from wherry.errors import ConfigError, TransientError, UploadFailed
from wherry.integrations.composer import RemoteUploaderDownloader, wherry_composer
from wherry.loggers import InMemoryLogger, LoggerDestination, ObjectStoreLogger, ProgressBarConfig, ProgressBarLogger
from wherry.loggers.call_limits import CallLimits


def store(folder: Path, **options: Any) -> ObjectStoreLogger:
    return ObjectStoreLogger(folder / "bucket", spool=folder / "spool", config=caller(), check=False, **options)


class Raises(LoggerDestination):
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        raise ValueError("my bug")


class Hangs(LoggerDestination):
    may_go_on = threading.Event()

    def batch_end(self, state: Any, logger: Any) -> None:
        self.may_go_on.wait(60.0)


def test_a_destination_that_raises_is_reported_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemoryLogger()
    one = trainer(wherry_composer(Raises(), memory))
    one.fit()
    one.close()
    assert 8 == len(memory.data["loss/train/total"])
    assert 1 == sum("Raises.log_metrics failed: my bug" in message for message in caplog.messages)


def test_a_destination_that_hangs_is_reported_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemoryLogger()
    one = trainer(wherry_composer(Hangs(), memory, call_limits=CallLimits(call_s=1.0, end_s=1.0)))
    try:
        one.fit()
        one.close()
    finally:
        Hangs.may_go_on.set()
    assert 8 == len(memory.data["loss/train/total"])
    assert 1 == sum("it has not returned within 1 s" in message for message in caplog.messages)


def test_progress_bars_know_their_totals_from_the_first_epoch_on() -> None:
    stream = io.StringIO()
    bars = ProgressBarLogger(stream, config=ProgressBarConfig(force=True))
    one = trainer(wherry_composer(bars), eval_dataloader=DataLoader(TensorDataset(torch.randn(8, 8), torch.zeros(8).long()), 4))
    one.fit(duration="1ep")
    one.close()
    assert "epoch 0: 100%" in stream.getvalue()
    assert "4/4" in stream.getvalue()
    assert "eval: 100%" in stream.getvalue()


class FailsInInit(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    def init(self, state: Any, logger: Any) -> None:
        logger.upload_file("early.txt", __file__)
        raise RuntimeError("my mistake")


def test_a_trainer_that_fails_in_init_leaves_what_was_handed_over(tmp_path: Path) -> None:
    log = wherry_composer(store(tmp_path))
    with pytest.raises(RuntimeError, match="my mistake"):
        trainer(log, callbacks=[FailsInInit()])
    log.close(SimpleNamespace(timestamp=None), None)
    log.post_close()
    assert Path(__file__).read_bytes() == (tmp_path / "bucket/early.txt").read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "bucket").rglob("ep*.pt")}


class Asks(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    """Asks for a file beside the checkpoints, to look at it."""

    def __init__(self, log: Any, name: str) -> None:
        self._log, self._name = log, name

    def init(self, state: Any, logger: Any) -> None:
        with suppress(FileNotFoundError):
            get_file(f"my-run/checkpoints/{self._name}", self._name, object_store=self._log)


@pytest.mark.parametrize("way", ["asks", "load_path", "another pointer"])
def test_published_checkpoints_are_kept_from_a_trainer_that_did_not_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    options: dict[str, Any] = {"save_folder": "{run_name}/checkpoints", "save_interval": "1ep"}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    first = trainer(wherry_composer(store(tmp_path)), **options)
    first.fit()
    first.close()
    published = contents(tmp_path)
    assert {"ep1-ba4-rank0.pt", "ep2-ba8-rank0.pt"} == set(published)

    monkeypatch.chdir(tmp_path / "second")
    log = wherry_composer(store(tmp_path))
    if way == "asks":
        options["callbacks"] = [Asks(log, "best.pt")]
    elif way == "load_path":
        options["callbacks"] = [Asks(log, "latest-rank0.pt")]
        options |= {"load_path": "my-run/checkpoints/ep1-ba4-rank0.pt", "load_object_store": log}
    else:
        options |= {"autoresume": True, "save_latest_filename": "newest-rank{rank}.pt"}
    second = trainer(log, seed=99, **options)
    with pytest.raises(UploadFailed, match="there already"):
        second.fit()
        second.close()
    assert published == contents(tmp_path)


def test_a_trainer_that_nobody_closes_loses_nothing(tmp_path: Path) -> None:
    """Composer's own loggers hand over their files when the program ends, and ours is still open then."""
    script = """
        import sys
        from composer.loggers import FileLogger
        from composer_trials.parts import trainer
        from wherry.integrations.composer import wherry_composer
        from wherry.loggers import ObjectStoreLogger

        log = FileLogger("log.txt", capture_stdout=False, capture_stderr=False, flush_interval=1000)
        one = trainer(wherry_composer(ObjectStoreLogger("bucket")), log)
        one.fit()
        one.logger.log_metrics({"after": 1.0})
        one.logger.upload_file("model.bin", sys.argv[0])
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "WHERRY_SPOOL": str(tmp_path / "spool")}
    with end_agent(tmp_path / "spool"):
        ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert 0 == ended.returncode, ended.stderr
    assert (tmp_path / "bucket/model.bin").exists()
    assert "after" in (tmp_path / "bucket/log.txt").read_text()


class Without:
    """A state or a timestamp of another version of Composer."""

    def __init__(self, of: Any, *missing: str) -> None:
        self._of, self._missing = of, missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(name)
        found = getattr(self._of, name)
        return Without(found, *self._missing) if name == "timestamp" else found


def test_what_another_version_of_composer_does_not_have_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemoryLogger()
    log = wherry_composer(memory)
    state = Without(trainer().state, "token_in_epoch", "run_name")
    theirs = ComposersLogger(state, [log])
    for event in (Event.INIT, Event.EPOCH_START, Event.BATCH_END):
        log.run_event(event, state, theirs)
    theirs.log_metrics({"loss": 1.0})
    assert 0 == memory.most_recent_timestamps["loss"].token_in_epoch
    assert ["token_in_epoch", "run_name"] == [
        name for name in ("token_in_epoch", "run_name") if 1 == sum(f"has no {name!r}" in message for message in caplog.messages)
    ]


@pytest.mark.parametrize("count", [None, 3, 3.0, "3"])
def test_a_count_of_another_kind_is_taken_as_a_number(count: object) -> None:
    memory = InMemoryLogger()
    log = wherry_composer(memory)
    counts = dict.fromkeys(("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch"), count)
    log.init(SimpleNamespace(run_name="run", timestamp=SimpleNamespace(**counts)), None)
    log.log_metrics({"loss": 1.0})
    assert int(count or 0) == memory.most_recent_timestamps["loss"].token  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["{epoch}.pt", "a{b", "{}", "{0}", "{x:03d}", "}{"])
def test_a_name_with_braces_stays_as_it_is_up_and_down(name: str, tmp_path: Path) -> None:
    one = trainer(log := wherry_composer(store(tmp_path)))
    log.upload_file(one.state, name, Path(__file__), overwrite=False)
    log.download_file(name, str(tmp_path / "down"))
    one.close()
    assert Path(__file__).read_bytes() == (tmp_path / "down").read_bytes() == (tmp_path / "bucket" / name).read_bytes()


def test_the_fields_of_composer_are_filled_up_and_down(tmp_path: Path) -> None:
    one = trainer(log := wherry_composer(store(tmp_path)))
    log.upload_file(one.state, "{run_name}/rank{rank}.txt", Path(__file__), overwrite=False)
    log.download_file("{run_name}/rank{rank}.txt", str(tmp_path / "down"))
    one.close()
    assert (tmp_path / "bucket/my-run/rank0.txt").exists()


def test_a_second_trainer_with_the_same_run_name_is_told_which_names_are_taken(tmp_path: Path) -> None:
    options = {"save_folder": str(tmp_path / "one"), "save_interval": "1ep"}
    first = trainer(wherry_composer(store(tmp_path)), **options)
    first.fit()
    first.close()
    second = trainer(wherry_composer(store(tmp_path)), **{**options, "save_overwrite": True})
    second.fit()
    second.close()
    third = trainer(wherry_composer(log := store(tmp_path)))
    third.fit()
    with pytest.raises(FileExistsError):
        log.upload_file(None, f"{str(tmp_path).lstrip('/')}/one/ep1-ba4-rank0.pt", __file__).wait()
    third.close()


def test_destinations_that_were_closed_are_refused_by_a_second_trainer(tmp_path: Path) -> None:
    log = wherry_composer(store(tmp_path))
    trainer(log).close()
    with pytest.raises(RuntimeError, match="make new ones for another Trainer"):
        trainer(log)


def unreachable(folder: Path) -> ObjectStoreLogger:
    """Its uploads never leave the queue."""
    options = {"endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    config = Config(drain_at_exit_s=0.0)
    return ObjectStoreLogger("s3://bucket", storage_options=options, spool=folder / "spool", config=config, check=False)


def test_a_checkpoint_that_is_still_queued_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with end_agent(tmp_path / "spool"):
        one = trainer(wherry_composer(unreachable(tmp_path)), save_folder="{run_name}/checkpoints", save_interval="1ep")
        one.fit()
        loads = wherry_composer(unreachable(tmp_path))
        other = trainer(load_path="my-run/checkpoints/ep1-ba4-rank0.pt", load_object_store=loads)
        assert 4 == int(other.state.timestamp.batch)
        one.close()


def test_a_checkpoint_that_the_spool_refuses_moves_no_pointer_and_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = caller(SpoolConfig(max_spool_bytes=5_000, when_full="raise"))  # a checkpoint has 18,000, a pointer 30
    log = wherry_composer(ObjectStoreLogger("bucket", spool="spool", config=config, check=False))
    one = trainer(log, save_folder="{run_name}/checkpoints", save_interval="1ep")
    with pytest.raises(UploadFailed, match=r"ep2-ba8-rank0\.pt \(no job\): .*max_spool_bytes"):
        one.fit()
    one.close()
    assert not list((tmp_path / "bucket").rglob("*.symlink"))


def test_a_store_that_never_answers_ends_a_load_with_an_error(tmp_path: Path) -> None:
    """After the option `read_timeout_s` (60 s if it is not given) and `RetryConfig.call_deadline_s` (30 s) of retries."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"endpoint_url": url, "aws_access_key_id": "k", "aws_secret_access_key": "s", "read_timeout_s": 0.5}
        config = Config(retry=RetryConfig(call_deadline_s=1.0), drain_at_exit_s=0.0)
        store = ObjectStoreLogger("s3://bucket", storage_options=options, spool=tmp_path / "spool", config=config, check=False)
        with pytest.raises(TransientError, match=r"no byte went through for 0\.5 s: .* is silent"):
            trainer(load_path="a.pt", load_object_store=wherry_composer(store))


class Stateful(LoggerDestination):
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("my bug")

    def can_upload_files(self) -> bool:
        raise ValueError("my other bug")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("my third bug")


def test_a_state_that_cannot_be_told_or_taken_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = trainer(log := wherry_composer(Stateful()), save_folder=str(tmp_path / "ck"), save_interval="1ep")
    one.fit()
    log.load_state_dict({"elapsed_s": 1.0, "destinations": [("Stateful", {})]})
    one.close()
    for what in ("state_dict failed: my bug", "can_upload_files failed: my other bug", "load_state_dict failed: my third bug"):
        assert 1 == sum(what in message for message in caplog.messages)


class Unpicklable(LoggerDestination):
    def state_dict(self) -> dict[str, Any]:
        return {"callable": lambda: None}


def test_a_state_that_cannot_be_pickled_is_left_out_and_names_its_destination(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = trainer(wherry_composer(Unpicklable()), save_folder=str(tmp_path / "ck"), save_interval="1ep")
    one.fit()
    one.close()
    assert any("Unpicklable" in message and "state_dict failed" in message for message in caplog.messages)
    assert list((tmp_path / "ck").rglob("*.pt"))


def test_destinations_that_were_closed_are_refused_by_a_new_logger(tmp_path: Path) -> None:
    trainer(wherry_composer(log := store(tmp_path))).close()
    with pytest.raises(ConfigError, match="is closed, and a destination serves one Trainer: make a new one"):
        wherry_composer(log)


def test_wrong_arguments_are_named_with_their_remedy() -> None:
    wrong: Any
    for wrong, words in (([InMemoryLogger()], "one by one"), (InMemoryLogger, r"give an object, InMemoryLogger\(")):
        with pytest.raises(ConfigError, match=words):
            wherry_composer(wrong)
    wrong = 5
    with pytest.raises(ConfigError, match="call_limits is 5: give CallLimits"):
        wherry_composer(InMemoryLogger(), call_limits=wrong)
    for name in ("num_concurrent_uploads", "num_attempts"):
        for wrong in ("2", 2.5, None, 0):
            with pytest.raises(ConfigError, match=f"{name} is .*: it must be a whole number"):
                RemoteUploaderDownloader("s3://b", **{name: wrong})
    for wrong in (None, "model.pt", "{nothing}/{remote_file_name}"):
        with pytest.raises(ConfigError, match=r"^file_path_format_string"):
            RemoteUploaderDownloader("s3://b", file_path_format_string=wrong)


def test_the_drop_in_says_nothing_of_what_other_loggers_take(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"provider": "local", "provider_kwargs": {"key": str(tmp_path)}}
    one = trainer(log := RemoteUploaderDownloader("libcloud://a", given, upload_staging_folder=str(tmp_path / "spool")))
    one.fit()
    one.close()
    assert "no effect" not in caplog.text
    assert repr(log).startswith("<RemoteUploaderDownloader of ")


def test_only_destinations_of_ours_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"give Composer's own to Trainer\(loggers=\[\.\.\.\]\) beside this one"):
        wherry_composer(ComposersFileLogger("x", capture_stdout=False, capture_stderr=False))


def test_state_goes_through_a_checkpoint() -> None:
    first = wherry_composer(InMemoryLogger())
    trainer(first)
    first.logger.state.elapsed_s = 100.0
    second = wherry_composer(InMemoryLogger())
    trainer(second)
    second.load_state_dict(first.state_dict())
    assert second.logger.state.elapsed_s >= 100.0


def test_a_missing_file_is_not_found_and_no_store_is_not_implemented(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        get_file("missing.pt", str(tmp_path / "x"), wherry_composer(store(tmp_path)))
    with pytest.raises(NotImplementedError):
        wherry_composer(InMemoryLogger()).download_file("x", str(tmp_path / "x"))


def test_the_drop_in_keeps_the_callers_dict(tmp_path: Path) -> None:
    given = {"provider": "local", "provider_kwargs": {"key": str(tmp_path)}}
    before = {**given}
    one, two = (
        RemoteUploaderDownloader(f"libcloud://{name}", given, upload_staging_folder=str(tmp_path / "spool"))
        for name in ("a", "b")
    )
    assert before == given
    assert (f"file://{tmp_path}/a/x", f"file://{tmp_path}/b/x") == (one.get_uri_for_file("x"), two.get_uri_for_file("x"))


class HangsWhenAsked(LoggerDestination):
    """Hangs in one call, until the test ends."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self._call = call

    def _asked(self, call: str) -> None:
        if call == self._call:
            self.may_go_on.wait(60.0)

    def state_dict(self) -> dict[str, Any]:
        self._asked("state_dict")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._asked("load_state_dict")

    def can_upload_files(self) -> bool:
        self._asked("can_upload_files")
        return True

    def upload_file(self, state: Any, remote_file_name: str, file_path: Any, *, overwrite: bool = False) -> None:
        self._asked("upload_file")


@pytest.mark.parametrize("call", ["state_dict", "load_state_dict", "can_upload_files", "upload_file"])
def test_a_destination_that_hangs_when_it_is_asked_ends_no_training(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, memory = HangsWhenAsked(call), InMemoryLogger()
    log = wherry_composer(hangs, memory, store(tmp_path), call_limits=CallLimits(call_s=0.5, end_s=0.5))
    try:
        one = trainer(log, save_folder=str(tmp_path / "ck"), save_interval="1ep")
        one.fit()
        log.load_state_dict({"elapsed_s": 1.0, "destinations": [("HangsWhenAsked", {})]})
        one.close()
    finally:
        hangs.may_go_on.set()
    assert 8 == len(memory.data["loss/train/total"])
    assert 1 == sum(f"HangsWhenAsked.{call} failed: it has not returned within" in message for message in caplog.messages)
    assert 2 == len(list((tmp_path / "bucket").rglob("ep*.pt")))


class CannotGive(LoggerDestination):
    """Hangs in a download, or raises."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self._hangs = hangs

    def download_file(self, *args: Any) -> None:
        if self._hangs:
            self.may_go_on.wait(60.0)
        raise ValueError("my bug")


@pytest.mark.parametrize(("hangs", "words"), [(True, "it has not returned within 0.5 s"), (False, "my bug")])
def test_a_destination_that_cannot_give_a_checkpoint_does_not_hide_the_next_one(
    hangs: bool, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = trainer(wherry_composer(store(tmp_path)), save_folder=str(tmp_path / "ck"), save_interval="1ep")
    one.fit()
    one.close()
    name = f"{str(tmp_path).lstrip('/')}/ck/ep1-ba4-rank0.pt"
    limits = CallLimits(call_s=0.5, end_s=0.5)
    try:
        loads = wherry_composer(cannot := CannotGive(hangs=hangs), store(tmp_path), call_limits=limits)
        assert 4 == int(trainer(load_path=name, load_object_store=loads).state.timestamp.batch)
        assert 1 == sum(f"CannotGive.download_file failed: {words}" in message for message in caplog.messages)
        with pytest.raises((ValueError, TimeoutError), match=r"my bug|not returned"):  # nobody knows whether it is there
            loads.download_file("missing.pt", str(tmp_path / "down"))
    finally:
        cannot.may_go_on.set()
