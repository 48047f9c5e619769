"""call_in_children(): what a forked child lets go of."""

from __future__ import annotations

from pathlib import Path

from support import run_script

START = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from wherry.posix.fork import call_in_children

class Owner:
    pass

def in_child(do):
    if not os.fork():
        do()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_a_handler_that_raises_keeps_no_other_from_running() -> None:
    printed = run_script(
        START
        + """
called = []
owners = [Owner() for _ in range(3)]
call_in_children(owners[0], lambda owner: called.append("first"))
call_in_children(owners[1], lambda owner: 1 // 0)
call_in_children(owners[2], lambda owner: called.append("last"))
in_child(lambda: print(called))
"""
    )
    assert "['first', 'last']" in printed
    assert "ZeroDivisionError" in printed


def test_a_handler_is_called_in_a_grandchild_too_and_not_for_an_owner_that_is_gone() -> None:
    printed = run_script(
        START
        + """
called = []
owners = [Owner(), Owner()]
call_in_children(owners[0], lambda owner: called.append("kept"))
call_in_children(owners[1], lambda owner: called.append("gone"))
del owners[1]
in_child(lambda: in_child(lambda: print(called)))
"""
    )
    assert "['kept', 'kept']" == printed.strip()


def test_a_forked_child_finalises_no_store_of_its_parent(tmp_path: Path) -> None:
    """A finaliser of a store, such as that of urllib3's pools, may take a lock that another thread holds at the fork."""
    printed = run_script(
        START
        + """
import weakref
import wherry
folder = sys.argv[1]
open(f"{folder}/a", "w").close()
config = wherry.Config(agent=wherry.AgentConfig(run_in="caller"))
uploader = wherry.Uploader(f"{folder}/bucket", spool=f"{folder}/spool", config=config)
uploader.put(f"{folder}/a", "a")
uploader.flush()
assert ["a"] == [found.key for found in uploader.list()]
finalised = []
weakref.finalize(uploader._store, finalised.append, 1).atexit = False
in_child(lambda: print(finalised, [found.key for found in uploader.list()]))
uploader.close()
""",
        tmp_path,
    )
    assert "[] ['a']" == printed.strip()
