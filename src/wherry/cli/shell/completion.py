"""Names in a bucket for the shell's completion: ``wherry get s3://my-bucket/ru<TAB>``.

The scripts of ``wherry --install-completion`` are typer's, which also completes verbs and options. They call the command with the
words of the line in the environment, and take what it prints: here are the answers for a word that begins with ``s3://`` or
``gs://``, wherever it stands. bash splits such a word at each ``:`` and ``=``, and wants only what comes behind the last of them.

A bucket's names are anybody's, and zsh evaluates what it is given: a name is offered only if each of its characters means itself
in every shell. A folder is never offered alone, as a shell would write a space behind it: then its own names are offered as well.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import shlex
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

#: So long a line waits for a store; a slow one can be given more by $WHERRY_COMPLETE_WAIT_S.
_WAIT_S = 1.5
_MOST_NAMES = 100
_URI = re.compile(r"(s3|gs)://([^/]*)(/.*)?", re.DOTALL)
#: These mean themselves in bash, zsh and fish, within a word; letters and digits of any language do, too.
_PLAIN = frozenset("/._-+=@%,:")
#: A word of bash that is nothing but these is where it has split one.
_BREAKS = re.compile(r"[:=@]+")


@dataclass(frozen=True)
class Typed:
    """What stands on the line: the words before the one that is completed, that word's URI, and how much of it bash left out."""

    before: Sequence[str]
    uri: str
    n_left_out: int = 0


def answer_shell(environ: Mapping[str, str]) -> None:
    """Answer a shell that asks for names of a bucket, and end the process; return where it asks for anything else."""
    told = _answer(environ)
    if told is not None:
        sys.stdout.write(told[0])
        sys.stdout.flush()
        os._exit(told[1])  # without waiting for threads that wait for a server


def _answer(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """What it is told, and the exit code."""
    asked = environ["_WHERRY_COMPLETE"]
    if asked not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    typed = _of_bash(environ) if asked == "complete_bash" else _of_others(environ)
    if typed is None:
        return None
    _leave_the_terminal()
    names = _in_time(typed, float(environ.get("WHERRY_COMPLETE_WAIT_S") or _WAIT_S))
    if asked == "complete_bash":
        return "\n".join(name[typed.n_left_out :] for name in names), 0
    if asked == "complete_fish":
        is_question = environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args"
        return ("", 0 if names else 1) if is_question else ("\n".join(names), 0)
    quoted = " ".join('"' + name.replace(":", r"\\:") + '"' for name in names)
    return f"_arguments '*: :(({quoted}))'" if names else ":", 0


def _of_bash(environ: Mapping[str, str]) -> Typed | None:
    words = environ.get("COMP_WORDS", "").split("\n")
    at = int(environ.get("COMP_CWORD", "0"))
    current = words[at] if at < len(words) else ""
    for begin in range(at, 0, -1):
        if begin < at and not (_BREAKS.fullmatch(words[begin]) or _BREAKS.fullmatch(words[begin + 1])):
            return None  # a space stands between the two
        uri = "".join(words[begin:at]) + current
        if begin == at:
            uri = uri.lstrip("\"'")
        if _URI.fullmatch(uri):
            kept = 0 if begin < at and _BREAKS.fullmatch(current) else len(current)
            return Typed(words[1:begin], uri, 0 if begin == at else len(uri) - kept)
    return None


def _of_others(environ: Mapping[str, str]) -> Typed | None:
    """Zsh and fish give the line up to the cursor."""
    line = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _words(line)
    if len(words) < 2 or line[-1:].isspace() or not _URI.fullmatch(words[-1]):
        return None
    return Typed(words[1:-1], words[-1])


def _words(line: str) -> list[str]:
    """The words of a line whose last quote may still be open."""
    lexer, words = shlex.shlex(line, posix=True), list[str]()
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def _leave_the_terminal() -> None:
    """Nobody expects a question of an SDK (a password, a code), a warning or a traceback in the line that he is typing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    logging.disable()
    if os.getsid(0) == os.getpid():
        return  # no shell has started us, and to leave would end our own session
    with suppress(OSError):  # there is no terminal to leave
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)  # nor do the programs that an SDK starts have it now
        finally:
            os.close(terminal)


def _in_time(typed: Typed, wait_s: float) -> list[str]:
    """The names, if they have come when the time is up, by a thread that ends with the process."""
    found: list[str] = []
    thread = threading.Thread(target=_find, args=(typed, found), daemon=True)
    thread.start()
    thread.join(wait_s)
    return found[:]


def _find(typed: Typed, found: list[str]) -> None:
    try:
        names = list(itertools.islice(filter(_is_plain, _names(typed.uri, typed.before)), _MOST_NAMES))
        if len(names) == 1 and names[0].endswith("/"):
            names += itertools.islice(filter(_is_plain, _names(names[0], typed.before)), _MOST_NAMES - 1)
        found.extend(names)
    except Exception:  # whatever it is (no rights, no server, a wrong option), there are no names to offer
        return


def _names(uri: str, before: Sequence[str]) -> Iterator[str]:
    """One level of what begins with the URI: buckets, or folders and objects."""
    from wherry.cli.arguments import storage_options
    from wherry.store.environment import with_environment
    from wherry.store.registry import open_store
    from wherry.uri import StoreURI

    found = _URI.fullmatch(uri)
    assert found is not None, "it was looked at before"
    scheme, bucket, key = found[1], found[2], found[3]
    options = with_environment(scheme, storage_options(scheme, *_given(before)), os.environ)
    if key is None:
        from wherry.store.account import list_buckets

        yield from (f"{scheme}://{one.name}/" for one in list_buckets(scheme, options) if one.name.startswith(bucket))
        return
    store = open_store(StoreURI(scheme, bucket, ""), options)
    page = next(iter(store.pages(key[1:], one_level=True)), None)
    if page is not None:
        keys = (meta.key for meta in page.objects if not meta.key.endswith("/"))  # consoles make empty objects for folders
        yield from (f"{scheme}://{bucket}/{one}" for one in (*page.folders, *keys))


def _given(before: Sequence[str]) -> tuple[list[str], str | None]:
    """The storage options among the words of the line."""
    pairs, file = [], None
    for word, value in itertools.pairwise([*before, ""]):
        if word in ("-o", "--option"):
            pairs.append(value)
        elif word == "--options-file" and value != "-":
            file = os.path.expanduser(value)
    return pairs, file


def _is_plain(name: str) -> bool:
    """Whether each character means itself in every shell."""
    return all(c in _PLAIN or c.isalnum() for c in name)
