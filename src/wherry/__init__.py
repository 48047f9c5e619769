"""wherry ferries files between a training job and an object store: whole, verified, exactly once, without slowing training.

    with wherry.Uploader("s3://bucket/run1") as uploader:
        uploader.put("checkpoint.pt", "ep1.pt")       # returns at once; the upload survives kill -9
        uploader.get("ep1.pt", "restored.pt")         # at once too, from the spool while it is queued

Loggers for a training loop are in `wherry.loggers`, tools for tests of your own in `wherry.testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.config import AgentConfig as AgentConfig
    from wherry.config import Config as Config
    from wherry.config import RetryConfig as RetryConfig
    from wherry.config import SpoolConfig as SpoolConfig
    from wherry.config import TransferConfig as TransferConfig
    from wherry.errors import AccessDeniedError as AccessDeniedError
    from wherry.errors import AlreadyExistsError as AlreadyExistsError
    from wherry.errors import ConfigError as ConfigError
    from wherry.errors import IntegrityError as IntegrityError
    from wherry.errors import NotFoundError as NotFoundError
    from wherry.errors import SpoolError as SpoolError
    from wherry.errors import StoreError as StoreError
    from wherry.errors import UploadFailed as UploadFailed
    from wherry.errors import WherryError as WherryError
    from wherry.mirror.mirror_config import MirrorConfig as MirrorConfig
    from wherry.mirror.reader.pull import pull as pull
    from wherry.mirror.writer.mirror import Mirror as Mirror
    from wherry.spool.handle import UploadHandle as UploadHandle
    from wherry.spool.journal.jobs import JobState as JobState
    from wherry.store import ObjectMeta as ObjectMeta
    from wherry.uploader import Uploader as Uploader

__version__ = "0.1.0"

#: Public name -> module. Loaded on first use, so that `import wherry` costs next to nothing.
_HOMES = {
    "AccessDeniedError": "wherry.errors",
    "AgentConfig": "wherry.config",
    "AlreadyExistsError": "wherry.errors",
    "Config": "wherry.config",
    "ConfigError": "wherry.errors",
    "IntegrityError": "wherry.errors",
    "JobState": "wherry.spool.journal.jobs",
    "Mirror": "wherry.mirror.writer.mirror",
    "MirrorConfig": "wherry.mirror.mirror_config",
    "NotFoundError": "wherry.errors",
    "ObjectMeta": "wherry.store",
    "RetryConfig": "wherry.config",
    "SpoolConfig": "wherry.config",
    "SpoolError": "wherry.errors",
    "StoreError": "wherry.errors",
    "TransferConfig": "wherry.config",
    "UploadFailed": "wherry.errors",
    "UploadHandle": "wherry.spool.handle",
    "Uploader": "wherry.uploader",
    "WherryError": "wherry.errors",
    "pull": "wherry.mirror.reader.pull",
}

__all__ = [
    "AccessDeniedError",
    "AgentConfig",
    "AlreadyExistsError",
    "Config",
    "ConfigError",
    "IntegrityError",
    "JobState",
    "Mirror",
    "MirrorConfig",
    "NotFoundError",
    "ObjectMeta",
    "RetryConfig",
    "SpoolConfig",
    "SpoolError",
    "StoreError",
    "TransferConfig",
    "UploadFailed",
    "UploadHandle",
    "Uploader",
    "WherryError",
    "pull",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wherry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
