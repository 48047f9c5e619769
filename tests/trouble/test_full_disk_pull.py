"""A real full disk under a copy: it is told as that, at once, and the same pull goes on when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import own_mounts, run_script

#: Mounts a small disk at argv[1], and has a mirror of 30 MB in argv[2], half of which is still in segments.
SCRIPT = """
import logging, os, subprocess, sys
from pathlib import Path
from mirrors import ONCE, Rig
from wherry.backends.local.store import LocalStore
from wherry.mirror import MirrorConfig
from wherry.mirror.reader.pull import pull
from wherry.uri import parse_uri

disk, store, state = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
logging.getLogger("wherry").setLevel(logging.WARNING)
uri = parse_uri(str(store))
rig = Rig(store.parent, MirrorConfig(segment_bytes=2**20, retry=ONCE), store=LocalStore(uri, {}), uri=uri)
rig.write("a.log", b"0123456789abcde\\n" * (2**20))
rig.write("b.json", b"x" * 14_000_000)
rig.flush()
for _ in range(5):
    rig.step(2.0)
if state == "sealed":
    rig.close()
try:
    pull(store, disk / "copy", follow=state == "open")
except OSError as error:
    print(error.errno, error.filename, error.strerror)
subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
report = pull(store, disk / "copy")
for name in ("a.log", "b.json"):
    assert (disk / "copy" / name).read_bytes() == (rig.folder / name).read_bytes()
print("whole", report.trouble)
"""


@pytest.mark.parametrize("state", ["open", "sealed"])
def test_a_full_disk_at_the_puller_is_told_as_that_and_the_next_pull_goes_on(tmp_path: Path, state: str) -> None:
    for name in ("disk", "store"):
        (tmp_path / name).mkdir()
    said = run_script(SCRIPT, tmp_path / "disk", tmp_path / "store", state, prefix=own_mounts())
    words = "the disk has no room left: mend that, and the same command goes on where it was"
    assert f"28 {tmp_path}/disk/copy {words}" in said.splitlines()
    assert said.endswith("whole ()\n")
    assert "Traceback" not in said


PIECE = """
import logging, subprocess, sys
from pathlib import Path
from mirrors import ONCE, Rig, lines
from wherry.mirror import MirrorConfig
from wherry.mirror.reader.reader import MirrorReader

disk, folder = map(Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
logging.getLogger("wherry").setLevel(logging.ERROR)
rig = Rig(folder, MirrorConfig(segment_bytes=16 * 2**20, retry=ONCE))
data = b"0123456789abcde\\n" * (2**20)
rig.write("a.log", data)
rig.flush()
with MirrorReader(rig.seen, rig.uri.prefix, scratch=disk) as reader:
    assert data == b"".join(reader.read("a.log"))
print(len(rig.segments()), "piece", list(disk.iterdir()))
"""


def test_a_piece_takes_room_once_on_its_way(tmp_path: Path) -> None:
    """16 MiB through 24."""
    for name in ("disk", "store"):
        (tmp_path / name).mkdir()
    assert "1 piece []\n" == run_script(PIECE, tmp_path / "disk", tmp_path / "store", prefix=own_mounts())
