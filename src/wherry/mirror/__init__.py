"""A folder of growing files kept equal to a prefix of an object store, and read back from there.

`mirror.py` is the front door; `layout.py` says how it looks in the store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.mirror.format.fence import MirrorFencedError as MirrorFencedError
    from wherry.mirror.format.rules import DEFAULT_RULES as DEFAULT_RULES
    from wherry.mirror.format.rules import Rule as Rule
    from wherry.mirror.mirror_config import MirrorConfig as MirrorConfig
    from wherry.mirror.report import MirrorReport as MirrorReport
    from wherry.mirror.writer.mirror import Mirror as Mirror

#: Public name -> module. Loaded on first use.
_HOMES = {
    "DEFAULT_RULES": "wherry.mirror.format.rules",
    "Mirror": "wherry.mirror.writer.mirror",
    "MirrorConfig": "wherry.mirror.mirror_config",
    "MirrorFencedError": "wherry.mirror.format.fence",
    "MirrorReport": "wherry.mirror.report",
    "Rule": "wherry.mirror.format.rules",
}

__all__ = ["DEFAULT_RULES", "Mirror", "MirrorConfig", "MirrorFencedError", "MirrorReport", "Rule"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
