"""wherry ferries files between a training job and an object store."""

from __future__ import annotations

__version__ = "0.1.0"
