"""pull: a mirrored prefix as a folder on this machine, once, or again and again while the run is live.

Growing files grow in place, as they did where they were written: a program that follows the copy (``tail -f``, TensorBoard) sees
what it would see there. Other files appear whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from wherry.config import RetryConfig, TransferConfig
from wherry.errors import BucketNotFoundError, ConfigError, NotFoundError, StoreError, TransientError
from wherry.mirror.backoff_state import BackoffState
from wherry.mirror.mirror_config import lie_in_one_another
from wherry.mirror.reader.local_limits import DiskRoomStore
from wherry.mirror.reader.puller import Puller
from wherry.mirror.report import PullReport as PullReport
from wherry.store import ObjectStore
from wherry.store.environment import with_environment
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.registry import open_store
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.uri import StoreURI, absolute_path, parse_uri

#: At most this share of the time is spent on snapshots: where there are many segments, which take long to list, they are rarer.
_SNAPSHOT_SHARE = 0.2
#: What was sealed while it was fetched is looked up again so often; with `follow`, once all writers have sealed.
_MAX_ATTEMPTS = 5


def pull(
    uri: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    follow: bool = False,
    interval_s: float = 10.0,
    overwrite: bool = False,
    storage_options: Mapping[str, object] | None = None,
    on_report: Callable[[PullReport], object] | None = None,
    stop: threading.Event | None = None,
) -> PullReport:
    """Copy what a mirror at `uri` has in the store to `folder`, verified; with `follow`, every `interval_s` until it is sealed.

    A file that grows is appended to in place and keeps its inode. If it was begun again at its source, it is truncated in place.
    Any other file is replaced at once by its new version. Files that are removed from the store stay here.
    A pull that was killed or interrupted goes on where it was. `on_report` is called after each snapshot of the store; `stop`
    ends the pull between two snapshots.
    Empty objects that stand for folders are left out; names that no file can have are listed in the report's `trouble`.

    With `follow`, errors of the store are waited out, and a warning is logged, once, of a writer that is silent for long.

    Example: read the curves of a run on another machine::

        report = wherry.pull("s3://my-bucket/runs/7", "copy")
        print(report.state, report.lag_s)

    Raises ConfigError (the folder is a copy of another URI), SpoolError (it is being pulled); FileExistsError for a file that
    is there, is not of an earlier pull and is not the beginning of what the store has, unless `overwrite` is given, and for a
    link or a folder in the place of a file, or a file in that of a folder, even then; NotFoundError when there is nothing, and
    not `follow`; AccessDeniedError, IntegrityError, OSError. All other files are up to date then.
    """
    if not interval_s > 0:
        raise ConfigError(f"interval_s is {interval_s!r}: it must be a number of seconds, more than 0")
    target, stop = parse_uri(uri), stop or threading.Event()
    place = absolute_path(folder)
    if target.scheme == "file" and lie_in_one_another(place, Path("/", target.prefix)):
        raise ConfigError(f"the folder {place} and the URI {target} lie in one another: choose places beside each other")
    with _opened(target, storage_options) as store, Puller(store, target, place, overwrite=overwrite) as puller:
        return _follow(puller, interval_s, on_report, stop) if follow else _once(puller, on_report)


def open_for_reading(uri: StoreURI, storage_options: Mapping[str, object] | None = None) -> RetryStore:
    """The store of a mirror, with retries and a limit of calls at once."""
    return RetryStore(LimitStore(DiskRoomStore(_opened(uri, storage_options)), MOST_IN_FLIGHT), RetryConfig())


def _opened(uri: StoreURI, storage_options: Mapping[str, object] | None) -> ObjectStore:
    options = with_environment(uri.scheme, storage_options or {}, os.environ)
    return open_store(uri, options, stall_timeout_s=TransferConfig().stall_timeout_s)


def _once(puller: Puller, on_report: Callable[[PullReport], object] | None) -> PullReport:
    for attempts in range(1, _MAX_ATTEMPTS + 1):
        report = puller.step()
        if puller.snapshot.is_empty:
            raise NotFoundError("there is no object of this name or below it", operation="pull", uri=report.uri)
        if on_report is not None:
            on_report(report)
        if attempts == _MAX_ATTEMPTS or not puller.is_worth_retrying:
            break
    puller.raise_first()
    return report


def _follow(
    puller: Puller, interval_s: float, on_report: Callable[[PullReport], object] | None, stop: threading.Event
) -> PullReport:
    backoff = BackoffState(f"the pull of {puller.uri}", puller.retry)
    is_first = True
    was_sealed: object = None
    attempts = 0
    while True:
        try:
            report = puller.step()
        except BucketNotFoundError:
            raise
        except StoreError as error:
            if is_first and not isinstance(error, TransientError):
                raise
            backoff.note(error)
            wait_s = max(interval_s, backoff.wait_s())
        else:
            backoff.clear()
            is_first = False
            if on_report is not None:
                on_report(report)
            seal = puller.seal
            attempts = attempts + 1 if seal is not None and seal == was_sealed else 0
            if attempts and (attempts >= _MAX_ATTEMPTS or not puller.is_worth_retrying):
                puller.raise_first()
                return report
            # What was listed before the manifests were read may be older than the seal: take one more snapshot.
            wait_s = 0.0 if seal != was_sealed else max(interval_s, puller.snapshot_s / _SNAPSHOT_SHARE)
            was_sealed = seal
        if stop.wait(wait_s):
            return puller.report()
