"""Remote names of what a run writes, chosen so that files of earlier processes on other disks are not replaced.

Names are templates (see `State.fill`). If a call of RunNames or FreeNames raises, a store did not answer: call again.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from wherry.errors import AlreadyExistsError, PermanentError, UploadFailed
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.object_store import ObjectStoreLogger
from wherry.loggers.destinations.tracker import TrackerLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State, escaped
from wherry.posix.atomic_write import AtomicFiles
from wherry.posix.fork import temporary_folder
from wherry.spool.handle import UploadHandle

log = logging.getLogger("wherry")

#: The file that says to whom a run's folder belongs, on the disk and in the stores.
_RECORD = ".wherry-run.json"


@dataclass(frozen=True)
class _Record:
    """To whom a folder belongs: a random id, made with the local folder, and the subfolder of the remote folder for its files."""

    id: str = field(default_factory=lambda: secrets.token_hex(16))
    attempt: str = ""
    host: str = field(default_factory=socket.gethostname)
    #: The stores in which the remote folder is known to be ours, so that they need not be asked when they are down.
    claimed: tuple[str, ...] = ()


class RunNames:
    """One remote folder for all files of the local folder `root`: `folder` (a template), else ``<folder>/attempt-2`` and so on.

    It is the first one that does not belong to another local folder. Each local folder leaves its id in its remote folder, in
    an object that is created and never replaced. So only one of two processes that ask at once gets the remote folder, and a
    run that continues a local folder continues its remote folder. With several destinations, it is the first that is free in
    all of them.
    """

    #: Whether an existing object of the name belongs to this run, and is replaced.
    overwrite = True

    def __init__(self, folder: str, root: Callable[[], Path]) -> None:
        self._folder = folder
        self._root = root
        self._attempt: str | None = None

    def is_known(self, logger: Logger) -> bool:
        """Whether the folder is known, or there is no destination to ask."""
        if self._attempt is None and not destinations_to_ask(logger):
            self._attempt = known.attempt if (known := self._known()) else ""
        return self._attempt is not None

    def ask(self, logger: Logger) -> None:
        """Claim a folder, if none is known. May take long."""
        if self.is_known(logger):
            return
        destinations = destinations_to_ask(logger)
        known = self._known()
        mine = known or _Record()
        known_first = [mine.attempt] if mine.attempt else []
        for attempt in chain(known_first, [""], (f"attempt-{number}" for number in count(2))):
            if known is None or attempt != mine.attempt:
                mine = replace(mine, attempt=attempt, claimed=())
                self._keep(mine)
            record, name = self._root() / _RECORD, self._in(attempt, _RECORD)
            if all(_is_claimed(one, logger.state, name, record, mine.id) for one in destinations):
                break
        if self._attempt is None:  # else aside() has chosen a name meanwhile
            self._attempt = mine.attempt
            self._keep(replace(mine, claimed=tuple(self._where(logger, mine.attempt))))
            if mine.attempt and (known is None or known.attempt != mine.attempt):
                log.warning(
                    "%s has the files of a process that wrote to another local folder, and they are kept: those of %s go to %s",
                    logger.state.fill(self._folder), self._root(), logger.state.fill(self._in(mine.attempt, "")),
                )  # fmt: skip

    def find(self, logger: Logger, name: str) -> str:
        """The name in the run's folder. May take long if that is not known."""
        self.ask(logger)
        return self._in(self._attempt or "", name)

    def aside(self, logger: Logger, name: str) -> str:
        """The name in the folder that is known to be ours, else in a folder named by our id."""
        if self._attempt is None:
            known = self._known()
            if known and set(self._where(logger, known.attempt)) <= set(known.claimed):
                self._attempt = known.attempt
            else:
                mine = known or _Record()
                self._attempt = f"attempt-{mine.id[:8]}"
                try:
                    self._keep(replace(mine, attempt=self._attempt))
                except OSError as error:  # such as a full disk; the files are uploaded all the same
                    log.warning("%s will not go on in %s in the stores: %s", self._root(), self._attempt, error)
        return self._in(self._attempt, name)

    def _in(self, attempt: str, name: str) -> str:
        return "/".join(part for part in (self._folder, attempt, escaped(name)) if part)

    def _where(self, logger: Logger, attempt: str) -> list[str]:
        """The URIs of the records; for a destination without URIs, a random text that equals no other."""
        name = escaped(logger.state.fill(self._in(attempt, _RECORD)))
        return [
            one.get_uri_for_file(name) if isinstance(one, ObjectStoreLogger) else secrets.token_hex(16)
            for one in destinations_to_ask(logger)
        ]

    def _known(self) -> _Record | None:
        return _read_record(self._root() / _RECORD)

    def _keep(self, record: _Record) -> None:
        path = self._root() / _RECORD
        AtomicFiles(path.parent / ".tmp").write(path, (json.dumps(asdict(record)) + "\n").encode())


