"""The metrics and the metadata of a set, checked before anything is copied: what a receipt cannot hold is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from wherry.checkpoints.arguments import require
from wherry.checkpoints.protocol.documents import why_not_plain
from wherry.errors import ConfigError

#: A manifest holds them, and every look at the run's sets reads manifests.
MOST_METADATA_BYTES = 2**20


def checked(
    metrics: Mapping[str, float] | None, metadata: Mapping[str, object] | None
) -> tuple[dict[str, float], dict[str, object]]:
    """The metrics and the metadata, as a receipt holds them."""
    return checked_metrics(metrics), checked_metadata(metadata)


def checked_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """The metrics as floats; ConfigError for one that is no finite number."""
    require(metrics, Mapping, "metrics", "give a dict of numbers by their names")
    checked: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        if not str(name):
            raise ConfigError(f"the metric with the value {value!r} has an empty name: restore('best:METRIC') needs one")
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"the metric {name!r} is {value!r}: give a number") from None
        if not math.isfinite(checked[str(name)]):
            raise ConfigError(f"the metric {name!r} is {value!r}: leave it out, as it compares with nothing")
    _check(checked, "the metrics")
    return checked


def checked_metadata(metadata: Mapping[str, object] | None) -> dict[str, object]:
    """The metadata as JSON gives it back; ConfigError for what is no plain JSON, or too much of it."""
    require(metadata, Mapping, "metadata", "give a dict of plain JSON values")
    try:
        plain: dict[str, object] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be plain JSON values: {error}") from None
    _check(plain, "metadata")
    return plain


def _check(content: Mapping[str, object], what: str) -> None:
    if (why := why_not_plain(content)) is not None:
        raise ConfigError(f"{what} must be plain JSON values: {why}")
    if (size_bytes := len(json.dumps(content, ensure_ascii=False).encode())) > MOST_METADATA_BYTES:
        raise ConfigError(
            f"{what} would have {size_bytes} bytes, at most {MOST_METADATA_BYTES} are allowed: save the rest as a file of the set"
        )
