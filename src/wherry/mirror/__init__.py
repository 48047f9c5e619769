"""A folder of growing files kept equal to a prefix of an object store, and read back from there.

`mirror.py` is the front door; `layout.py` says how it looks in the store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.mirror.config import MirrorConfig as MirrorConfig
    from wherry.mirror.fence import MirrorFencedError as MirrorFencedError
    from wherry.mirror.mirror import Mirror as Mirror
    from wherry.mirror.report import MirrorReport as MirrorReport
    from wherry.mirror.rules import DEFAULT_RULES as DEFAULT_RULES
    from wherry.mirror.rules import Rule as Rule

#: Public name -> module. Loaded on first use.
_HOMES = {
    "DEFAULT_RULES": "wherry.mirror.rules",
    "Mirror": "wherry.mirror.mirror",
    "MirrorConfig": "wherry.mirror.config",
    "MirrorFencedError": "wherry.mirror.fence",
    "MirrorReport": "wherry.mirror.report",
    "Rule": "wherry.mirror.rules",
}

__all__ = ["DEFAULT_RULES", "Mirror", "MirrorConfig", "MirrorFencedError", "MirrorReport", "Rule"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
