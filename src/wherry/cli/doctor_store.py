"""``wherry doctor URI``: tries each operation that wherry needs on a store, and reports what works.

Nothing is left behind: the probe objects are deleted also after an error or Ctrl-C (closing the generator does it).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from wherry.checksum import crc32c, format_crc32c
from wherry.cli.doctor import Finding, Level, ms_since
from wherry.cli.doctor_remedies import remedy_for
from wherry.cli.exit_codes import Exit, exit_for
from wherry.config import TERMINAL_RETRY, RetryConfig
from wherry.errors import AccessDeniedError, AlreadyExistsError, NotFoundError, StoreError, WherryError
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, ObjectMeta, Part, PutOptions
from wherry.store.registry import check_usable, open_store
from wherry.store.wrappers import RetryStore
from wherry.uri import StoreURI

#: Amazon refuses requests that are signed a quarter of an hour too early or late; a minute is reported.
_SKEW_S = 60.0

_T = TypeVar("_T")
#: Why an object may stay that was deleted, or must not be.
_IF_KEPT = "a locked bucket (retention, object lock, a hold) keeps each object until its time is over: pruned checkpoints stay"


@dataclass
class _Probe:
    """The steps of one examination, and what must be deleted after it."""

    store: RetryStore
    uri: StoreURI
    folder: Path
    options: Mapping[str, object]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    left: list[str] = field(default_factory=list)
    took_ms: float = 0.0

    def key(self, what: str) -> str:
        """The key of a new probe object, which is deleted at the end."""
        key = self.uri.key_for(f"wherry-doctor-{self.token}-{what}")
        self.left.append(key)
        return key

    def file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def timed(self, call: Callable[[], _T]) -> _T:
        """Call it and return its result; `took_ms` has the time that it took."""
        started_s = time.monotonic()
        try:
            return call()
        finally:
            self.took_ms = ms_since(started_s)

    def finding(self, what: str, level: Level, text: str, remedy: str = "", exit: Exit = Exit.OK) -> Finding:  # noqa: A002
        """A finding with the time that the last call took."""
        return Finding(what, level, text, remedy, self.took_ms, exit)

    def failed(self, what: str, error: Exception) -> Finding:
        """A finding for a step that failed, with the server's own message."""
        text = error.message if isinstance(error, StoreError) else str(error)
        return self.finding(what, Level.BAD, text, remedy_for(error, self.uri, self.options), exit_for(error))


def examine_store(
    uri: StoreURI, options: Mapping[str, object], retry: RetryConfig = TERMINAL_RETRY
) -> Generator[Finding, None, None]:
    """Write, read, list and delete small objects below `uri`, and report what the endpoint can do."""
    with ExitStack() as stack:
        try:
            check_usable(uri.scheme, options)
            store = RetryStore(open_store(uri, options), retry)
        except (WherryError, ImportError) as error:
            yield Finding("settings", Level.BAD, str(error), exit=exit_for(error))
            return
        stack.callback(store.close)
        stack.callback(_remove_empty, _missing_folders(uri))
        probe = _Probe(store, uri, Path(stack.enter_context(TemporaryDirectory(prefix="wherry-doctor-"))), options)
        stack.callback(_clean, probe)
        yield from _examine(probe)


