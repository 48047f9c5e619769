"""``pull --follow`` beside a real mirror: killed at random it goes on without a gap or a duplicate; it ends with the run."""

from __future__ import annotations

import functools
import logging
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from command_line import CommandLine
from gate import wait_until
from mirrors import Rig, files_below, lines
from servers.features import tell_spool
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server, fast_folder
from wherry.config import RetryConfig
from wherry.errors import BucketNotFoundError, ConfigError, NotFoundError, TransientError
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.reader.pull import _follow, pull
from wherry.mirror.reader.pull_state import FOLDER
from wherry.mirror.reader.puller import Puller
from wherry.mirror.report import PullReport
from wherry.testing import FaultyStore
from wherry.testing.faulty import Fault

LIVELY = MirrorConfig(max_lag_s=0.2, settle_s=0.2, segment_bytes=20_000, max_requests_per_hour=10_000_000, exit_on_sigterm=False)


def copy_of(folder: Path) -> dict[str, bytes]:
    names = (path.relative_to(folder).as_posix() for path in files_below(folder))
    return {name: (folder / name).read_bytes() for name in names if not name.startswith(FOLDER)}


def has(folder: Path, files: dict[str, bytes]) -> bool:
    return files.items() <= copy_of(folder).items()


class Following:
    """A pull that follows, in a thread."""

    def __init__(self, uri: str, folder: Path, **options: object) -> None:
        self.reports: list[PullReport] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(uri, folder, options))
        self._thread.start()

    def _run(self, uri: str, folder: Path, options: dict[str, object]) -> None:
        try:
            pull(uri, folder, follow=True, interval_s=0.05, on_report=self.reports.append, stop=self.stop, **options)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error

    def end(self) -> PullReport:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.reports[-1]


def train(run: Path, step: int) -> None:
    """One step of something that logs: a log, events, a status."""
    run.mkdir(exist_ok=True)
    with open(run / "train.log", "ab") as log:
        log.write(lines(3000, step))
    with open(run / "events.out.tfevents.1", "ab") as events:
        events.write(os.urandom(2000))
    (run / "status.json.tmp").write_text(f'{{"step": {step}}}')
    os.replace(run / "status.json.tmp", run / "status.json")


def is_prefix(copy: dict[str, bytes], run: dict[str, bytes]) -> bool:
    """Whether the growing files of a copy are beginnings of the run's."""
    return all(run[path].startswith(data) for path, data in copy.items() if not path.endswith(".json"))


def follow_a_run(uri: str, options: dict[str, object], tmp: Path) -> None:
    run, copy = tmp / "run", tmp / "copy"
    with Mirror(run, uri, storage_options=options, spool=tmp / "spool", config=LIVELY) as mirror:
        following = Following(uri, copy, storage_options=options)
        for step in range(4):
            train(run, step)
            mirror.flush(60)
            here = {path.name: path.read_bytes() for path in files_below(run) if path.suffix == ".log"}
            wait_until(functools.partial(has, copy, here), 60.0, "the copy to have what was flushed")
            inode = (copy / "train.log").stat().st_ino
    assert "sealed" == following.end().state
    assert copy_of(run) == copy_of(copy)
    assert inode == (copy / "train.log").stat().st_ino


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


def test_a_copy_follows_a_run_through_a_local_folder(tmp_path: Path) -> None:
    follow_a_run(str(tmp_path / "bucket"), {}, tmp_path)


