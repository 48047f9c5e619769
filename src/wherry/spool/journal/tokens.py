"""Tokens: what tells one upload from all others, and which attempt of which run it is of.

A token is kept with the object, where the store keeps metadata. Of a run that has a name it says which run and rank has made the
object, and in which attempt, without naming them: a run that goes on after a kill recognises what an earlier attempt has left, and
one that overwrites an object recognises that another run has made it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TypeGuard

#: Hex digits: what a token of a run consists of. Two run names are mistaken for one another once in 2**48 cases.
_RUN, _RANK, _ATTEMPT = slice(0, 12), slice(12, 16), slice(16, 24)
_RUNS_TOKEN_DIGITS = 40
#: Of a token of no run.
_TOKEN_DIGITS = 32
#: What an upload that `looks_first` says when it is done, if it was so.
ANOTHER_RUN = "it has replaced what another run had written"
ANOTHER_PROCESS = "it has replaced what another process of the same run had written meanwhile"


@dataclass(frozen=True)
class Attempt:
    """Who uploads: a rank of a run, in this session. `is_resumed`: what an earlier attempt of it has left may be replaced.

    `looks_first`: with `overwrite`, the store is asked first who has written the object, and the job says so if it was another.
    """

    run: str
    rank: int
    is_resumed: bool = False
    looks_first: bool = False


def new_token(attempt: Attempt | None = None, session: str = "") -> str:
    """A token that no other upload has."""
    if attempt is None:
        return secrets.token_hex(_TOKEN_DIGITS // 2)
    parts = _digest(attempt.run, _RUN), _digest(str(attempt.rank), _RANK), _digest(session, _ATTEMPT)
    return "".join(parts) + secrets.token_hex((_RUNS_TOKEN_DIGITS - _ATTEMPT.stop) // 2)


def is_of_another_attempt(found: str | None, mine: str) -> bool:
    """Whether the upload with the token `found` was made by the rank of the run that `mine` is of, in another attempt."""
    return _is_of_a_run(found) and found[: _RANK.stop] == mine[: _RANK.stop] and found[_ATTEMPT] != mine[_ATTEMPT]


def is_of_another_run(found: str | None, mine: str) -> bool:
    """Whether the upload with the token `found` was made by a run, and not by the one that `mine` is of."""
    return _is_of_a_run(found) and _is_of_a_run(mine) and found[_RUN] != mine[_RUN]


def _is_of_a_run(token: str | None) -> TypeGuard[str]:
    return token is not None and len(token) == _RUNS_TOKEN_DIGITS


def _digest(text: str, digits: slice) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[: digits.stop - digits.start]
