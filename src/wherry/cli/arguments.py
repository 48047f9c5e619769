"""What all commands share: URIs, storage options and the spool from a command line, and messages to the terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.shell.verbosity import is_quiet, log_only_errors
from wherry.errors import ConfigError, WherryError
from wherry.quantities import parse_size
from wherry.redact import redact, register_secret
from wherry.uri import StoreURI, absolute_path, hide_login, parse_uri

if TYPE_CHECKING:
    from wherry.config import RetryConfig
    from wherry.store.governor import Governor
    from wherry.store.metered import Moved
    from wherry.uploader import Uploader

#: A store, and its storage options.
Target = tuple[StoreURI, dict[str, object]]

UriArgument = Annotated[
    str, typer.Argument(metavar="URI", help="s3://bucket/name, gs://..., a local path, any fsspec URL.", show_default=False)
]
SpoolOption = Annotated[
    Path | None, typer.Option("--spool", metavar="DIR", help="The spool folder; else $WHERRY_SPOOL, else /var/tmp/wherry-UID.")
]
PairsOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="A storage option that is no secret; may be given again."),
]
FileOption = Annotated[
    str | None,
    typer.Option("--options-file", metavar="FILE", help="Storage options, secret ones too: a JSON object; - is stdin."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace what has the name already.")]
TimeoutOption = Annotated[float | None, typer.Option("--timeout", metavar="S", min=0.0, help="Wait S seconds at most.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JobsArgument = Annotated[list[int] | None, typer.Argument(metavar="JOB", help="Numbers that `wherry status` shows.")]
AllOption = Annotated[bool, typer.Option("--all", help="All failed uploads of the spool.")]
RuleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="PATTERN=KIND",
        help="How files are mirrored: append, replace, once or ignore. May be given again; the first match counts.",
    ),
]


def _size(text: str, least_bytes: int = 1) -> int:
    try:
        return parse_size(text, least_bytes=least_bytes)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None  # which names the option


def _limit(text: str) -> int:
    """A limit of bytes per second; below the least, a single part would take hours."""
    return _size(text, 1024)


MaxBytesOption = Annotated[
    int | None,
    typer.Option(
        "--max-bytes-per-s",
        metavar="SIZE",
        parser=_limit,
        help="Move so many bytes a second at most, both ways together: 500K, 10MiB.",
        show_default=False,
    ),
]
SegmentOption = Annotated[
    int | None,
    typer.Option(
        "--segment-bytes", metavar="SIZE", parser=_size, help="Send a file at once when so much of it is new: 500K, 1MiB."
    ),
]
LagOption = Annotated[float | None, typer.Option("--max-lag", metavar="S", min=0.0, help="New bytes wait S seconds at most.")]
BudgetOption = Annotated[
    int | None, typer.Option("--budget", metavar="N", min=10, help="Requests an hour at most; quiet files wait longer.")
]
CompressOption = Annotated[
    str | None, typer.Option("--compress", metavar="gzip|zstd", help="Compress the segments of growing files.")
]
SealOption = Annotated[
    bool, typer.Option("--seal/--no-seal", help="At the end make one plain object of each file, or leave the segments.")
]


def parse_target(text: str) -> StoreURI:
    """Read a URI or a local path. ConfigError for what looks like a URI with a missing slash, and for ``-``."""
    from wherry.store.registry import BACKENDS

    if text == "-":
        raise ConfigError(
            "'-' is no place here: wherry put - URI reads standard input, and wherry cat URI writes to standard output; "
            "./- is a file of that name"
        )
    if (match := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/?)([^/].*)", text)) and (match[2] or match[1] in BACKENDS):
        rest = hide_login(match[1], match[3])
        shown = text[: match.start(3)] + rest
        raise ConfigError(f"{shown!r}: write {match[1]}://{rest}, or ./{shown} for a local file of that name")
    return parse_uri(text)


def refuse_new_folder(dest: str) -> None:
    """ConfigError for a destination without a scheme whose first folder does not exist: it may be a bucket's name."""
    parse_target(dest)
    first, slash, _ = dest.partition("/")
    if slash and "://" not in dest and first not in ("", ".", "..") and first[0] != "~" and not os.path.isdir(first):
        raise ConfigError(
            f"{dest!r}: there is no folder {first!r} here: write s3://{dest} for a bucket, ./{dest} for a new folder"
        )


def bucket_hint(text: str) -> str:
    """The remedy where a path is not there whose first part may be the name of a bucket; else empty."""
    first = text.partition("/")[0]
    if os.path.lexists(first) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", first):
        return ""
    return f"a name without a scheme is a local path; of a bucket it is s3://{text}"


def is_folder_like(text: str) -> bool:
    """Whether names are appended to it: it ends in a slash, names a bucket only, or is an existing local folder."""
    target = parse_target(text)
    return text.endswith("/") or not target.prefix or (target.scheme == "file" and os.path.isdir(f"/{target.prefix}"))


def split_target(text: str) -> tuple[StoreURI, str]:
    """The folder of an object's URI, and the object's name in it. ConfigError where the URI names no object."""
    target = parse_target(text)
    if text.endswith("/") or not target.prefix:
        raise ConfigError(f"{text!r} names no object: add its name")
    prefix, _, name = target.prefix.rpartition("/")
    return StoreURI(target.scheme, target.root, prefix), name


def destinations(sources: Sequence[Path], text: str) -> tuple[StoreURI, list[str]]:
    """Where `wherry put SOURCES... TEXT` uploads to: the folder, and the name of each source in it."""
    if is_folder_like(text):
        names = [source.name if source.name not in ("", "..") else source.resolve().name for source in sources]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"several sources are called {min(twice)}: upload them one by one, each to a URI of its own")
        return parse_target(text), names
    if len(sources) > 1:
        raise ConfigError(f"{len(sources)} sources cannot all become {text!r}: end it with '/' to put them below it")
    target, name = split_target(text)
    return target, [name]


