"""wherry.Mirror as users have it: threads, processes, signals, and real servers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

import mirror_oracle
from gate import wait_until
from mirrors import lines, log_in_a_child
from programs import Program
from servers.features import tell_spool
from servers.gcs_server import strict_gcs
from servers.real import S3Server, fast_folder
from support import let_others_in, run_script
from wherry import ConfigError, Mirror, MirrorConfig, SpoolError
from wherry.backends.local.store import LocalStore
from wherry.loggers import Event, FileLogger, Logger, MirrorLogger, State
from wherry.mirror import MirrorFencedError
from wherry.mirror.format.layout import manifest_name
from wherry.mirror.format.manifest import read_manifest
from wherry.store import ObjectStore
from wherry.store.registry import open_store
from wherry.uri import parse_uri

QUICK = MirrorConfig(max_lag_s=0.1, settle_s=0.1)
TIMEOUT_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def plain(bucket: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(bucket).items() if not name.startswith("_mirror/")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read(bucket: Path, path: str) -> bytes:
    uri = parse_uri(bucket)
    return mirror_oracle.read(LocalStore(uri, {}), uri.prefix, path)


def test_a_folder_is_mirrored_while_it_grows_and_is_plain_files_after_the_close(run: Path, bucket: Path, spool: Path) -> None:
    with Mirror(run, bucket, spool=spool, writer="rank0", config=QUICK) as mirror:
        with open(run / "train.log", "ab", buffering=0) as log:
            for number in range(5):
                log.write(b"line %d\n" % number)
                mirror.flush(TIMEOUT_S)
                assert (run / "train.log").read_bytes() == read(bucket, "train.log")
            log.write(b"the last one has no end")
        (run / "config.json").write_text("{}")
    assert mirror.report.is_complete
    assert contents(run) == plain(bucket)
    assert ["_mirror/rank0/epoch-00000001", "_mirror/rank0/manifest.json"] == [
        name for name in contents(bucket) if name.startswith("_mirror/")
    ]


def test_what_is_written_arrives_by_itself(run: Path, bucket: Path, spool: Path) -> None:
    with Mirror(run, bucket, spool=spool, config=QUICK) as mirror:
        wait_until(lambda: mirror.report.epoch == 1)
        (run / "train.log").write_text("one\n")
        wait_until(lambda: (bucket / "_mirror").exists() and list(bucket.rglob("0001-*")), what="the segment")


def test_what_is_written_after_a_long_silence_is_seen_by_inotify(run: Path, bucket: Path, spool: Path) -> None:
    with Mirror(run, bucket, spool=spool, config=QUICK) as mirror:
        for number in range(3):
            mirror.flush(TIMEOUT_S)
            assert not threading.Event().wait(0.5)  # it has gone to sleep, and is watched
            (run / f"{number}.log").write_text("x\n")
            wait_until(lambda number=number: list(bucket.rglob(f"{number}.log/0001-*")), 9.0)  # type: ignore[misc]


def test_it_waits_for_a_folder_and_says_so(tmp_path: Path, bucket: Path, spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Mirror(tmp_path / "later", bucket, spool=spool, config=QUICK) as mirror:
        wait_until(lambda: caplog.records, what="the warning")
        assert f"the folder {tmp_path / 'later'} is not there: the mirror waits for it" == caplog.records[0].message
        assert any("is not there" in text for text in mirror.report.trouble)
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "a.log").write_text("x\n")
        mirror.flush(TIMEOUT_S)
    assert {"a.log": b"x\n"} == plain(bucket)
    assert 1 == len(caplog.records)


def test_a_folder_that_never_came_is_an_empty_run(tmp_path: Path, bucket: Path, spool: Path) -> None:
    with Mirror(tmp_path / "never", bucket, spool=spool, config=QUICK) as mirror:
        pass
    assert mirror.report.is_complete


def test_a_file_is_no_folder(tmp_path: Path, bucket: Path, spool: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is no folder"):
        Mirror(tmp_path / "file", bucket, spool=spool)


@pytest.mark.parametrize("where", ["bucket", "", "../"])
def test_a_uri_in_the_folder_or_around_it_is_refused(run: Path, where: str, spool: Path) -> None:
    with pytest.raises(ConfigError, match="lie in one another"):
        Mirror(run, run / where, spool=spool)


def test_a_uri_that_leads_into_the_folder_through_a_link_is_refused(run: Path, tmp_path: Path, spool: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(ConfigError, match="lie in one another"):
        Mirror(run, tmp_path / "link" / "bucket", spool=spool)


def test_a_spool_in_the_folder_is_refused(run: Path, bucket: Path) -> None:
    with pytest.raises(ConfigError, match="lie in one another"):
        Mirror(run, bucket, spool=run / "spool")


def test_unknown_options_are_refused(run: Path, spool: Path) -> None:
    with pytest.raises(ConfigError, match="unknown storage option"):
        Mirror(run, "s3://bucket/x", spool=spool, storage_options={"no_such": 1})


def test_a_folder_that_is_not_readable_is_refused(run: Path, bucket: Path, spool: Path) -> None:
    """As another user, for root may read all."""
    script = """
        import os, sys
        from wherry import ConfigError, Mirror
        run, bucket, spool = sys.argv[1:]
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            Mirror(run, bucket, spool=spool)
        except ConfigError as error:
            print(error)
    """
    let_others_in(run.parent)
    run.chmod(0o700)
    if os.getuid() != 0:
        run.chmod(0)
    try:
        assert "cannot be read by this user" in run_script(script, run, bucket, spool)
        run.parent.chmod(0o700 if os.getuid() == 0 else 0)  # one above it: pytest itself closes some when another one starts
        assert "cannot be read by this user" in run_script(script, run, bucket, spool)
    finally:
        run.parent.chmod(0o700)
        run.chmod(0o700)


def test_two_mirrors_of_one_folder_are_refused(run: Path, bucket: Path, spool: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    with Mirror(run, bucket, spool=spool, config=QUICK):
        for folder in (run, tmp_path / "link"):
            with pytest.raises(SpoolError, match=f"is being mirrored by process {os.getpid()}: one mirror at a time"):
                Mirror(folder, tmp_path / "other", spool=spool)
    Mirror(run, bucket, spool=spool, config=QUICK).close()


def test_the_first_of_two_processes_with_one_name_stops_and_says_so(
    tmp_path: Path, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = Mirror(tmp_path / "one", bucket, spool=tmp_path / "spool1", writer="r", config=QUICK)
    (tmp_path / "one" / "a.log").write_text("1\n")
    first.flush(TIMEOUT_S)
    with Mirror(tmp_path / "two", bucket, spool=tmp_path / "spool2", writer="r", config=QUICK) as second:
        (tmp_path / "two" / "b.log").write_text("2\n")
        second.flush(TIMEOUT_S)
        (tmp_path / "one" / "a.log").write_text("1\n2\n")
        with pytest.raises(MirrorFencedError, match="another process mirrors as 'r'"):
            first.flush(TIMEOUT_S)
        assert not first.close().is_complete
    assert 1 == len([one for one in caplog.records if one.levelno == logging.ERROR])


def test_a_store_that_is_gone_holds_nothing_up(run: Path, tmp_path: Path, spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bucket").write_text("a file where the bucket should be")
    (run / "a.log").write_text("x\n")
    mirror = Mirror(run, tmp_path / "bucket", spool=spool, config=QUICK)
    with pytest.raises(TimeoutError, match="sent in the background"):
        mirror.flush(0.5)
    assert not mirror.close(0.1).is_complete
    (tmp_path / "bucket").unlink()
    with Mirror(run, tmp_path / "bucket", spool=spool, config=QUICK):
        pass
    assert {"a.log": b"x\n"} == plain(tmp_path / "bucket")


def test_a_close_without_a_limit_gives_up_when_nothing_works(run: Path, tmp_path: Path, spool: Path) -> None:
    (tmp_path / "bucket").write_text("a file where the bucket should be")
    (run / "a.log").write_text("x\n")
    mirror = Mirror(run, tmp_path / "bucket", spool=spool, config=MirrorConfig(give_up_s=0.5))
    assert not mirror.close().is_complete


def test_closed_it_does_nothing_and_leaves_nothing(run: Path, bucket: Path, spool: Path) -> None:
    mirror = Mirror(run, bucket, spool=spool, config=QUICK)
    (run / "a.log").write_text("x\n")
    report = mirror.close()
    assert report == mirror.close() == mirror.flush()
    mirror.send_now()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("wherry-mirror")], what="the threads to end")
    assert [] == list(spool.rglob("scratch/*"))


SCRIPT = """
    import os, sys, time
    from pathlib import Path
    from wherry import Mirror, MirrorConfig
    run, bucket, spool = map(Path, sys.argv[1:4])
    mirror = Mirror(run, bucket, spool=spool, writer="w", config=MirrorConfig(max_lag_s=3600.0))
    log = open(run / "a.log", "a", buffering=1)
    log.write("last words\\n")
