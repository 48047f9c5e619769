"""What a store remembers of the objects that head() has described, with many threads and many objects."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from wherry.backends.s3.get import _MOST_DESCRIBED, Reader
from wherry.backends.s3.store import S3Store
from wherry.uri import StoreURI


def describe(reader: Reader, key: str) -> None:
    reader.describe(key, {"ETag": '"e"', "ContentLength": 5})


@pytest.fixture
def reader() -> Reader:
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    reader = S3Store(StoreURI("s3", "bucket"), {"endpoint_url": "http://127.0.0.1:9", **keys})._reader
    for n in range(_MOST_DESCRIBED):
        describe(reader, f"{n}")
    return reader


def test_the_oldest_are_forgotten(reader: Reader) -> None:
    describe(reader, "new")
    assert [*map(str, range(1, _MOST_DESCRIBED)), "new"] == [key for key, _ in reader._described]


def test_another_thread_may_forget_one_at_any_moment(reader: Reader) -> None:
    """Before each instruction of one describe() in turn, the oldest goes, as another thread may take it away then."""
    n_instructions = at = 0

    def follow(frame: FrameType, event: str, _: object) -> Any:
        nonlocal n_instructions
        if frame.f_code is not Reader.describe.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            n_instructions += 1
            if n_instructions == at:
                reader._described.pop(next(iter(reader._described)))
        return follow

    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at it when settrace() is called
    before = sys.gettrace()
    while n_instructions >= at:
        at, n_instructions = at + 1, 0
        while len(reader._described) < _MOST_DESCRIBED:
            describe(reader, f"more {at} {len(reader._described)}")
        sys.settrace(follow)
        try:
            describe(reader, f"new {at}")
        finally:
            sys.settrace(before)
    assert at > 20
