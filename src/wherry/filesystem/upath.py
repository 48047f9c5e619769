"""``UPath("wherry::s3://bucket/run", s3={...}, wherry={...})``: the class that universal-pathlib looks for, by entry point."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from upath import UPath
from upath._chain import Chain, ChainSegment, FSSpecChainParser

fsspec.get_filesystem_class("wherry")  # universal-pathlib warns of a protocol whose class nobody has loaded yet


class _ChainParser(FSSpecChainParser):
    """Leaves the path with the inner URL, as universal-pathlib does for ``simplecache::`` and the like.

    Its own parser knows three protocols that pass the path on, by name. It gives a path of its own to ``wherry`` whenever a path
    is made of another one, so that drive, root and parts of the two would differ.
    """

    def unchain(self, path: str, *args: Any, **options: Any) -> list[ChainSegment]:
        if "target_protocol" in (options.get("storage_options") or {}) and not {"/", ":"} & set(path):
            path += "/"  # a bucket, whose name may be that of a protocol
        segments = super().unchain(path, *args, **options)
        # What a caller's options nest (target_protocol, target_options) becomes segments like those of a URL.
        segments = Chain.from_list(segments).to_list()
        if len(segments) > 1 and segments[0].path is not None:
            own, inner, *others = segments
            segments = [own._replace(path=None), inner._replace(path=own.path), *others]
        return segments


_PARSER = _ChainParser()


class WherryPath(UPath):
    """Every path of the file system ``wherry``: it has the drive, the root and the parts that a path of the inner URL has."""

    __slots__ = ()

    def __init__(
        self, *args: Any, protocol: str | None = None, chain_parser: FSSpecChainParser = _PARSER, **storage_options: Any
    ) -> None:
        super().__init__(*args, protocol=protocol, chain_parser=chain_parser, **storage_options)

    @classmethod
    def _fs_factory(cls, urlpath: str, protocol: str, storage_options: Mapping[str, Any]) -> AbstractFileSystem:
        return super()._fs_factory(urlpath, protocol, _without_path(storage_options))

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The storage options that the file system was opened with."""
        return MappingProxyType(_without_path(self._storage_options))

    @property
    def drive(self) -> str:
        """The bucket, where paths begin with one."""
        return "" if self._relative_base is not None else self.parser.splitdrive(self._chain.active_path)[0]

    @property
    def path(self) -> str:
        """What the file system knows it by; a bucket ends in a slash, as with universal-pathlib's own paths of buckets."""
        path = super().path
        return path + self.parser.sep if path and path == self.drive else path

    def __reduce__(self) -> tuple[Any, ...]:
        make, (own_class, args, options) = super().__reduce__()  # type: ignore[no-untyped-call]
        return make, (own_class, args, {**options, **_without_path(self.fs.portable_options())})

    def __copy__(self) -> WherryPath:
        make, arguments = super().__reduce__()  # type: ignore[no-untyped-call]
        copied: WherryPath = make(*arguments)  # within this process: with its secrets
        return copied

    def __deepcopy__(self, memo: object) -> WherryPath:
        return self.__copy__()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make nothing, as a folder is its objects; FileExistsError if there is one already, unless `exist_ok`, or an object."""
        if self.is_file() or (not exist_ok and self.is_dir()):
            raise FileExistsError(str(self))


def _without_path(storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Without ``fo``, the path of the inner URL: the file system is the same for all of its paths."""
    return {name: value for name, value in storage_options.items() if name != "fo"}
