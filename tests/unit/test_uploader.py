"""The uploader: what it accepts and refuses, what its reader sees, how it reports and ends. Uploads are made in the caller."""

from __future__ import annotations

import errno
import gc
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from support import CALLER, caller, end_agent, file_of, run_script, wait_until
from uploaders import block, queue, staged
from wherry.config import AgentConfig, Config, SpoolConfig, TransferConfig
from wherry.errors import AlreadyExistsError, ConfigError, MissingExtraError, SpoolError, UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.spool.presence import pid_of_agent
from wherry.spool.staging import finish_writer, open_writer
from wherry.store.registry import backend_for
from wherry.uploader import Uploader


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """The store: a folder."""
    folder = tmp_path / "dest"
    folder.mkdir()
    return folder


@pytest.fixture
def uploader(dest: Path, spool_folder: Path) -> Iterator[Uploader]:
    """Closed after the test; what it did not get rid of is reported."""
    with Uploader(dest, spool=spool_folder, config=CALLER) as opened:
        yield opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return file_of(tmp_path / "source", 50_000)


# -- handing over


def test_a_file_arrives_whole_and_leaves_nothing_in_the_spool(uploader: Uploader, dest: Path, source: Path) -> None:
    handle = uploader.put(source, "run/a.bin")
    assert (JobState.DONE, f"file:///{str(dest).lstrip('/')}/run/a.bin") == (handle.state, handle.uri)
    assert 50_000 == handle.result().size_bytes
    assert source.read_bytes() == (dest / "run" / "a.bin").read_bytes()
    assert [] == staged(uploader)


def test_a_moved_file_is_gone_and_arrives(uploader: Uploader, dest: Path, source: Path) -> None:
    before = source.read_bytes()
    uploader.put(source, "a", move=True)
    assert not source.exists()
    assert before == (dest / "a").read_bytes()


def test_a_moved_file_that_is_refused_stays(uploader: Uploader, source: Path) -> None:
    with pytest.raises(ConfigError):
        uploader.put(source, "../a", move=True)
    with pytest.raises(ConfigError):
        uploader.put(source, "a", move=True, requires=["../b"])
    assert source.exists()
    assert [] == staged(uploader)


def test_a_name_that_is_taken_fails_by_default_and_is_replaced_on_demand(
    uploader: Uploader, dest: Path, source: Path, tmp_path: Path
) -> None:
    uploader.put(source, "a")
    other = file_of(tmp_path / "other", 10)
    handle = uploader.put(other, "a")
    with pytest.raises(UploadFailed, match=r"dest/a.*(exists|already)"):
        handle.result()
    assert source.read_bytes() == (dest / "a").read_bytes()
    uploader.put(other, "a", overwrite=True).result()
    assert other.read_bytes() == (dest / "a").read_bytes()
    assert 1 == uploader.journal.uploads.discard(None)[0]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "is empty"),
        ("/a", "starts with '/'"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("../a", "'..'"),
        ("a/./b", "'.'"),
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("x" * 1025, "1025 bytes"),
        ("ä" * 513, "1026 bytes"),
    ],
)
def test_a_bad_name_is_refused_with_the_rule_it_breaks(uploader: Uploader, source: Path, name: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule.replace(".", r"\.")):
        uploader.put(source, name)
    with pytest.raises(ConfigError, match=rule.replace(".", r"\.")):
        uploader.open(name)
    assert [] == staged(uploader)
    assert 0 == uploader.counts().failed


