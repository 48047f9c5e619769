"""restore() as all ranks take part in it: which set is tried, whose objects of it, and what happens when it is damaged."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.documents import DamagedDocumentError
from wherry.checkpoints.protocol.names import RunKeys
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.reading import reading
from wherry.checkpoints.restore import DamagedSetError, FolderRestore, Keyed, PrunedWhileRestoringError
from wherry.checkpoints.restoring.exchange import LEAST_BYTES, Bucket, exchange_between_nodes, node_of
from wherry.checkpoints.restoring.fan_out import Meeting
from wherry.checkpoints.restoring.together import Together, together
from wherry.checkpoints.world import World
from wherry.errors import ConfigError, NotFoundError, StoreError, WherryError
from wherry.progress import ByteBar
from wherry.store import ObjectMeta
from wherry.transfer.download import download
from wherry.uploader import Uploader

log = logging.getLogger("wherry.checkpoints")

Ranks = Literal["own"] | Collection[int] | None


@dataclass(frozen=True)
class Part:
    """Whose objects of a set are wanted. `ranks`: None for all."""

    ranks: tuple[int, ...] | None

    @classmethod
    def of(cls, ranks: Ranks, world: World, manifest: Manifest) -> Part:
        """Check what the user has given against the set. ConfigError."""
        if ranks is None:
            return cls(None)
        if ranks == "own":
            if world.size != manifest.world:
                raise ConfigError(
                    f"the set {manifest.set} was saved by {manifest.world} ranks and this is rank {world.rank} of {world.size}, "
                    "which has no part of its own in it: restore() the whole set to a folder, or say which ranks= of it"
                )
            return cls((world.rank,))
        if not isinstance(ranks, Collection) or not ranks or not all(_is_rank(rank, manifest.world) for rank in ranks):
            raise ConfigError(
                f"ranks={ranks!r}: give 'own', or ranks from 0 to {manifest.world - 1}, as the set {manifest.set} has"
            )
        return cls(tuple(sorted(set(ranks))))

    def objects(self, catalog: Catalog, manifest: Manifest, others: Together) -> list[Keyed]:
        """The objects, each with its key. Of a whole set rank 0 reads the receipts, and tells the others. DamagedSetError."""
        if self.ranks is None:
            return others.first(lambda: _objects(catalog, manifest, None))
        return _objects(catalog, manifest, self.ranks)


def _is_rank(rank: object, world: int) -> bool:
    return isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < world


def _objects(catalog: Catalog, manifest: Manifest, ranks: Collection[int] | None) -> list[Keyed]:
    try:
        return catalog.objects(manifest, ranks)
    except (DamagedDocumentError, NotFoundError) as error:
        raise DamagedSetError(f"a receipt is damaged: {error}", operation="restore", uri=str(manifest.set)) from error


@dataclass(frozen=True)
class Restoring:
    """One call of restore() on this rank. `ranks`: whose objects. `together`: whether all ranks call it; None: if they can."""

    uploader: Uploader
    keys: RunKeys
    world: World
    folder: Path
    ranks: Ranks = None
    together: bool | None = None
    exchange: bool | Literal["auto"] = "auto"
    progress_bar: bool = False

    def __post_init__(self) -> None:
        if self.exchange not in (True, False, "auto"):
            raise ConfigError(f"exchange={self.exchange!r}: give True, False or 'auto'")

    def first_whole(self, candidates: Iterator[Manifest], *, falls_back: bool) -> Manifest | None:
        """Restore the first of the candidates, or, if it is damaged and `falls_back` is on, the first after it that is whole.

        All ranks try the same one, and take the next only together: several that are not together take none. None: there is no
        other. Raises DamagedSetError; OtherRankFailedError if this rank could have gone on, and another could not.
        """
        with together(self.world, self.together) as others:
            leads = self._leads(others)
            falls_back = falls_back and (self.world.size == 1 or not others.is_alone)
            while (manifest := others.first(lambda: next(candidates, None))) is not None:
                damage = self._damage_or_none(manifest, others, leads)
                if damage is None:
                    return manifest
                if not falls_back:
                    damage.hint = damage.hint or "another set can be restored, by its step or its name"
                    raise damage
                what = "was pruned" if isinstance(damage, PrunedWhileRestoringError) else "is damaged"
                log.error("the set %s %s, the newest other one is restored: %s", manifest.set, what, damage)
        return None

    def _leads(self, others: Together) -> list[int]:
        """The first rank of each node, if the nodes are to exchange what they fetch, and can; else none."""
        node = node_of(self.uploader.spool.folder)
        wanted = (self.exchange, self.ranks is None, self.uploader.config.transfer.range_size_bytes)
        said = others.each((node, wanted))
        if self.exchange is False or any(each != wanted for _, each in said) or self.ranks is not None:
            return []
        nodes = [each for each, _ in said]
        leads = sorted({nodes.index(each) for each in nodes})
        return leads if len(leads) > 1 else []

    def _damage_or_none(self, manifest: Manifest, others: Together, leads: list[int]) -> DamagedSetError | None:
        """What is wrong with the set; None: it is restored, on all ranks."""
        try:
            self._restore_on_all(manifest, others, leads)
        except DamagedSetError as error:
            return error
        return None

    def _restore_on_all(self, manifest: Manifest, others: Together, leads: list[int]) -> None:
        with ExitStack() as marked:
            restored: FolderRestore | None = None
            error: Exception | None = None
            try:
                # Rank 0 tells prune for all.
                others.first(lambda: marked.enter_context(reading(self.uploader.store, self.keys, manifest.set)))
                restored = self._restore_set(manifest, others, leads)
            except (WherryError, OSError) as failure:
                error = self._with_uri(failure)
            verdict = others.settle(error, DamagedSetError, str(manifest.set))
            if isinstance(verdict, DamagedSetError):
                _take_back(others, restored)
            if verdict is not None:
                raise verdict

    def _with_uri(self, error: Exception) -> Exception:
        """The error with the URI of the object whose key it names."""
        if isinstance(error, StoreError) and error.uri.startswith(f"{self.keys.base}/"):
            error.uri = self.uploader.uri.uri_for(error.uri)
        return error

    def _restore_set(self, manifest: Manifest, others: Together, leads: list[int]) -> FolderRestore:
        part = Part.of(self.ranks, self.world, manifest)
        objects = part.objects(Catalog(self.uploader.store, self.keys), manifest, others)
        same = (str(self.uploader.uri), self.keys.base, str(manifest.set), str(part.ranks))
        with progress_of(objects, shown=self.progress_bar) as advance:
            restore = FolderRestore(
                objects,
                self.folder,
                set_name=str(manifest.set),
                fetch=lambda key, path: self._fetch(restore.advance, key, path),
                meeting=Meeting(lambda: self.uploader.spool.inside("restores"), *same),
                advance=advance,
            )
            is_worth_it = self.exchange is True or sum(one.size_bytes for _, one in objects) >= LEAST_BYTES
            try:
                if leads and is_worth_it:
                    exchange_between_nodes(others, leads, restore, self._bucket())
                restore.run()
            finally:
                restore.close()
        return restore

    def _bucket(self) -> Bucket:
        store, config = self.uploader.store.inner, self.uploader.config
        return Bucket(store, self.uploader.uri.uri_for, config.transfer, config.retry, partial(self._fetch, lambda n_bytes: None))

    def _fetch(self, advance: Callable[[int], object], key: str, path: Path) -> ObjectMeta:
        return download(
            self.uploader.store.inner,  # download() retries range by range
            key,
            path,
            uri=self.uploader.uri.uri_for(key),
            overwrite=True,
            transfer=self.uploader.config.transfer,
            retry=self.uploader.config.retry,
            advance=advance,
        )


def _take_back(others: Together, restored: FolderRestore | None) -> None:
    """Another rank has found damage in the set that this one has restored. What was there before the call is not removed, but
    gets another name. Ranks may have given one folder: those that have made it come first.
    """
    if restored is not None and not restored.was_there:
        shutil.rmtree(restored.folder, ignore_errors=True)
    others.each(None)
    if restored is not None and restored.was_there and restored.folder.exists():
        aside = restored.folder.with_name(f"{restored.folder.name}.{restored.set_name}")
        log.error("%s holds a set that is damaged in the bucket: it is %s now", restored.folder, aside)
        os.rename(restored.folder, aside)
    others.each(None)


@contextmanager
def progress_of(objects: Collection[Keyed], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar of the bytes of a set on stderr: what to call with the number of those that have come, from any thread."""
    lock = threading.Lock()
    with ByteBar("restoring", sum(expected.size_bytes for _, expected in objects), shown=shown) as bar:

        def advance(n_bytes: int) -> None:
            with lock:
                bar.advance(n_bytes)

        yield advance
