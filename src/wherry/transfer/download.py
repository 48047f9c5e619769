"""Downloads an object: its ranges in parallel, into a temporary file, which is verified and then gets its final name.

The destination appears whole and verified or not at all. What an interrupted call has fetched stays beside it for the next one
(wherry.transfer.resume).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from pathlib import Path

from wherry.checksum import crc32c_of_file, format_crc32c, join_crc32c, parse_range_sums, regroup_crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import IntegrityError, NotFoundError
from wherry.posix.thread_pool import DaemonThreadPool, first_done
from wherry.store import RANGES_METADATA, ObjectMeta, ObjectStore
from wherry.store.retry import call_with_retry
from wherry.transfer.concurrency import Concurrency
from wherry.transfer.digest import Digest
from wherry.transfer.resume import Partial, Version, forget_partial, partial_beside, temporary_beside

log = logging.getLogger("wherry.transfer.download")

#: If the object is replaced while it is fetched, the download begins again, at most so often.
_MOST_RESTARTS = 3
_DAMAGED = "the bytes are damaged in the store or on the way: try from another machine, or upload the object again"
_DAMAGED_OR_NO_MD5 = f"{_DAMAGED}; if it is an S3 server whose ETags are no MD5s, give the storage option checksums=False"


def download(
    store: ObjectStore,
    key: str,
    destination: Path,
    *,
    uri: str,
    overwrite: bool = False,
    transfer: TransferConfig,
    retry: RetryConfig,
    progress_bar: bool = False,
    advance: Callable[[int], object] | None = None,
) -> ObjectMeta:
    """Fetch the object `key` into the file `destination`; returns what the store says of it. `uri` is for messages.

    `advance` is told of the bytes of each range that has come; less than 0 if they have to be fetched again.

    After return the file has the object's size and, where the store knows one, its CRC32C or other digest; all bytes are of one
    version of the object, as far as its etag, or else its size and time, tells versions apart. Missing parent folders are made.
    The file's mode is that of any new file (umask). Calls that raise TransientError are retried, each for
    `retry.call_deadline_s`; the store need not retry.

    A download that was killed, interrupted or given up is resumed by the next call: it verifies the ranges that are there, and
    fetches the others, unless the etag or the size of the object has changed. Of two calls to one destination at the same time,
    the second begins at the first byte, in a file of its own. So do downloads of objects of one range, or without an etag.

    Raises, before any byte is fetched, FileExistsError if the destination is there and `overwrite` is off; IsADirectoryError if
    it is a folder; OSError (EINVAL) if it is a device or a pipe; OSError (ENOSPC) if the disk has no room; NotFoundError,
    AccessDeniedError; IntegrityError if the bytes are wrong twice, or if the object was replaced four times meanwhile. If the
    object's metadata has checksums of its ranges, only the wrong range is fetched again, at once, and the error names it.
    """
    destination = Path(destination)
    check_destination(destination, overwrite)
    restarts = 0
    while True:
        try:
            meta = call_with_retry(lambda: store.head(key), config=retry)
        except NotFoundError:
            forget_partial(destination, uri)
            raise
        range_size_bytes = transfer.range_size_bytes if store.capabilities.ranged_get else max(1, meta.size_bytes)
        version = Version(uri, meta.etag, meta.size_bytes, range_size_bytes)
        with partial_beside(destination, version) as partial:
            fetch = _Fetch(store, meta, partial, transfer.ranges_in_flight, retry)
            try:
                with _progress(destination.name, meta.size_bytes, shown=progress_bar) as show:
                    fetch.all(advance or show)
                is_right = fetch.agrees() or fetch.repair()
                if meta.etag is None:
                    _require_same(meta, call_with_retry(lambda: store.head(key), config=retry), uri)
            except IntegrityError as error:
                restarts += 1
                if error is fetch.damage or restarts > _MOST_RESTARTS:
                    raise
                continue
            if not is_right:
                raise IntegrityError(
                    f"{fetch.figures()} came, twice, but the store says {_figures(meta.size_bytes, meta.crc32c, meta.digest)}",
                    operation="get",
                    uri=uri,
                    hint=_DAMAGED if meta.crc32c is not None else _DAMAGED_OR_NO_MD5,
                )
            _publish(partial.path, destination, overwrite)
            return meta


def place(destination: Path, fill: Callable[[int], None], size_bytes: int, *, overwrite: bool = False) -> None:
    """Make the file `destination`, whole or not at all: `fill` writes it, through an open descriptor of an empty file.

    Raises as download() does for a destination that exists, is a folder, or has no room for `size_bytes`.
    """
    destination = Path(destination)
    check_destination(destination, overwrite)
    with temporary_beside(destination, size_bytes) as (temporary, fd):
        fill(fd)
        _publish(temporary, destination, overwrite)


def check_destination(destination: Path, overwrite: bool) -> None:
    """Raise FileExistsError, IsADirectoryError or OSError for a destination that cannot be written, or must not be replaced."""
    try:
        destination.lstat()  # not exists(): a link to nothing is there, too, and a name that is too long is an error
    except FileNotFoundError:
        return
    if destination.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: give the name that the file shall have in it", str(destination))
    if destination.exists() and not destination.is_file():  # root could put a file in the place of /dev/null
        raise OSError(errno.EINVAL, "is a device, a pipe or a socket: give the name of a file", str(destination))
    if not overwrite:
        raise _exists(destination)


def _exists(destination: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "exists already: allow overwriting or give another name", str(destination))


def _publish(temporary: Path, destination: Path, overwrite: bool, *, link: Callable[[Path, Path], None] = os.link) -> None:
    """Give the whole file its name. Without `overwrite`, a file that appeared meanwhile is kept, and FileExistsError raised."""
    if overwrite:
        os.replace(temporary, destination)
        return
    try:
        link(temporary, destination)
        return
    except FileExistsError:
        raise _exists(destination) from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EINVAL):
            raise
    # No hard links here (FAT, some network file systems): take the name with an empty file, which only one can, and replace it.
    try:
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        raise _exists(destination) from None
    os.replace(temporary, destination)


class _Fetch:
    """Fetches one version of an object into one file, range by range. `crcs` has the CRC32C of each range in the file."""

    def __init__(self, store: ObjectStore, meta: ObjectMeta, partial: Partial, in_flight: int, retry: RetryConfig) -> None:
        self._store = store
        self._meta = meta
        self._partial = partial
        self._version = partial.version
        self._in_flight = in_flight
        self._concurrency = Concurrency(in_flight)
        self._retry = retry
        self._stop = threading.Event()
        self.crcs: dict[int, int] = {}
        #: The error to raise if a range was wrong twice.
        self.damage: IntegrityError | None = None
        self._sums = _sums_of_ranges(meta, self._version)
        self._fetched_again: set[int] = set()
        #: The file's digest, for objects without a known CRC32C; None if it has to be computed again.
        self._digest: str | None = None

    def all(self, advance: Callable[[int], object]) -> None:
        """Fetch every range that the file does not hold yet. IntegrityError: the object was replaced meanwhile, or `damage`."""
        follower = Digest(self._meta.digest, self._partial.path) if self._follows_digest else None

        def done(number: int) -> Sequence[int]:
            start, end = self._version.range(number)
            advance(end - start)
            if follower is not None:
                follower.add(start, end)
            wrong = self._judge(number)
            for start, end in map(self._version.range, wrong):
                advance(start - end)
            return wrong

        self._each(self._settle, range(self._version.n_ranges), done)
        self._digest = None if follower is None else follower.text()

    def agrees(self) -> bool:
        """Whether the file has the size and the checksum that the store has for the object."""
        if self._partial.path.stat().st_size != self._meta.size_bytes:
            return False
        if self._meta.crc32c is not None:
            return self._crc32c() == self._meta.crc32c
        if not self._follows_digest:
            log.info("%s: the store has no checksum of it, so only its size was compared", self._meta.key)
            return True
        if self._digest is None:
            whole = Digest(self._meta.digest, self._partial.path)
            whole.add(0, self._meta.size_bytes)
            self._digest = whole.text()
        return self._digest == self._meta.digest

    def repair(self) -> bool:
        """Fetch ranges again until the file agrees; False if it does not after all of them.

        This is for objects whose metadata has no checksums of ranges: those of other programs, and small ones. The store has one
        checksum, of the whole object, so the wrong range is known only when its bytes have been fetched twice. As many ranges as
        may be in flight are fetched again at a time, in place. If one of them has changed, the whole is compared again, and the
        repair ends when that agrees. It takes one such wave at best, and the whole object at worst.
        """
        os.truncate(self._partial.path, self._meta.size_bytes)
        for first in range(0, self._version.n_ranges, self._in_flight):
            wave = range(first, min(first + self._in_flight, self._version.n_ranges))
            before = [self.crcs[number] for number in wave]
            self._each(self._get, wave)
            if before != [self.crcs[number] for number in wave]:
                self._digest = None
                if self.agrees():
                    return True
        self._digest = None  # ranges that came right both times may have been wrong in the file only
        return self.agrees()

    def figures(self) -> str:
        """The size and the checksums of what was fetched, for messages."""
        return _figures(self._partial.path.stat().st_size, self._crc32c(), self._digest)

    @property
    def _follows_digest(self) -> bool:
        return self._meta.crc32c is None and self._meta.digest is not None

    def _crc32c(self) -> int:
        crcs = [self.crcs[number] for number in range(self._version.n_ranges)]
        return join_crc32c(crcs, self._version.range_size_bytes, self._version.size_bytes)

    def _judge(self, number: int) -> Sequence[int]:
        """Check the ranges that share this one's checksum, once all are there. Returns those to fetch again if it is wrong."""
        if self._sums is None:
            return ()
        judged_bytes, sums = self._sums
        n_together = judged_bytes // self._version.range_size_bytes
        at = number // n_together
        together = range(at * n_together, min((at + 1) * n_together, self._version.n_ranges))
        if not all(each in self.crcs for each in together):
            return ()
        start, end = self._version.range(together[0])[0], self._version.range(together[-1])[1]
        crc = join_crc32c([self.crcs[each] for each in together], self._version.range_size_bytes, end - start)
        if crc == sums[at]:
            return ()
        if at in self._fetched_again:
            self.damage = IntegrityError(
                f"bytes {start}-{end - 1} came wrong, twice: with CRC32C {format_crc32c(crc)}, the object's metadata says "
                f"{format_crc32c(sums[at])}",
                operation="get",
                uri=self._version.uri,
                hint=_DAMAGED,
            )
            raise self.damage
        self._fetched_again.add(at)
        for each in together:
            del self.crcs[each]
            self._partial.recorded.pop(each, None)
        return together

    def _each(
        self, call: Callable[[int], int], numbers: Sequence[int], done: Callable[[int], Sequence[int]] = lambda number: ()
    ) -> None:
        """Run `call`, which returns a range's CRC32C, for several ranges side by side.

        This thread calls `done` after each; it returns the ranges to run `call` for again, before any other.
        """
        if len(numbers) <= 1:
            for number in numbers:
                self.crcs[number] = call(number)
                done(number)  # an object of one range is judged as a whole
            return
        waiting, running = deque(numbers), dict[Future[tuple[int, float]], int]()
        pool = DaemonThreadPool(min(len(numbers), self._in_flight), "wherry-get")
        try:
            while waiting or running:
                while waiting and len(running) < self._concurrency.limit:
                    number = waiting.popleft()
                    running[pool.submit(_timed, call, number)] = number
                for future in first_done(running):
                    number = running.pop(future)
                    self.crcs[number], busy_s = future.result()
                    start, end = self._version.range(number)
                    self._concurrency.add(end - start, busy_s, len(running))
                    waiting.extendleft(reversed(done(number)))
        except BaseException:
            self._stop.set()  # after an error or Ctrl-C no range is begun; calls under way end with their range
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _settle(self, number: int) -> int:
        """Keep a range that an earlier call has fetched, if its CRC32C is still the recorded one; otherwise fetch it."""
        recorded = self._partial.recorded.get(number)
        if recorded is not None and recorded == crc32c_of_file(
            self._partial.path, *self._version.range(number), stop=self._check
        ):
            return recorded
        return self._get(number)

    def _get(self, number: int) -> int:
        self._check()
        start, end = self._version.range(number)

        def get() -> int | None:
            return self._store.get_file(self._meta.key, self._partial.path, start=start, end=end, if_match=self._meta.etag)

        crc = call_with_retry(get, config=self._retry, sleep=self._sleep)
        if crc is None:
            crc = crc32c_of_file(self._partial.path, start, end)  # from the page cache: these bytes were just written
        self._partial.note(number, crc)
        return crc

    def _check(self) -> None:
        if self._stop.is_set():
            raise CancelledError

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise CancelledError


