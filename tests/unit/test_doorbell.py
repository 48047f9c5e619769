"""Rings wake, carry secrets whole, and never block a training process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.doorbell import Bell, ring
from wherry.errors import SpoolError


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Bell]:
    opened = Bell(tmp_path / "bell")
    yield opened
    opened.close()


def test_a_ring_wakes_a_waiting_listener(bell: Bell) -> None:
    ringer = threading.Thread(target=ring, args=(bell.path,))
    ringer.start()
    assert bell.wait(30.0)
    ringer.join()


def test_nobody_rang(bell: Bell) -> None:
    assert not bell.wait(0.0)
    assert [] == bell.answer()


def test_all_rings_that_came_are_one_waking(bell: Bell) -> None:
    for _ in range(5):
        assert ring(bell.path)
    assert bell.wait(0.0)
    assert not bell.wait(0.0)


def test_a_ring_carries_what_it_is_given(bell: Bell) -> None:
    ring(bell.path, {"secrets": {"1": {"key": "värde"}}})
    ring(bell.path)
    ring(bell.path, {"warm": [1]})
    assert [{"secrets": {"1": {"key": "värde"}}}, {"warm": [1]}] == bell.answer()


def test_a_ring_where_nobody_listens_says_so(tmp_path: Path) -> None:
    assert not ring(tmp_path / "nothing")
    bell = Bell(tmp_path / "bell")
    bell.close()
    assert not ring(bell.path)


def test_the_bell_of_a_dead_listener_does_not_answer_and_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "bell"))
    assert not ring(tmp_path / "bell")
    bell = Bell(tmp_path / "bell")
    assert ring(bell.path)
    bell.close()
    assert not bell.path.exists()


def test_plain_rings_never_block_when_nobody_answers(bell: Bell) -> None:
    for _ in range(2000):  # the kernel queues some hundred
        assert ring(bell.path)
    assert bell.wait(0.0)


def test_secrets_wait_for_room_but_not_for_ever(bell: Bell) -> None:
    carried: dict[str, object] = {"secrets": "x" * 50_000}
    for _ in range(50):
        assert ring(bell.path, carried, patience_s=0.01)
    assert carried in bell.answer()


def test_the_longest_secrets_fit(bell: Bell) -> None:
    carried: dict[str, object] = {"secrets": "x" * 99_000}
    assert ring(bell.path, carried)
    assert [carried] == bell.answer()


def test_secrets_that_do_not_fit_are_an_error_that_says_how_much_does(bell: Bell) -> None:
    with pytest.raises(SpoolError, match="at most 100000"):
        ring(bell.path, {"secrets": "x" * 100_001})


def test_a_spool_may_lie_deeper_than_a_socket_address_is_long(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 10)
    deep.mkdir(parents=True)
    bell = Bell(deep / "bell")
    assert ring(bell.path, {"warm": [1]})
    assert [{"warm": [1]}] == bell.answer()
    bell.close()
    assert [] == list(deep.iterdir())


def test_a_child_lets_go_of_the_bell_and_leaves_its_name(bell: Bell) -> None:
    copy = Bell.__new__(Bell)
    copy.path, copy._socket = bell.path, socket.socket(fileno=os.dup(bell.fileno()))
    copy.close_inherited()
    assert ring(bell.path)
    assert bell.wait(0.0)