def read_options_file(name: str) -> dict[str, object]:
    """Read storage options from a file with one JSON object, or from standard input if it is called ``-``."""
    shown = "standard input" if name == "-" else name
    try:
        found = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except ValueError as error:  # the text itself is not shown: it holds secrets
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f'the options in {shown} are no JSON{where}: write {{"name": "value", ...}}') from None
    if not isinstance(found, dict):
        raise ConfigError(f'the options in {shown} are no JSON object: write {{"name": "value", ...}}')
    return found


def storage_options(scheme: str, pairs: Sequence[str] | None, options_file: str | None) -> dict[str, object]:
    """The storage options of a command: those of the file, overridden by the ``KEY=VALUE`` pairs, which must not be secret."""
    from wherry.store.registry import backend_for, split_options, warn_unverified

    entry = backend_for(scheme)
    options = read_options_file(options_file) if options_file is not None else {}
    for pair in pairs or ():
        key, is_pair, value = pair.partition("=")
        if not key or not is_pair:
            raise ConfigError("--option takes KEY=VALUE")
        known = entry.public_options | (entry.secret_options or frozenset())
        if key not in entry.public_options and (entry.secret_options is None or key in known):
            raise ConfigError(
                f"the storage option {key} may be secret, and everybody on this machine can read command lines: give it in the "
                "environment, in a profile, or in a private file with --options-file"
            )
        options[key] = _value(value)
    if options.get("verify") is False and "verify" in entry.public_options:
        warn_unverified(scheme)  # before reader() raises the log level
    register_secret(split_options(scheme, options)[1])
    return options


def open_target(uri: str, pairs: Sequence[str] | None, options_file: str | None) -> Target:
    """The URI of a command, and its storage options."""
    target = parse_target(uri)
    return target, storage_options(target.scheme, pairs, options_file)


def _value(text: str) -> object:
    """An option's value: true, false, null, numbers and quoted strings are read as JSON, anything else is a string."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(found, (dict, list)) else found


def pace_of(max_bytes_per_s: int | None) -> Governor | None:
    """What paces all stores of a command, if it has a limit."""
    from wherry.store.pacing import command_governor

    return None if max_bytes_per_s is None else command_governor(max_bytes_per_s)


def spool_folder(given: Path | None) -> Path:
    """The spool of a command: the one given, else the default."""
    from wherry.config import default_spool_folder

    return default_spool_folder() if given is None else absolute_path(given)


def command(verb: str, spool: Path) -> str:
    """The command to type next, with --spool unless it is the default spool."""
    return f"wherry {verb}" if spool == spool_folder(None) else f"wherry {verb} --spool {shlex.quote(str(spool))}"


@contextmanager
def reader(
    target: StoreURI,
    options: Mapping[str, object],
    spool: Path,
    pace: Governor | None = None,
    moved: Moved | None = None,
    retry: RetryConfig | None = None,
) -> Iterator[Uploader]:
    """An Uploader for reading: it starts no agent and makes no spool. Without a spool nothing can be queued.

    With `pace` it moves bytes as fast as that says; `moved` is told of them. `retry`: how long no answer is waited for.
    """
    from tempfile import TemporaryDirectory

    from wherry.config import AgentConfig, Config
    from wherry.uploader import Uploader

    log_only_errors("wherry")  # warnings about the spool's file system matter to writers only
    with ExitStack() as stack:
        if not spool.exists():
            spool = Path(stack.enter_context(TemporaryDirectory(prefix="wherry-")))
        uploader = Uploader(str(target), storage_options=options, spool=spool, config=Config(agent=AgentConfig(run_in="caller")))
        stack.callback(uploader.journal.close)
        stack.callback(uploader.close)
        if retry is not None:  # only now: the uploads of a store follow the configuration that its last Uploader was made with
            uploader.config = replace(uploader.config, retry=retry)
        if pace is not None:
            uploader.keep_pace(pace)
        if moved is not None:
            uploader.tell_of_bytes(moved)
        yield uploader


def print_err(text: str) -> None:
    """Write one message to stderr, without secrets."""
    sys.stdout.flush()
    sys.stderr.write("wherry: " + "\n".join(map(printable, redact(text).split("\n"))) + "\n")


def print_note(text: str) -> None:
    """Write a message that is no error to stderr, without secrets; nothing with --quiet."""
    if not is_quiet():
        print_err(text)


def print_out(line: str) -> None:
    """Write one line to stdout."""
    typer.echo(printable(line))


def print_done(line: str) -> None:
    """Write one line to stdout that says what was done; nothing with --quiet."""
    if not is_quiet():
        print_out(line)


def tell(done: str, what: Mapping[str, object], line: str, *, as_json: bool, dry_run: bool = False) -> None:
    """Say that something was done (`done` is the word for it), or would be: as JSON with its state, or as a line."""
    if as_json:
        state = {"state": "planned", "plan": done} if dry_run else {"state": done}
        typer.echo(redact(json.dumps({**what, **state})))
    elif dry_run:
        print_out(f"would be {done}  {line}")
    else:
        print_done(f"{done:<8}  {line}")


def printable(line: str) -> str:
    """The line with control characters escaped (``\\x1b``): names in a bucket may hold any, and must not reach the terminal."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def error_text(error: BaseException) -> str:
    """The message of an error; for one of the operating system without its number."""
    if isinstance(error, OSError) and not isinstance(error, WherryError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agreed, by --yes or on the terminal. ConfigError if there is no terminal to ask on."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Give --yes: there is no terminal to ask on")
    if not typer.confirm(question, err=True):
        print_note("nothing was done")
        raise typer.Exit(1)