def _timed(call: Callable[[int], int], number: int) -> tuple[int, float]:
    """What `call` returns, and the seconds of a processor that it took."""
    begun_s = time.thread_time()
    return call(number), time.thread_time() - begun_s


def _require_same(before: ObjectMeta, after: ObjectMeta, uri: str) -> None:
    """IntegrityError if a store without etags describes the object differently before and after its ranges were fetched."""
    first, last = ((meta.size_bytes, meta.modified_s, meta.crc32c, meta.digest, meta.etag) for meta in (before, after))
    if first != last:
        raise IntegrityError("the object was replaced while it was fetched", operation="get", uri=uri)


def _sums_of_ranges(meta: ObjectMeta, version: Version) -> tuple[int, list[int]] | None:
    """(size of a piece, CRC32C of each piece), from the object's metadata; None if only the whole object can be checked.

    A piece is a whole number of the ranges of the metadata, and of those that are fetched. Checksums that do not combine to the
    object's own CRC32C are of other bytes (somebody has copied the metadata to another object), and are ignored.
    """
    found = parse_range_sums(meta.metadata.get(RANGES_METADATA, ""), meta.size_bytes)
    if found is None:
        return None
    range_bytes, sums = found
    if join_crc32c(sums, range_bytes, meta.size_bytes) != meta.crc32c:
        return None
    judged_bytes = math.lcm(range_bytes, version.range_size_bytes)
    if judged_bytes >= meta.size_bytes:
        return None
    return judged_bytes, regroup_crc32c(sums, range_bytes, judged_bytes, meta.size_bytes)


def _figures(size_bytes: int, crc32c: int | None, digest: str | None) -> str:
    sums = [] if crc32c is None else [f"CRC32C {format_crc32c(crc32c)}"]
    sums += [] if digest is None else [digest.replace(":", " ").upper()]
    return f"{size_bytes} bytes" + (f" with {' and '.join(sums)}" if sums else "")


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, where a bar is drawn though stderr is no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


@contextmanager
def _progress(name: str, size_bytes: int, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """A bar of bytes on stderr, if that is a terminal or this is a notebook."""
    if not (shown and sys.stderr is not None and (_in_notebook() or sys.stderr.isatty())):
        yield lambda n_bytes: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=size_bytes, unit="iB", unit_scale=True, unit_divisor=1024, desc=name, file=sys.stderr) as bar:
        yield bar.update
