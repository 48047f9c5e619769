"""HTTP/1.1 messages on asyncio streams (RFC 9112): heads as they came, bodies block by block, never whole in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

#: Streams need room for a head and at least two blocks.
STREAM_LIMIT_BYTES = 256 * 1024
_BLOCK_BYTES = 64 * 1024
_LENGTH = re.compile(rb"(?im)^(content-length[ \t]*:[ \t]*)\d+")


class MalformedError(Exception):
    """A message that cannot be taken apart."""


@dataclass(frozen=True)
class Head:
    """The first line and the fields of a message; `raw` is what came, the empty line at its end included."""

    raw: bytes
    first: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """A field's value, without regard to case; "" if there is none."""
        return next((value for found, value in self.fields if found == name), "")

    @property
    def words(self) -> tuple[str, str, str]:
        """The first line's three parts; the third may be empty."""
        words = [*self.first.split(" ", 2), "", ""]
        return words[0], words[1], words[2]

    @property
    def status(self) -> int:
        """Of an answer."""
        try:
            return int(self.words[1])
        except ValueError:
            raise MalformedError(f"no status in {self.first!r}") from None

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks, which rule out a length."""
        return "chunked" in self.get("transfer-encoding").lower()

    @property
    def length(self) -> int | None:
        """The body's bytes, as the head tells them."""
        text = self.get("content-length")
        if text and not (text.isascii() and text.isdecimal()):
            raise MalformedError(f"Content-Length is {text!r}")
        return int(text) if text and not self.is_chunked else None

    @property
    def keeps_alive(self) -> bool:
        """Whether another message may follow on the connection."""
        says = self.get("connection").lower()
        return "close" not in says and ("HTTP/1.1" in self.first or "keep-alive" in says)

    def with_length(self, length: int) -> bytes:
        """The head as it came, with another Content-Length."""
        return _LENGTH.sub(rb"\g<1>%d" % length, self.raw)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None when the other side has ended the connection between two messages."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    except asyncio.LimitOverrunError as error:
        raise MalformedError("a head without end") from error
    lines = raw.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines[1:] if line)
    return Head(raw, lines[0], tuple((name.strip().lower(), value.strip()) for name, _, value in fields))


async def read_body(
    reader: asyncio.StreamReader, head: Head, *, is_empty: bool = False, to_end: bool = False
) -> AsyncIterator[bytes]:
    """The body's bytes, without chunk framing.

    `is_empty`: there is none, whatever the head says, as after HEAD. `to_end`: an answer without length goes on to the
    connection's end.
    """
    if is_empty:
        return
    if head.is_chunked:
        while size := _chunk_size(await reader.readuntil(b"\n")):
            async for block in _exactly(reader, size):
                yield block
            await reader.readexactly(2)
        while (await reader.readuntil(b"\n")).strip():
            pass  # trailers: neither S3 nor GCS has any outside of the payload
    elif head.length is not None:
        async for block in _exactly(reader, head.length):
            yield block
    elif to_end:
        while block := await reader.read(_BLOCK_BYTES):
            yield block


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise MalformedError(f"a chunk begins with {line!r}") from None


async def _exactly(reader: asyncio.StreamReader, n_bytes: int) -> AsyncIterator[bytes]:
    while n_bytes:
        block = await reader.read(min(n_bytes, _BLOCK_BYTES))
        if not block:
            raise asyncio.IncompleteReadError(b"", n_bytes)
        n_bytes -= len(block)
        yield block


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Hand bytes to the kernel; returns when it has them all."""
    writer.write(data)
    await writer.drain()


def framed(block: bytes, *, chunked: bool) -> bytes:
    """A block of a body as it stands on the wire."""
    return b"%x\r\n%b\r\n" % (len(block), block) if chunked and block else block
