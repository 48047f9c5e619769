"""Logged data as text: in Composer's format, which only looks like JSON, as JSON, and as Markdown for TensorBoard."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from wherry.loggers.values.arrays import is_tensor, n_elements

#: Larger arrays are written as their shape only.
_MAX_ELEMENTS = 64
#: Python refuses to write longer integers in decimal (sys.get_int_max_str_digits() is 4300 digits), but not in hex.
_MAX_DECIMAL_BITS = 14_000
#: Markdown's special characters, which get a backslash; those of HTML become entities.
_MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|~]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def format_log_data_value(data: object, /) -> str:
    """Format a logged value as Composer does, for tools that read that: floats with four decimals, no escaping.

    ``{ "loss": 0.2500, "name": "a", }`` for a mapping, ``[1, 2]`` for anything else that can be iterated, the number in a
    tensor of one element, else ``Tensor of shape torch.Size([2, 3])``. A learning rate of 3e-6 is ``0.0000``, and
    quotes in a text are not escaped: for text that programs read use format_json().
    """
    if isinstance(data, str):
        return f'"{data}"'
    if data is None or isinstance(data, int):  # True as well: "True"
        return str(data)
    if isinstance(data, float):
        return f"{data:.4f}"
    if is_tensor(data):
        is_one = data.numel() == 1
        return format_log_data_value(data.detach().cpu().item()) if is_one else f"Tensor of shape {data.shape}"
    if isinstance(data, Mapping):
        return "{ " + "".join(f'"{key}": {format_log_data_value(value)}, ' for key, value in data.items()) + "}"
    if isinstance(data, Iterable):
        if getattr(data, "shape", None) == ():  # a 0-d array calls itself iterable, and raises when it is iterated
            return format_log_data_value(data.item())  # type: ignore[attr-defined]
        return "[" + ", ".join(map(format_log_data_value, data)) + "]"
    return str(data)


def as_text(data: object) -> str:
    """A text as it is, anything else by format_json()."""
    return data if isinstance(data, str) else format_json(data)


def format_json(data: object, /, *, significant_digits: int | None = 6) -> str:
    """Format anything as one line of strict JSON (RFC 8259); never raises.

    Floats keep so many significant digits, or all of them for None: 3e-6 is ``3e-06``. JSON has neither NaN nor infinities: they
    are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` (as in Protocol Buffers' JSON), so that they differ from each
    other and from null. Arrays and tensors of at most 64 elements are lists, array scalars are numbers, and of larger arrays the
    shape is written. Keys become strings, sets and iterators lists, and types that JSON does not know their str().
    """
    try:
        plain = _plain(data, significant_digits, ())
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(plain, allow_nan=False)
    except Exception:  # data that is still being changed, nested without end, or whose own methods raise
        return json.dumps(_text(data))
    return text


def pandas_json(columns: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table as ``DataFrame.to_json(orient="split", index=False)`` writes it: ASCII, escaped slashes, ten decimals."""
    table = {"columns": [str(column) for column in columns], "data": [[_as_in_pandas(value) for value in row] for row in rows]}
    return json.dumps(table, separators=(",", ":")).replace("/", "\\/")


def _as_in_pandas(value: object) -> object:
    plain = _plain(value, None, ())
    if isinstance(plain, float):
        return round(plain, 10)
    return None if plain in ("NaN", "Infinity", "-Infinity") and not isinstance(value, str) else plain


def markdown_table(columns: Sequence[object], rows: Sequence[Sequence[object]], *, max_rows: int | None = None) -> str:
    """A table of rows: n x len(columns). Rows after `max_rows` are left out, and their number is said.

    Values that are no text are written as `format_json` does.
    """
    shown = rows if max_rows is None else rows[:max_rows]
    lines = [_row(columns), "|" + " --- |" * max(len(columns), 1), *map(_row, shown)]
    if len(shown) < len(rows):
        lines += ["", f"{len(rows) - len(shown)} more rows are not shown."]
    return "\n".join(lines)


def code_block(text: str) -> str:
    """A text shown verbatim: indented, as a fence could be closed by the text."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(value: object) -> str:
    return "<br>".join(_MARKUP.sub(r"\\\g<0>", as_text(value).translate(_ENTITIES)).splitlines())


def _plain(value: object, digits: int | None, above: tuple[int, ...]) -> object:
    """`value` as json can write it. `above`: the ids of the containers around it."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _plain_number(value, digits)
    if id(value) in above:
        return "..."
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_text(key): _plain(item, digits, inside) for key, item in value.items()}
    if (n := n_elements(value)) is not None and hasattr(value, "tolist"):
        if n <= _MAX_ELEMENTS:
            return _plain(value.tolist(), digits, inside)
        kind = f"{type(value).__name__} of shape {tuple(value.shape)}"  # type: ignore[attr-defined]
        return f"{kind}, {getattr(value, 'dtype', 'of unknown type')}"
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)) and not hasattr(value, "shape"):
        return [_plain(item, digits, inside) for item in value]
    return _text(value)


def _plain_number(value: int | float, digits: int | None) -> int | float | str:
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_DECIMAL_BITS else hex(value)
    value = float(value)
    if math.isfinite(value):
        rounded = value if digits is None else float(f"{value:.{digits}g}")
        return rounded if math.isfinite(rounded) else value  # the largest floats would be rounded up to infinity
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: object) -> str:
    try:
        return repr(value) if isinstance(value, (bytes, bytearray)) else str(value)
    except Exception:  # somebody else's __str__
        return f"<{type(value).__name__}>"
