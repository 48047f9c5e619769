"""Tokens: what tells one upload from all others, and which attempt of which run it is of.

A token is kept with the object, where the store keeps metadata. Of a run that has a name it says which run and rank has made the
object, and in which attempt, without naming them: a run that goes on after a kill recognises what an earlier attempt has left.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

#: Hex digits. Two runs that one name is meant for are mistaken for one another once in 2**48 cases.
_RUN_DIGITS, _ATTEMPT_DIGITS, _TOKEN_DIGITS = 12, 8, 32


@dataclass(frozen=True)
class Attempt:
    """Who uploads: a rank of a run, in this session. `is_resumed`: what an earlier attempt of it has left may be replaced."""

    run: str
    rank: int
    is_resumed: bool = False


def new_token(attempt: Attempt | None = None, session: str = "") -> str:
    """A token that no other upload has."""
    if attempt is None:
        return secrets.token_hex(_TOKEN_DIGITS // 2)
    run = _digest(f"{attempt.rank} {attempt.run}", _RUN_DIGITS) + _digest(session, _ATTEMPT_DIGITS)
    return run + secrets.token_hex((_TOKEN_DIGITS - len(run)) // 2)


def is_of_another_attempt(found: str | None, mine: str) -> bool:
    """Whether the upload with the token `found` was made by the run that `mine` is of, in another attempt."""
    if found is None or len(found) != _TOKEN_DIGITS:
        return False
    attempt = slice(_RUN_DIGITS, _RUN_DIGITS + _ATTEMPT_DIGITS)
    return found[:_RUN_DIGITS] == mine[:_RUN_DIGITS] and found[attempt] != mine[attempt]


def _digest(text: str, n_digits: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:n_digits]