def test_a_copy_follows_a_run_through_s3(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    tell_spool(tmp_path / "spool", seaweedfs_server)
    follow_a_run(f"s3://{seaweedfs_server.bucket}/follow/run", seaweedfs_server.options, tmp_path)


def test_a_copy_follows_a_run_through_gcs(tmp_path: Path, gcs: GCSServer) -> None:
    follow_a_run(f"gs://{gcs.bucket}/follow/run", gcs.options, tmp_path)


def test_a_pull_that_is_killed_at_random_goes_on_without_a_gap_or_a_duplicate(tmp_path: Path) -> None:
    rng = random.Random(5)
    run, copy, bucket = tmp_path / "run", tmp_path / "copy", tmp_path / "bucket"
    line = CommandLine(tmp_path)
    many = MirrorConfig(**{**LIVELY.__dict__, "segment_bytes": 200})
    with Mirror(run, bucket, spool=tmp_path / "spool", config=many) as mirror:
        for step in range(8):
            train(run, step)
            mirror.flush(60)
            with line.start("pull", bucket, copy, "--follow", "--interval", "0.1") as process:
                try:
                    before = sum(map(len, copy_of(copy).values()))
                    wait_until(
                        lambda: process.poll() is not None or sum(map(len, copy_of(copy).values())) > before,  # noqa: B023
                        60.0,
                        "the pull to begin",
                    )
                    wait_until(lambda: rng.random() < 0.02, 10.0, "a moment")
                finally:
                    process.kill()
                    _, err = process.communicate()
            assert "Traceback" not in err
            assert is_prefix(copy_of(copy), copy_of(run))
            inode = (copy / "train.log").stat().st_ino
    line.run("pull", bucket, copy, "--follow", "--interval", "0.1")
    assert copy_of(run) == copy_of(copy)
    assert inode == (copy / "train.log").stat().st_ino


def test_following_waits_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    following = Following(str(tmp_path / "bucket"), tmp_path / "copy")
    wait_until(lambda: len(following.reports) > 2, 30.0, "looks at nothing")
    assert "unknown" == following.reports[-1].state
    with Mirror(tmp_path / "run", tmp_path / "bucket", spool=tmp_path / "spool", config=LIVELY):
        train(tmp_path / "run", 1)
    assert "sealed" == following.end().state
    assert copy_of(tmp_path / "run") == copy_of(tmp_path / "copy")


def test_following_ends_when_it_is_told_to(tmp_path: Path) -> None:
    following = Following(str(tmp_path / "bucket"), tmp_path / "copy")
    wait_until(lambda: bool(following.reports), 30.0, "a look")
    following.stop.set()
    following.end()


def test_without_follow_nothing_at_all_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no object of this name or below it"):
        pull(tmp_path / "bucket", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_missing_bucket_is_an_error_also_when_it_follows(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    with pytest.raises(BucketNotFoundError):
        pull("s3://no-such-bucket/run", tmp_path / "copy", follow=True, storage_options=seaweedfs_server.options)


@pytest.mark.parametrize("copy", ["bucket", "bucket/run/copy", "."])
def test_the_copy_and_the_store_are_not_in_one_another(tmp_path: Path, copy: str) -> None:
    with pytest.raises(ConfigError, match="lie in one another"):
        pull(tmp_path / "bucket/run", tmp_path / copy)


def test_a_copy_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("")
    with pytest.raises(ConfigError, match="is no folder"):
        pull(tmp_path / "bucket", tmp_path / "copy")


@pytest.mark.parametrize("interval_s", [0, -1, float("nan")])
def test_an_interval_is_more_than_nothing(tmp_path: Path, interval_s: float) -> None:
    with pytest.raises(ConfigError, match="interval_s"):
        pull(tmp_path / "bucket", tmp_path / "copy", interval_s=interval_s)


def test_pull_is_offered_at_the_front_door() -> None:
    assert wherry.pull is pull


# -- with a clock of its own


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.state_db.close()


def test_a_writer_who_is_silent_for_long_is_warned_of_once(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig.write("a.log", lines(1000))
    rig.flush()
    rig.step(100.0)
    interval_s = rig.manifest().interval_s
    with Puller(rig.seen, rig.uri, tmp_path / "copy", now=rig.clock.wall) as puller:
        assert "open" == puller.step().state
        rig.clock.s += 3.1 * interval_s
        with caplog.at_level(logging.WARNING, "wherry.mirror"):
            for _ in range(3):
                report = puller.step()
        assert ("lost", ("rank0",)) == (report.state, report.lost)
        assert 1 == caplog.text.count("the writer rank0 of memory://")
        rig.write("a.log", lines(1000, 1))
        rig.step(100.0)
        rig.step(100.0)
        assert "open" == puller.step().state


def test_an_outage_is_waited_out_and_said_once(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig.write("a.log", lines(1000))
    rig.close()
    down = TransientError("no route to host")
    # each look makes one call of a list that fails: no retries inside, to have it over soon
    store = FaultyStore(rig.seen, [Fault("list", down, nth=1, times=4)])
    reports: list[PullReport] = []
    with Puller(
        store, rig.uri, tmp_path / "copy", retry=RetryConfig(call_deadline_s=0.0, first_wait_s=0.001, longest_wait_s=0.001)
    ) as puller:
        _follow(puller, 0.01, reports.append, threading.Event())
    assert rig.local() == copy_of(tmp_path / "copy")
    assert 1 == caplog.text.count("no route to host")
