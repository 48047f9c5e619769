"""Another user of the machine plants a spool, or puts his own in its place: no secret and no file reaches him."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import SETTINGS, file_of, new_job
from wherry.agent.in_process import Caller
from wherry.agent.open_stores import Stores
from wherry.agent.session import Session
from wherry.agent.wakeup import Listener
from wherry.config import AgentConfig
from wherry.errors import SpoolError
from wherry.spool.journal.jobs import JobState
from wherry.spool.recovery import open_journal
from wherry.spool.spool import Spool
from wherry.spool.staging import stage

NOBODY = 65534


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder in which every user may make, rename and delete what he likes."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def in_a_child(act: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def as_another_user(act: Callable[[], object]) -> None:
    """Do something as nobody. Only root can become nobody: for everyone else the attacker has the same user id."""

    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        act()

    in_a_child(become_nobody)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def swapped(folder: Path) -> Iterator[socket.socket]:
    """Another user renames the spool and puts a folder of his own in its place, which takes all; his bell is given."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setblocking(False)

    def swap() -> None:
        os.umask(0)
        folder.rename(folder.with_name("taken-away"))
        for name in ("objects", "clients"):
            (folder / name).mkdir(parents=True)
        listener.bind(str(folder / "bell"))

    as_another_user(swap)
    with listener:
        yield listener


