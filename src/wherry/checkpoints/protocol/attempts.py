"""Attempts: the starts of a job.

Each has a number, which orders what it saves, and is recorded by rank 0 before anything is saved.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wherry.checkpoints.protocol.documents import Document, NewerFormatError, dump, put_small, read_small
from wherry.checkpoints.protocol.names import MOST_ATTEMPTS, RunKeys, SetName, is_attempt
from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError, NotFoundError, PermanentError
from wherry.store import ObjectMeta, ObjectStore

_FORMAT = "wherry-checkpoint-attempt"
_VERSION = 1
#: Jobs of one name that may start at the same moment.
_MOST_RACES = 50
#: Keys in one call of delete_many().
_AT_ONCE = 1000
#: What the ranks of an attempt write when they begin.
_PLACE = re.compile(r"([0-9]{9})(?:_[0-9a-f]{4})?-[0-9]{5}\.json")


@dataclass(frozen=True)
class Attempt:
    """One start of a job. `resumed_from`: the newest complete set at that moment, which all ranks restore as "latest"."""

    key: str
    resumed_from: SetName | None = None
    #: What all ranks of this start have in common, where it was told to them by the launcher; else what tells two records apart.
    start: str | None = None

    def to_bytes(self) -> bytes:
        """The record as it is stored."""
        resumed_from = None if self.resumed_from is None else str(self.resumed_from)
        return dump(_FORMAT, _VERSION, {"attempt": self.key, "resumed_from": resumed_from, "start": self.start})

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Attempt:
        """Read a record. DamagedDocumentError, NewerFormatError."""
        document = Document(data, key, _FORMAT, _VERSION)
        if not is_attempt(attempt := document.take("attempt", str)):
            raise document.damaged(f"{attempt!r} is no attempt")
        text = document.take_or_none("resumed_from", str)
        resumed_from = None if text is None else SetName.parse(text)
        if text is not None and resumed_from is None:
            raise document.damaged(f"{text!r} is no set")
        return cls(attempt, resumed_from, document.take_or_none("start", str))


def attempt_numbers(store: ObjectStore, keys: RunKeys, after: int = -1) -> Iterator[int]:
    """The numbers of the attempts after this one, in order: one request for the next thousand."""
    start_after = (
        f"{keys.attempts}{after:09d}" if after >= 0 else ""
    )  # without ".json", which some servers answer in more requests
    for meta in store.list(keys.attempts, start_after=start_after):
        number = keys.number_of_attempt(meta.key)
        if number is not None and number > after:
            yield number


def claim(store: ObjectStore, keys: RunKeys, resumed_from: SetName | None, start: str | None = None) -> Attempt:
    """Record a new attempt, with the next free number. With `start` the other ranks of this start find it by find_start().

    On a store without conditional writes two jobs that start at the same moment may get one number: the four digits behind it
    keep their names apart. AlreadyExistsError if an attempt of this `start` is there already.
    """
    number = max(attempt_numbers(store, keys), default=0)
    for _ in range(_MOST_RACES):
        number += 1
        if number > MOST_ATTEMPTS:
            raise ConfigError(f"{keys.base} has {MOST_ATTEMPTS} attempts: use another run name")
        attempt = Attempt(f"{number:09d}_{secrets.token_hex(2)}", resumed_from, start)
        if _put_own(store, keys.attempt(number), attempt):
            if start is not None and not _put_own(store, _start_key(keys, start), attempt):
                raise AlreadyExistsError(f"the start {start} is recorded already", operation="put", uri=_start_key(keys, start))
            return attempt
    raise PermanentError(f"{_MOST_RACES} other jobs took the number of this attempt", operation="put", uri=keys.attempts)


def claim_number(store: ObjectStore, keys: RunKeys, number: int, resumed_from: SetName | None) -> Attempt:
    """Record the attempt that the user has numbered. AlreadyExistsError if it, or a higher one, is there already."""
    _check_is_last(store, keys, number)
    attempt = Attempt(f"{number:09d}", resumed_from, secrets.token_hex(8))
    if not _put_own(store, keys.attempt(number), attempt):
        raise _not_new(keys, number, "the run has this attempt already")
    return attempt


def join_number(store: ObjectStore, keys: RunKeys, number: int) -> Attempt:
    """The attempt that the user has numbered, for a rank that does not record it: without what only the record says.

    AlreadyExistsError if wherry has given the number to another start, or if there is a higher one.
    """
    _check_is_last(store, keys, number)
    return find_number(store, keys, number) or Attempt(f"{number:09d}")


def _check_is_last(store: ObjectStore, keys: RunKeys, number: int) -> None:
    if (later := max(attempt_numbers(store, keys, after=number), default=None)) is not None:
        raise _not_new(keys, number, f"the run has an attempt {later}, and a later start needs a higher number")


def _not_new(keys: RunKeys, number: int, why: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"attempt={number}: {why}",
        operation="begin",
        uri=keys.attempts,
        hint="count it up at each start of the job, or leave attempt= out",
    )


def _put_own(store: ObjectStore, key: str, attempt: Attempt) -> bool:
    """Whether this attempt's record is under the key now; False: another's is."""
    try:
        put_small(store, key, attempt.to_bytes(), if_absent=True)
    except (AlreadyExistsError, IntegrityError):  # or it is ours, and the answer was lost; or two jobs put theirs at one moment
        return read_small(store, key) == attempt.to_bytes()
    return True


def take_place(store: ObjectStore, keys: RunKeys, attempt: Attempt, rank: int) -> None:
    """Record that this rank of the attempt has begun, once. AlreadyExistsError if it had begun before.

    Whatever a second start puts below the same prefix would be taken for the first one's.
    """
    key = f"{keys.starts}{attempt.key}-{rank:05d}.json"
    if not _put_own(store, key, replace(attempt, start=secrets.token_hex(8))):
        raise AlreadyExistsError(
            f"rank {rank} of attempt {attempt.key} has begun before",
            operation="begin",
            uri=key,
            hint="each start of the job needs an id, or attempt=, of its own, and a process one Checkpoints of a run",
        )


def read_attempt(store: ObjectStore, keys: RunKeys, number: int) -> Attempt:
    """The record of an attempt; NotFoundError if it is not there."""
    return Attempt.from_bytes(read_small(store, keys.attempt(number)), keys.attempt(number))


def find_number(store: ObjectStore, keys: RunKeys, number: int) -> Attempt | None:
    """The attempt that the user has numbered, in one request; None: rank 0 has not recorded it yet.

    AlreadyExistsError if wherry has given the number to another start.
    """
    try:
        found = read_attempt(store, keys, number)
    except NotFoundError:
        return None
    if found.key != f"{number:09d}":
        raise _not_new(keys, number, "the run has this attempt already")
    return found


def _start_key(keys: RunKeys, start: str) -> str:
    return f"{keys.starts}{hashlib.sha256(start.encode()).hexdigest()[:32]}.json"


def find_start(store: ObjectStore, keys: RunKeys, start: str) -> Attempt | None:
    """The attempt that rank 0 has recorded for this start, in one request; None: not yet."""
    key = _start_key(keys, start)
    try:
        return Attempt.from_bytes(read_small(store, key), key)
    except NotFoundError:
        return None


def forget_attempt(store: ObjectStore, keys: RunKeys, number: int) -> None:
    """Remove the record of an attempt, and its start. Only if it has left nothing, and is not the last."""
    forget_start(store, keys, number)
    store.delete(keys.attempt(number))


def forget_start(store: ObjectStore, keys: RunKeys, number: int) -> None:
    """Remove by what the ranks of an attempt have found it and have taken their places: nobody joins it any more."""
    try:
        start = read_attempt(store, keys, number).start
    except (NotFoundError, IntegrityError, NewerFormatError):
        start = None
    prefix = f"{keys.starts}{number:09d}"
    places = [meta.key for meta in store.list(prefix) if _PLACE.fullmatch(meta.key[len(keys.starts) :])]
    if start is not None:  # first: a rank that finds the attempt has to find the places taken
        store.delete(_start_key(keys, start))
    for at in range(0, len(places), _AT_ONCE):
        store.delete_many(places[at : at + _AT_ONCE])


def old_starts(store: ObjectStore, keys: RunKeys, before: int, is_old: Callable[[ObjectMeta], bool]) -> list[int]:
    """The attempts below the number `before` whose ranks have all begun long ago, and have their places yet. One request, and
    one more for each thousand places.
    """
    found: dict[int, bool] = {}
    for meta in store.list(keys.starts):
        place = _PLACE.fullmatch(meta.key[len(keys.starts) :])
        if place is None:
            continue
        if (number := int(place[1])) >= before:
            break
        found[number] = found.get(number, True) and is_old(meta)
    return [number for number, are_old in found.items() if are_old]
