"""Where the parts of a run's checkpoint sets lie in the bucket.

::

    RUN/checkpoints/latest.json                         a copy of the newest manifest; nothing depends on it
    RUN/checkpoints/attempts/000000007.json             one start of the job
    RUN/checkpoints/manifests/000000007_a3f9_000000001000.json
    RUN/checkpoints/data/000000007_a3f9_000000001000/model.pt
    RUN/checkpoints/data/000000007_a3f9_000000001000/_ranks/00000-of-00008-...json
    RUN/checkpoints/pins/000000007_a3f9_000000001000.json       the set is kept until it is unpinned
    RUN/checkpoints/readers/000000007_a3f9_000000001000-<token> somebody is restoring it
    RUN/checkpoints/verified/000000007_a3f9_000000001000.json   when every byte of the set was last read, and whether it was right
    RUN/checkpoints/clock.json                          what prune writes to learn the store's time

The attempt comes before the step: the order of the keys is then the order from the oldest set to the newest, and a listing that
starts after a key finds exactly what is newer. Underscores, as they sort behind "/": some servers list by folders, and need more
requests for a listing that starts after a name with a character before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from wherry.errors import ConfigError

MOST_STEPS = 10**12 - 1
MOST_ATTEMPTS = 10**9 - 1
MOST_VERSIONS = 999
_ATTEMPT = r"([0-9]{9})(_[0-9a-f]{4})?"
_SET = re.compile(rf"({_ATTEMPT})_([0-9]{{12}})(?:_([0-9]{{3}}))?")
_ATTEMPT_ALONE = re.compile(_ATTEMPT)
_RECORD = re.compile(r"([0-9]{9})\.json")


@total_ordering
@dataclass(frozen=True)
class SetName:
    """One set: a step of one attempt. Sets are ordered from the oldest to the newest: by attempt, then step, then version.

    `attempt` is ``<number, 9 digits>`` or ``<number>_<4 hex digits>``: the latter where wherry has chosen the number, so that two
    jobs that chose it at the same moment, on a store that cannot decide between them, still have names of their own.
    `version` counts the sets of one step of one attempt (``overwrite=True``), from 1.

    >>> str(SetName("000000007_a3f9", 1000))
    '000000007_a3f9_000000001000'
    """

    attempt: str
    step: int
    version: int = 1

    def __post_init__(self) -> None:
        if not is_attempt(self.attempt):
            raise ConfigError(
                f"{self.attempt!r} is no attempt: it has nine digits, and may have '_' and four hex digits behind them"
            )
        if isinstance(self.step, bool) or not isinstance(self.step, int) or not 0 <= self.step <= MOST_STEPS:
            raise ConfigError(f"step {self.step!r}: give a whole number from 0 to {MOST_STEPS}")
        if not 1 <= self.version <= MOST_VERSIONS:
            raise ConfigError(f"step {self.step} was saved {MOST_VERSIONS} times in this attempt: use another step")

    def __str__(self) -> str:
        return f"{self.attempt}_{self.step:012d}" + (f"_{self.version:03d}" if self.version > 1 else "")

    def __lt__(self, other: SetName) -> bool:
        return str(self) < str(other)

    @property
    def number(self) -> int:
        """The attempt's number."""
        return int(self.attempt[:9])

    @classmethod
    def parse(cls, text: str) -> SetName | None:
        """The set of this name; None if it is none."""
        found = _SET.fullmatch(text)
        if found is None or found[5] in ("000", "001"):
            return None
        return cls(found[1], int(found[4]), int(found[5] or 1))


def is_attempt(text: str) -> bool:
    """Whether the text names an attempt."""
    return isinstance(text, str) and _ATTEMPT_ALONE.fullmatch(text) is not None


class RunKeys:
    """The keys of one run's sets. `base` is the key that all of them begin with: ``<prefix of the URI>/<run>/checkpoints``."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.pointer = f"{base}/latest.json"
        self.manifests = f"{base}/manifests/"
        self.attempts = f"{base}/attempts/"
        self.starts = f"{base}/starts/"
        self.all_data = f"{base}/data/"
        self.pins = f"{base}/pins/"
        self.readers = f"{base}/readers/"
        self.verified = f"{base}/verified/"
        self.clock = f"{base}/clock.json"

    def manifest(self, name: SetName) -> str:
        """The key of a set's manifest."""
        return f"{self.manifests}{name}.json"

    def set_of_manifest(self, key: str) -> SetName | None:
        """The set whose manifest has this key; None for a key that is none of ours."""
        text = key[len(self.manifests) :]
        return SetName.parse(text[: -len(".json")]) if text.endswith(".json") else None

    def data(self, name: SetName) -> str:
        """What the keys of a set's objects begin with."""
        return f"{self.all_data}{name}/"

    def ranks(self, name: SetName) -> str:
        """What the keys of a set's receipts begin with."""
        return f"{self.data(name)}_ranks/"

    def attempt(self, number: int) -> str:
        """The key of the record of the attempt that has this number."""
        return f"{self.attempts}{number:09d}.json"

    def pin(self, name: SetName) -> str:
        """The key of a set's pin."""
        return f"{self.pins}{name}.json"

    def verified_of(self, name: SetName) -> str:
        """The key of what says whether a set's bytes were right when they were last read."""
        return f"{self.verified}{name}.json"

    def reader(self, name: SetName, token: str) -> str:
        """The key of what one reader of a set leaves while it reads."""
        return f"{self.readers}{name}-{token}"

    def number_of_attempt(self, key: str) -> int | None:
        """The number of the attempt whose record has this key; None for a key that is none of ours."""
        found = _RECORD.fullmatch(key[len(self.attempts) :])
        return None if found is None else int(found[1])
