"""``UPath("wherry::s3://bucket/run", s3={...}, wherry={...})``: the class that universal-pathlib looks for, by entry point."""

from __future__ import annotations

import fsspec
from upath import UPath

fsspec.get_filesystem_class("wherry")  # universal-pathlib warns of a protocol whose class nobody has loaded yet


class WherryPath(UPath):
    """Every path of the file system ``wherry``: nothing differs from any other object store."""

    __slots__ = ()
