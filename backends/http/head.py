"""Reads the heads of HTTP/1.1 answers ("RFC 9112: HTTP/1.1").

Strict on purpose: what two readers could understand in two ways is refused, as a proxy on the way might see another answer than
we do ("RFC 9112", section 11.2, request smuggling). So bare line feeds, folded lines, a space before a colon, and a
Content-Length beside a Transfer-Encoding are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wherry.backends.http.wire_errors import ProtocolError

#: Amazon's own heads have less than 8 KiB.
MOST_HEAD_BYTES = 64 * 1024
#: Of a line that begins a chunk.
MOST_LINE_BYTES = 1024
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\0-\x08\x0a-\x1f\x7f]*)?\r\n")
_FIELD = re.compile(r"(?<=\n)([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\0-\x08\x0a-\x1f\x7f]*)\r\n")
#: With nothing after it: Python's own library, for one, takes "chunked " for another coding, and the chunks for the body.
_CHUNKED = re.compile(r"\ntransfer-encoding:[ \t]*chunked\r\n", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\0-\x08\x0a-\x1f\x7f]*)?\r\n")
_FRAMING = ("content-length", "transfer-encoding")


@dataclass(frozen=True)
class Head:
    """The head of an answer. `headers`: by their names in lower case; what came more than once is joined by commas."""

    status: int
    headers: dict[str, str]
    #: Whether the server takes another request on this connection.
    keeps: bool

    def body_bytes(self, method: str) -> int | None:
        """How many bytes of body follow; None: the body tells itself, by chunks or by the end of the connection."""
        if method == "HEAD" or self.status < 200 or self.status in (204, 304):
            return 0
        length = self.headers.get("content-length")
        return None if length is None else int(length)

    @property
    def is_chunked(self) -> bool:
        """Whether the body, if there is one, comes in chunks."""
        return "transfer-encoding" in self.headers


def parse_head(head: bytes) -> Head:
    """Read a head, up to its empty line. Raises ProtocolError, and nothing else, whatever the bytes are."""
    text = head.decode("latin-1")
    if (status := _STATUS.match(text)) is None:
        raise ProtocolError(f"what came is no HTTP/1.1 answer: it begins with {head[:40]!r}")
    fields = _FIELD.findall(text, status.end() - 1)
    # Each field ends one line, and begins one. So all lines are fields if there are as many, less the first and the empty one.
    if not text.endswith("\r\n\r\n") or len(fields) != text.count("\n") - 2:
        raise ProtocolError("the answer's head has a line that is no header")
    headers = {name.lower(): value.rstrip(" \t") for name, value in fields}
    if len(headers) != len(fields):
        headers = _joined(fields)
    is_newer = status[1] == "1"
    _check_framing(headers, text, is_newer)
    keeps = is_newer and "close" not in headers.get("connection", "").lower()
    if status[2] == "204" and (headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers):
        keeps = False  # 204 has no body, but this server may send one
    return Head(int(status[2]), headers, keeps)


def _joined(fields: list[tuple[str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in ((name.lower(), value.rstrip(" \t")) for name, value in fields):
        if name in headers and name in _FRAMING:
            raise ProtocolError(f"the answer has two headers {name}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _check_framing(headers: dict[str, str], text: str, is_newer: bool) -> None:
    length, coding = (headers.get(name) for name in _FRAMING)
    if length is not None and not _LENGTH.fullmatch(length):
        raise ProtocolError(f"the answer's content-length is no number of bytes: {length[:40]!r}")
    if coding is not None and (length is not None or not _CHUNKED.search(text) or not is_newer):
        raise ProtocolError("the answer's transfer-encoding is not 'chunked' alone, by HTTP/1.1 and without a content-length")


def parse_chunk_line(line: bytes) -> int:
    """The size of the chunk that this line begins, in bytes; 0: it was the last one. Raises ProtocolError."""
    if (found := _CHUNK.fullmatch(line)) is None:
        raise ProtocolError(f"the answer's body has no chunk where one should begin: {line[:40]!r}")
    return int(found[1], 16)
