"""How often the bytes of a file are read on their way, counted by the kernel: each pass over a large file takes time."""

from __future__ import annotations

from pathlib import Path

from support import caller, file_of
from wherry import Uploader

SIZE_BYTES = 30_000_000


def read_bytes() -> int:
    """What this process has asked the kernel to read, and to copy inside the kernel, so far (proc(5), rchar)."""
    return int(Path("/proc/self/io").read_text().partition("rchar: ")[2].split()[0])


def test_a_file_is_copied_and_summed_in_one_pass_each_and_fetched_and_verified_in_one(tmp_path: Path) -> None:
    """To a local folder, which links the staged file: neither sending nor verifying reads it."""
    source, given_away = file_of(tmp_path / "source", SIZE_BYTES), file_of(tmp_path / "given away", SIZE_BYTES, seed=1)
    passes = []
    with Uploader(tmp_path / "bucket", spool=tmp_path / "spool", config=caller(on_failure="raise")) as uploader:
        uploader.put(file_of(tmp_path / "warm", 2_000_000), "warm")
        uploader.get("warm", tmp_path / "fetched")  # all modules are read
        for work in (
            lambda: uploader.put(source, "copied"),
            lambda: uploader.put(given_away, "moved", move=True),
            lambda: uploader.get("copied", tmp_path / "down"),
        ):
            before = read_bytes()
            work()
            passes.append((read_bytes() - before) / SIZE_BYTES)
    assert [2, 1, 1] == [round(each, 1) for each in passes]