def _examine(probe: _Probe) -> Iterator[Finding]:
    data = secrets.token_bytes(1000)
    key, path, crc = probe.key("object"), probe.file("sent", data), crc32c(data)
    metadata = {TOKEN_METADATA: probe.token, CRC32C_METADATA: format_crc32c(crc)}
    try:
        put = probe.timed(lambda: probe.store.put_file(key, path, PutOptions(if_absent=True, crc32c=crc, metadata=metadata)))
    except (WherryError, OSError) as error:
        yield probe.failed("write", error)
        return
    yield probe.finding("write", Level.OK, f"{len(data)} bytes to {probe.uri.uri_for(key)}")
    if probe.store.endpoint is not None:
        try:
            probe.timed(lambda: probe.store.probe(probe.key("trial/")))
            put = probe.store.put_file(key, path, PutOptions(crc32c=crc, metadata=metadata))  # with what is known by now
        except (WherryError, OSError) as error:
            yield _untried(probe, error)
    try:
        meta = probe.timed(lambda: probe.store.head(key))
        yield probe.finding("describe", Level.OK, f"{meta.size_bytes} bytes, etag {meta.etag or 'none'}")
        yield from _compare(probe, meta, put, metadata, crc)
        yield from _read_back(probe, key, data)
        yield _try_wrong_checksum(probe, put)
        yield _try_list(probe, key)
        yield _try_parts(probe, data, crc)
    except (WherryError, OSError) as error:
        yield probe.failed("read", error)
    yield _try_to_replace(probe, key)
    yield _try_delete(probe, key)


def _untried(probe: _Probe, error: Exception) -> Finding:
    """The server may still be one that honours everything, but nobody knows."""
    finding = probe.failed("server", error)
    text = f"what it honours could not be tried, so nothing is taken for granted: {finding.text}"
    return Finding("server", Level.WARN, text, "allow writing and deleting here, and look again", finding.took_ms)


def _try_to_replace(probe: _Probe, key: str) -> Finding:
    can = probe.store.capabilities
    if not can.conditional_put:
        text = "looked up first, then written: of two writers at one moment both may succeed"
        return Finding("create once", Level.WARN, text, "give each writer names of its own")
    if can.multipart and not can.conditional_complete:
        text = "a second writer of one name is refused, but large objects are only looked up first: both may succeed"
        return Finding("create once", Level.WARN, text, "give each writer of large objects names of its own")
    other = probe.file("other", b"another writer")
    try:
        probe.timed(lambda: probe.store.put_file(key, other, PutOptions(if_absent=True, crc32c=crc32c(b"another writer"))))
    except AlreadyExistsError:
        return probe.finding("create once", Level.OK, "a second writer of one name is refused")
    except (WherryError, OSError) as error:
        return probe.failed("create once", error)
    text = "the condition is ignored: a second writer of one name replaces the first, in spite of overwrite=False"
    return probe.finding("create once", Level.WARN, text, "give each writer names of its own")


def _compare(probe: _Probe, meta: ObjectMeta, put: ObjectMeta, metadata: Mapping[str, str], crc: int) -> Iterator[Finding]:
    if {name: meta.metadata.get(name) for name in metadata} == dict(metadata):
        yield Finding("metadata", Level.OK, "kept: downloads from any machine are verified")
    elif meta.crc32c == crc:
        yield Finding("metadata", Level.OK, "not kept, but the checksum is: downloads from any machine are verified")
    else:
        yield Finding("metadata", Level.WARN, "not kept: a download from another machine can only compare sizes")
    if put.crc32c == crc and probe.store.capabilities.checks_crc32c:
        yield Finding("checksum", Level.OK, "CRC32C, computed by the store itself and compared with ours")
    else:
        yield Finding("checksum", Level.OK, "none from the store: each upload is read back and compared")
    if meta.modified_s is not None and abs(skew_s := meta.modified_s - time.time()) > _SKEW_S:
        text = f"the store's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
        remedy = "set this machine's clock (NTP): from a quarter of an hour on, requests are refused"
        yield Finding("clock", Level.WARN, text, remedy)


def _try_wrong_checksum(probe: _Probe, put: ObjectMeta) -> Finding:
    if put.crc32c is None or not probe.store.capabilities.checks_crc32c:
        return Finding("damage", Level.OK, "not looked for by the store, but by wherry")
    if probe.store.endpoint is not None:  # tried before: checks_crc32c comes from it
        return Finding("damage", Level.OK, "bytes that do not fit their checksum are refused")
    key, path = probe.key("damaged"), probe.file("damaged", b"these bytes")
    try:
        probe.timed(lambda: probe.store.put_file(key, path, PutOptions(crc32c=crc32c(b"those bytes"))))
    except StoreError:
        return probe.finding("damage", Level.OK, "bytes that do not fit their checksum are refused")
    text = "bytes that do not fit their checksum are accepted, though the store confirms checksums"
    return probe.finding("damage", Level.WARN, text, "give the storage option checksums=false: then wherry reads back")


