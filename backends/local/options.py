"""The storage options of a local folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from wherry.errors import ConfigError


@dataclass(frozen=True)
class LocalOptions:
    """What ``file://`` and plain paths take."""

    #: A finished put also survives a power cut.
    fsync: bool = False
    #: The folder that links of the file system must not lead out of, as an absolute path; ``/`` allows all of them. Default: the
    #: folder of the URI.
    links_within: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fsync, bool):
            raise ConfigError(f"storage option 'fsync' is {self.fsync!r}: use True or False")
        if self.links_within is not None and not (isinstance(self.links_within, str) and self.links_within.startswith("/")):
            raise ConfigError(f"storage option 'links_within' is {self.links_within!r}: give a folder's absolute path")

    @classmethod
    def read(cls, options: Mapping[str, object]) -> LocalOptions:
        """From a mapping; ConfigError that names the known options for one that is unknown."""
        known = [option.name for option in fields(cls)]
        if unknown := set(options) - set(known):
            raise ConfigError(f"storage option {min(unknown)!r} is unknown to a local folder: it takes {', '.join(known)}")
        return cls(**cast("dict[str, Any]", dict(options)))
