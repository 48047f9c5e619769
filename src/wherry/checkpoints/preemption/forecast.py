"""What a queue of uploads can send in a given time, by what was sent before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wherry.quantities import rate_text, size_text
from wherry.spool.journal.jobs import Job, JobKind, JobState
from wherry.spool.journal.queries import Queries

#: The throughput is that of so many uploads.
_MEASURED = 200


@dataclass(frozen=True)
class Forecast:
    """`arriving` are the URIs that are sent within `left_s`, in the order in which they are sent, and `late` are the others.

    `bytes_per_s` was measured; None: nothing was sent yet, and all that is queued counts as late.
    """

    left_s: float
    left_bytes: int
    bytes_per_s: float | None
    arriving: tuple[str, ...]
    late: tuple[str, ...]

    @property
    def needed_s(self) -> float | None:
        """How long sending all of it takes."""
        return None if self.bytes_per_s is None else self.left_bytes / self.bytes_per_s

    def __str__(self) -> str:
        if not self.left_bytes:
            return "all objects are stored"
        n = len(self.arriving) + len(self.late)
        queued = f"{n} object{'s' * (n != 1)}, {size_text(self.left_bytes)}"
        if self.bytes_per_s is None or self.needed_s is None:
            return f"{queued} to send in {self.left_s:.0f} s; this run has sent nothing yet, so nobody knows what will arrive"
        rate = rate_text(self.bytes_per_s)
        takes = f"{queued} to send: {self.needed_s:.1f} s at the {rate} of this run, {self.left_s:.1f} s are left"
        if not self.late:
            return f"{takes}; all will arrive"
        return f"{takes}; {len(self.arriving)} of {n} objects will arrive, too late: {some(self.late)}"


def forecast(queries: Queries, owner: str, left_s: float) -> Forecast:
    """What of the unfinished uploads, the owner's and those before them, is sent within `left_s`."""
    rate = throughput(queries.sent(owner, _MEASURED)) or throughput(queries.sent(None, _MEASURED))
    counts = queries.counts(owner)
    jobs = [job for job in queries.jobs(states=[JobState.QUEUED, JobState.LEASED], checks=False) if job.kind is JobKind.PUT]
    # As they are leased: the urgent ones first, whatever was handed over before them.
    own = sorted((job for job in jobs if job.owner == owner), key=lambda job: (not job.schedule.is_urgent, job.id))
    before = sum(job.size_bytes for job in jobs if own and job.owner != owner and job.id < max(one.id for one in own))
    sent_already = max(0, sum(job.size_bytes for job in own) - counts.bytes_queued)
    arriving, late = _divided(own, (rate or 0.0) * left_s - before + sent_already)
    return Forecast(left_s, counts.bytes_queued + before, rate, arriving, late)


def _divided(jobs: Iterable[Job], room_bytes: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    arriving: list[str] = []
    late: list[str] = []
    for job in jobs:
        room_bytes -= job.size_bytes
        (arriving if room_bytes >= 0 else late).append(job.uri)
    return tuple(arriving), tuple(late)


def throughput(sent: Sequence[tuple[float, float, int]]) -> float | None:
    """Bytes a second of uploads (begin_s, end_s, size_bytes), in the time in which at least one was under way; None: unknown.

    Waiting for a store that does not answer counts, so it is rather too low than too high.
    """
    busy_s, until_s = 0.0, float("-inf")
    for begin_s, end_s, _ in sorted(sent):
        busy_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    size_bytes = sum(size for _, _, size in sent)
    return size_bytes / busy_s if busy_s > 0 and size_bytes else None


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
