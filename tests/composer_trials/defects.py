"""Run by tests/extra/test_composer_cases.py, with Composer and an S3 server: the defects of its uploader beside ours.

| row of docs/from-composer.md | test |
| --- | --- |
| 1 | test_1_a_file_that_fails_for_good_takes_no_other_with_it |
| 2 | test_2_lost_files_are_an_error_at_the_close |
| 3, 4, 5 | tests/composer_trials/defects_of_ends.py |
| 6 | test_6_an_error_that_was_retried_is_no_error |
| 7 | test_7_the_fit_ends_after_its_uploads |
| 8 | test_8_a_format_counts_both_ways |
| 9 | test_9_two_uploaders_of_one_dict_write_into_two_buckets |
| 10 | test_10_of_two_writers_one_wins |
| 11 | test_11_forbidden_is_not_missing |
| 12 | test_12_a_second_upload_of_a_name_under_way_is_refused_at_once |
| 13 | test_13_superseded_and_refused_copies_are_removed, test_13_the_close_has_a_limit |

Beside each, a test of the same number with "theirs" in its name shows the fault with Composer's own class. That runs in threads,
which changes none of these; its processes are in the other file.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from composer import Callback
from composer.loggers import remote_uploader_downloader as their_module
from composer.utils import build_remote_backend
from composer.utils.object_store import ObjectStoreTransientError

from command_line import CommandLine
from composer_trials.parts import trainer
from composer_trials.sides import Gate, Side, side, upload
from servers.proxy import Answer, Do, When, s3_error
from support import end_agent, wait_until
from wherry.errors import AccessDeniedError, UploadFailed
from wherry.loggers.call_limits import CallLimits

ALWAYS = 1000
REFUSED = When("PUT", "/poisoned", s3_error(400, "InvalidArgument"), times=ALWAYS)


def test_1_theirs(tmp_path: Path) -> None:
    with side("theirs", tmp_path, REFUSED) as one:
        run = trainer(one.theirs())
        upload(run.logger, one, ["poisoned", "a", "b", "c"])
        with pytest.raises(Exception, match="InvalidArgument"):
            run.fit()
        upload(run.logger, one, ["late"])
        with pytest.warns(RuntimeWarning, match="may not have been uploaded"):
            run.close()
        assert {} == one.stored()


def test_1_a_file_that_fails_for_good_takes_no_other_with_it(tmp_path: Path) -> None:
    with side("ours", tmp_path, REFUSED) as one:
        run = trainer(one.ours())
        upload(run.logger, one, ["poisoned", "a", "b", "c"])
        with pytest.raises(UploadFailed, match="poisoned"):
            run.fit()
        upload(run.logger, one, ["late"])
        run.close()
        assert {"a", "b", "c", "late"} == one.stored().keys()
        said, _ = CommandLine(one.folder).run("status")
        assert "poisoned" in said
        assert "retry" in said


def test_2_theirs(tmp_path: Path) -> None:
    names = ["poisoned-1", "poisoned-2"]
    with side("theirs", tmp_path, REFUSED) as one:
        log = one.theirs()
        run = trainer(log)
        upload(run.logger, one, names)
        with pytest.warns(RuntimeWarning, match="may not have been uploaded"):
            log.post_close()


def test_2_lost_files_are_an_error_at_the_close(tmp_path: Path) -> None:
    names = ["poisoned-1", "poisoned-2"]
    with side("ours", tmp_path, REFUSED) as one:
        log = one.ours()
        run = trainer(log)
        upload(run.logger, one, names)
        with pytest.raises(UploadFailed) as failed:
            log.post_close()
        assert set(names) == {failure.uri.rpartition("/")[2] for failure in failed.value.failures}
        assert all(name in str(failed.value) for name in names)


def test_6_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnceTransient:
        """Composer's own store, which says once what its stores of SFTP and libcloud say when a connection is lost."""

        def __init__(self, store: Any) -> None:
            self._store = store
            self._is_due = True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def upload_object(self, **options: Any) -> None:
            if self._is_due:
                self._is_due = False
                raise ObjectStoreTransientError("connection lost")
            self._store.upload_object(**options)

    with side("theirs", tmp_path) as one:
        monkeypatch.setattr(their_module, "build_remote_backend", lambda *given: OnceTransient(build_remote_backend(*given)))
        monkeypatch.setattr(their_module, "validate_credentials", lambda *given: None)
        run = trainer(one.theirs())
        upload(run.logger, one, ["a"])
        wait_until(lambda: "a" in one.stored())
        with pytest.raises(ObjectStoreTransientError):
            run.fit()
        run.close()


