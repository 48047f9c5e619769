"""The objects that a command is told to take: one, those of a pattern, or all below a prefix."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from wherry.cli.arguments import bucket_hint, parse_target, reader, split_target, storage_options
from wherry.cli.store_verbs.bar import Bar
from wherry.cli.store_verbs.patterns import Rules, is_pattern, literal_start, matches, matches_folder_of
from wherry.cli.store_verbs.pruned import objects_below
from wherry.errors import BucketNotFoundError, ConfigError, NotFoundError
from wherry.uri import TEMPORARY_MARK, StoreURI, check_name

if TYPE_CHECKING:
    from wherry.config import RetryConfig
    from wherry.store import ObjectMeta
    from wherry.store.governor import Governor
    from wherry.uploader import Uploader


#: Verbs that take an object away: they take none but that of the very name.
_DELETING = ("delete", "move")


@dataclass(frozen=True)
class Source:
    """An object that was chosen."""

    store: Uploader
    #: The object's name in that store.
    name: str
    #: What it is called below the folder that a command copies it to.
    relative: str
    #: -1 where that is not known.
    size_bytes: int

    @property
    def uri(self) -> str:
        """The object's full URI."""
        return self.store.uri.uri_for(self.key)

    @property
    def key(self) -> str:
        """The key as it was listed: a name of somebody else's may break the rules for new ones."""
        prefix = self.store.uri.prefix
        return f"{prefix}/{self.name}" if prefix else self.name

    @property
    def is_foreign(self) -> bool:
        """Whether an Uploader refuses the name, or takes it for another one: it is not of the Unicode form NFC.

        Nothing of such a name can be queued, and no pointer leads to it.
        """
        try:
            return check_name(self.name) != self.name
        except ConfigError:
            return TEMPORARY_MARK not in self.name

    def fetch(self, path: Path, *, overwrite: bool = False, progress_bar: bool = False) -> ObjectMeta:
        """Download the object, verified, from the spool if its upload is still queued; a pointer is followed."""
        if self.is_foreign:
            return self.store.fetch(self.key, path, overwrite, progress_bar)
        return self.store.get(self.name, path, overwrite=overwrite, progress_bar=progress_bar)

    def head(self) -> ObjectMeta:
        """Describe the object, or its upload that is still queued."""
        return self.store.view().head(self.key if self.is_foreign else self.store.uri.key_for(check_name(self.name)))


class Stores:
    """The stores of one command, each opened once, for reading: no agent is started, and no spool made."""

    def __init__(
        self,
        pairs: Sequence[str] | None,
        options_file: str | None,
        spool: Path,
        pace: Governor | None = None,
        bar: Bar | None = None,
        retry: RetryConfig | None = None,
    ) -> None:
        self._pairs = pairs
        self._file = options_file
        self.spool = spool
        self.pace = pace
        self._retry = retry
        #: Of what moves between these stores.
        self.bar = bar or Bar()
        self._options: dict[str, Mapping[str, object]] = {}
        self._opened: dict[StoreURI, Uploader] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def options(self, scheme: str) -> Mapping[str, object]:
        """The storage options of the command line, for stores of that scheme."""
        if scheme not in self._options:
            self._options[scheme] = storage_options(scheme, self._pairs, self._file)
        return self._options[scheme]

    def open(self, folder: StoreURI) -> Uploader:
        """A reader of what is below `folder`."""
        if folder not in self._opened:
            moved = partial(self.bar.moved, folder)
            opened = reader(folder, self.options(folder.scheme), self.spool, self.pace, moved, self._retry)
            self._opened[folder] = self._stack.enter_context(opened)
        return self._opened[folder]


def is_many(uri: str, *, recursive: bool) -> bool:
    """Whether the URI may stand for several objects, which are then put into a folder, each by its relative name."""
    return is_pattern(parse_target(uri).prefix) or (recursive and (uri.endswith("/") or not parse_target(uri).prefix))


