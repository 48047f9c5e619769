"""Reader: the part of an Uploader that reads. Uploads that are still queued are seen as if they were stored."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from wherry.config import Config
from wherry.errors import BucketNotFoundError, NotFoundError
from wherry.posix.file_copy import copy_out
from wherry.posix.fork import call_in_children, leave_to_parent
from wherry.spool.download_notes import note_download
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.overlay import QueuedOverlay
from wherry.spool.spool import Spool
from wherry.store import ObjectMeta
from wherry.store.environment import public_environment
from wherry.store.governor import Governor, node_governor
from wherry.store.metered import MeteredStore, Moved
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.pacing import PacedStore, paced
from wherry.store.registry import endpoint_key, open_store, split_options
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.uri import StoreURI, check_name

#: How often a queued file that is missing from the spool is looked for again: its job ends, or fails when it is tried.
_LOST_FILE_S = 0.05


class Reader(ABC):
    """Gets, describes and lists objects by name; what is still queued in the spool is seen as if it were stored.

    The store is opened in this process at the first call that needs it, and anew after a fork.
    """

    def __init__(self, uri: StoreURI, options: Mapping[str, object], config: Config, spool: Spool, journal: Journal) -> None:
        self.uri = uri
        self.config = config
        self.spool = spool
        self.journal = journal
        self._options = dict(options)
        #: Which of the stores of `uri` it is, for the journal.
        self._endpoint = endpoint_key(uri.scheme, split_options(uri.scheme, options)[0], public_environment(uri.scheme))
        self._store: RetryStore | None = None
        self._pace: Governor | None = None
        self._moved: Moved | None = None
        call_in_children(self, Reader._forget_store)

    @abstractmethod
    def _wait(self, timeout_s: float) -> None:
        """Wait until some upload ends, at most `timeout_s`."""

    def _forget_store(self) -> None:
        """In a forked child: its parent's connections are not ours."""
        leave_to_parent(self._store)
        self._store = None

    def uri_for(self, name: str) -> str:
        """The full URI of the remote name."""
        return self.uri.uri_for(self.uri.key_for(check_name(name)))

    def get(
        self,
        name: str,
        dest: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress_bar: bool = False,
        follow_symlinks: bool = True,
    ) -> ObjectMeta:
        """Download the object `name` to the file `dest`, verified. If an upload of it is still queued, that version is copied::

            uploader.get("checkpoints/model.pt", "model.pt", overwrite=True)

        `dest` appears whole or not at all. A ``.symlink`` object is followed, unless `follow_symlinks` is off; one that is
        still queued goes before a stored object of the plain name. Raises
        FileExistsError before any byte moves if `dest` exists and `overwrite` is off; NotFoundError, AccessDeniedError,
        IntegrityError.
        """
        from wherry.transfer.download import check_destination  # here, as programs that only upload start sooner without it
        from wherry.transfer.symlinks import SYMLINK_SUFFIX, resolve

        dest, name = Path(dest), check_name(name)
        check_destination(dest, overwrite)
        if follow_symlinks and not name.endswith(SYMLINK_SUFFIX):
            view, key = self.view(), self.uri.key_for(name)
            if view.queued(key) is None and view.queued(key + SYMLINK_SUFFIX) is not None:
                name += SYMLINK_SUFFIX  # the newest, and the store may be out of reach
        try:
            if not (follow_symlinks and name.endswith(SYMLINK_SUFFIX)):
                try:
                    return self.fetch(self.uri.key_for(name), dest, overwrite, progress_bar)
                except BucketNotFoundError:
                    raise
                except NotFoundError:
                    if not follow_symlinks:
                        raise  # else it may be the name of a pointer
            return self.fetch(resolve(self.view(), self.uri, name), dest, overwrite, progress_bar)
        except NotFoundError as error:
            newest = self.journal.queries.newest(self.uri_for(name), self._endpoint)
            if newest is not None and newest.state is JobState.FAILED:
                error.hint = f"its upload failed: {newest.error}; the file is kept, see wherry status"
            raise

    def fetch(self, key: str, dest: Path, overwrite: bool = False, progress_bar: bool = False) -> ObjectMeta:
        """get() by the whole key, as it is, which need be no name that wherry would give; no pointer is followed."""
        from wherry.transfer.download import download, place

        view = self.view()
        while (job := view.queued(key)) is not None:
            try:
                staged = self.spool.open_staged(job.object_id)
            except FileNotFoundError:
                self._wait(_LOST_FILE_S)  # it was uploaded and freed while we looked, or its job will fail
                continue
            try:
                place(dest, functools.partial(copy_out, staged), job.size_bytes, overwrite=overwrite)
            finally:
                os.close(staged)
            return ObjectMeta(job.key, job.size_bytes, crc32c=job.crc32c)
        note_download(self.spool, dest.absolute().parent)
        return download(
            self.store.inner,  # download() retries range by range
            key,
            dest,
            uri=self.uri.uri_for(key),
            overwrite=overwrite,
            transfer=self.config.transfer,
            retry=self.config.retry,
            progress_bar=progress_bar,
        )

    def head(self, name: str) -> ObjectMeta:
        """Describe the object `name`, or the upload of it that is still queued; NotFoundError if there is neither."""
        return self.view().head(self.uri.key_for(check_name(name)))

    def has_accepted(self, name: str) -> bool:
        """Whether this spool knows of an upload as `name`, whatever became of it; those of the last week are known."""
        return self.journal.queries.newest(self.uri_for(name), self._endpoint) is not None

    def exists(self, name: str) -> bool:
        """Whether the object is in the store or on its way there. "Forbidden" and a missing bucket raise errors."""
        try:
            self.head(name)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Describe the objects whose name starts with `prefix`, those on their way too, by name. `key` is the remote name.

        With `start_after`, a name that need not be there, only the names that sort after it (by their UTF-8 bytes); stores that
        list by pages are then not asked for the earlier ones::

            new = [meta.key for meta in uploader.list("run1/", start_after=last_seen)]
        """
        base = f"{self.uri.prefix}/" if self.uri.prefix else ""
        for meta in self.view().list(base + prefix, start_after=start_after and base + start_after):
            yield replace(meta, key=self.uri.name_for(meta.key))

    def view(self) -> QueuedOverlay:
        """The store of this uploader, by keys and not by names, with what is still queued shown as if it were stored."""
        return QueuedOverlay(self.store, self.uri, self._endpoint, self.journal, self.spool)

    @property
    def store(self) -> RetryStore:
        """The store, by keys and without what is queued, opened in this process on first use."""
        if self._store is None:
            store = open_store(self.uri, self._options, stall_timeout_s=self.config.transfer.stall_timeout_s)
            governor = node_governor(self.uri, self._options, public_environment(self.uri.scheme), self.config.transfer)
            limited = LimitStore(store, MOST_IN_FLIGHT, governor)
            counted = limited if self._moved is None else MeteredStore(limited, self._moved)
            self._store = RetryStore(counted if self._pace is None else PacedStore(counted, self._pace), self.config.retry)
        return self._store

    def keep_pace(self, governor: Governor) -> None:
        """Move bytes as fast as it says, together with all that it paces. To be called before the store is used."""
        self._pace = governor
        self.config = replace(self.config, transfer=paced(self.config.transfer, governor))

    def tell_of_bytes(self, moved: Moved) -> None:
        """Call `moved` for all bytes that move. To be called before the store is used."""
        self._moved = moved
