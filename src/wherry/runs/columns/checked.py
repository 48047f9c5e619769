"""Checked: what came of comparing the bytes that were read with checksums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """`is_right`: True if every byte agrees with a checksum, False if some do not, None if there was none to compare: `why`."""

    is_right: bool | None
    why: str = ""


def all_of(found: Iterable[Checked]) -> Checked:
    """What is true of all of them together."""
    each = list(found)
    if any(one.is_right is False for one in each):
        return Checked(is_right=False)
    if not each:
        return Checked(None, "nothing was read")
    return next((one for one in each if one.is_right is None), Checked(is_right=True))