def choose(stores: Stores, uri: str, rules: Rules, *, recursive: bool, verb: str) -> Iterator[Source]:
    """The objects that `uri` names, by name, by one listing of what they all begin with; a plain name is not looked up here.

    Raises NotFoundError if a pattern or a prefix has none; ConfigError for a prefix without `recursive`.
    """
    target, name, left_out = parse_target(uri), "", list[str]()
    if is_pattern(target.root):
        raise ConfigError(f"{uri!r}: a pattern may stand for names in a bucket, not for buckets: name one")
    if is_pattern(target.prefix):
        if uri.endswith("/") and not recursive:
            raise _is_folder(uri, verb)
        found = _matching(stores, target, rules, left_out, verb, recursive=recursive)
    elif uri.endswith("/") or not target.prefix:
        if not recursive:
            raise _is_folder(uri, verb)
        store = stores.open(target)
        found = _sources(store, objects_below(store, "", rules, left_out), verb)
    else:
        folder, name = split_target(uri)
        store = stores.open(folder)
        if not recursive:
            one = Source(store, name, name.rpartition("/")[2], -1)  # whether it is there shows when it is used
            twin = replace(one, name=unicodedata.normalize("NFC", name))  # as a shell may have completed it
            if one.is_foreign and twin.name != name and not _is_there(one):
                if verb in _DELETING and _is_there(twin):
                    raise _not_exact(one, twin, verb)
                one = twin
            yield one
            return
        found = _sources(store, _at_or_below(store, name, rules, left_out), verb)
    above = f"{name}/" if name else ""  # rules are about names below the prefix that was named
    is_any = is_taken = False
    for source in found:
        is_any = True
        if rules.take(source.relative.removeprefix(above)):
            is_taken = True
            yield source
    if not is_taken:
        is_any = is_any or bool(left_out)
        what = (
            "is taken by --include and --exclude" if is_any else ("is of this pattern" if is_pattern(uri) else "is here or below")
        )
        hint = "a character that is no pattern is written [*], [?] or [[]" if is_pattern(uri) and not is_any else bucket_hint(uri)
        raise NotFoundError(f"no object {what}", operation=verb, uri=uri, hint=hint)


def _not_exact(typed: Source, twin: Source, verb: str) -> NotFoundError:
    """Both look alike: the other name is written so that bash and zsh read it back."""
    escaped = "".join(f"\\{char}" if char in "\\'" else char if char.isascii() else f"\\U{ord(char):08x}" for char in twin.uri)
    return NotFoundError(
        f"no object has this very name, and what would be lost is one of a name that looks like it: $'{escaped}'",
        operation=verb,
        uri=typed.uri,
        hint="if that one is meant, give its name so; the characters differ in their Unicode form, NFC or NFD",
    )


def _is_there(source: Source) -> bool:
    try:
        source.head()
    except NotFoundError:
        return False
    return True


def _matching(
    stores: Stores, target: StoreURI, rules: Rules, left_out: list[str], verb: str, *, recursive: bool
) -> Iterator[Source]:
    """The objects whose names are of the pattern; with `recursive` also those below folders that are."""
    fixed = literal_start(target.prefix)
    above, _, start = fixed.rpartition("/")
    pattern = target.prefix[len(above) + 1 if above else 0 :]
    is_taken = matches_folder_of if recursive else matches
    store = stores.open(replace(target, prefix=above))
    for source in _sources(store, objects_below(store, "", rules, left_out, start), verb):
        if is_taken(pattern, source.name):
            yield source


def _at_or_below(store: Uploader, name: str, rules: Rules, left_out: list[str]) -> Iterator[ObjectMeta]:
    """The object `name` and those below it, not its neighbours whose names only begin alike: a folder of those is not entered."""
    if store.uri.scheme == "file" and os.path.isdir(f"/{store.uri.key_for(name)}"):
        return objects_below(store, f"{name}/", rules, left_out)
    return (meta for meta in store.list(name) if meta.key == name or meta.key.startswith(f"{name}/"))


def _sources(store: Uploader, listed: Iterable[ObjectMeta], verb: str) -> Iterator[Source]:
    """Yield what is listed; the empty objects that consoles make in the place of folders only for deletion."""
    return (
        Source(store, meta.key, meta.key, meta.size_bytes)
        for meta in listed
        if verb == "delete" or not (meta.key.endswith("/") and meta.size_bytes == 0)
    )


@contextmanager
def or_folder(source: Source, verb: str) -> Iterator[None]:
    """Raise ConfigError in place of NotFoundError if the object is not there, and there are objects below its name."""
    try:
        yield
    except NotFoundError as error:
        if not isinstance(error, BucketNotFoundError) and next(source.store.list(f"{source.name}/"), None) is not None:
            raise _is_folder(source.uri, verb) from error
        raise


def _is_folder(uri: str, verb: str) -> ConfigError:
    return ConfigError(f"{uri!r} is a prefix and no object: give -r to {verb} all objects below it")
