"""Rings wake, carry secrets whole, and never block a training process."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from support import end_agent, stopped_agent
from wherry.agent.session import Session
from wherry.agent.wakeup import Listener, Notifier, notify
from wherry.config import AgentConfig
from wherry.errors import SpoolError
from wherry.spool.spool import Spool


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Listener]:
    opened = Listener(tmp_path / "bell")
    yield opened
    opened.close()


def test_a_ring_wakes_a_waiting_listener(bell: Listener) -> None:
    ringer = threading.Thread(target=notify, args=(bell.path,))
    ringer.start()
    assert bell.wait(60.0)
    ringer.join()


def test_a_listener_of_a_process_with_many_open_files_is_woken(tmp_path: Path) -> None:
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(few, 2048), most))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (few, most))
        while stack.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        bell = stack.enter_context(closing(Listener(tmp_path / "bell")))
        assert not bell.wait(0.0)
        assert notify(bell.path)
        assert bell.wait(60.0)


def test_nobody_rang(bell: Listener) -> None:
    assert not bell.wait(0.0)
    assert [] == bell.receive()


def test_all_rings_that_came_are_one_waking(bell: Listener) -> None:
    for _ in range(5):
        assert notify(bell.path)
    assert bell.wait(0.0)
    assert not bell.wait(0.0)


def test_a_ring_carries_what_it_is_given(bell: Listener) -> None:
    notify(bell.path, {"secrets": {"1": {"key": "värde"}}})
    notify(bell.path)
    notify(bell.path, {"warm": [1]})
    assert [{"secrets": {"1": {"key": "värde"}}}, {"warm": [1]}] == bell.receive()


def test_a_ring_where_nobody_listens_says_so(tmp_path: Path) -> None:
    assert not notify(tmp_path / "nothing")
    bell = Listener(tmp_path / "bell")
    bell.close()
    assert not notify(bell.path)


def test_the_bell_of_a_dead_listener_does_not_answer_and_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "bell"))
    assert not notify(tmp_path / "bell")
    bell = Listener(tmp_path / "bell")
    assert notify(bell.path)
    bell.close()
    assert not bell.path.exists()


def test_plain_rings_never_block_when_nobody_answers(bell: Listener) -> None:
    for _ in range(2000):  # the kernel queues some hundred
        assert notify(bell.path)
    assert bell.wait(0.0)


def test_secrets_wait_for_room_but_not_for_ever(bell: Listener) -> None:
    carried: dict[str, object] = {"secrets": {"1": {"key": "x" * 50_000}}}
    for _ in range(50):
        assert notify(bell.path, carried, patience_s=0.01)
    assert carried in bell.receive()


SECRETS: dict[str, Mapping[str, object]] = {"1": {"key": "secret"}}


def test_secrets_go_with_the_first_call_and_then_once_a_second(bell: Listener) -> None:
    now_s = 100.0
    notifier = Notifier(lambda: now_s)
    path = str(bell.path)
    for _ in range(3):
        assert notifier.notify(path, SECRETS, {})
    assert [{"secrets": SECRETS}] == bell.receive()
    now_s += 1.0
    for _ in range(3):
        assert notifier.notify(path, SECRETS, {})
    assert [{"secrets": SECRETS}] == bell.receive()


def test_secrets_go_to_the_next_listener_at_once(bell: Listener) -> None:
    notifier = Notifier(lambda: 100.0)
    path = str(bell.path)
    assert notifier.notify(path, SECRETS, {})
    bell.close()
    assert not notifier.notify(path, SECRETS, {})
    with closing(Listener(bell.path)) as following:
        assert notifier.notify(path, SECRETS, {})
        assert [{"secrets": SECRETS}] == following.receive()


def test_secrets_of_one_more_store_go_at_once(bell: Listener) -> None:
    notifier = Notifier(lambda: 100.0)
    assert notifier.notify(str(bell.path), SECRETS, {})
    more = {**SECRETS, "2": {"key": "other"}}
    assert notifier.notify(str(bell.path), more, {})
    assert [{"secrets": SECRETS}, {"secrets": more}] == bell.receive()


def test_secrets_that_found_no_room_go_with_the_next_call(bell: Listener) -> None:
    while _has_room(bell):
        assert notify(bell.path)
    notifier = Notifier(lambda: 100.0)
    assert notifier.notify(str(bell.path), SECRETS, {}, patience_s=0.01)
    assert [] == bell.receive()
    assert notifier.notify(str(bell.path), SECRETS, {})
    assert [{"secrets": SECRETS}] == bell.receive()


def _has_room(bell: Listener) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(bell.path))
        room = select.poll()
        room.register(sender, select.POLLOUT)
        return bool(room.poll(0))


def test_a_sender_sleeps_while_the_queue_of_a_stopped_listener_is_full(bell: Listener) -> None:
    """A busy loop would take a processor from the process that is to make room."""
    while _has_room(bell):
        assert notify(bell.path)
    start_s = time.thread_time()
    assert notify(bell.path, {"warm": [1]}, patience_s=1.0)
    assert time.thread_time() - start_s < 0.5


def test_calls_beside_a_stopped_agent_cost_little(spool_folder: Path) -> None:
    """2,000 calls with secrets take 0.1 s of a processor; with a wait in each they would not end."""
    spool = Spool(spool_folder)
    with end_agent(spool.folder), closing_session(Session(spool, AgentConfig())) as session:
        session.secrets = SECRETS
        session.call_agent()
        with stopped_agent(spool.folder):
            start_s = time.thread_time()
            for _ in range(2000):
                session.call_agent()
            assert time.thread_time() - start_s < 1.0


@contextmanager
def closing_session(session: Session) -> Iterator[Session]:
    try:
        yield session
    finally:
        session.sign_off()


def test_the_longest_secrets_fit(bell: Listener) -> None:
    carried: dict[str, object] = {"secrets": {"1": {"key": "x" * 99_000}}}
    assert notify(bell.path, carried)
    assert [carried] == bell.receive()


def test_secrets_that_do_not_fit_are_an_error_that_says_how_much_does(bell: Listener) -> None:
    with pytest.raises(SpoolError, match="at most 100000"):
        notify(bell.path, {"secrets": "x" * 100_001})


def test_a_spool_may_lie_deeper_than_a_socket_address_is_long(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 10)
    spool = Spool(deep)
    bell = Listener(spool.inside("bell"))
    assert (deep / "bell").is_socket()
    assert notify(bell.path, {"warm": [1]})
    assert [{"warm": [1]}] == bell.receive()
    bell.close()
    assert not (deep / "bell").exists()


def test_a_child_lets_go_of_the_bell_and_leaves_its_name(bell: Listener) -> None:
    copy = Listener.__new__(Listener)
    copy.path, copy._socket = bell.path, socket.socket(fileno=os.dup(bell.fileno()))
    copy.close_inherited()
    assert notify(bell.path)
    assert bell.wait(0.0)


GARBAGE = [
    b"\x00",
    b"\xff\xfe",
    b"{",
    b"[" * 50_000,
    b"9" * 5_000,
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b'{"other": 1}',
    b'{"secrets": 1}',
    b'{"secrets": {"x": {}}}',
    b'{"secrets": {"1": null}}',
    b'{"secrets": {"' + b"9" * 30 + b'": {}}}',
    b'{"warm": {}}',
    b'{"warm": [null]}',
    b'{"warm": [true]}',
    b'{"warm": [-1]}',
    b'{"warm": [1.5]}',
    b'{"warm": [' + b"9" * 30 + b"]}",
    b'{"warm": [1]}' + b" " * 90_000 + b"x",
]


def send(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, os.fspath(path))


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda data: data[:20].decode(errors="replace"))
def test_garbage_wakes_and_carries_nothing(bell: Listener, garbage: bytes) -> None:
    send(bell.path, garbage)
    notify(bell.path, {"warm": [1]})
    assert bell.wait(0.0) is True
    send(bell.path, garbage)
    notify(bell.path, {"warm": [1]})
    assert [{"warm": [1]}] == bell.receive()


_KEYS = st.text() | st.sampled_from(["secrets", "warm", "1"])
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_JSON = st.recursive(_LEAVES, lambda some: st.lists(some) | st.dictionaries(_KEYS, some))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be loaded
@given(st.binary(min_size=1, max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_ring_of_ours_or_passed_over(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bell = Listener(Path(folder, "bell"))
        send(bell.path, data)
        for carried in bell.receive():
            assert set(carried) <= {"secrets", "warm"}
            assert all(store_id.isdecimal() for store_id in carried.get("secrets", {}))  # type: ignore[attr-defined]
            assert all(type(store_id) is int for store_id in carried.get("warm", []))  # type: ignore[attr-defined]
        bell.close()


def test_garbage_is_said_once(bell: Listener, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        send(bell.path, b"garbage")
    assert [] == bell.receive()
    assert [f"{bell.path} got 7 bytes that no wherry sends: they are passed over"] == caplog.messages
