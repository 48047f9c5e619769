"""How an agent keeps its memory small."""

from __future__ import annotations

import os
import subprocess
import sys

COUNT = """
import ctypes, sys, threading
from wherry.agent.launch import use_one_arena
if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
meeting = threading.Barrier(4)
def allocate():
    meeting.wait()
    for _ in range(100):
        libc.free(ctypes.c_void_p(libc.malloc(5000)))
    meeting.wait()
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fdopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
"""


def n_arenas(how: str) -> int:
    environ = {name: text for name, text in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    found = subprocess.run([sys.executable, "-c", COUNT, how], check=True, capture_output=True, text=True, env=environ)
    return found.stdout.count("<heap nr")


def test_an_agent_that_runs_as_a_service_has_one_arena() -> None:
    assert 1 == n_arenas("one") < n_arenas("many")
