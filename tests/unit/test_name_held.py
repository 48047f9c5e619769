"""A name that an upload of this spool is on its way to is refused to others at the call, if they do not overwrite."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate import Gate, wait_until
from support import CALLER, end_agent, file_of, new_job, store_id
from wherry.config import Config
from wherry.errors import AlreadyExistsError, ConfigError, UploadFailed
from wherry.loggers import Logger, ObjectStoreLogger, State
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.uploader import Uploader


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return file_of(tmp_path / "source", 1000)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(tmp_path)
    for name in ("PYTHONPATH", "GATE"):
        monkeypatch.setenv(name, gate.environment[name])
    monkeypatch.syspath_prepend(gate.folder / "site")
    return gate


@pytest.fixture
def slow(gate: Gate, tmp_path: Path) -> Iterator[Uploader]:
    """Its uploads wait until the gate is opened."""
    with end_agent(tmp_path / "spool") as spool:
        uploader = Uploader("gated://x/run", spool=spool)
        yield uploader
        gate.open()
        uploader.close(60)


def test_a_name_that_is_on_its_way_is_refused_at_the_call(slow: Uploader, source: Path, tmp_path: Path) -> None:
    slow.put(source, "a")
    (tmp_path / "folder").mkdir()
    file_of(tmp_path / "folder/new", 5)
    file_of(tmp_path / "folder/a", 5)
    slow.put(source, "folder/a", overwrite=True)
    for path, name, move in ((source, "a", False), (source, "a", True), (tmp_path / "folder", "folder", False)):
        with pytest.raises(AlreadyExistsError, match=r"gated://x/run/.*a: .*job \d+.*on its way"):
            slow.put(path, name, overwrite=False, move=move)
    with pytest.raises(FileExistsError):
        slow.open("a", "xb")
    assert source.exists()
    assert 2 == len(list(slow.spool.objects.iterdir())), "nothing was staged for what was refused"
    assert (2, 0) == (slow.journal.queries.unfinished(), slow.counts().failed)
    slow.put(source, "a", overwrite=True)
    slow.put(source, "b")


def test_an_upload_that_is_under_way_holds_its_name(slow: Uploader, gate: Gate, source: Path) -> None:
    handle = slow.put(source, "a")
    wait_until(gate.puts, what="the worker to begin")
    assert JobState.LEASED is handle.state
    with pytest.raises(AlreadyExistsError):
        slow.put(source, "a")


def test_of_two_processes_at_one_moment_one_has_the_name(tmp_path: Path) -> None:
    """The look before staging is a convenience: the journal decides."""
    journal = Journal(tmp_path / "journal.db")
    store, start, refused = store_id(journal), threading.Barrier(2), []

    def submit(owner: str) -> None:
        start.wait()
        try:
            for number in range(20):
                journal.uploads.submit(owner, store, [new_job(str(number), overwrite=False, only_if_free=True)])
        except AlreadyExistsError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=submit, args=(owner,)) for owner in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (1, 20) == (len(refused), journal.queries.unfinished())
    journal.close()


def test_what_is_written_until_another_has_the_name_is_kept(slow: Uploader, gate: Gate, source: Path) -> None:
    with slow.open("a", "xb") as file:
        file.write(b"an hour's work")
        slow.put(source, "a")
    gate.open()
    with pytest.raises(FileExistsError):
        slow.flush(60)
    assert [b"an hour's work"] == [path.read_bytes() for path in slow.spool.objects.iterdir()]


def test_an_upload_that_is_over_holds_no_name(tmp_path: Path, source: Path) -> None:
    """The store decides about names of uploads that are done: the spool cannot know what has been deleted there."""
    file_of(tmp_path / "store" / "failed", 3)
    with Uploader(tmp_path / "store", spool=tmp_path / "spool", config=CALLER) as uploader:
        uploader.put(source, "done").result()
        with pytest.raises(AlreadyExistsError):
            uploader.put(source, "failed").result()
        (tmp_path / "store/done").unlink()
        (tmp_path / "store/failed").unlink()
        for name in ("done", "failed"):
            assert 1000 == uploader.put(source, name).result().size_bytes
        assert 1 == uploader.journal.uploads.discard(None)[0]


def test_stores_of_one_name_do_not_hold_each_others_names(slow: Uploader, source: Path, tmp_path: Path) -> None:
    slow.put(source, "a")
    for uri in ("gated://y/else", tmp_path / "folder"):  # all of gated:// is one folder
        with Uploader(uri, spool=slow.spool.folder) as other:
            other.put(source, "a")
            other._sign_off()


def test_a_taken_name_is_a_file_exists_error_at_the_next_call_too(tmp_path: Path, source: Path) -> None:
    file_of(tmp_path / "store" / "x", 3)
    config = Config(agent=CALLER.agent, retry=CALLER.retry, on_failure="raise")
    with Uploader(tmp_path / "store", spool=tmp_path / "spool", config=config) as uploader:
        for again in (
            lambda: uploader.put(source, "y"),
            lambda: uploader.open("y"),
            uploader.raise_failures,
        ):
            uploader.put(source, "x")
            with pytest.raises(FileExistsError, match="x") as caught:
                again()
            assert isinstance(caught.value, UploadFailed)


def test_a_logger_is_told_of_a_name_that_is_on_its_way(gate: Gate, source: Path, tmp_path: Path) -> None:
    with end_agent(tmp_path / "spool") as spool:
        destination = ObjectStoreLogger("gated://x/run", spool=spool, check=False)
        logger = Logger(State(run_name="run"), [destination])
        logger.upload_file("a", source)
        with pytest.raises(FileExistsError):
            logger.upload_file("a", source)
        gate.open()
        logger.close()


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, f"a/{'x' * 256}/b"])
def test_a_part_that_no_local_folder_can_have_is_refused_at_the_call(name: str, tmp_path: Path, source: Path) -> None:
    with Uploader(tmp_path / "store", spool=tmp_path / "spool", config=CALLER) as uploader:
        with pytest.raises(ConfigError, match=r"256 bytes.*at most 255"):
            uploader.put(source, name)
        with pytest.raises(ConfigError, match=r"256 bytes"):
            uploader.open(name)
        assert [] == list(uploader.spool.objects.iterdir())
        uploader.put(source, "x" * 255).result()
        with pytest.raises(ConfigError, match=r"at most 4095"):
            Uploader(tmp_path.joinpath(*["y" * 250] * 16), spool=tmp_path / "spool", config=CALLER).put(source, "z" * 250)


def test_a_store_that_is_no_folder_takes_long_parts(tmp_path: Path, source: Path) -> None:
    with Uploader("memory://bucket", config=CALLER) as uploader:
        uploader.put(source, "x" * 256).result()
