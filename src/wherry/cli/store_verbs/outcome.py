"""What a command about many objects did: a line or a JSON object for each where wanted, the failures, and the summary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import typer

from wherry.cli.arguments import error_text, print_err, print_note, printable
from wherry.cli.exit_codes import Exit, exit_for
from wherry.cli.shell.closed_pipe import write_nowhere
from wherry.cli.shell.verbosity import is_quiet, is_verbose
from wherry.cli.store_verbs.bar import Bar, Tracked
from wherry.errors import WherryError
from wherry.redact import redact

_T = TypeVar("_T")

#: Objects that are moved side by side; each large one is moved in ranges or parts side by side, too.
_AT_ONCE = 16


def summary_text(done: str, n_files: int, n_bytes: int | None, took_s: float, n_retries: int, more: str = "") -> str:
    """The last line of a verb that moves objects. `n_bytes`: None where that is not known."""
    from wherry.quantities import count_text, size_text

    files = count_text(n_files, "file")
    return (
        f"{done}: {files}, {'size unknown' if n_bytes is None else size_text(n_bytes)}{more} in {effort_text(took_s, n_retries)}"
    )


def effort_text(took_s: float, n_retries: int) -> str:
    """``2.5 s, 1 retry``."""
    from wherry.quantities import count_text

    return f"{took_s:.1f} s, {count_text(n_retries, 'retry', 'retries')}"


class Outcome:
    """Counts what is done, in the main thread, and shows it.

    `done`: the word for what became of an object: got, copied, deleted.
    """

    def __init__(self, done: str, *, as_json: bool, dry_run: bool = False, lists: bool = False) -> None:
        from wherry.store.retry import retries

        self._done = done
        self._as_json = as_json
        self._dry_run = dry_run
        self._lists = lists or dry_run or is_verbose()
        self._begun_s = time.monotonic()
        self._retries = retries
        self._retries_before = retries()
        self.n_files = 0
        self.n_bytes = 0
        self._is_size_known = True
        #: Deleted beside what this command is about.
        self.n_deleted = 0
        self._codes: list[Exit] = []
        self._bar: Bar | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing has failed."""
        return not self._codes

    def add(self, uri: str, size_bytes: int, to: str | None = None, word: str | None = None) -> None:
        """An object is done, or would be. `word`: what became of it where that is not what becomes of all."""
        self.n_files += 1
        self.n_bytes += max(0, size_bytes)
        self._is_size_known = self._is_size_known and size_bytes >= 0
        self._show(uri, size_bytes, to, word or self._done)

    def deleted(self, uri: str, size_bytes: int) -> None:
        """An object was deleted that this command has not moved, or would be."""
        self.n_deleted += 1
        self._show(uri, size_bytes, None, "deleted")

    def _show(self, uri: str, size_bytes: int, to: str | None, word: str) -> None:
        if self._as_json:
            state = {"state": "planned", "plan": word} if self._dry_run else {"state": word}
            shown = {
                "uri": uri,
                **({} if to is None else {"to": to}),
                "size_bytes": None if size_bytes < 0 else size_bytes,
            } | state
            self._say(json.dumps(shown))
        elif self._lists:
            from wherry.quantities import size_text

            size = "?" if size_bytes < 0 else size_text(size_bytes)
            mark = f"would be {word}" if self._dry_run else word
            self._say(printable(f"{mark}  {size:>10}  {uri}" + ("" if to is None else f" -> {to}")))

    def fail(self, uri: str, error: BaseException) -> None:
        """Say that one object failed; the others go on."""
        self._codes.append(exit_for(error))
        if self._bar is not None:
            self._bar.hide()
        if self._as_json:
            self._say(json.dumps({"uri": uri, "state": "failed", "error": error_text(error)}))
        print_err(error_text(error))

    def _say(self, line: str) -> None:
        """Write a line to stdout. That nobody reads any more does not end the work."""
        try:
            typer.echo(redact(line))
        except BrokenPipeError:
            write_nowhere()

    def each_shown(
        self,
        work: Callable[[_T], object],
        items: Sequence[_T],
        uri_of: Callable[[_T], str],
        bar: Bar,
        tracked: Callable[[_T], Tracked],
        *,
        is_raised: bool = False,
    ) -> None:
        """As each(), with a bar of all bytes on a terminal, unless a line is written for each item.

        `tracked`: what of an item is counted, and how many bytes it has.
        """
        if not (self._as_json or self._lists):
            from wherry.quantities import count_text

            n_bytes = sum(max(0, tracked(item).size_bytes) for item in items)
            bar.begin(count_text(len(items), "file"), n_bytes)

        def tracking(item: _T) -> object:
            bar.expect(tracked(item))
            try:
                return work(item)
            finally:
                bar.settle(tracked(item))

        self._bar = bar
        try:
            self.each(tracking, items, uri_of, is_raised=is_raised)
        finally:
            bar.end()
            self._bar = None

    def each(
        self, work: Callable[[_T], object], items: Iterable[_T], uri_of: Callable[[_T], str], *, is_raised: bool = False
    ) -> None:
        """Do the work on all items, several at once, which are taken as they are needed; an error is the failure of its item.

        `is_raised`: it is the command's own. What the work returns, if it can be called, is called here, in the items' order.
        """
        from collections import deque
        from concurrent.futures import Future

        from wherry.posix.thread_pool import DaemonThreadPool, result_of

        running: deque[tuple[_T, Future[object]]] = deque()

        def settle() -> None:
            item, future = running.popleft()
            try:
                show = result_of(future)
            except (WherryError, OSError) as error:
                if is_raised:
                    raise
                self.fail(uri_of(item), error)
                return
            if callable(show):
                show()

        pool = DaemonThreadPool(_AT_ONCE, "wherry-verb")
        try:
            for item in items:
                running.append((item, pool.submit(work, item)))
                if len(running) >= 2 * _AT_ONCE:
                    settle()
            while running:
                settle()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C: daemon threads end with the process
            if isinstance(error, KeyboardInterrupt):
                print_note(f"until then {self._summary(self._done)}")
            raise
        pool.shutdown()

    def end(self) -> Exit:
        """Show the summary; the exit code: that of the failures if they have one in common."""
        took_s, n_retries = self._effort()
        if self._as_json:
            summary = {
                "files": self.n_files,
                "bytes": self._sum_bytes,
                **({"deleted": self.n_deleted} if self.n_deleted else {}),
                "failed": len(self._codes),
                "seconds": round(took_s, 3),
                "retries": n_retries,
                "dry_run": self._dry_run,
            }
            self._say(json.dumps({"summary": summary}))
        elif self._dry_run or not is_quiet():
            what = f"would be {self._done}" if self._dry_run else self._done
            self._say(self._summary(what))
        if not self._codes:
            return Exit.OK
        return self._codes[0] if len(set(self._codes)) == 1 else Exit.FAILED

    @property
    def _sum_bytes(self) -> int | None:
        """None if the size of one of them is not known, as of standard input that is not read."""
        return self.n_bytes if self._is_size_known else None

    def _effort(self) -> tuple[float, int]:
        """Seconds and retries so far."""
        return time.monotonic() - self._begun_s, self._retries() - self._retries_before

    def _summary(self, what: str) -> str:
        more = f", {self.n_deleted} deleted" if self.n_deleted else ""
        more += f", {len(self._codes)} failed" if self._codes else ""
        return summary_text(what, self.n_files, self._sum_bytes, *self._effort(), more)
