"""Every example of the help and of docs/cli.md runs, as it stands but for the bucket: a folder takes its place."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoint_sets import save_set
from command_line import CommandLine, Terminal, is_plain
from programs import Program
from servers.web_page import make_runs
from support import environment_without, file_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.cli.shell.examples import EXAMPLES
from wherry.errors import UploadFailed
from wherry.uploader import Uploader
from wherry.uri import StoreURI

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/cli.md").read_text()
WHERRY = [sys.executable, "-m", "wherry.cli"]
#: These go on until Ctrl-C.
_GOES_ON = re.compile(r"wherry (mirror (start )?runs/7(?!.* -- )|agent|ui)( |$)")


def _objects(line: CommandLine) -> None:
    for name in ("latest.pt", "ep1.pt", "ep3.pt", "old.tmp", "logs/big"):
        file_of(line.folder / "bucket/run1" / name, 1000)
    (line.folder / "bucket/run1/logs/a.log").write_text("loss 1\n")
    (line.folder / "bucket/run1/metrics.json").write_text("{}\n")
    (line.folder / "bucket/run1/train.log").write_text("loss 2\nloss 1\n")


def _latest(line: CommandLine) -> None:
    file_of(line.folder / "bucket/run1/latest.pt", 1000)


def _mirrored(line: CommandLine) -> None:
    _segments(line)
    line.run("mirror", "resume", "runs/7", "bucket/runs/7", "--writer", "rank0")


def _segments(line: CommandLine) -> None:
    with open(line.folder / "runs/7/train.log", "a") as log:
        log.write("loss 2\nloss 1\n")
    line.run("mirror", "resume", "runs/7", "bucket/runs/7", "--writer", "rank0", "--no-seal")


def _sealed_and_objects(line: CommandLine) -> None:
    _objects(line)
    _mirrored(line)


def _sets(line: CommandLine) -> None:
    run = line.folder / "bucket/project/run1"
    run.parent.mkdir(exist_ok=True, parents=True)
    keys = RunKeys(f"{str(run).strip('/')}/checkpoints")
    for step in (10, 20, 30, 40):
        save_set(LocalStore(StoreURI("file", "", str(run.parent).strip("/")), {}), keys, step, world=1, metrics={"loss": step})


def _failed(line: CommandLine) -> None:
    names = ("a", "b", "c", "d")
    with suppress(UploadFailed), Uploader(line.folder / "taken", spool=line.spool) as uploader:
        for name in names:
            file_of(line.folder / "taken" / name, 10)
            uploader.put(line.folder / "model.pt", name)


def _uploaded(line: CommandLine) -> None:
    line.run("put", "model.pt", "./bucket/run1/ep3.pt")


def _runs(line: CommandLine) -> None:
    make_runs(line.folder / "bucket/runs")
    (line.folder / "bucket/reports").mkdir()


#: What must be there before the examples of a verb; once, or before each of them.
_BEFORE: dict[str, Callable[[CommandLine], None]] = {
    "": _latest,
    **dict.fromkeys(("cp", "mv", "get", "ls", "du", "rm", "sync"), _objects),
    "cat": _sealed_and_objects,
    **dict.fromkeys(("status", "drain", "doctor"), _uploaded),
    **dict.fromkeys(("retry", "discard"), _failed),
    **dict.fromkeys(("mirror status", "mirror verify"), _segments),
    "pull": _mirrored,
    **dict.fromkeys(("runs", "plot", "report", "ui"), _runs),
}
_BEFORE_EACH: dict[str, Callable[[CommandLine], None]] = {"mirror": _segments, "mirror seal": _segments, "rm": _objects}

#: Commands of pages that are no example, each with what must be there before.
OTHERS = {"wherry status --watch": _uploaded, "wherry cat s3://my-bucket/runs/7/train.log": _mirrored}


@pytest.fixture
def work(line: CommandLine) -> Iterator[CommandLine]:
    """A folder with what the examples name, and `wherry` on the path of a shell."""
    for name in ("model.pt", "big.ckpt", "logs/a.log"):
        file_of(line.folder / name, 1000)
    (line.folder / "keys.json").write_text("{}")
    (line.folder / "train.sh").write_text("echo loss 1 >> runs/7/train.log\n")
    for folder in ("bucket", "models"):
        (line.folder / folder).mkdir()
    (line.folder / "runs/7").mkdir(parents=True)
    yield line


def _run(line: CommandLine, example: str, *, new: bool = True) -> None:
    """Run it as a shell does, by a `new` interpreter; or forked, if it needs nothing of a shell."""
    command = example.replace("s3://my-bucket", str(line.folder / "bucket"))
    if _GOES_ON.match(example):
        _end_by_ctrl_c(line, shlex.split(command)[1:])
        return
    if not new and is_plain(command):
        _, err = line.run(*shlex.split(command)[1:])
        assert "Traceback" not in err
        return
    shell = f'set -o pipefail; wherry() {{ {shlex.join(WHERRY)} "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-c", shell], cwd=line.folder, env=line.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert 0 == done.returncode, (example, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def _end_by_ctrl_c(line: CommandLine, arguments: list[str]) -> None:
    with Program(
        [*WHERRY, *arguments], cwd=line.folder, env=line.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        while arguments[0] == "ui" and "http://" not in said:
            said = process.stdout.readline()
        assert said and "Error" not in said  # it has begun
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=90)
        assert 0 == process.returncode, (arguments, said, rest)


def _run_examples(verb: str, work: CommandLine, new: int) -> None:
    """Run the examples of a verb, the first `new` of them by new interpreters."""
    if verb == "demo":  # a torch network trains in tests/e2e/test_demo.py; here a small one in plain Python does
        work.environment |= environment_without(work.folder / "site", "torch", "sklearn")
    before = _sets if verb.startswith("checkpoints") else _BEFORE.get(verb)
    if before is not None:
        before(work)
    for n, example in enumerate(EXAMPLES[verb]):
        if verb in _BEFORE_EACH:
            _BEFORE_EACH[verb](work)
        _run(work, example, new=n < new)


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_every_example_runs(verb: str, work: CommandLine) -> None:
    """The first of a verb by a new interpreter, where the verb must import what it needs."""
    _run_examples(verb, work, new=1)


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_every_example_runs_by_a_new_interpreter(verb: str, work: CommandLine) -> None:
    _run_examples(verb, work, new=len(EXAMPLES[verb]))


def test_every_command_of_the_other_pages_is_run_here_or_beside_other_tools() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    blocks = (block for page in pages for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    cells = (re.sub(r" +#.*", "", cell).strip() for block in blocks for row in block.splitlines() for cell in row.split("   "))
    found = {cell for cell in cells if re.match(r"wherry [a-z]", cell)}
    compared = set(re.findall(r"`(wherry .*?)`", (ROOT / "docs/comparison.md").read_text()))
    assert set(OTHERS) == found - compared - {example for examples in EXAMPLES.values() for example in examples}


@pytest.mark.parametrize("command", OTHERS)
def test_the_other_commands_run(command: str, work: CommandLine) -> None:
    OTHERS[command](work)
    if "--watch" in command:
        terminal = Terminal(work, *command.split()[1:])
        terminal.read_until("1 done")
        terminal.type("\x03")
        assert 0 == terminal.end()
    else:
        _run(work, command)


def test_the_page_has_the_examples_and_no_others() -> None:
    found = dict(re.findall(r"^## `wherry ([\w ]+)`\n\n```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
    assert {verb: "\n".join(examples) + "\n" for verb, examples in EXAMPLES.items() if verb} == found


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_help_begins_with_the_examples(verb: str, line: CommandLine) -> None:
    out, _ = line.run(*verb.split(), "-h")
    usage, _, rest = out.partition("\n\n")
    assert usage.startswith("Usage: wherry")
    assert rest.startswith("Examples:\n" + "".join(f"  {example}\n" for example in EXAMPLES[verb]))