class FreeNames:
    """For files that are uploaded once: the name, else the first of ``name.0001.txt``, ``name.0002.txt``... that is free.

    With several destinations, it is free in all of them. With `overwrite`, every name is used as it is given.
    """

    def __init__(self, *, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._next: dict[str, int] = {}

    def is_known(self, logger: Logger) -> bool:
        """Whether there is no destination to ask, or no need to."""
        return self.overwrite or not destinations_to_ask(logger)

    def ask(self, logger: Logger) -> None:
        """Do nothing: there is nothing that is the same for all files."""

    def find(self, logger: Logger, name: str) -> str:
        """The first free name after that of the last file. May take long if a store has to be asked."""
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
        """The name with a random suffix, for which no store has to be asked."""
        path = Path(name)
        return escaped(str(path.with_name(f"{path.stem}.{secrets.token_hex(4)}{path.suffix}")))


def destinations_to_ask(logger: Logger) -> list[LoggerDestination]:
    """The destinations that upload and can say what they have. Not trackers, as they keep runs apart themselves."""
    return [
        one
        for one in logger.destinations
        if isinstance(one, LoggerDestination)
        and not isinstance(one, TrackerLogger)
        and any(one._overrides(call) for call in ("download_file", "get_file_artifact"))
        and one.can_upload_files()
    ]


def _split(name: str) -> tuple[str, int, str]:
    """``a/log.0002.txt`` is ("a/log", 2, ".txt"): as `RolledFile` numbers its files."""
    path = Path(name)
    stem, dot, number = path.stem.rpartition(".")
    if dot and number.isdecimal() and int(number) and f"{int(number):04d}" == number:
        return str(path.with_name(stem)), int(number), path.suffix
    return str(path.with_name(path.stem)), 0, path.suffix


def _has(destination: LoggerDestination, state: State, name: str) -> bool:
    """Whether there is an object of that name. A store may answer "forbidden" if there is none; creating it will tell."""
    try:
        if isinstance(destination, ObjectStoreLogger):
            return destination.exists(state, name)
        with temporary_folder() as folder:
            destination.download_file(_given(destination, state, name), str(folder / "file"), progress_bar=False)
            return True
    except (FileNotFoundError, PermissionError):
        return False


def _given(destination: LoggerDestination, state: State, name: str) -> str:
    return name if destination.formats_names else state.fill(name)


def _holder(destination: LoggerDestination, state: State, name: str) -> str | None:
    """The id that the object holds; None if there is no such object, or no permission to read it."""
    if isinstance(destination, ObjectStoreLogger) and not _has(destination, state, name):
        return None
    with temporary_folder() as folder:
        path = folder / _RECORD
        try:
            destination.download_file(_given(destination, state, name), str(path), progress_bar=False)
        except (FileNotFoundError, PermissionError):
            return None
        found = _read_record(path)
        return found.id if found else "of somebody else"


def _is_claimed(destination: LoggerDestination, state: State, name: str, record: Path, own_id: str) -> bool:
    """Whether the object of that name holds our id. It is created if there is none."""
    holder = _holder(destination, state, name)
    if holder is None:
        try:
            handle = destination.upload_file(state, _given(destination, state, name), record, overwrite=False)
        except AlreadyExistsError:  # another process of our spool was faster
            return _holder(destination, state, name) == own_id
        if isinstance(handle, UploadHandle):
            try:
                handle.result()
            except UploadFailed as error:
                if isinstance(destination, ObjectStoreLogger):  # else it would stay in the spool as a failed upload
                    destination.uploader.withdraw(destination.remote_name(name))
                holder = _holder(destination, state, name)
                if holder is None:
                    text = f"the object that says whose folder it is cannot be made: {error}"
                    raise PermanentError(text, operation="claim", uri=handle.uri) from error
        holder = holder or _holder(destination, state, name) or own_id  # created, but not readable
    return holder == own_id


def _read_record(path: Path) -> _Record | None:
    try:
        found = json.loads(path.read_bytes())
        return _Record(str(found["id"]), str(found["attempt"]), str(found["host"]), tuple(map(str, found["claimed"])))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
