"""Names in the stores for what a run writes, so that nothing is replaced that an earlier process put there from another disk."""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wherry.errors import AlreadyExistsError, PermanentError, UploadFailed
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.object_store import ObjectStoreLogger
from wherry.loggers.destinations.tracker import TrackerLogger
from wherry.loggers.run.state import escaped
from wherry.posix.atomic_write import AtomicFiles
from wherry.posix.fork import temporary_folder
from wherry.spool.handle import UploadHandle

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger
    from wherry.loggers.run.state import State

log = logging.getLogger("wherry")

#: In a run's folder, here and in the stores: whose it is.
_RECORD = ".wherry-run.json"


class RemoteNames(Protocol):
    """Says under which name a file is uploaded. What raises asked a store that did not answer: ask again."""

    #: Whether an object of that name is this run's own, to be replaced.
    overwrite: bool

    def is_known(self, logger: Logger) -> bool:
        """Whether find() asks no store."""

    def ask(self, logger: Logger) -> None:
        """Find out what is the same for all files. It may take as long as the store takes."""

    def find(self, logger: Logger, name: str) -> str:
        """The template of the remote name for `name`. It may take as long as the store takes."""

    def aside(self, logger: Logger, name: str) -> str:
        """One that nobody else can have, for which no store has to be asked."""


@dataclass(frozen=True)
class _Record:
    """Who writes a folder: a random id that is made with the local one, and where below the remote folder its files go."""

    id: str
    attempt: str
    host: str
    #: Where the folder is known to be ours, and need not be asked for when the store is down.
    claimed: tuple[str, ...] = ()


class RunNames:
    """One remote folder for all files of the local folder `root`: `folder` (a template), else ``<folder>/attempt-2`` and so on.

    The first that no other local folder has: each leaves its id in the remote folder, in an object that is created and
    never replaced. So of two processes that ask at once one gets it, and who goes on in a local folder goes on in its
    remote one. With several destinations it is the first folder that is free in all.
    """

    overwrite = True

    def __init__(self, folder: str, root: Callable[[], Path]) -> None:
        self._folder = folder
        self._root = root
        self._attempt: str | None = None

    def is_known(self, logger: Logger) -> bool:
        """Whether the folder is known, or nobody can be asked."""
        if self._attempt is None and not destinations_to_ask(logger):
            self._attempt = known.attempt if (known := self._known()) else ""
        return self._attempt is not None

    def ask(self, logger: Logger) -> None:
        """Claim a folder."""
        if self.is_known(logger):
            return
        destinations = destinations_to_ask(logger)
        known = self._known()
        mine = known or _Record(secrets.token_hex(16), "", socket.gethostname())
        for attempt in _attempts(mine.attempt):
            if known is None or attempt != mine.attempt:
                mine = replace(mine, attempt=attempt, claimed=())
                self._keep(mine)
            record, name = self._root() / _RECORD, self._in(attempt, _RECORD)
            if all(_is_claimed(one, logger.state, name, record, mine.id) for one in destinations):
                break
        if self._attempt is None:  # else nobody waits for the answer any more
            self._attempt = mine.attempt
            self._keep(replace(mine, claimed=tuple(self._where(logger, mine.attempt))))
            if mine.attempt and (known is None or known.attempt != mine.attempt):
                log.warning(
                    "%s has the files of a process that wrote to another local folder, and they are kept: those of %s go to %s",
                    logger.state.fill(self._folder), self._root(), logger.state.fill(self._in(mine.attempt, "")),
                )  # fmt: skip

    def find(self, logger: Logger, name: str) -> str:
        """The name in the run's folder."""
        self.ask(logger)
        return self._in(self._attempt or "", name)

    def aside(self, logger: Logger, name: str) -> str:
        """The name in the folder that is ours since earlier, else in one named by our id."""
        if self._attempt is None:
            known = self._known()
            if known and set(self._where(logger, known.attempt)) <= set(known.claimed):
                self._attempt = known.attempt
            else:
                mine = known or _Record(secrets.token_hex(16), "", socket.gethostname())
                self._attempt = f"attempt-{mine.id[:8]}"
                try:
                    self._keep(replace(mine, attempt=self._attempt))
                except OSError as error:  # as of a full disk: the files are uploaded all the same
                    log.warning("%s will not go on in %s in the stores: %s", self._root(), self._attempt, error)
        return self._in(self._attempt, name)

    def _in(self, attempt: str, name: str) -> str:
        return "/".join(part for part in (self._folder, attempt, escaped(name)) if part)

    def _where(self, logger: Logger, attempt: str) -> list[str]:
        """The URIs of the records; of destinations that have none, something that is never equal."""
        name = escaped(logger.state.fill(self._in(attempt, _RECORD)))
        return [
            one.get_uri_for_file(name) if isinstance(one, ObjectStoreLogger) else secrets.token_hex(16)
            for one in destinations_to_ask(logger)
        ]

    def _known(self) -> _Record | None:
        path = self._root() / _RECORD
        return _read_record(path) if path.exists() else None

    def _keep(self, record: _Record) -> None:
        path = self._root() / _RECORD
        AtomicFiles(path.parent / ".tmp").write(path, (json.dumps(asdict(record)) + "\n").encode())


