"""The colours of a terminal in a log, as the page shows them; all other control characters are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Sequences of ECMA-48: colours (the first group has their numbers), other CSI sequences, OSC up to its end, two characters.
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;]*)m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|.)?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


@dataclass(frozen=True)
class Piece:
    """A text of one look. `look`: classes of style.css, such as ``a-red a-bold``; empty for a plain text."""

    text: str
    look: str = ""


def pieces(text: str) -> Iterator[Piece]:
    """Yield the text in pieces. Of a line that was written again after a carriage return, the last version is kept."""
    colour, is_bold = "", False
    at = 0
    text = "\n".join(_last_version(line) for line in text.split("\n"))
    for found in _ESCAPE.finditer(text):
        if piece := _piece(text[at : found.start()], colour, is_bold):
            yield piece
        at = found.end()
        if found[1] is not None:
            colour, is_bold = _after(found[1], colour, is_bold)
    if piece := _piece(text[at:], colour, is_bold):
        yield piece


def plain(text: str) -> str:
    """The text without any control sequence."""
    return "".join(piece.text for piece in pieces(text))


def _last_version(line: str) -> str:
    line = line.removesuffix("\r")
    return line.rpartition("\r")[2] if "\r" in line else line


def _piece(text: str, colour: str, is_bold: bool) -> Piece | None:
    shown = _CONTROL.sub("", text)
    look = " ".join(f"a-{name}" for name in (colour, "bold" if is_bold else "") if name)
    return Piece(shown, look) if shown else None


def _after(numbers: str, colour: str, is_bold: bool) -> tuple[str, bool]:
    """The look after a sequence of numbers. Colours of 256 and of 16 million are left out."""
    codes = [int(number[:4] or 0) for number in numbers.split(";")[:16]]
    while codes:
        code = codes.pop(0)
        if code == 0:
            colour, is_bold = "", False
        elif code in (1, 22):
            is_bold = code == 1
        elif 30 <= code <= 37 or 90 <= code <= 97:
            colour = _COLOURS[code % 10]
        elif code in (38, 48):
            del codes[: 2 if codes[:1] == [5] else 4]
        elif code == 39:
            colour = ""
    return colour, is_bold
