"""Templates of remote names: ``{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt``, the same on the way up and down."""

from __future__ import annotations

import string
from collections.abc import Mapping

from wherry.errors import ConfigError

_FORMATTER = string.Formatter()


def format_name(template: str, fields: Mapping[str, str | int | float]) -> str:
    """Fill a template's fields; ``{epoch:04d}`` formats as Python does, ``{{`` stands for a brace.

    Raises ConfigError for a field that is not in `fields`; it lists those that are.
    """
    pieces: list[str] = []
    try:
        for literal, name, spec, conversion in _FORMATTER.parse(template):
            pieces.append(literal)
            if name is None:
                continue
            if name not in fields:
                raise ConfigError(
                    f"the name template {template!r} has the unknown field {{{name}}}: known are "
                    f"{', '.join(sorted(fields))}; write {{{{ and }}}} for plain braces"
                )
            value = _FORMATTER.convert_field(fields[name], conversion) if conversion else fields[name]
            pieces.append(format(value, spec or ""))
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the name template {template!r} cannot be read: {error}") from error
    return "".join(pieces)