class FreeNames:
    """For files that are uploaded once: the name, else the first of ``name.0001.txt``, ``name.0002.txt``... that is free.

    Of several destinations, in all. With `overwrite` every name is as it is given.
    """

    def __init__(self, *, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._next: dict[str, int] = {}

    def is_known(self, logger: Logger) -> bool:
        """Whether nobody is asked."""
        return self.overwrite or not destinations_to_ask(logger)

    def ask(self, logger: Logger) -> None:
        """Nothing: every file has a name of its own."""

    def find(self, logger: Logger, name: str) -> str:
        """The first free name from that of the file before on."""
        if self.is_known(logger):
            return escaped(name)
        stem, given, suffix = _split(name)
        for number in count(max(given, self._next.get(stem, 0))):
            found = f"{stem}.{number:04d}{suffix}" if number else f"{stem}{suffix}"
            if not any(_has(one, logger.state, escaped(found)) for one in destinations_to_ask(logger)):
                break
        if number != given and stem not in self._next:
            log.warning("%s is in the store already, from another process, and is kept: ours is %s", name, found)
        self._next[stem] = number + 1
        return escaped(found)

    def aside(self, logger: Logger, name: str) -> str:
        """The name with a random part."""
        path = Path(name)
        return escaped(str(path.with_name(f"{path.stem}.{secrets.token_hex(4)}{path.suffix}")))


def destinations_to_ask(logger: Logger) -> list[LoggerDestination]:
    """Those that upload and can say what they have. Trackers need not: they keep runs apart by themselves."""
    return [
        one
        for one in logger.destinations
        if isinstance(one, LoggerDestination)
        and not isinstance(one, TrackerLogger)
        and any(one._overrides(call) for call in ("download_file", "get_file_artifact"))
        and one.can_upload_files()
    ]


def _attempts(known: str) -> Iterator[str]:
    if known:
        yield known
    yield ""
    yield from (f"attempt-{number}" for number in count(2))


def _split(name: str) -> tuple[str, int, str]:
    """``a/log.0002.txt`` is ("a/log", 2, ".txt"): as `RolledFile` numbers its files."""
    path = Path(name)
    stem, dot, number = path.stem.rpartition(".")
    if dot and number.isdecimal() and int(number) and f"{int(number):04d}" == number:
        return str(path.with_name(stem)), int(number), path.suffix
    return str(path.with_name(path.stem)), 0, path.suffix


def _has(destination: LoggerDestination, state: State, name: str) -> bool:
    """Whether there is an object of that name. "Forbidden" may mean that there is none: creating it will tell."""
    try:
        if isinstance(destination, ObjectStoreLogger):
            return destination.exists(state, name)
        with temporary_folder() as folder:
            _download(destination, state, name, folder / "file")
            return True
    except (FileNotFoundError, PermissionError):
        return False


def _download(destination: LoggerDestination, state: State, name: str, path: Path) -> None:
    destination.download_file(name if destination.formats_names else state.fill(name), str(path), progress_bar=False)


def _holder(destination: LoggerDestination, state: State, name: str) -> str | None:
    """The id that the object holds; None if there is no such object, or we may not read it."""
    if isinstance(destination, ObjectStoreLogger) and not _has(destination, state, name):
        return None
    with temporary_folder() as folder:
        path = folder / _RECORD
        try:
            _download(destination, state, name, path)
        except (FileNotFoundError, PermissionError):
            return None
        found = _read_record(path)
        return found.id if found else "of somebody else"


def _is_claimed(destination: LoggerDestination, state: State, name: str, record: Path, own_id: str) -> bool:
    """Whether the object of that name holds our id; it is created if there is none."""
    holder = _holder(destination, state, name)
    if holder is None:
        given = name if destination.formats_names else state.fill(name)
        try:
            handle = destination.upload_file(state, given, record, overwrite=False)
        except AlreadyExistsError:  # another process of our spool was faster
            return _holder(destination, state, name) == own_id
        if isinstance(handle, UploadHandle):
            try:
                handle.result()
            except UploadFailed as error:
                if isinstance(destination, ObjectStoreLogger):  # it must not stay in the spool as a file that was not sent
                    destination.uploader.withdraw(destination.remote_name(name))
                holder = _holder(destination, state, name)
                if holder is None:
                    text = f"the object that says whose folder it is cannot be made: {error}"
                    raise PermanentError(text, operation="claim", uri=handle.uri) from error
        holder = holder or _holder(destination, state, name) or own_id  # not readable: but it was created
    return holder == own_id


def _read_record(path: Path) -> _Record | None:
    try:
        found = json.loads(path.read_bytes())
        return _Record(str(found["id"]), str(found["attempt"]), str(found["host"]), tuple(map(str, found["claimed"])))
    except (ValueError, KeyError, TypeError):
        return None
