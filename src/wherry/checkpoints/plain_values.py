"""What save() is told about a set, which becomes JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from wherry.errors import ConfigError


def checked(
    metrics: Mapping[str, float] | None, metadata: Mapping[str, object] | None
) -> tuple[dict[str, float], dict[str, object]]:
    """Refuse, before anything is copied, what a receipt could not hold."""
    checked: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"the metric {name!r} is {value!r}: give a number") from None
        if not math.isfinite(checked[str(name)]):
            raise ConfigError(f"the metric {name!r} is {value!r}: leave it out, as it compares with nothing")
    try:
        json.dumps(dict(metadata or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata must be plain JSON values: {error}") from None
    return checked, dict(metadata or {})
