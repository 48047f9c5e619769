"""What the file system `wherry::` opens: the store of the inner URL, and the bucket and the name that a path stands for."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from fsspec.implementations.chained import ChainedFileSystem
from fsspec.json import FilesystemJSONEncoder
from fsspec.spec import make_instance
from fsspec.utils import stringify_path

from wherry.config import Config
from wherry.errors import ConfigError
from wherry.filesystem.entries import Folder
from wherry.filesystem.storage_options import place_and_options, strip_scheme
from wherry.filesystem.uploaders import Uploaders
from wherry.store.portable_secrets import portable
from wherry.store.registry import check_usable
from wherry.uploader import Uploader

_Self = TypeVar("_Self")


class StorePaths(ChainedFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """The store that the options name, its Uploaders, and what a path is in it."""

    protocol = "wherry"
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        *,
        target_protocol: str | None = None,
        target_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        config: Config | None = None,
        fo: object = None,
        **others: Any,
    ) -> None:
        """`fo`, the path of the inner URL, comes from fsspec and is ignored.

        Options may also come wrapped as ``wherry={...}``: universal-pathlib hands them over as they are.
        """
        if wrapped := dict(others.pop("wherry", None) or {}):
            spool, config = wrapped.pop("spool", spool), wrapped.pop("config", config)
            others |= wrapped
        if unknown := sorted(set(others) - {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop"}):
            raise ConfigError(
                f"unknown option{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} of wherry::, "
                f"which takes spool and config: options of the store go "
                "to its own name, as in s3={...}"
            )
        if target_protocol is None:
            raise ConfigError(
                "wherry:: stands before the URL of a store: write wherry::s3://bucket/name or wherry::file:///folder"
            )
        super().__init__(**others)
        self._place, self._opened = place_and_options(target_protocol, target_options or {})
        check_usable(self._place.scheme, self._opened)
        self._uploaders = Uploaders(self._place, self._opened, spool, config)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path).removeprefix(f"{cls.protocol}://")
        inner = path.removeprefix(f"{cls.protocol}::")
        scheme, mark, _ = inner.partition("://")
        if mark:
            return strip_scheme(scheme, inner)
        if inner != path:  # a local path, as in fsspec
            return strip_scheme("file", f"file://{inner}")
        return path.rstrip("/") or path[:1]

    @classmethod
    def _parent(cls, path: str) -> str:
        path = cls._strip_protocol(path)
        return path.rpartition("/")[0] or ("/" if path.startswith("/") else "")

    def unstrip_protocol(self, name: str) -> str:
        """The full URL of a path, as fsspec.open() takes it."""
        return f"{self.protocol}::{self._place.scheme}://{self._strip_protocol(name)}"

    def _locate(self, path: str) -> tuple[Uploader, str]:
        """The uploader and the name for a path; the name is empty for a bucket itself."""
        root, name = self._place.split(self._strip_protocol(path))
        return self._uploaders.at(root), name

    def _folder(self, path: str) -> Folder:
        return Folder(self._place, *self._locate(path))

    def _object(self, path: str) -> tuple[Uploader, str]:
        uploader, name = self._locate(path)
        if not name:
            raise IsADirectoryError(errno.EISDIR, "is no object but a whole store", path)
        return uploader, name

    def portable_options(self) -> dict[str, Any]:
        """The storage options without their secrets: each is a reference to the environment variable that has it.

        ConfigError for a secret that is in no variable which the store's own library, or fsspec, reads.
        """
        return portable(self._place.scheme, self.storage_options, self._opened)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_instance, (type(self), self.storage_args, self.portable_options())

    def __copy__(self: _Self) -> _Self:
        return self  # equal options share one instance

    def __deepcopy__(self: _Self, memo: object) -> _Self:
        return self

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """What from_dict() and from_json() make it of again; without secrets, as portable_options() says."""
        options = FilesystemJSONEncoder().make_serializable(self.portable_options())
        return {"cls": f"{type(self).__module__}:{type(self).__name__}", "protocol": self.protocol, "args": [], **options}

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every upload that this process has handed over to this file system is verified in the store.

        Raises UploadFailed for those that failed, TimeoutError after `timeout_s`, which is for each bucket.
        """
        self._uploaders.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """flush(), then sign off from the spool; `timeout_s` and its default as in `Uploader.close()`, for all buckets together.

        Using the file system again signs on again.
        """
        self._uploaders.close(timeout_s)
