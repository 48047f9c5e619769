"""Capture of stdout and stderr: each script is a process of its own, whose real descriptors are replaced."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from programs import Program
from support import run_script, wait_until

PROLOGUE = """
import ctypes, os, signal, subprocess, sys, threading, warnings
from pathlib import Path
from wherry.loggers.capture.capture import Capture

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later, for a fork with threads
folder = Path(sys.argv[1])
def capture(name="log.txt", streams=("stdout", "stderr"), **options):
    made = Capture(streams, **options)
    made.name(str(folder / name))
    return made
"""


def captured(folder: Path, text: str, *, expected: int = 0, prefix: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """What a script shows, and the lines of the log that it leaves."""
    shown = run_script(PROLOGUE + textwrap.dedent(text), folder, expected=expected, prefix=prefix)
    log = folder / "log.txt"
    return shown, log.read_text(errors="replace").splitlines() if log.exists() else []


def test_python_c_code_children_and_bare_writes_are_kept_and_still_shown(tmp_path: Path) -> None:
    shown, lines = captured(
        tmp_path,
        """
        c = capture()
        print("python", flush=True)
        os.write(1, b"bare\\n")
        subprocess.run(["echo", "child"], check=True)
        ctypes.CDLL(None).printf(b"C code\\n")
        print("error", file=sys.stderr)
        c.close()
        print("after")
        """,
    )
    assert ["[stdout]: python", "[stdout]: bare", "[stdout]: child", "[stdout]: C code"] == lines[:4]
    assert ["[stderr]: error"] == [line for line in lines if "stderr" in line]
    assert {"python", "bare", "child", "C code", "error", "after"} == set(shown.splitlines())
    assert 5 == len(lines)


def test_what_is_added_stands_between_what_was_printed_before_and_after(tmp_path: Path) -> None:
    shown, lines = captured(
        tmp_path,
        """
        c = capture()
        for i in range(300):
            print("printed", i)
            c.add(f"added {i}\\n")
        c.close()
        """,
    )
    assert [line for i in range(300) for line in (f"[stdout]: printed {i}", f"added {i}")] == lines
    assert "".join(f"printed {i}\n" for i in range(300)) == shown


def test_a_long_text_is_added_whole_and_is_not_shown(tmp_path: Path) -> None:
    shown, lines = captured(tmp_path, "c = capture()\nc.add('ä' * 1_000_000 + '\\n')\nc.close()")
    assert ["ä" * 1_000_000] == lines
    assert "" == shown


def test_a_progress_bar_is_one_line_and_colours_are_left_out(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        r"""
        c = capture()
        print("\r 10%\r 50%\r100%")
        print("\x1b[1;31mred\x1b[0m and \x1b]0;a title\x07plain")
        print("half a bar\r", end="")
        print("\x1b[2K\x1b[A")
        print()
        print("dos\r")
        print("never", "ended", end="")
        c.close()
        """,
    )
    assert ["[stdout]: 100%", "[stdout]: red and plain", "[stdout]: ", "[stdout]: dos"] == lines[:4]
    assert "[stdout]: never ended" == lines[-1]


def test_bytes_that_are_no_text_are_kept_as_they_are(tmp_path: Path) -> None:
    script = r"c = capture(); os.write(1, b'raw \xff\x00\n' + b'\0'); os.write(1, b'end\n'); c.close()"
    captured(tmp_path, script, prefix=("sh", "-c", 'exec "$0" "$@" > /dev/null'))
    assert b"[stdout]: raw \xff\x00\n[stdout]: \x00end\n" == (tmp_path / "log.txt").read_bytes()


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    _, lines = captured(tmp_path, "c = capture()\nfor _ in range(100): os.write(1, b'x' * 10_000)\nc.close()")
    assert 1_000_000 == sum(len(line) - len("[stdout]: ") for line in lines)
    assert 16 == len(lines)


def test_a_terminal_stays_one(tmp_path: Path) -> None:
    """Programs show their colours and bars as wide as before; what is shown is what was printed."""
    script = """
        import fcntl, struct, termios
        sizes = [os.get_terminal_size(2)]
        c = capture()
        sizes.append(os.get_terminal_size(2))
        print(os.isatty(1), os.isatty(2), "\\x1b[1mbold\\x1b[0m")
        subprocess.run(["sh", "-c", "test -t 1 && echo child too"], check=True)
        c.close()
        (folder / "sizes").write_text(repr(set(map(tuple, sizes))))
        assert os.isatty(1)
        """
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(script), str(tmp_path)]
    with Program(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave) as process:
        assert 0 == process.wait(timeout=60)
    os.close(slave)
    shown = os.read(master, 65536)
    os.close(master)
    assert b"True True \x1b[1mbold\x1b[0m\r\nchild too\r\n" == shown
    assert "{(101, 33)}" == (tmp_path / "sizes").read_text()
    assert ["[stdout]: True True bold", "[stdout]: child too"] == (tmp_path / "log.txt").read_text().splitlines()


def test_a_terminal_that_is_resized_is_followed(tmp_path: Path) -> None:
    import fcntl
    import struct
    import termios

    script = """
        c = capture()
        print("ready", flush=True)
        sys.stdin.readline()
        print("resized", flush=True)
        c.sync()
        (folder / "width").write_text(str(os.get_terminal_size(1).columns))
        """
    master, slave = pty.openpty()
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(script), str(tmp_path)]
    program: Program[bytes] = Program(command, stdin=subprocess.PIPE, stdout=slave, stderr=slave)
    with program as process:
        assert process.stdin is not None
        assert b"ready" in os.read(master, 100)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        process.stdin.write(b"\n")
        process.stdin.close()
        assert 0 == process.wait(timeout=60)
    os.close(slave)
    os.close(master)
    assert "77" == (tmp_path / "width").read_text()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)", "os._exit(3)", "os.abort()"])
def test_what_was_printed_before_a_sudden_end_is_kept(tmp_path: Path, end: str) -> None:
    expected = {"SIGKILL": -signal.SIGKILL, "string": -signal.SIGSEGV, "_exit": 3, "abort": -signal.SIGABRT}
    _, lines = captured(
        tmp_path,
        f"""
        import faulthandler
        c = capture()
        faulthandler.enable()
        for i in range(1000):
            os.write(1, b"line %d\\n" % i)
        c.add("added last\\n")
        {end}
        """,
        expected=next(code for part, code in expected.items() if part in end),
    )
    assert [*(f"[stdout]: line {i}" for i in range(1000)), "added last"] == [line for line in lines if "stderr" not in line]
    if "string_at" in end:
        assert any("Segmentation fault" in line for line in lines)


def test_c_code_that_holds_the_interpreter_lock_does_not_hang(tmp_path: Path) -> None:
    """A reader in a thread of the same process could not run, and the pipe would stay full for ever."""
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        data = b"0123456789\\n" * 200_000
        written = 0
        while written < len(data):
            written += ctypes.PyDLL(None).write(1, data[written:], len(data) - written)
        c.close()
        """,
    )
    assert 200_000 == lines.count("[stdout]: 0123456789")