"""


def script(more: str) -> str:
    return textwrap.dedent(SCRIPT) + textwrap.dedent(more)


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os.write(log.fileno(), b'no end')"])
def test_a_program_that_ends_without_a_close_is_closed(run: Path, bucket: Path, spool: Path, end: str) -> None:
    assert "" == run_script(script(end), run, bucket, spool)
    assert contents(run) == plain(bucket)


def test_an_exception_ends_with_a_close(run: Path, bucket: Path, spool: Path) -> None:
    assert "ValueError: boom" in run_script(script("raise ValueError('boom')"), run, bucket, spool, expected=1)
    assert contents(run) == plain(bucket)


def test_sigterm_sends_the_last_lines(run: Path, bucket: Path, spool: Path) -> None:
    # Python calls the handler between two short naps: a signal that comes as a call to the system begins does not interrupt that.
    text = script("print('ready', flush=True)\nwhile True: time.sleep(0.05)")
    child: Program[bytes] = Program([sys.executable, "-c", text, run, bucket, spool], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert b"ready\n" == child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert 143 == child.wait(TIMEOUT_S)
    assert contents(run) == plain(bucket)


def test_a_handler_of_sigterm_that_is_there_stays(run: Path, bucket: Path, spool: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Mirror(run, bucket, spool=spool, config=QUICK):
            os.kill(os.getpid(), signal.SIGTERM)
        assert [signal.SIGTERM] == seen
    finally:
        signal.signal(signal.SIGTERM, before)


def test_after_the_last_close_sigterm_is_as_it_was(run: Path, bucket: Path, spool: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with Mirror(run, bucket, spool=spool, config=QUICK):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_child_neither_closes_nor_locks_nor_catches_sigterm(run: Path, bucket: Path, spool: Path) -> None:
    more = """
        pid = os.fork()
        if pid == 0:
            mirror.flush(); mirror.close(); mirror.send_now()
            if os.fork() == 0:
                sys.exit(0)  # with all atexit functions
            os.wait()
            print("child", flush=True)
            time.sleep(3600)
        time.sleep(0.2)
        os.kill(pid, 15)
        print("signal", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        log.write("more\\n")
    """
    said = run_script(script(more), run, bucket, spool)
    assert "signal -15\n" in said
    assert {"a.log": b"last words\nmore\n"} == plain(bucket)


def test_a_child_of_multiprocessing_closes_it_when_it_ends(run: Path, bucket: Path, spool: Path) -> None:
    """Where no atexit function is called: a rank of torch.multiprocessing.spawn."""
    made = multiprocessing.get_context("spawn").Process(target=log_in_a_child, args=(run, bucket, spool))
    made.start()
    made.join(TIMEOUT_S)
    assert 0 == made.exitcode
    assert {"a.log": b"last words"} == plain(bucket)


def test_a_close_that_runs_out_of_time_says_in_the_store_that_something_is_left(run: Path, bucket: Path, spool: Path) -> None:
    mirror = Mirror(run, bucket, spool=spool, writer="w", config=QUICK)
    mirror.flush(TIMEOUT_S)
    for number in range(400):
        (run / f"{number}.log").write_text("x\n")
    report = mirror.close(0.01)
    assert not report.is_complete
    uri = parse_uri(bucket)
    manifest = read_manifest(LocalStore(uri, {}), uri.key_for(manifest_name("w")))
    assert manifest is not None
    assert "incomplete" == manifest.state == manifest.state_at(manifest.heartbeat_s + 10**6)
    with Mirror(run, bucket, spool=spool, writer="w", config=QUICK):
        pass
    assert contents(run) == plain(bucket)


def test_a_killed_mirror_is_taken_up_by_the_next(run: Path, bucket: Path, spool: Path) -> None:
    data = lines(100_000)
    (run / "a.log").write_bytes(data)
    run_script(script("mirror.flush()\nos.kill(os.getpid(), 9)"), run, bucket, spool, expected=-9)
    before = contents(bucket)
    with Mirror(run, bucket, spool=spool, writer="w", config=MirrorConfig(max_lag_s=0.1)) as mirror:
        mirror.flush(TIMEOUT_S)
        assert set(before) <= set(contents(bucket))
        assert 2 == mirror.report.epoch
        assert mirror.report.sent_bytes < 2000
    assert contents(run) == plain(bucket)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_on_a_real_s3_server(run: Path, spool: Path, tmp_path: Path, seaweedfs_server: S3Server, compression: str | None) -> None:
    if compression:
        tell_spool(spool, seaweedfs_server)  # the other one finds out by itself
    pass_on(run, spool, tmp_path, f"s3://{seaweedfs_server.bucket}/mirror/{compression}", seaweedfs_server.options, compression)


def test_on_a_strict_gcs_server(run: Path, spool: Path, tmp_path: Path) -> None:
    with fast_folder() as folder, strict_gcs(folder) as server:
        pass_on(run, spool, tmp_path, f"gs://{server.bucket}/mirror", server.options, None)


def pass_on(run: Path, spool: Path, tmp_path: Path, uri: str, options: dict[str, object], compression: str | None) -> None:
    config = MirrorConfig(max_lag_s=0.1, settle_s=0.1, segment_bytes=50_000, compression=compression)  # type: ignore[arg-type]
    target = parse_uri(uri)
    with open_store(target, options) as store:
        with Mirror(run, uri, storage_options=options, spool=spool, writer="rank0", config=config) as mirror:
            with open(run / "a.log", "ab", buffering=0) as log:
                for number in range(4):
                    log.write(lines(60_000, number))
                    mirror.flush(TIMEOUT_S)
                    assert (run / "a.log").read_bytes() == mirror_oracle.read(store, target.prefix, "a.log")
            (run / "a.log").rename(run / "a.log.1")
            (run / "a.log").write_bytes(lines(1000, 9))
            (run / "config.json").write_text("{}")
            mirror.flush(TIMEOUT_S)
        assert mirror.report.is_complete, mirror.report
        assert contents(run) == fetch(store, target.prefix, tmp_path)


def fetch(store: ObjectStore, prefix: str, tmp_path: Path) -> dict[str, bytes]:
    found = {}
    for meta in store.list(f"{prefix}/"):
        target = tmp_path / "fetched"
        target.write_bytes(b"")
        store.get_file(meta.key, target)
        found[meta.key.removeprefix(f"{prefix}/")] = target.read_bytes()
    assert all(name.endswith(("manifest.json", "epoch-00000001")) for name in found if name.startswith("_mirror/")), list(found)
    return {name: data for name, data in found.items() if not name.startswith("_mirror/")}


def test_a_logger_mirrors_what_other_loggers_write(run: Path, tmp_path: Path, bucket: Path, spool: Path) -> None:
    state = State("run-a")
    mirror = MirrorLogger(run / "{run_name}", f"{bucket}/{{run_name}}", spool=spool, writer="rank0", config=QUICK)
    text = FileLogger(f"{run}/{{run_name}}/train.log")
    logger = Logger(state, [mirror, text])
    logger.run_event(Event.INIT)
    logger.run_event(Event.FIT_START)
    logger.log_metrics({"loss": 1.0})
    logger.run_event(Event.EPOCH_END)
    text.flush()  # an event only has it written, by a thread
    mirror.mirror.flush(TIMEOUT_S)
    assert b"loss" in read(bucket / "run-a", "train.log")
    logger.log_metrics({"loss": 0.5})
    logger.close()
    assert contents(run / "run-a") == plain(bucket / "run-a")


def test_a_loggers_template_is_checked_at_once(run: Path, bucket: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_field"):
        MirrorLogger(run / "{no_such_field}", bucket)


def test_it_costs_next_to_nothing_while_nothing_happens(run: Path, bucket: Path, spool: Path) -> None:
    """Threads that spin would show."""
    for number in range(200):
        (run / f"{number}.log").write_text("x\n")
    with Mirror(run, bucket, spool=spool, config=MirrorConfig()) as mirror:
        mirror.flush(TIMEOUT_S)
        before = mirror.report.n_requests
        process = psutil.Process()
        used = sum(process.cpu_times()[:2])
        assert not threading.Event().wait(2.0)
        assert sum(process.cpu_times()[:2]) - used < 0.5
        assert mirror.report.n_requests - before <= 2
