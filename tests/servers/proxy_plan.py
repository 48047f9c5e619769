"""What a fault proxy does to which request: a plan is a list of `When`, each with one of the actions below.

>>> plan = [
...     When("PUT", r"partNumber=2&", Reset(after_bytes=1_000_000)),
...     When("POST", r"uploadId=", DropAnswer()),
...     When("GET", r"/key$", s3_error(503, "SlowDown"), nth=3, times=2),
... ]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: How a connection ends: "reset" (RST), "close" (FIN), or "hang": it stays open and nothing comes any more.
End = Literal["reset", "close", "hang"]


@dataclass(frozen=True)
class Do:
    """Call a function, in a thread of its own, before the request goes on: to act as another client at that very moment."""

    call: Callable[[], object]


@dataclass(frozen=True)
class Delay:
    """Hold the answer back."""

    seconds: float


@dataclass(frozen=True)
class Throttle:
    """Let the bodies through at this rate, the request's and the answer's."""

    bytes_per_s: float


@dataclass(frozen=True)
class Reset:
    """Reset both sides when that many bytes of the request's body have gone up; at 0 right after its head."""

    after_bytes: int = 0


@dataclass(frozen=True)
class BlackHole:
    """Take the request in, send nothing on, and never answer.

    `after_bytes`: read only so much of its body; the rest stays with the client once the buffers between are full (some MiB).
    """

    after_bytes: int | None = None


@dataclass(frozen=True)
class DropAnswer:
    """Let the server carry the request out, and lose its answer."""

    end: End = "reset"


@dataclass(frozen=True)
class Answer:
    """Answer in the server's place. `committed`: after the server has carried the request out, else it never sees it."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    committed: bool = False


@dataclass(frozen=True)
class Truncate:
    """Leave out the last bytes of the answer's body. `rewrite_length`: Content-Length is made to agree, else the body is cut."""

    n_bytes: int = 1
    rewrite_length: bool = False


@dataclass(frozen=True)
class Extend:
    """Add bytes to the answer's body. `rewrite_length`: Content-Length is made to agree, else they come after its end.

    `late_s`: how long after the body, so that no read returns both.
    """

    extra: bytes = b"too much"
    rewrite_length: bool = False
    late_s: float = 0


@dataclass(frozen=True)
class Corrupt:
    """Invert the bits of one byte of the answer's body; a body that has no such byte stays as it is."""

    at: int = 0


@dataclass(frozen=True)
class CutAnswer:
    """End the connection when at most that many bytes of the answer's body have come."""

    after_bytes: int = 0
    end: End = "reset"


Action = Do | Delay | Throttle | Reset | BlackHole | DropAnswer | Answer | Truncate | Extend | Corrupt | CutAnswer


@dataclass(frozen=True)
class When:
    """Do `action` to the `nth` request (from 1) that matches, and to the `times - 1` such requests after it.

    `method`: in full, or "" for any. `target` (path and query, as sent) and `header` (some line of the head, as sent, without
    regard to case) are regular expressions that are searched for.

    Each row counts the requests that match it for itself, also those that other rows act on. When several rows meet in one
    request, all act; where they exclude each other, one that ends the exchange earlier wins.
    """

    method: str
    target: str
    action: Action
    nth: int = 1
    times: int = 1
    header: str = ""

    def matches(self, method: str, target: str, head: str) -> bool:
        """Whether a request is one of those that are counted."""
        return (
            self.method in ("", method)
            and re.search(self.target, target) is not None
            and re.search(self.header, head, re.IGNORECASE | re.MULTILINE) is not None
        )


def s3_error(
    status: int, code: str, message: str = "by plan", *, retry_after_s: int | None = None, committed: bool = False
) -> Answer:
    """An error as S3 words it ("Error responses", Amazon S3 API Reference); status 200 too, as CompleteMultipartUpload may."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Answer(status, body.encode(), _headers("application/xml", retry_after_s), committed)


def gcs_error(
    status: int, reason: str, message: str = "by plan", *, retry_after_s: int | None = None, committed: bool = False
) -> Answer:
    """An error as GCS words it ("HTTP status and error codes for JSON", Cloud Storage documentation)."""
    item = {"message": message, "domain": "global", "reason": reason}
    body = json.dumps({"error": {"code": status, "message": message, "errors": [item]}})
    return Answer(status, body.encode(), _headers("application/json; charset=UTF-8", retry_after_s), committed)


def _headers(content_type: str, retry_after_s: int | None) -> tuple[tuple[str, str], ...]:
    wait = () if retry_after_s is None else (("Retry-After", str(retry_after_s)),)
    return (("Content-Type", content_type), *wait)
