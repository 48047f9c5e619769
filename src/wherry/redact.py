"""Takes secrets out of texts: of messages, the journal and the log, in every form in which a library may show them."""

from __future__ import annotations

import base64
import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

#: Shorter values are words like "true"; hiding those would only garble messages.
_SHORTEST_CHARS = 6
_HIDDEN = "***"
_ESCAPE = re.compile("%[0-9A-F]{2}")


class Redactor:
    """Knows secrets and hides them, as they are and as they look in URLs, JSON, Python's repr and base64. Safe from threads."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}  # replaced ones, too: a late error may still name them
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: object) -> None:
        """Hide the texts and large numbers in `value` from now on: one, or a mapping or collection of them, however deep.

        A text that is a JSON object, such as the content of a key file, is taken apart as well.
        """
        if not (new := set(_texts(value)) - self._values.keys()):
            return
        self._values |= dict.fromkeys(new)
        known: list[str] = []
        # No lock, which another thread of a forked child's parent may have held: who writes last has seen all values.
        while len(known) < len(self._values):
            known = list(self._values)
            forms = {form for text in known for form in _forms(text)}
            longest_first = sorted(forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def scrub(self, text: str) -> str:
        """The text without any secret in it."""
        pattern = self._pattern
        return text if pattern is None else pattern.sub(_HIDDEN, text)


#: Of this process.
_redactor = Redactor()


def register_secret(value: object) -> None:
    """From now on redact() hides the texts in `value`, however deep they lie.

    >>> register_secret({"aws_secret_access_key": "wJalrXUtnFEMI"})
    >>> redact("denied: wJalrXUtnFEMI")
    'denied: ***'
    """
    _redactor.learn(value)


def redact(text: str) -> str:
    """The text without any secret that was registered in this process."""
    return _redactor.scrub(text)


def log_to_stderr(level: int, form: str, *, force: bool = False) -> None:
    """Send this process's log to stderr, without secrets. `force`: as logging.basicConfig() takes it."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(form))
    logging.basicConfig(level=level, handlers=[handler], force=force)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.name.startswith("wherry"):  # a library logs what it raises, and our error says it
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        return redact(super().format(record))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, (bytes, bytearray)):
        yield from _texts(bytes(value).decode(errors="replace"))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from _texts(str(value))
    elif isinstance(value, str) and len(value) >= _SHORTEST_CHARS:
        yield value
        if value.lstrip().startswith("{"):
            try:
                yield from _texts(json.loads(value))
            except (ValueError, RecursionError):
                return


def _forms(secret: str) -> Iterator[str]:
    """How a secret may look in a text. Each has at least as many characters as the shortest secret."""
    yield secret
    data = secret.encode(errors="replace")
    for quoted in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield quoted
        yield _ESCAPE.sub(lambda match: match[0].lower(), quoted)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    for offset in range(3):  # as in the base64 of "user:secret": what the bytes of the secret alone decide, for each alignment
        encoded = base64.b64encode(b"\0" * offset + data).decode()
        first, last = (offset * 8 + 5) // 6, (offset + len(data)) * 8 // 6
        if last - first >= _SHORTEST_CHARS:
            yield encoded[first:last]
            yield encoded[first:last].replace("+", "-").replace("/", "_")