def test_a_missing_file_is_refused_at_once(uploader: Uploader, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        uploader.put(tmp_path / "missing", "a")
    assert 0 == uploader.counts().failed


def test_what_is_no_file_is_refused_at_once(uploader: Uploader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="is a FIFO"):
        uploader.put(tmp_path / "fifo", "a")


def test_names_are_the_same_in_every_unicode_form(uploader: Uploader, source: Path) -> None:
    uploader.put(source, "kase\u0308")
    assert ["k\u0061se\u0308".replace("e\u0308", "\u00eb")] == [meta.key for meta in uploader.list()]
    assert uploader.exists("kas\u00eb")


# -- folders


def test_a_folder_arrives_with_all_its_files(uploader: Uploader, dest: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for name in ("weights", "optimizer/state", "optimizer/deep/er"):
        file_of(folder / name, 100, seed=len(name))
    handle = uploader.put(folder, "ep1")
    assert (JobState.DONE, 300) == (handle.state, handle.result().size_bytes)
    expected = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert expected == {path.relative_to(dest / "ep1"): path.read_bytes() for path in dest.rglob("*") if path.is_file()}


def test_an_empty_folder_is_refused_and_says_why(uploader: Uploader, tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has no files: object stores keep no empty folders"):
        uploader.put(tmp_path / "empty", "a")


def test_a_folder_with_something_that_is_no_file_is_refused_as_a_whole(uploader: Uploader, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    file_of(folder / "a", 10)
    os.mkfifo(folder / "fifo")
    with pytest.raises(ConfigError, match=r"fifo is no regular file"):
        uploader.put(folder, "a")
    (folder / "fifo").unlink()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"link is a symbolic link to a folder"):
        uploader.put(folder, "a")
    assert [] == staged(uploader)
    assert 0 == uploader.counts().done


def test_a_folder_that_is_moved_loses_its_files(uploader: Uploader, tmp_path: Path, dest: Path) -> None:
    folder = tmp_path / "folder"
    before = file_of(folder / "a", 10).read_bytes()
    uploader.put(folder, "x", move=True)
    assert [] == list(folder.iterdir())
    assert before == (dest / "x" / "a").read_bytes()


# -- written into the spool


def test_what_is_written_arrives(uploader: Uploader, dest: Path) -> None:
    with uploader.open("a") as file:
        file.write(b"written once, copied never")
    assert file.handle is not None
    assert 26 == file.handle.result().size_bytes
    assert b"written once, copied never" == (dest / "a").read_bytes()


def test_a_writer_that_raises_uploads_nothing(uploader: Uploader, dest: Path) -> None:
    with pytest.raises(ZeroDivisionError), uploader.open("a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert [] == list(dest.iterdir())
    assert [] == staged(uploader)


def test_a_writer_that_is_never_closed_warns_and_uploads_nothing(uploader: Uploader, dest: Path) -> None:
    file = uploader.open("a")
    file.write(b"half")
    with pytest.warns(ResourceWarning, match="a was never closed"):
        del file
        gc.collect()
    assert [] == list(dest.iterdir())
    assert [] == staged(uploader)


def test_modes_decide_whether_a_name_is_replaced(uploader: Uploader, dest: Path) -> None:
    for mode, data in (("xb", b"first"), ("wb", b"second"), ("w+b", b"third")):
        with uploader.open("a", mode) as file:
            file.write(data)
        assert data == (dest / "a").read_bytes()
    with uploader.open("a", "xb") as file:
        file.write(b"fourth")
    assert file.handle is not None
    with pytest.raises(UploadFailed):
        file.handle.result()
    assert b"third" == (dest / "a").read_bytes()
    uploader.journal.uploads.discard(None)


@pytest.mark.parametrize("mode", ["w", "r", "rb", "ab", "wt", ""])
def test_other_modes_are_refused(uploader: Uploader, mode: str) -> None:
    with pytest.raises(ConfigError, match="use 'wb'"):
        uploader.open("a", mode)


# -- what can be configured wrongly


def test_an_unknown_scheme_names_the_known_ones(spool_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown scheme 's4'.*s3://.*gs://"):
        Uploader("s4://bucket", spool=spool_folder)
    assert not spool_folder.exists()


def test_an_unknown_option_names_the_known_ones(spool_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"regoin.*known are.*region"):
        Uploader("s3://bucket", storage_options={"regoin": "x"}, spool=spool_folder)


@pytest.mark.large
def test_an_option_that_no_agent_can_be_given_is_refused(spool_folder: Path) -> None:
    with pytest.raises(ConfigError, match="plain JSON values"):
        Uploader("sftp://host/folder", storage_options={"key": object()}, spool=spool_folder)


@pytest.mark.parametrize(
    ("uri", "options", "words"),
    [
        ("s3://bucket", {"read_timeout_s": "soon"}, "'read_timeout_s' is 'soon': it takes a number above 0"),
        ("s3://bucket", {"aws_access_key_id": "somebody"}, "belong together"),
        ("gs://bucket", {"upload": "parts"}, "use 'compose' or 'session'"),
        (
            "gs://bucket",
            {"credentials_json": {"type": "authorized_user"}},
            "without client_id and client_secret and refr",
        ),
        ("/folder", {"fsync": "yes"}, "'fsync' is 'yes': use True or False"),
    ],
)
def test_a_wrong_value_of_an_option_is_refused_before_anything_is_accepted(
    spool_folder: Path, uri: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Uploader(uri, storage_options=options, spool=spool_folder)


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs")])
def test_a_missing_library_names_the_extra_to_install(tmp_path: Path, scheme: str, extra: str) -> None:
    (library,) = backend_for(scheme).libraries
    text = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name == sys.argv[1] or name.startswith(sys.argv[1] + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hidden())
    import wherry

    try:
        wherry.Uploader(f"{sys.argv[2]}://bucket", spool=sys.argv[3])
    except wherry.ConfigError as error:
        print(type(error).__name__, error)
    """
    said = run_script(text, library, scheme, tmp_path / "spool")
    assert f"MissingExtraError {scheme}:// needs {library}, which is not installed: pip install 'wherry[{extra}]'\n" == said
    assert issubclass(MissingExtraError, ImportError)
    assert not (tmp_path / "spool").exists()


def test_no_secret_is_shown(spool_folder: Path) -> None:
    keys = {"aws_access_key_id": "somebody", "aws_secret_access_key": "hunter2hunter2"}
    with Uploader("s3://bucket", storage_options=keys, spool=spool_folder, config=CALLER) as uploader:
        assert "hunter2" not in repr(uploader) + repr(uploader.config) + str(vars(uploader.journal))
        records = uploader.journal.queries.stores()
    assert [tuple(keys)] == [record.secret_names for record in records.values()]
    assert "hunter2" not in json.dumps([dict(record.options) for record in records.values()])


# -- the budget


def full_uploader(dest: Path, spool: Path, when_full: str, limit: int = 60_000) -> Uploader:
    return Uploader(dest, spool=spool, config=caller(SpoolConfig(max_spool_bytes=limit, when_full=when_full)))  # type: ignore[arg-type]


def test_a_spool_that_is_full_of_failed_uploads_says_how_to_empty_it(dest: Path, spool_folder: Path, source: Path) -> None:
    with full_uploader(dest, spool_folder, "block") as uploader:
        uploader.put(source, block(dest))
        with pytest.raises(
            SpoolError, match=r"50000 of 60000 bytes.*1 failed upload with 50000 bytes.*wherry retry or wherry discard"
        ):
            uploader.put(source, "a")
        assert [] == [path for path in dest.iterdir() if path.name == "a"]
        uploader.spool.free(uploader.journal.uploads.discard(None)[1])
        uploader.put(source, "a").result()


def test_a_file_larger_than_the_budget_is_refused_and_not_waited_for(dest: Path, spool_folder: Path, source: Path) -> None:
    with full_uploader(dest, spool_folder, "block", limit=100) as uploader:
        queue(uploader, "waits", b"x")
        with pytest.raises(SpoolError, match="50000 more do not fit: raise max_spool_bytes"):
            uploader.put(source, "a")
        uploader.journal.uploads.cancel(uploader.uri_for("waits"), "")


def test_a_full_spool_raises_where_that_is_asked_for(dest: Path, spool_folder: Path, source: Path) -> None:
    with full_uploader(dest, spool_folder, "raise") as uploader:
        queue(uploader, "waits", bytes(50_000))
        with pytest.raises(SpoolError, match="wait for uploads"):
            uploader.put(source, "a")
        uploader.journal.uploads.cancel(uploader.uri_for("waits"), "")


def test_a_full_spool_is_gone_around_where_that_is_asked_for(dest: Path, spool_folder: Path, source: Path) -> None:
    with full_uploader(dest, spool_folder, "direct", limit=100) as uploader:
        handle = uploader.put(source, "a")
        assert (JobState.DONE, 50_000) == (handle.state, handle.result().size_bytes)
        assert source.read_bytes() == (dest / "a").read_bytes()
        with pytest.raises(AlreadyExistsError):
            uploader.put(source, "a")
        before = source.read_bytes()
        uploader.put(source, "b", move=True)
        assert not source.exists()
        assert before == (dest / "b").read_bytes()
        assert [] == staged(uploader)


def test_a_folder_goes_around_a_full_spool_as_well(dest: Path, spool_folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        file_of(tmp_path / "folder" / name, 100)
    with full_uploader(dest, spool_folder, "direct", limit=10) as uploader:
        handle = uploader.put(tmp_path / "folder", "x")
        assert (JobState.DONE, 200) == (handle.state, handle.result().size_bytes)
        assert {"a", "b/c"} == {str(path.relative_to(dest / "x")) for path in dest.rglob("*") if path.is_file()}


def test_a_fifo_does_not_go_around_a_full_spool(dest: Path, spool_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with full_uploader(dest, spool_folder, "direct", limit=0) as uploader:
        queue(uploader, "waits", b"x")
        with pytest.raises(ConfigError, match="is a FIFO"):
            uploader.put(tmp_path / "fifo", "a")
        uploader.journal.uploads.cancel(uploader.uri_for("waits"), "")


def test_a_file_that_is_written_into_a_full_spool_is_refused(dest: Path, spool_folder: Path) -> None:
    with full_uploader(dest, spool_folder, "direct", limit=0) as uploader:
        queue(uploader, "waits", b"x")
        with pytest.raises(SpoolError, match="is full"):
            uploader.open("a")
        uploader.journal.uploads.cancel(uploader.uri_for("waits"), "")


def test_a_blocked_upload_goes_on_when_there_is_room(dest: Path, spool_folder: Path, source: Path) -> None:
    spool = SpoolConfig(max_spool_bytes=60_000)
    with end_agent(spool_folder), Uploader(dest, spool=spool_folder, config=Config(spool=spool)) as uploader:
        for i in range(5):
            uploader.put(source, f"{i}")
            assert uploader.journal.queries.spool_bytes() <= 60_000
    assert [source.read_bytes()] * 5 == [(dest / f"{i}").read_bytes() for i in range(5)]


def test_the_spool_is_where_it_was_said_to_be(dest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "from-environment"))
    with Uploader(dest, config=CALLER) as uploader:
        assert tmp_path / "from-environment" == uploader.spool.folder
    with Uploader(dest, spool=tmp_path / "given", config=CALLER) as uploader:
        assert tmp_path / "given" == uploader.spool.folder


# -- a store that only this process sees


def test_a_store_in_memory_works_without_an_agent_and_leaves_no_folder(source: Path, tmp_path: Path) -> None:
    with Uploader(f"memory://{uuid.uuid4().hex}/run") as uploader:
        spool = uploader.spool.folder
        handle = uploader.put(source, "a")
        uploader.get("a", tmp_path / "back")
        assert ["a"] == [meta.key for meta in uploader.list()]
    assert (JobState.DONE, 50_000) == (handle.state, handle.result().size_bytes)
    assert source.read_bytes() == (tmp_path / "back").read_bytes()
    del handle, uploader
    gc.collect()
    assert not spool.exists()


def test_a_script_that_never_closes_a_store_in_memory_leaves_no_folder(tmp_path: Path, source: Path) -> None:
    text = """
    import os, sys, wherry

    uploader = wherry.Uploader("memory://bucket")
    handle = uploader.put(sys.argv[1], "a")
    if (pid := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert handle.result().size_bytes == 50_000
    print(uploader.spool.folder)
    """
    spool = run_script(text, source, env={"TMPDIR": str(tmp_path)}).splitlines()[-1]  # newer Pythons warn of the fork before
    assert spool.startswith(str(tmp_path))
    assert not Path(spool).exists()


# -- with the real agent


def test_the_agent_uploads_what_is_handed_over(dest: Path, spool_folder: Path, source: Path) -> None:
    with end_agent(spool_folder), wherry.Uploader(dest, spool=spool_folder) as uploader:
        handles = [uploader.put(source, f"{i}") for i in range(20)]
        assert [50_000] * 20 == [handle.result(60.0).size_bytes for handle in handles]
        uploader.check()
    assert 20 == len(list(dest.iterdir()))


def test_an_accepted_file_survives_whatever_happens_to_the_agent_after_that(
    dest: Path, spool_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent cannot be started again: an error, but the journal has the job, so its file must stay."""
    with end_agent(spool_folder):
        uploader = Uploader(dest, spool=spool_folder, config=Config(agent=AgentConfig(n_workers=1)))
    writer = uploader.open("a")
    writer.write(b"accepted")
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "")
        with pytest.raises(ConfigError, match="executable"):
            writer.close()
    assert 1 == uploader.counts().queued
    with end_agent(spool_folder):
        uploader.close()
    assert b"accepted" == (dest / "a").read_bytes()


def test_large_files_go_in_parts_through_a_spool_in_memory(tmp_path: Path, dest: Path, source: Path) -> None:
    transfer = TransferConfig(multipart_threshold_bytes=10_000, part_size_bytes=10_000)
    with Uploader(f"memory://{uuid.uuid4().hex}", config=caller(transfer=transfer)) as uploader:
        uploader.put(source, "a").result()
        uploader.get("a", tmp_path / "back")
    assert source.read_bytes() == (tmp_path / "back").read_bytes()


def test_no_room_for_the_download_is_an_error_and_leaves_no_file(uploader: Uploader, tmp_path: Path) -> None:
    object_id, file = open_writer(uploader.spool, uploader._session.name)
    with file:
        file.truncate(2**43)
        sparse = finish_writer(uploader.spool, object_id, file)
    uploader._acceptance.submit([sparse], ["sparse"], True, ())
    with pytest.raises(OSError, match="no room") as caught:
        uploader.get("sparse", tmp_path / "back")
    assert errno.ENOSPC == caught.value.errno
    assert ["dest", "spool"] == sorted(path.name for path in tmp_path.iterdir())
    uploader.delete("sparse")


def test_the_agent_of_a_test_is_gone_afterwards(dest: Path, spool_folder: Path) -> None:
    with end_agent(spool_folder), Uploader(dest, spool=spool_folder) as uploader:
        pid = pid_of_agent(uploader.spool)
    wait_until(lambda: pid is None or not Path(f"/proc/{pid}").exists(), what="the agent to end")


def test_objects_of_others_with_names_that_look_like_others_are_listed_fetched_and_deleted(
    uploader: Uploader, dest: Path, source: Path, tmp_path: Path
) -> None:
    names = ["a\\b", "run\u202etxt.exe", "\ufeffa"]
    for name in names:
        with pytest.raises(ConfigError):
            uploader.put(source, name)
        with pytest.raises(ConfigError):
            uploader.open(name)
        file_of(dest / name, 7)
    assert sorted(names) == sorted(meta.key for meta in uploader.list())
    for number, name in enumerate(names):
        assert 7 == uploader.get(name, tmp_path / f"got-{number}").size_bytes
        uploader.delete(name)
    assert [] == list(uploader.list())


def test_a_notebook_shows_an_uploader_and_runs_no_markup(tmp_path: Path, spool_folder: Path, source: Path) -> None:
    with Uploader(tmp_path / "<script>x</script>", spool=spool_folder, config=CALLER) as uploader:
        uploader.put(source, "a")
        shown = uploader._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "0 queued, 0 uploading, 1 done, 0 failed" in shown


@pytest.mark.parametrize("prefix", ["a\\b", "a\u202eb"])
def test_a_prefix_keeps_the_rule_of_new_names_for_uploads_only(tmp_path: Path, prefix: str) -> None:
    source = file_of(tmp_path / "source", 10)
    options = {"endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "a" * 16, "aws_secret_access_key": "b" * 16}
    with Uploader(f"s3://bucket/{prefix}", storage_options=options, spool=tmp_path / "spool") as uploader:
        with pytest.raises(ConfigError, match="prefix 'a"):
            uploader.put(source, "name")
        with pytest.raises(ConfigError, match="prefix 'a"):
            uploader.open("name")
        assert 0 == uploader.counts().queued
    with Uploader(tmp_path / prefix, spool=tmp_path / "spool", config=CALLER) as uploader:
        assert uploader.put(source, "name").wait()
