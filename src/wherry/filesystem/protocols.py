"""The names ``s3://`` and ``gs://`` for fsspec, so that it can read ``wherry::s3://bucket/key`` where s3fs is not installed.

fsspec takes such a URL apart from its end and wants a class for each piece. The inner one is asked only what a path looks
like: our own backend makes the connection. So these names lead to s3fs and gcsfs where those are installed, just as without
wherry, and else to a class that knows paths and that refuses, in fsspec's own words, to be used by itself.
"""

from __future__ import annotations

from typing import Any

from fsspec import AbstractFileSystem


class _Name(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Paths without a file system."""

    package = ""

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        scheme = self.protocol[0]
        raise ImportError(
            f"Install {self.package} to access {scheme}:// (wherry::{scheme}:// and wherry+{scheme}:// do without it)"
        )


try:
    from s3fs import S3FileSystem
except ImportError:

    class S3FileSystem(_Name):  # type: ignore[no-redef]
        """The protocol of s3fs."""

        protocol = ("s3", "s3a")
        package = "s3fs"


try:
    from gcsfs import GCSFileSystem
except ImportError:

    class GCSFileSystem(_Name):  # type: ignore[no-redef]
        """The protocol of gcsfs."""

        protocol = ("gs", "gcs")
        package = "gcsfs"
