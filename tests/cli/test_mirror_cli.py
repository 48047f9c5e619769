"""mirror, pull and cat of what is mirrored, as a script uses them and a person at a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import CommandLine, Terminal
from mirrors import files_below, lines
from support import wait_until
from wherry.mirror.reader.pull_state import FOLDER

QUICK = ("--max-lag", "0.2", "--budget", "10000000")


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def write(folder: Path, path: str, data: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "ab") as file:
        file.write(data)


def contents(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_below(folder)}
    return {path: data for path, data in found.items() if path.partition("/")[0] not in (FOLDER, "_mirror")}


@contextmanager
def mirroring(line: CommandLine, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with line.start("mirror", *arguments) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_for_segments(line: CommandLine, n_bytes: int) -> None:
    def size_bytes(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:  # a temporary name, or what the mirror has removed meanwhile
            return 0

    def sent() -> bool:
        return n_bytes <= sum(size_bytes(p) for p in files_below(line.folder / "bucket") if "/segments/" in str(p))

    wait_until(sent, 60.0, f"{n_bytes} bytes in segments")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_mirror_runs_beside_a_program_and_seals_at_its_end(line: CommandLine, number: int) -> None:
    run = line.folder / "run"
    with mirroring(line, "run", "bucket", *QUICK) as process:
        write(run, "logs/a.log", lines(3000))
        wait_for_segments(line, 3000)
        write(run, "logs/a.log", b"no end")
        write(run, "c.json", b"{}")
        process.send_signal(number)
        assert 0 == process.wait(60)
    assert contents(run) == contents(line.folder / "bucket")


def test_a_mirror_says_what_it_does_when_it_starts(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    with mirroring(line, "run", "bucket", "--max-lag", "7", "--budget", "1234", "--writer", "w") as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith(f"wherry: mirroring {line.folder / 'run'} to ")
        assert all(word in said for word in ("as w: ", "7 s", "1,234 requests an hour", "SIGTERM", "one object of each file"))


def test_a_mirror_says_in_json_how_far_it_is(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(3000))
    out, _ = line.run("mirror", "resume", "run", "bucket", "--writer", "w1", "--json")
    report = json.loads(out)
    assert (True, 1, 0, "w1", []) == tuple(report[n] for n in ("is_complete", "n_files", "unsent_bytes", "writer", "trouble"))


def test_what_a_killed_mirror_has_left_is_sent_by_resume(line: CommandLine) -> None:
    run = line.folder / "run"
    with mirroring(line, "run", "bucket", *QUICK, "--writer", "w") as process:
        write(run, "a.log", lines(3000))
        wait_for_segments(line, 3000)
        process.kill()
    write(run, "a.log", lines(3000, 1))
    out, _ = line.run("mirror", "status", "bucket", "--json")
    assert ("w", "open") == (json.loads(out)["writer"], json.loads(out)["state"])
    out, _ = line.run("mirror", "resume", "run", "bucket", "--writer", "w")
    assert out.startswith("complete  1 file,")
    assert contents(run) == contents(line.folder / "bucket")
    out, _ = line.run("mirror", "status", "bucket")
    assert ["sealed", "w"] == [out.split()[6], out.split()[-1]]


def test_rules_say_what_is_what(line: CommandLine) -> None:
    run = line.folder / "run"
    for name in ("a.out", "b.log", "c.log"):
        write(run, name, lines(100))
    line.run("mirror", "resume", "run", "bucket", "--no-seal", "--rule", "*.out=append", "--rule", "c.*=ignore", "--writer", "w")
    names = sorted({path.parent.name for path in files_below(line.folder / "bucket") if "/segments/" in str(path)})
    assert ["a.out", "b.log"] == names
    out, _ = line.run("cat", "bucket/a.out")
    assert lines(100).decode() == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "run/bucket"), "lie in one another"),
        (("file", "bucket"), "is no folder"),
        (("run", "bucket", "--rule", "*.out"), "write PATTERN=KIND"),
        (("run", "bucket", "--rule", "*.out=often"), "use one of append, replace, once, ignore"),
        (("run", "bucket", "--compress", "lzma"), "use None, 'gzip' or 'zstd'"),
        (("run", "s3:/bucket"), "write s3://bucket"),
        (("run", "bucket", "--writer", "a/b"), "one part of a key"),
    ],
)
def test_a_wrong_mirror_is_refused_before_it_begins(line: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    (line.folder / "run").mkdir()
    (line.folder / "file").write_text("")
    assert message in line.refuse("mirror", *arguments, expected=2)


def test_two_mirrors_of_one_folder_are_one_too_many(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(100))
    with mirroring(line, "run", "bucket", *QUICK):
        wait_for_segments(line, 100)
        err = line.refuse("mirror", "run", "other", expected=8)
        assert "is being mirrored by process" in err


def test_of_two_mirrors_with_one_name_the_first_stops_and_says_so(line: CommandLine) -> None:
    for name in ("run", "run2"):
        write(line.folder / name, f"{name}.log", lines(100))
    with line.start("mirror", "run", "bucket", *QUICK, "--writer", "w") as process:
        try:
            wait_for_segments(line, 100)
            line.run("mirror", "resume", "run2", "bucket", "--writer", "w")

            def ends() -> bool:  # it looks for others when it has something to send
                write(line.folder / "run", "run.log", lines(100, 1))
                return process.poll() is not None

            wait_until(ends, 60.0, "the first mirror's end")
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert 1 == process.returncode
    assert 1 == err.count("another process mirrors as 'w'")


def test_a_folder_that_is_called_like_a_command_is_mirrored_by_its_path(line: CommandLine) -> None:
    write(line.folder / "status", "a.log", lines(100))
    with mirroring(line, "./status", "bucket", *QUICK):
        wait_for_segments(line, 100)


def test_ctrl_c_at_a_terminal_sends_the_rest_and_seals(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(3000))
    terminal = Terminal(line, "mirror", "run", "bucket", *QUICK)
    terminal.read_until("1 file, .* sent, up to date")
    terminal.type("\x03")
    assert 0 == terminal.end()
    assert "complete" in terminal.seen
    assert contents(line.folder / "run") == contents(line.folder / "bucket")


def test_a_second_ctrl_c_ends_at_once(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(3000))
    terminal = Terminal(line, "mirror", "run", "s3://b/x", "-o", "endpoint_url=http://127.0.0.1:9", "-o", "anonymous=true")
    terminal.read_until("files, ")
    terminal.type("\x03")
    terminal.read_until("once more ends at once")
    terminal.type("\x03")
    assert 130 == terminal.end()


# -- status, verify, seal


@pytest.fixture
def left(line: CommandLine) -> CommandLine:
    """What a mirror has left that was killed: segments."""
    write(line.folder / "run", "a.log", lines(3000))
    write(line.folder / "run", "c.json", b"{}")
    line.run("mirror", "resume", "run", "bucket", "--no-seal", "--writer", "w")
    return line


def test_verify_compares_with_the_folder(left: CommandLine) -> None:
    assert ("2 right\n", "") == left.run("mirror", "verify", "bucket", "run")
    assert ("2 right\n", "") == left.run("mirror", "verify", "bucket", "--read")
    path = left.folder / "run/a.log"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    out, _ = left.run("mirror", "verify", "bucket", "run", expected=7)
    assert out.startswith("wrong   a.log: bytes 0 to ")
    out, _ = left.run("mirror", "verify", "bucket", "run", "--json", expected=7)
    assert ["wrong", "right"] == [json.loads(one)["verdict"] for one in out.splitlines()]


def test_a_damaged_and_a_missing_segment_are_found(left: CommandLine) -> None:
    segment = next(path for path in files_below(left.folder / "bucket") if "/segments/" in str(path))
    segment.write_bytes(segment.read_bytes()[:-10])
    out, _ = left.run("mirror", "verify", "bucket", "run", expected=7)
    assert "wrong   a.log: 10 bytes" in out
    segment.unlink()
    out, _ = left.run("mirror", "verify", "bucket", "run", expected=7)
    assert "wrong   a.log: it is not in the store" in out
    left.refuse("cat", "bucket/a.log", expected=3)


def test_seal_makes_plain_objects_when_it_is_told_to(left: CommandLine) -> None:
    manifest = next(path for path in files_below(left.folder / "bucket") if path.name == "manifest.json")
    text = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**text, "state": "open", "heartbeat_s": text["heartbeat_s"] - 10}))
    assert "was heard of" in left.refuse("mirror", "seal", "bucket", "--writer", "w", "--yes", expected=2)
    assert "--yes" in left.refuse("mirror", "seal", "bucket", "--force", expected=2)
    out, _ = left.run("mirror", "seal", "bucket", "--force", "--yes")
    assert "sealed       3.0 KiB  a.log\n" == out
    assert contents(left.folder / "run") == contents(left.folder / "bucket")
    assert "nothing is unsealed here" in left.refuse("mirror", "seal", "bucket", "--yes", expected=3)


def test_seal_keeps_a_log_that_was_rotated_just_before_the_machine_died_and_says_so(line: CommandLine) -> None:
    run, bucket = line.folder / "run", line.folder / "bucket"
    old, new = lines(3000), lines(3000, 1)
    with mirroring(line, "run", "bucket", "--max-lag", "10", "--segment-bytes", "1000") as process:
        write(run, "train.log", old)
        wait_for_segments(line, 2500)
        (run / "train.log").rename(run / "train.log.1")
        write(run, "train.log", new)
        wait_for_segments(line, 5400)
        process.kill()
    out, _ = line.run("mirror", "seal", "bucket", "--force", "--yes")
    assert "train.log.generation-0001  (an earlier train.log: " in out
    assert ["train.log", "train.log.generation-0001"] == sorted(contents(bucket))
    for name, data in (("train.log", new), ("train.log.generation-0001", old)):
        kept = (bucket / name).read_bytes()
        assert len(kept) > 2500
        assert data.startswith(kept)


@pytest.mark.parametrize("verb", [("mirror", "status"), ("mirror", "verify"), ("mirror", "seal", "--yes")])
def test_where_nothing_was_mirrored_there_is_nothing(line: CommandLine, verb: tuple[str, ...]) -> None:
    (line.folder / "bucket").mkdir()
    line.refuse(*verb, "bucket", expected=3)


# -- pull, cat


def test_pull_copies_what_is_live(left: CommandLine) -> None:
    out, err = left.run("pull", "bucket", "copy")
    assert out.startswith("sealed: 2 files, 3.0 KiB new")
    assert "" == err
    assert contents(left.folder / "run") == contents(left.folder / "copy")
    out, _ = left.run("pull", "bucket", "copy", "--json")
    report = json.loads(out)
    assert (0, 2, []) == (report["n_bytes"], report["n_files"], report["trouble"])


def test_pull_refuses_what_is_not_its_own(left: CommandLine) -> None:
    write(left.folder / "copy", "a.log", b"mine\n")
    assert "not the beginning of what the store has" in left.refuse("pull", "bucket", "copy", expected=4)
    assert {"a.log": b"mine\n", "c.json": b"{}"} == contents(left.folder / "copy")
    left.run("pull", "bucket", "copy", "--overwrite")
    assert contents(left.folder / "run") == contents(left.folder / "copy")
    left.refuse("pull", "nothing", "copy2", expected=3)
    assert "lie in one another" in left.refuse("pull", "bucket", "bucket/copy", expected=2)


def test_a_pull_that_follows_ends_with_ctrl_c_and_says_how_to_go_on(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(3000))
    with mirroring(line, "run", "bucket", *QUICK):
        wait_for_segments(line, 3000)
        terminal = Terminal(line, "pull", "bucket", "copy", "--follow", "--interval", "0.1")
        terminal.read_until("open: 1 file, 3.0 KiB new; the writer was heard of .* ago")
        terminal.type("\x03")
        assert 130 == terminal.end()
    assert "interrupted; what is in copy is right as far as it goes" in terminal.seen
    assert contents(line.folder / "run") == contents(line.folder / "copy")


def test_a_pull_that_follows_says_in_json_what_each_look_found(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(3000))
    line.run("mirror", "resume", "run", "bucket")
    out, _ = line.run("pull", "bucket", "copy", "--follow", "--json")
    assert ["sealed", "sealed"] == [json.loads(one)["state"] for one in out.splitlines()]


@pytest.mark.parametrize("uri", ["bucket/a.log", "bucket/deep/b.log", "bucket/c.json"])
def test_cat_puts_a_live_file_together(left: CommandLine, uri: str) -> None:
    write(left.folder / "run", "deep/b.log", lines(500, 1))
    left.run("mirror", "resume", "run", "bucket", "--no-seal", "--writer", "w")
    out, _ = left.run("cat", uri)
    assert (left.folder / "run" / uri.removeprefix("bucket/")).read_text() == out


def test_cat_of_a_file_that_went_on_after_a_seal_has_all_of_it(left: CommandLine) -> None:
    left.run("mirror", "resume", "run", "bucket", "--writer", "w")
    write(left.folder / "run", "a.log", lines(500, 1))
    left.run("mirror", "resume", "run", "bucket", "--no-seal", "--writer", "w")
    out, _ = left.run("cat", "bucket/a.log")
    assert (left.folder / "run/a.log").read_text() == out


def test_cat_into_a_closed_pipe_ends_quietly(line: CommandLine) -> None:
    write(line.folder / "run", "a.log", lines(2_000_000))
    line.run("mirror", "resume", "run", "bucket", "--no-seal")
    command = f"{sys.executable} -m wherry.cli cat bucket/a.log | head -c 100"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=line.folder,
        env={**os.environ, **line.environment},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert (lines(200)[:100], b"") == (done.stdout, done.stderr)
