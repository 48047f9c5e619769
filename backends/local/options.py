"""The storage options of a local folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wherry.errors import ConfigError
from wherry.store.options import Backend, StorageOptions


@dataclass(frozen=True)
class LocalOptions(StorageOptions):
    """What ``file://`` and plain paths take."""

    scheme = "file"
    #: A finished put also survives a power cut.
    fsync: bool = False
    #: The folder that links of the file system must not lead out of, as an absolute path; ``/`` allows all of them. Default: the
    #: folder of the URI.
    links_within: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.links_within is not None and not self.links_within.startswith("/"):
            raise ConfigError(f"storage option 'links_within' is {self.links_within!r}: give a folder's absolute path")


def _from_fsspec(options: dict[str, Any]) -> dict[str, Any]:
    options.pop("auto_mkdir", None)  # folders are always made
    return options


BACKEND = Backend(
    "wherry.backends.local.store:LocalStore",
    LocalOptions.table(),
    takes_others=False,
    check=LocalOptions.read,
    from_fsspec=_from_fsspec,
    variables=(),
)
