"""Words of a command that a person pastes into a shell, though names in it are of a bucket."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

_NAMED = {"\\": "\\\\", "'": "\\'"}


def shell_word(text: str) -> str:
    """The text as one word for a shell, without a control character, which would end a paste in a terminal and run the rest.

    What nobody can type is written in ``$'...'``, as bash, zsh and POSIX 2024 read it.
    """
    return shlex.quote(text) if text.isprintable() else "$'" + "".join(map(_typed, text)) + "'"


def option_words(options: Mapping[str, object]) -> list[str]:
    """Storage options as ``--option`` of the commands reads them; for a shell they are still to be quoted."""
    return [f"--option={name}={_value(value)}" for name, value in options.items()]


def _typed(letter: str) -> str:
    if letter.isprintable():
        return _NAMED.get(letter, letter)
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))


def _value(value: object) -> str:
    """JSON, or else a text."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)