def test_6_an_error_that_was_retried_is_no_error(tmp_path: Path) -> None:
    with side("ours", tmp_path, When("PUT", "/a$", s3_error(503, "SlowDown"), times=2)) as one:
        run = trainer(one.ours())
        upload(run.logger, one, ["a"])
        run.fit()
        run.close()
        assert ([], {"a": "text"}) == (one.proxy.unfired, one.stored())


class Ends(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    """Opens a gate when the fit begins to end: callbacks come before loggers."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def fit_end(self, state: Any, logger: Any) -> None:
        self.gate.opened.set()


def test_7_theirs(tmp_path: Path) -> None:
    gate = Gate()
    with side("theirs", tmp_path, When("PUT", "/a", Do(gate.hold))) as one:
        run = trainer(one.theirs())
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        run.fit()  # returns, although the gate is shut
        assert not gate.opened.is_set()
        assert {} == one.stored()
        gate.opened.set()
        run.close()


def test_7_the_fit_ends_after_its_uploads(tmp_path: Path) -> None:
    gate = Gate()
    with side("ours", tmp_path, When("PUT", "/a", Do(gate.hold))) as one:
        run = trainer(one.ours(), callbacks=[Ends(gate)])
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        run.fit()
        assert {"a": "text"} == one.stored()
        run.close()


def test_8_theirs(tmp_path: Path) -> None:
    """Composer's Trainer takes a format only without its pointer to the newest checkpoint."""
    form = "{run_name}/{remote_file_name}"
    without_a_pointer = {"save_latest_filename": None}
    with side("theirs", tmp_path) as one:
        log = one.theirs(file_path_format_string=form)
        run = trainer(log, **without_a_pointer)
        upload(run.logger, one, ["a"])
        run.fit()
        wait_until(lambda: "my-run/a" in one.stored())
        with pytest.raises(FileNotFoundError):
            log.download_file("a", str(tmp_path / "theirs.txt"))
        run.close()


def test_8_a_format_counts_both_ways(tmp_path: Path) -> None:
    """Composer's Trainer takes a format only without its pointer to the newest checkpoint."""
    form = "{run_name}/{remote_file_name}"
    without_a_pointer = {"save_latest_filename": None}
    with side("ours", tmp_path) as one:
        log = one.ours(file_path_format_string=form)
        run = trainer(log, **without_a_pointer)
        upload(run.logger, one, ["a"])
        run.fit()
        log.download_file("a", str(tmp_path / "ours.txt"))
        assert ({"my-run/a": "text"}, "text") == (one.stored(), (tmp_path / "ours.txt").read_text())
        run.close()


def test_9_two_uploaders_of_one_dict_write_into_two_buckets(tmp_path: Path) -> None:
    with side("both", tmp_path) as one:
        given = one.backend_kwargs
        their_module.RemoteUploaderDownloader("s3://first", given, use_procs=False)
        second = their_module.RemoteUploaderDownloader("s3://second", given, use_procs=False)
        assert "first" == second.backend_kwargs["bucket"]
        given = one.backend_kwargs
        ours = [type(one.ours())(f"s3://{name}", given, upload_staging_folder=str(one.spool)) for name in ("first", "second")]
        assert (["first", "second"], one.backend_kwargs) == ([log.backend_kwargs["bucket"] for log in ours], given)


def test_10_theirs(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=60.0)
    both = When("PUT", "/a$", Do(meeting.wait), times=2)  # both have looked, and now write
    with side("theirs", tmp_path, both) as one:
        logs = [one.theirs(), one.theirs()]
        assert [None, None] == ends_of_both(one, logs)
        assert not one.proxy.unfired
        assert {"a"} == one.stored().keys()


def test_10_of_two_writers_one_wins(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=60.0)
    both = When("PUT", "/a$", Do(meeting.wait), times=2)  # both have looked, and now write
    with side("ours", tmp_path, both) as one:
        mine = [one.ours(upload_staging_folder=str(one.folder / f"spool{n}")) for n in range(2)]
        with end_agent(one.folder / "spool0"), end_agent(one.folder / "spool1"):
            ends = ends_of_both(one, mine)
        assert (1, 1) == (ends.count(None), sum(isinstance(end, FileExistsError) for end in ends))
        assert {"a": "first" if ends[0] is None else "second"} == one.stored()


def ends_of_both(one: Side, logs: list[Any]) -> list[BaseException | None]:
    """Both write one name, each in a Trainer of its own."""
    runs = [trainer(log) for log in logs]
    for text, run in zip(("first", "second"), runs, strict=True):
        upload(run.logger, one, ["a"], text)
    return [end_of(log) for log in logs]  # while the Trainers are kept: one that is not kept closes its loggers


def end_of(log: Any) -> BaseException | None:
    try:
        log.post_close()
    except (UploadFailed, FileExistsError) as error:
        return error
    return None


def test_11_theirs(tmp_path: Path) -> None:
    look = When("GET", "/a", Answer(403), times=ALWAYS)
    with side("theirs", tmp_path, look) as one:
        one.put("a", "precious")
        log = one.theirs()
        run = trainer(log)
        upload(run.logger, one, ["a"], "new")  # overwrite=False
        with pytest.raises(FileNotFoundError):
            log.download_file("a", str(tmp_path / "theirs.txt"))
        run.close()
        assert {"a": "new"} == one.stored()


def test_11_forbidden_is_not_missing(tmp_path: Path) -> None:
    plain = When("", "/a", Answer(403), times=ALWAYS)
    with side("ours", tmp_path, plain) as one:
        one.put("a", "precious")
        log = one.ours()
        run = trainer(log)
        with pytest.raises(AccessDeniedError):
            log.download_file("a", str(tmp_path / "ours.txt"))
        upload(run.logger, one, ["a"], "new")
        with pytest.raises(UploadFailed, match="403: Forbidden"):
            log.post_close()
        assert {"a": "precious"} == one.stored()


def test_12_theirs(tmp_path: Path) -> None:
    gate = Gate()
    with side("theirs", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        log = one.theirs()
        run = trainer(log)
        upload(run.logger, one, ["a"], "first")
        assert gate.reached.wait(60.0)
        upload(run.logger, one, ["a"], "second")
        gate.opened.set()
        wait_until(lambda: not log._all_workers_alive)
        with pytest.raises(FileExistsError):
            run.fit()
        run.close()


def test_12_a_second_upload_of_a_name_under_way_is_refused_at_once(tmp_path: Path) -> None:
    gate = Gate()
    with side("ours", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        run = trainer(one.ours())
        upload(run.logger, one, ["a"], "first")
        assert gate.reached.wait(60.0)
        with pytest.raises(FileExistsError):
            upload(run.logger, one, ["a"], "second")
        gate.opened.set()
        run.fit()
        run.close()
        assert {"a": "first"} == one.stored()


def n_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.iterdir())


def test_13_theirs_keeps_copies(tmp_path: Path) -> None:
    gate = Gate()
    with side("theirs", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        run = trainer(one.theirs(upload_staging_folder=str(one.folder / "staging")))
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        upload(run.logger, one, ["a"] * 9, overwrite=True)
        with pytest.raises(FileExistsError):
            upload(run.logger, one, ["a"])
        gate.opened.set()
        run.fit()
        run.close()
        assert 9 == n_files(one.folder / "staging")  # eight that were superseded, and the one that was refused


def test_13_superseded_and_refused_copies_are_removed(tmp_path: Path) -> None:
    gate = Gate()
    with side("ours", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        run = trainer(one.ours())
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        upload(run.logger, one, ["a"] * 9, overwrite=True)
        with pytest.raises(FileExistsError):
            upload(run.logger, one, ["a"])
        assert 2 == n_files(one.spool / "objects")  # what is under way, and what follows
        gate.opened.set()
        run.fit()
        run.close()
        assert 0 == n_files(one.spool / "objects")


def test_13_theirs_has_no_limit(tmp_path: Path) -> None:
    gate = Gate()
    with side("theirs", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        run = trainer(one.theirs())
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        closing = threading.Thread(target=run.close)
        closing.start()
        closing.join(3.0)
        assert closing.is_alive()
        gate.opened.set()
        closing.join()


def test_13_the_close_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with side("ours", tmp_path, When("PUT", "/a$", Do(gate.hold))) as one:
        log: Any = one.ours(CallLimits(end_s=1.0))
        run = trainer(log)
        upload(run.logger, one, ["a"])
        assert gate.reached.wait(60.0)
        run.close()  # returns, although the gate is shut
        assert not gate.opened.is_set()
        assert any("has not returned within 1 s" in message for message in caplog.messages)
        gate.opened.set()
        # Not only until it is stored: an upload whose answer is lost with the proxy is waited for when the interpreter ends.
        log.destinations[0].uploader.flush(60.0)
        assert {"a": "text"} == one.stored()
