"""From an object to a file: ranges side by side into a temporary file, verified, then put in place at once.

The destination appears whole and verified or not at all. The temporary file lies beside it and is gone after any error.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from wherry.checksum import combine_crc32c, crc32c_of_file, format_crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import IntegrityError
from wherry.retry import call_with_retry
from wherry.store import TEMPORARY_MARK, ObjectMeta, ObjectStore

#: An object that is replaced while it is fetched is begun again this often; then somebody writes faster than we read.
_MOST_RESTARTS = 3


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
) -> ObjectMeta:
    """Fetch the object `key` into the file `destination`; returns what the store says of it. `uri` is for messages.

    After return the file has the object's size and, where the store knows it, its CRC32C; all bytes are of one version of the
    object, where the store has etags. Missing parent folders are made. The file's mode is that of any new file (umask).
    Calls are made again after a TransientError, each for `retry.call_deadline_s`, so the store need not do it.

    Raises FileExistsError if the destination is there and `overwrite` is off, and IsADirectoryError if it is a folder, both
    before any byte moves; OSError (ENOSPC) if the disk has no room; NotFoundError, AccessDeniedError; IntegrityError if the
    bytes are wrong twice, or if the object was replaced four times meanwhile.
    """
    destination = Path(destination)
    check_destination(destination, overwrite)
    restarts = fetched_again = 0
    while True:
        meta = call_with_retry(lambda: store.head(key), config=retry)
        with _temporary_beside(destination, meta.size_bytes) as (temporary, fd):
            os.ftruncate(fd, meta.size_bytes)
            try:
                with _progress(destination.name, meta.size_bytes, shown=progress_bar) as advance:
                    crc32c = _fetch(store, meta, temporary, transfer, retry, advance)
            except IntegrityError:
                restarts += 1
                if restarts > _MOST_RESTARTS:
                    raise
                continue
            size_bytes = os.fstat(fd).st_size
            if size_bytes == meta.size_bytes and meta.crc32c in (None, crc32c):
                _publish(temporary, destination, overwrite)
                return meta
            fetched_again += 1
            if fetched_again > 1:
                raise IntegrityError(
                    f"{_figures(size_bytes, crc32c)} came, twice, but the store says {_figures(meta.size_bytes, meta.crc32c)}",
                    operation="get",
                    uri=uri,
                    hint="the object or the way to it is damaged: upload it again, or try from another machine",
                )


def place(destination: Path, fill: Callable[[int], None], size_bytes: int, *, overwrite: bool = False) -> None:
    """Make the file `destination`, whole or not at all: `fill` writes it, through an open descriptor of an empty file.

    Raises as download() does for a destination that exists, is a folder, or has no room for `size_bytes`.
    """
    destination = Path(destination)
    check_destination(destination, overwrite)
    with _temporary_beside(destination, size_bytes) as (temporary, fd):
        fill(fd)
        _publish(temporary, destination, overwrite)


def check_destination(destination: Path, overwrite: bool) -> None:
    """Raise FileExistsError or IsADirectoryError for a destination that cannot be written."""
    try:
        destination.lstat()  # not exists(): a link to nothing is there, too, and a name that is too long is an error
    except FileNotFoundError:
        return
    if destination.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: give the name that the file shall have in it", str(destination))
    if not overwrite:
        raise _exists(destination)


def _exists(destination: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "exists already: allow overwriting or give another name", str(destination))


@contextmanager
def _temporary_beside(destination: Path, size_bytes: int) -> Iterator[tuple[Path, int]]:
    """A new empty file in the folder of `destination`, open for writing; removed at the end if it still has its name."""
    folder = destination.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    if space.f_blocks and size_bytes > free_bytes:  # a file system without a size, as some in user space, cannot be asked
        raise OSError(errno.ENOSPC, f"no room: {size_bytes} bytes are needed, {free_bytes} are free", str(folder))
    ending = TEMPORARY_MARK + secrets.token_hex(8)
    start = destination.name
    while len(os.fsencode(f".{start}{ending}")) > os.pathconf(folder, "PC_NAME_MAX"):
        start = start[:-1]
    temporary = folder / f".{start}{ending}"
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        yield temporary, fd
    finally:
        os.close(fd)
        temporary.unlink(missing_ok=True)


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


def _fetch(
    store: ObjectStore,
    meta: ObjectMeta,
    path: Path,
    transfer: TransferConfig,
    retry: RetryConfig,
    advance: Callable[[int], object],
) -> int:
    """Write the object into `path`; return the CRC32C of what the file then holds. IntegrityError: it was replaced meanwhile."""
    stop = threading.Event()

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise CancelledError

    def fetch(start: int, end: int) -> int:
        if stop.is_set():
            raise CancelledError

        def get() -> None:
            store.get_file(meta.key, path, start=start, end=end, if_match=meta.etag)

        call_with_retry(get, config=retry, sleep=sleep)
        return crc32c_of_file(path, start, end)  # from the page cache: these bytes were just written

    ranges = _ranges(meta.size_bytes, transfer.range_size_bytes if store.capabilities.ranged_get else meta.size_bytes)
    if len(ranges) == 1:
        crc = fetch(*ranges[0])
        advance(meta.size_bytes)
        return crc
    pool = ThreadPoolExecutor(min(len(ranges), transfer.ranges_in_flight) or 1, thread_name_prefix="wherry-get")
    try:
        futures = {pool.submit(fetch, start, end): end - start for start, end in ranges}
        for future in as_completed(futures):
            future.result()
            advance(futures[future])
    finally:
        stop.set()  # after an error or Ctrl-C: what waits is cancelled, what is under way ends with its range
        pool.shutdown(cancel_futures=True)
    crc = 0
    for future, size_bytes in futures.items():
        crc = combine_crc32c(crc, future.result(), size_bytes)
    return crc


def _ranges(size_bytes: int, range_size_bytes: int) -> Sequence[tuple[int, int]]:
    """[start, end) of each range; none for an empty object."""
    return [(start, min(start + range_size_bytes, size_bytes)) for start in range(0, size_bytes, max(1, range_size_bytes))]


def _figures(size_bytes: int, crc32c: int | None) -> str:
    return f"{size_bytes} bytes" + ("" if crc32c is None else f" with CRC32C {format_crc32c(crc32c)}")


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, where a bar is drawn though stderr is no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


@contextmanager
def _progress(name: str, size_bytes: int, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """A bar of bytes on stderr, if somebody is there to look at it: a terminal or a notebook."""
    if not (shown and sys.stderr is not None and (_in_notebook() or sys.stderr.isatty())):
        yield lambda n_bytes: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=size_bytes, unit="B", unit_scale=True, unit_divisor=1024, desc=name, file=sys.stderr) as bar:
        yield bar.update
