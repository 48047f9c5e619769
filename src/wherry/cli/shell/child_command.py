"""A command that ``wherry mirror DIR URI -- COMMAND`` runs: its signals, its end, its exit code as a shell gives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wherry.cli.exit_codes import Exit

#: What we pass on. SIGQUIT and the others keep their meaning for us; the command lives on then, as after kill -9.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: As shells say it.
CANNOT_RUN, NOT_FOUND, SIGNALLED = 126, 127, 128


class ChildCommand:
    """A command whose end we wait for. Within `signals()` what reaches us reaches it; then the second signal ends us.

    A Ctrl-C on a terminal is not passed on: the terminal sends it to the command itself, as both are of its foreground group.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._process: subprocess.Popen[bytes] | None = None
        self._n_signals = 0
        self._early: list[int] = []
        self._is_told_late = False
        self.code: int | None = None

    @property
    def problem(self) -> tuple[int, str] | None:
        """The exit code and the words of a shell if there is no such command; None if there is."""
        name = self._words[0]
        if shutil.which(name) is not None:
            return None
        if os.path.exists(name) and os.path.dirname(name):
            return CANNOT_RUN, f"{name}: cannot be run: it is a folder or has no right to be executed; nothing was mirrored"
        return NOT_FOUND, f"{name}: command not found; nothing was mirrored"

    def run(self) -> int:
        """Start it and wait for its end. Returns its exit code; 128 + n if signal n ended it. OSError if it cannot be started."""
        self._process = subprocess.Popen(self._words)
        for number in self._early:  # they came before there was anybody to tell
            self._process.send_signal(number)
        code = self._process.wait()  # handlers run meanwhile
        self.code = code if code >= 0 else SIGNALLED - code
        if self._is_told_late:
            self._end_or_announce(self.code)
        return self.code

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass signals on to the command; after its end, let the second one that has come end this process at once."""
        # What nohup, or a shell's &, has us ignore the command is to ignore, too: it inherits that, and no handler.
        told = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in told}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self._n_signals += 1
        if self.code is not None:
            self._end_or_announce(self.code)
        elif self._process is None:
            self._early.append(number)
        elif not _tell(self._process.pid, number):
            self._is_told_late = True  # it has just been waited for, and `run` does not know its code yet

    def _end_or_announce(self, code: int) -> None:
        """What a signal means after the command's end."""
        if self._n_signals > 1:
            os.write(2, b"\nwherry: interrupted; what is not sent stays in the folder: wherry mirror resume\n")
            os._exit(code or Exit.INTERRUPTED)
        os.write(2, b"\nwherry: sending what is left; once more ends at once\n")


def _tell(pid: int, number: int) -> bool:
    """Pass a signal on to our child, unless the terminal has told it already. False if the child has been waited for."""
    try:
        os.kill(pid, 0 if number == signal.SIGINT and _terminal_tells_all() else number)
    except ProcessLookupError:
        return False
    return True


def _terminal_tells_all() -> bool:
    """Whether we are of the foreground group of a terminal, whose Ctrl-C goes to every process of that group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # we have none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
