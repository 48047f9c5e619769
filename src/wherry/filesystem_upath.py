"""``UPath("wherry::s3://bucket/run", s3={...}, wherry={...})``: the class that universal-pathlib looks for, by entry point."""

from __future__ import annotations

import fsspec
from upath import UPath

fsspec.get_filesystem_class("wherry")  # universal-pathlib warns of a protocol whose class nobody has loaded yet


class WherryPath(UPath):
    """Every path of the file system ``wherry``."""

    __slots__ = ()

    def __str__(self) -> str:
        """``wherry::s3://bucket/run/x.pt``: whoever puts a suffix to its end names another file.

        universal-pathlib writes chains whose links have paths of their own, ``wherry://bucket/run/x.pt::s3://bucket/run``.
        """
        own, *inner = super().__str__().split("::")
        scheme, slashes, path = own.partition("://")
        if scheme != self.protocol or not slashes or not inner:  # a relative path
            return super().__str__()
        return "::".join((scheme, f"{inner[0].partition('://')[0]}://{path}", *inner[1:]))