def _read_back(probe: _Probe, key: str, data: bytes) -> Iterator[Finding]:
    target = probe.file("whole", b"")
    probe.timed(lambda: probe.store.get_file(key, target))
    if target.read_bytes() == data:
        yield probe.finding("read", Level.OK, "the same bytes came back")
    else:
        text = "other bytes came back than were written"
        yield probe.finding("read", Level.BAD, text, "do not trust this store", Exit.INTEGRITY)
    if not probe.store.capabilities.ranged_get:
        yield Finding("read a range", Level.OK, "no: each download is one stream")
        return
    target = probe.file("range", bytes(len(data)))
    probe.timed(lambda: probe.store.get_file(key, target, start=100, end=200))
    if target.read_bytes()[100:200] == data[100:200]:
        yield probe.finding("read a range", Level.OK, "yes: large downloads are made of ranges side by side")
    else:
        yield probe.finding("read a range", Level.BAD, "other bytes came than were asked for", "", Exit.INTEGRITY)


def _try_list(probe: _Probe, key: str) -> Finding:
    try:
        found = probe.timed(lambda: [meta.key for meta in probe.store.list(key)])
    except (WherryError, OSError) as error:
        return probe.failed("list", error)
    if key in found:
        return probe.finding("list", Level.OK, "a new object is listed at once")
    return probe.finding("list", Level.WARN, "a new object is not listed at once", "listings may be behind: rely on names")


def _try_parts(probe: _Probe, data: bytes, crc: int) -> Finding:
    if not probe.store.capabilities.multipart:
        return Finding("parts", Level.OK, "no: each object is sent in one piece")
    key, path, part = probe.key("parts"), probe.folder / "sent", Part(1, 0, len(data), crc)

    def send() -> None:
        upload_id = probe.store.begin(key, len(data), PutOptions(crc32c=crc))
        try:
            stored = probe.store.put_part(key, upload_id, path, part)
            probe.store.complete(key, upload_id, [stored], PutOptions(crc32c=crc))
        except BaseException:
            with suppress(WherryError):  # the first error counts
                probe.store.abort(key, upload_id)
            raise

    try:
        probe.timed(send)
    except (WherryError, OSError) as error:
        return probe.failed("parts", error)
    return probe.finding("parts", Level.OK, "yes: large objects are sent in parts side by side, and resumed")


def _try_delete(probe: _Probe, key: str) -> Finding:
    try:
        probe.timed(lambda: probe.store.delete(key))
        with suppress(NotFoundError, AccessDeniedError):  # without permission to list, S3 answers "forbidden" for missing objects
            probe.store.head(key)
            return probe.finding("delete", Level.WARN, "accepted, but the object is still there", _IF_KEPT)
    except (WherryError, OSError) as error:
        finding = probe.failed("delete", error)
        remedy = f"allow it where checkpoints are to be removed; {_IF_KEPT}. Left behind: {probe.uri.uri_for(key)}"
        return Finding("delete", Level.WARN, finding.text, remedy, finding.took_ms)
    probe.left.remove(key)
    versions = "" if probe.store.endpoint is None else "; if the bucket keeps versions, its bytes stay, and are paid for"
    return probe.finding("delete", Level.OK, f"the object is gone{versions}")


def _clean(probe: _Probe) -> None:
    """Delete the probe objects that may exist. Errors are ignored: the step that failed has reported them."""
    for key in probe.left:
        with suppress(WherryError, OSError):
            probe.store.inner.delete(key)  # without retries: a dead endpoint was waited for already


def _missing_folders(uri: StoreURI) -> list[Path]:
    """Folders that a put to a local store will make, the innermost first."""
    if uri.scheme != "file":
        return []
    folder = Path("/", uri.prefix)
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # somebody else uses it by now
            folder.rmdir()
