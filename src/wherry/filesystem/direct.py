"""The backends as plain fsspec file systems, without the queue: ``wherry+s3://bucket/key``, ``wherry+gs://``, ``wherry+file://``.

A write returns when the object is verified in the store. The options are those of the store itself, and `config`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wherry.config import Config
from wherry.filesystem.filesystem import WherryFileSystem
from wherry.filesystem.storage_options import place_and_options
from wherry.filesystem.store_paths import StorePaths
from wherry.filesystem.uploaders import Uploaders, private_folder
from wherry.store.registry import check_usable


class _DirectFileSystem(WherryFileSystem):
    """Uploads inside the call, from a folder that only this process has."""

    _waits = True

    def __init__(self, *, config: Config | None = None, fo: object = None, **options: Any) -> None:
        """Raises ConfigError for options that are unknown or contradict each other."""
        super(StorePaths, self).__init__()  # its options have the store's name around them
        config = config or Config()
        self._place, self._opened = place_and_options(self.protocol.removeprefix("wherry+"), options)
        check_usable(self._place.scheme, self._opened)
        in_caller = replace(config, agent=replace(config.agent, run_in="caller"))
        self._uploaders = Uploaders(self._place, self._opened, private_folder, in_caller)

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.protocol}://{self._strip_protocol(name)}"


class DirectS3FileSystem(_DirectFileSystem):
    """``wherry+s3://bucket/key``."""

    protocol = "wherry+s3"


class DirectGCSFileSystem(_DirectFileSystem):
    """``wherry+gs://bucket/key``."""

    protocol = "wherry+gs"


class DirectLocalFileSystem(_DirectFileSystem):
    """``wherry+file:///folder/name``."""

    protocol = "wherry+file"