def in_it(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_planted_link_is_refused_whoever_owns_what_it_leads_to(common: Path) -> None:
    ours = Spool(common / "ours").folder
    as_another_user(lambda: (common / "spool").symlink_to(ours))
    with pytest.raises(SpoolError, match=r"spool is a symbolic link.*name the folder that it leads to.*\$WHERRY_SPOOL"):
        Spool(common / "spool")


def test_secrets_reach_our_own_agent_after_another_user_has_put_his_spool_in_place_of_ours(common: Path) -> None:
    spool = Spool(common / "spool")
    agent = Listener(spool.folder / "bell")
    client = Session(spool, AgentConfig())
    client.secrets = {"1": {"key": "top secret"}}
    with swapped(spool.folder) as theirs:
        client.call_agent()
        heard = agent.receive()
        with pytest.raises(BlockingIOError):
            theirs.recv(1000)
    agent.close_inherited()
    assert [{"secrets": {"1": {"key": "top secret"}}}] == heard


def test_an_open_spool_stays_the_folder_that_was_checked_when_its_name_is_taken_over(common: Path, tmp_path: Path) -> None:
    spool = Spool(common / "spool")
    source = file_of(tmp_path / "source", 1000)
    with swapped(spool.folder):
        journal = open_journal(spool)
        client = Session(spool, None)
        staged = stage(spool, source, client.name)
        journal.uploads.submit(
            "me", journal.uploads.store_id("file", "", {}, (), SETTINGS), [new_job("a", object_id=staged.object_id)]
        )
        journal.close()
        assert [] == in_it(spool.folder)
        ours = common / "taken-away"
        assert source.read_bytes() == (ours / "objects" / staged.object_id).read_bytes()
        assert (ours / "journal.db").exists()
        assert (ours / "clients" / client.name).exists()
        client.sign_off()


def test_a_journal_that_is_open_is_not_exchanged_for_the_one_of_another_user(common: Path) -> None:
    """Its rows say where files go, and the agent adds the secrets to them."""
    spool = Spool(common / "spool")
    journal = open_journal(spool)
    store = journal.uploads.store_id("file", "", {}, (), SETTINGS)
    with swapped(spool.folder):
        shutil.copy(common / "taken-away" / "journal.db", spool.folder)
        journal.uploads.submit("me", store, [new_job("a")])
    assert 0 == journal.replacements
    assert ["a"] == [job.key for job in journal.queries.jobs()]
    journal.close()


def test_a_link_above_the_spool_is_followed_if_it_is_ours(common: Path) -> None:
    (common / "disk").mkdir()
    (common / "link").symlink_to("disk")
    Spool(common / "link" / "below" / "spool")
    assert (common / "disk" / "below" / "spool" / "objects").is_dir()


def test_a_link_above_the_spool_that_another_user_made_is_refused(common: Path) -> None:
    (common / "disk").mkdir()
    as_another_user(lambda: (common / "link").symlink_to("disk"))
    if os.getuid() == 0:
        with pytest.raises(SpoolError, match=r"goes through the symbolic link 'link' of user (nobody|65534)"):
            Spool(common / "link" / "spool")
        assert [] == list((common / "disk").iterdir())
    else:
        Spool(common / "link" / "spool")


def test_links_that_lead_round_in_a_circle_are_refused(common: Path) -> None:
    (common / "one").symlink_to("two")
    (common / "two").symlink_to("one")
    with pytest.raises(SpoolError, match=r"cannot be used: Too many levels of symbolic links"):
        Spool(common / "one" / "spool")


def test_every_folder_that_is_made_is_private_whatever_the_umask_is(tmp_path: Path) -> None:
    for bits in (0, 0o22):
        above = tmp_path / f"{bits}"
        with umask(bits):
            Spool(above / "a" / "spool")
        made = (above, above / "a", above / "a" / "spool", above / "a" / "spool" / "objects")
        assert [0o700] * 4 == [stat.S_IMODE(folder.stat().st_mode) for folder in made]
    with umask(0o277):
        Spool(tmp_path / "spool")
    assert 0o700 == stat.S_IMODE((tmp_path / "spool").stat().st_mode)


def test_a_bell_can_be_rung_by_its_user_only_whatever_the_umask_is(tmp_path: Path) -> None:
    with umask(0):
        bell = Listener(Spool(tmp_path / "spool").folder / "bell")
    assert 0o600 == stat.S_IMODE(bell.path.stat().st_mode)
    bell.close()


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o500])
def test_the_mode_of_a_folder_that_was_there_is_never_changed(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    folder.chmod(mode)
    try:
        Spool(folder)
    except SpoolError:
        assert mode == 0o500  # which root may write all the same
    assert mode == stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_may_write_is_refused_with_a_remedy(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SpoolError, match=rf"can be written by other users \(its mode is {mode:04o}\).*chmod 700.*\$WHERRY_SPOOL"):
        Spool(folder)
    assert mode == stat.S_IMODE(folder.stat().st_mode)
    assert [] == list(folder.iterdir())


def test_a_spool_outlives_a_program_that_closes_all_its_descriptors(tmp_path: Path) -> None:
    """As one does that becomes a daemon."""
    spool = Spool(tmp_path / "spool")
    source = file_of(tmp_path / "source", 1000)

    def close_all_and_stage() -> None:
        os.closerange(3, 1000)
        os.open("/dev/null", os.O_RDONLY)  # has the number of one of them
        os.open("/", os.O_RDONLY)
        stage(spool, source, "1-client")

    in_a_child(close_all_and_stage)
    (staged,) = spool.objects.iterdir()
    assert source.read_bytes() == staged.read_bytes()


# -- a journal that somebody has changed


def work_through(spool: Spool, object_id: str, dest: Path) -> tuple[JobState, str]:
    """Accept a job with that object id, and carry it out: (its state, the error)."""
    journal = open_journal(spool)
    store = journal.uploads.store_id("file", "", {}, (), SETTINGS)
    job = new_job(str(dest).lstrip("/"), object_id=object_id, size_bytes=1000, root="file://")
    (job_id,), _ = journal.uploads.submit("me", store, [job])
    caller = Caller(spool, journal, Stores(), "1-caller")
    caller.work()
    caller.close()
    found = journal.queries.job(job_id)
    journal.close()
    assert found is not None
    return found.state, found.error or ""


@pytest.mark.parametrize("kind", ["absolute", "above", "the folder itself", "a link"])
def test_a_row_that_names_a_file_outside_the_spool_sends_and_deletes_nothing(tmp_path: Path, kind: str) -> None:
    spool = Spool(tmp_path / "spool")
    open_journal(spool).close()
    outside = file_of(tmp_path / "outside", 1000)
    object_id = {"absolute": str(outside), "above": "../../outside", "the folder itself": "..", "a link": "1-client-1"}[kind]
    if kind == "a link":
        (spool.objects / object_id).symlink_to(outside)
    state, error = work_through(spool, object_id, tmp_path / "dest")
    assert JobState.FAILED == state
    assert "is no name of a file there" in error or "is no regular file" in error
    assert outside.exists()
    assert not (tmp_path / "dest").exists()


def test_a_row_that_names_a_file_outside_the_spool_can_be_given_up(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    outside = file_of(tmp_path / "outside", 1000)
    work_through(spool, "../../outside", tmp_path / "dest")
    journal = open_journal(spool)
    n, freed = journal.uploads.discard(None)
    spool.free(freed)
    journal.close()
    assert 1 == n
    assert outside.exists()
