"""Fuzzes our HTTP client with atheris, which is not among the project's packages: ``pip install atheris``.

``python fuzz_answers.py FOLDER [options of libFuzzer]`` goes on from the answers in FOLDER, one a file, and from CORPUS.
``python fuzz_answers.py --keep FOLDER`` writes to CORPUS the shortest one of each way through the client.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

#: In a file, from one line to the next that is run.
Step = tuple[str, int, int]


def steps(hear: Callable[[bytes], object], data: bytes) -> frozenset[Step]:
    """What of the client is run for these bytes."""
    found: set[Step] = set()

    def follow(frame: FrameType, event: str, _: object) -> Any:
        if "/backends/http/" not in frame.f_code.co_filename:
            return None
        last = [0]

        def line(frame: FrameType, event: str, _: object) -> Any:
            found.add((frame.f_code.co_filename, last[0], frame.f_lineno))
            last[0] = frame.f_lineno
            return line

        return line

    sys.settrace(follow)
    try:
        hear(data)
    finally:
        sys.settrace(None)
    return frozenset(found)


def keep(folder: Path) -> None:
    """Write the answers that are worth it to CORPUS."""
    from servers import heard

    kept: dict[frozenset[Step], bytes] = {}
    for data in sorted({path.read_bytes() for path in folder.iterdir()}, key=lambda data: (len(data), data)):
        kept.setdefault(steps(heard.hear, data), data)
    heard.CORPUS.write_text("".join(f"{data!r}\n" for data in kept.values()))


def main() -> None:
    """Fuzz, until libFuzzer's options or a broken law end it."""
    atheris: Any = importlib.import_module("atheris")  # its hooks of regular expressions know no start positions
    with atheris.instrument_imports(include=["wherry.backends.http"]):
        from servers import heard
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for n, data in enumerate(heard.corpus()):
        (folder / f"kept-{n}").write_bytes(data)
    atheris.Setup(sys.argv, heard.hear)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if sys.argv[1] == "--keep":
        keep(Path(sys.argv[2]))
    else:
        main()