def test_a_child_that_lives_on_neither_holds_up_the_close_nor_is_killed_by_its_next_line(tmp_path: Path) -> None:
    script = """
        c = capture()
        child = "read line < $0/fifo; echo late; echo $? > $0/result"
        subprocess.Popen(["sh", "-c", child, str(folder)])
        print("before", flush=True)
        c.close()
        print("closed", flush=True)
        os._exit(0)
        """
    os.mkfifo(tmp_path / "fifo")
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(script), str(tmp_path)]
    with Program(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert 0 == process.wait(timeout=60)
        (tmp_path / "fifo").write_text("go\n")
        assert ["before", "closed", "late"] == process.stdout.read().splitlines()
    assert "0\n" == (tmp_path / "result").read_text()
    assert ["[stdout]: before"] == (tmp_path / "log.txt").read_text().splitlines()


def test_a_forked_child_prints_into_the_log_once_and_closes_nothing(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        print("parent", flush=True)
        if not os.fork():
            print("child", flush=True)
            try:
                c.check_process()
            except RuntimeError as error:
                print("refused" if "belongs to process" in str(error) else error, flush=True)
            c.close()
            sys.exit(0)
        os.wait()
        print("parent again")
        c.close()
        """,
    )
    assert [f"[stdout]: {text}" for text in ("parent", "child", "refused", "parent again")] == lines


def test_a_forked_child_that_lives_on_does_not_hold_up_the_close(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        go, goes = os.pipe()
        if not os.fork():
            os.close(goes)
            os.read(go, 1)
            os._exit(0)
        print("parent")
        c.close()
        os.close(goes)
        os.wait()
        """,
    )
    assert ["[stdout]: parent"] == lines


def test_a_child_forked_while_another_thread_logs_does_not_hang(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        done = threading.Event()
        def log():
            while not done.is_set():
                c.add("x" * 10_000 + "\\n")
        thread = threading.Thread(target=log)
        thread.start()
        for _ in range(20):
            if not os.fork():
                c.close()
                os._exit(0)
            assert os.wait()[1] == 0
        done.set()
        thread.join()
        c.close()
        """,
    )
    assert {"x" * 10_000} == set(lines)


def test_a_forked_child_keeps_the_files_opened_after_the_close(tmp_path: Path) -> None:
    shown, _ = captured(
        tmp_path,
        """
        c = capture()
        c.close()
        later = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        if not os.fork():
            for descriptor in later:
                os.fstat(descriptor)
            print("all open", flush=True)
            os._exit(0)
        os.wait()
        """,
    )
    assert "all open" in shown


@pytest.mark.parametrize("order", ["inner, outer", "outer, inner"])
def test_captures_can_be_nested_and_closed_in_any_order(tmp_path: Path, order: str) -> None:
    shown, lines = captured(
        tmp_path,
        f"""
        before = os.fstat(1).st_ino, os.fstat(2).st_ino
        outer = capture("log.txt")
        print("one")
        inner = capture("inner.txt")
        print("two")
        first, second = {order}
        first.close()
        print("three")
        second.close()
        print("four")
        assert before == (os.fstat(1).st_ino, os.fstat(2).st_ino)
        """,
    )
    # The outer writer process, closed already, has "three" from the inner one, and nobody waits for it any more.
    captured_lines = [line for line in shown.splitlines() if line != "four"]
    assert ["one", "two", "three"] == captured_lines
    assert "four" in shown.splitlines()
    assert order.startswith("outer") or shown.endswith("four\n")
    inner = (tmp_path / "inner.txt").read_text().splitlines()
    third = ["[stdout]: three"]
    assert ["[stdout]: one", "[stdout]: two", *(third if order.startswith("inner") else [])] == lines
    assert ["[stdout]: two", *(third if order.startswith("outer") else [])] == inner


def test_what_somebody_else_has_put_over_it_is_left_alone(tmp_path: Path) -> None:
    shown, lines = captured(
        tmp_path,
        """
        c = capture()
        print("ours", flush=True)
        theirs = os.open(folder / "theirs", os.O_WRONLY | os.O_CREAT)
        before = os.dup(1)
        os.dup2(theirs, 1)
        print("theirs", flush=True)
        c.close()
        print("still theirs", flush=True)
        os.dup2(before, 1)
        print("back", flush=True)
        """,
    )
    assert ["[stdout]: ours"] == lines
    assert "theirs\nstill theirs\n" == (tmp_path / "theirs").read_text()
    assert ["ours", "back"] == shown.splitlines()


def test_a_child_that_makes_the_pipe_non_blocking_loses_no_line(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        os.set_blocking(1, False)
        for i in range(2000):
            c.add(f"{i} " + "x" * 1000 + "\\n")
        c.close()
        """,
    )
    assert [str(i) for i in range(2000)] == [line.split()[0] for line in lines]


def test_printing_goes_on_when_the_scribe_is_killed(tmp_path: Path) -> None:
    shown, lines = captured(
        tmp_path,
        """
        import logging, psutil
        from support import wait_until
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        c = capture()
        print("before", flush=True)
        c.sync()
        (writer,) = (p for p in psutil.process_iter(["cmdline"]) if c._token in (p.info["cmdline"] or []))
        writer.kill()
        wait_until(lambda: c.is_over, what="the capture to notice")
        for i in range(5):
            print("x" * 100_000, flush=True)
            c.add("lost\\n")
        c.sync()
        c.close()
        print("after")
        """,
    )
    assert ["[stdout]: before"] == lines
    assert 5 == shown.count("x" * 100_000)
    assert 1 == shown.count("its writer was killed")
    assert shown.endswith("after\n")


def test_a_stream_whose_reader_is_gone_does_not_stop_the_run(tmp_path: Path) -> None:
    script = PROLOGUE + "c = capture()\nfor i in range(10_000): print(i)\nc.close()\nos._exit(0)\n"
    with Program([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert 0 == process.wait(timeout=60)
    assert [f"[stdout]: {i}" for i in range(10_000)] == (tmp_path / "log.txt").read_text().splitlines()


def test_a_stream_that_was_never_open_is_not_captured(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = capture()
        assert not c.captures("stdout") and c.captures("stderr")
        c.add("added\\n")
        print("error", file=sys.stderr)
        c.close()
        """,
        prefix=("sh", "-c", 'exec "$0" "$@" 1>&-'),
    )
    assert ["added", "[stderr]: error"] == lines


def test_lines_wait_for_the_name_and_have_a_place_to_go_without_one(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        named = Capture(["stdout"], fallback=str(folder / "unused.txt"))
        print("early", flush=True)
        named.add("added\\n")
        named.name(str(folder / "log.txt"))
        named.close()
        killed = Capture(["stdout"], fallback=str(folder / "fallback.txt"))
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        expected=-signal.SIGKILL,
    )
    assert ["[stdout]: early", "added"] == lines
    assert "[stdout]: last words\n" == (tmp_path / "fallback.txt").read_text()
    assert not (tmp_path / "unused.txt").exists()


def test_lines_that_wait_for_a_name_too_long_go_to_the_fallback(tmp_path: Path) -> None:
    _, lines = captured(
        tmp_path,
        """
        c = Capture([], fallback=str(folder / "log.txt"))
        for i in range(17):
            c.add("x" * 2**20 + "\\n")
        c.name(str(folder / "name.txt"))
        c.add("named\\n")
        c.close()
        """,
    )
    assert 17 == len(lines)
    assert "named\n" == (tmp_path / "name.txt").read_text()


def test_the_scribe_ends_with_the_last_writer(tmp_path: Path) -> None:
    import psutil

    shown, _ = captured(tmp_path, "c = capture()\nprint('x', flush=True)\nc.close()\nprint(c._token)")
    token = shown.splitlines()[-1]
    wait_until(
        lambda: not any(token in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])),
        what="the writer process to leave",
    )


def test_the_standard_streams_are_what_they_were_after_the_close(tmp_path: Path) -> None:
    captured(
        tmp_path,
        """
        n_before = len(os.listdir("/proc/self/fd"))
        before = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in (1, 2)]
        for _ in range(3):
            with_stdout = capture(streams=["stdout"])
            with_stdout.close()
            with_stdout.close()
        assert before == [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in (1, 2)]
        assert n_before == len(os.listdir("/proc/self/fd"))
        assert threading.active_count() == 1
        """,
    )


def test_a_program_without_an_interpreter_to_start_is_told_so(tmp_path: Path) -> None:
    captured(
        tmp_path,
        """
        for executable in ("", "/nowhere/python"):
            sys.executable = executable
            try:
                Capture(["stdout"])
            except (RuntimeError, FileNotFoundError) as error:
                assert executable in str(error)
            else:
                raise AssertionError(executable)
        assert len(os.listdir("/proc/self/fd")) == 4  # the three, and the one that lists
        """,
    )


def test_what_python_prints_past_the_descriptors_is_kept_too(tmp_path: Path) -> None:
    """As in a notebook, whose print() never reaches a descriptor."""
    _, lines = captured(
        tmp_path,
        """
        import io
        before = sys.stdout = io.StringIO()
        c = capture()
        print("python")
        c.add("added\\n")
        sys.stdout.writelines(["two\\n", "three\\n"])
        os.write(1, b"bare\\n")
        c.close()
        print("after")
        assert sys.stdout is before
        assert before.getvalue() == "python\\ntwo\\nthree\\nafter\\n"
        """,
    )
    assert ["[stdout]: python", "added", "[stdout]: two", "[stdout]: three", "[stdout]: bare"] == lines


@pytest.mark.large
def test_a_notebook_is_captured(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    cells = [
        f"import os, subprocess, sys\nfrom wherry.loggers.capture.capture import Capture\nc = Capture(['stdout', 'stderr'])\n"
        f"c.name({str(tmp_path / 'log.txt')!r})",
        "print('printed')\nprint('wrong', file=sys.stderr)\n_ = subprocess.run(['echo', 'child'])\nc.sync()",
        "c.close()\nprint('after')",
    ]
    code: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = nbformat.from_dict(  # type: ignore[no-untyped-call]
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
            "cells": [{**code, "id": f"cell{i}", "source": source} for i, source in enumerate(cells)],
        }
    )
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    assert {"printed", "wrong", "after"} <= set(shown.splitlines())
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert ["[stderr]: wrong", "[stdout]: child", "[stdout]: printed"] == sorted(log)
